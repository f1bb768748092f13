"""Counts of leaked ledgers: their file of JSON, and the table and the picture of ``docs/how-much-pulsar-leaks.md``.

Invariant: a cell shows what was counted in the rows of the file, or that it was not run.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.reporting import Table

BEGIN = "<!-- counts of `python -m tests.benchmarks leaks`: begin -->"
END = "<!-- counts of `python -m tests.benchmarks leaks`: end -->"


class Mode(StrEnum):
    """Use of the sidecar, in the order in which one cluster has them."""

    NONE = "none"
    DELETIONS = "deletions"
    WATCH = "watch"

    @property
    def title(self) -> str:
        return {"none": "no sidecar", "deletions": "deletions through the sidecar", "watch": "watch alone"}[self]


class Operation(StrEnum):
    """Clients' operations; each leaves ledgers for the broker to delete."""

    TOPIC_DELETION = "topic deletion"
    TRIM = "trim"
    REGISTRATION = "schema registration"
    RACE = "schema registration, two clients at once"
    SCHEMA_DELETION = "schema deletion"
    CURSOR_ROLLOVER = "cursor roll-over"
    OFFLOAD = "offload"

    @property
    def is_by_sidecar(self) -> bool:
        """True if the sidecar has a route for it; everything else is the brokers' work, for any client."""
        return self in (Operation.TOPIC_DELETION, Operation.SCHEMA_DELETION)


class Control(StrEnum):
    """Counts beside the operations."""

    IDLE = "topics that nobody touches"
    LEFT = "ledgers left on purpose"
    SYSTEM_TOPICS = "namespaces: brokers' topics in them"
    OTHERS = "topics of brokers and the sidecar elsewhere"


def machine() -> str:
    """Return this machine's shape."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    return f"{os.cpu_count()} cores, {gib:.0f} GiB"


@dataclass(frozen=True, slots=True)
class Row:
    """Counts of an operation or a control on one version, in one mode.

    Attributes:
        kills: how often both brokers were killed meanwhile; 0 without kills.
        leaked: ledgers in BookKeeper that nothing references in the end.
        never_referenced: those of them that no node ever named, by ZooKeeper's log.
        kinds: those leaked, by their own metadata.
        copies: offload attempts with objects in tiered storage that no list names.
        resumed: how often the run released the watch's brake, as an operator does.
    """

    version: str
    mode: str | None
    operation: str
    kills: int
    operations: int
    leaked: int
    never_referenced: int
    kinds: dict[str, int]
    copies: int
    resumed: int
    seed: int
    seconds: float
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d", time.gmtime()))
    machine: str = field(default_factory=machine)

    @property
    def run(self) -> tuple[object, ...]:
        """Rows of the same run replace each other; others add up."""
        return self.version, self.mode, self.operation, bool(self.kills), self.seed


def write(rows: Sequence[Row], results: Path | None, page: Path | None) -> None:
    """Add rows to the file of results, and write the page's counts and its picture from the whole file."""
    if results is None:
        return
    known = [Row(**each) for each in json.loads(results.read_text())] if results.exists() else []
    kept = list({row.run: row for row in (*known, *rows)}.values())
    results.write_text("[\n" + ",\n".join(json.dumps(asdict(row)) for row in kept) + "\n]\n")
    if page is not None:
        before, _, rest = page.read_text().partition(BEGIN)
        counts = "\n".join(each.markdown() for each in (rates(kept), controls(kept)))
        page.write_text(f"{before}{BEGIN}\n\n{counts}\n{END}{rest.partition(END)[2]}")
        _draw(kept, page.with_suffix(".svg"))


def rates(rows: Sequence[Row]) -> Table:
    """Return a row for each operation on each version, all runs of it added up."""
    columns = [(mode, killed) for mode in Mode for killed in (False, True)]
    found = [
        (
            version,
            operation,
            *(_cell(_chosen(rows, version, operation, *column), operation, *column) for column in columns),
        )
        for version in _versions(rows)
        for operation in Operation
    ]
    titles = [f"{mode.title}{', brokers killed' if killed else ''}" for mode, killed in columns]
    runs = sorted({f"{row.version} with seed {row.seed} on {row.date} ({row.machine})" for row in rows})
    resumed = sorted({f"{row.version}, seed {row.seed}: {row.resumed}" for row in rows if row.resumed})
    braked = f" Times that the run released the watch's brake, as an operator does: {'; '.join(resumed) or 'none'}."
    note = f"Counted: {'; '.join(runs)}.{braked}"
    return Table("Ledgers leaked for each 1,000 operations", ("Pulsar", "operation", *titles), found, [note])


def controls(rows: Sequence[Row]) -> Table:
    """Return a row for each control on each version, all runs of it added up."""
    found = [
        (version, control, *(_leaked(_chosen(rows, version, control, mode, is_killed=False)) for mode in (*Mode, None)))
        for version in _versions(rows)
        for control in Control
    ]
    return Table("Ledgers that leaked elsewhere", ("Pulsar", "", *(mode.title for mode in Mode), "all modes"), found)


def _leaked(rows: Sequence[Row]) -> str:
    leaked, count = sum(row.leaked for row in rows), sum(row.operations for row in rows)
    return f"{leaked} of {count}" if count else str(leaked) if rows else ""


def _cell(rows: Sequence[Row], operation: Operation, mode: Mode, is_killed: bool) -> str:
    if mode is Mode.DELETIONS and not operation.is_by_sidecar:
        return "-"
    if not rows:
        return "not run"
    leaked, operations, kills, never, copies = (
        sum(getattr(row, name) for row in rows)
        for name in ("leaked", "operations", "kills", "never_referenced", "copies")
    )
    details = [f"{count} {of}" for count, of in ((never, "never referenced"), (copies, "copies")) if count]
    kill = [f"{kills} kills"] if is_killed else []
    return f"**{_rate(rows):,.0f}** ({', '.join([f'{leaked} of {operations}', *kill, *details])})"


def _rate(rows: Sequence[Row], *, once_referenced: bool = False) -> float:
    leaked = sum(row.leaked - once_referenced * row.never_referenced for row in rows)
    return 1_000 * leaked / sum(row.operations for row in rows)


def _chosen(rows: Sequence[Row], version: str, operation: str, mode: Mode | None, is_killed: bool) -> list[Row]:
    wanted = (version, operation, mode, is_killed)
    return [row for row in rows if (row.version, row.operation, row.mode, bool(row.kills)) == wanted]


def _versions(rows: Sequence[Row]) -> list[str]:
    return sorted({row.version for row in rows}, key=lambda version: [int(part) for part in version.split(".")])


def _draw(rows: Sequence[Row], picture: Path) -> None:
    """Draw a panel for each version, with the rates while brokers were killed; pale is what was never referenced."""
    import matplotlib as mpl  # `make bench` installs it; counting does without

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "leaks", "svg.fonttype": "none"})
    from matplotlib import pyplot

    versions = _versions(rows)
    size = (10, 2.6 * len(versions))
    figure, axes = pyplot.subplots(len(versions), 1, figsize=size, sharex=True, squeeze=False, layout="constrained")
    for axis, version in zip(axes.flat, versions, strict=True):
        for place, mode in enumerate(Mode):
            found = [_chosen(rows, version, operation, mode, is_killed=True) for operation in Operation]
            places = [at + 0.27 * (place - 1) for at, each in enumerate(found) if each]
            totals = axis.bar(places, [_rate(each) for each in found if each], 0.25, color=f"C{place}", alpha=0.3)
            axis.bar_label(totals, fmt="%.0f", fontsize="small")
            once = [_rate(each, once_referenced=True) for each in found if each]
            axis.bar(places, once, 0.25, color=f"C{place}", label=mode.title)
        axis.set_title(f"Pulsar {version}: ledgers leaked for each 1,000 operations, brokers killed", fontsize="medium")
        axis.set_yscale("symlog", linthresh=10)
        axis.set_ylim(0, 5_000)
        axis.set_xticks(range(len(Operation)), [each.replace(", ", ",\n") for each in Operation], fontsize="small")
        axis.grid(axis="y", alpha=0.3)
    axes.flat[0].legend(fontsize="small")
    figure.savefig(picture, metadata={"Date": None})
