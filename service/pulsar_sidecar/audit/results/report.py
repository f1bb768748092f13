"""The report: one HTML page with everything in it, for whoever decides about an audit.

Invariant: it is a pure function of the summary and a few rows, loads nothing from anywhere and runs no script; whatever
came from the cluster is escaped. What could not be seen stands right below the verdict. The page is
``templates/report.html.j2``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined

from pulsar_sidecar.audit.results import formatting
from pulsar_sidecar.audit.results.formatting import AGE_LABELS, Row, format_count, format_minute, format_size
from pulsar_sidecar.audit.results.summaries import AuditSummary, Count, Look
from pulsar_sidecar.audit.results.verdicts import conclude, orphans_of

REPORT_NAME: Final = "report.html"
EXTRACT_ROWS: Final = 50
_BARS: Final = 15


@dataclass(frozen=True, slots=True)
class Extract:
    """The rows that a report shows, at most `EXTRACT_ROWS` of each table.

    Attributes:
        orphans: of ``orphan_ledgers``, the longest first, unknown lengths last, then by ledger id.
        missing: of ``missing_ledgers``, by ledger id.
        unattributed: of ``unattributed_ledgers``, ordered as orphans are.
        owners: of ``ledger_usage``, the most bytes first.
    """

    orphans: Sequence[Row] = ()
    missing: Sequence[Row] = ()
    unattributed: Sequence[Row] = ()
    owners: Sequence[Row] = ()


class PlotItem(NamedTuple):
    """One bar or point: what it stands for, its length or height, and the text beside it."""

    label: str
    value: int
    text: str


def extract_of(orphans: pa.Table, missing: pa.Table, unattributed: pa.Table, usage: pa.Table) -> Extract:
    """The rows that `Extract` describes, from whole tables."""
    longest = [("length_bytes", "descending"), ("ledger_id", "ascending")]
    return Extract(
        orphans=_first(orphans, longest),
        missing=_first(missing, [("ledger_id", "ascending"), ("referenced_by", "ascending")]),
        unattributed=_first(unattributed, longest),
        owners=_first(usage, [("bytes", "descending"), ("topic", "ascending"), ("kind", "ascending")]),
    )


def _first(table: pa.Table, order: list[tuple[str, str]]) -> tuple[Row, ...]:
    # The metadata's bytes are the only long column, and no report shows them.
    names = [name for name in table.schema.names if name != "metadata"]
    return tuple(table.select(names).sort_by(order).slice(0, EXTRACT_ROWS).to_pylist())


def report_html(summary: AuditSummary, extract: Extract, place: str = "AUDIT") -> str:
    """The page; ``place`` is the audit's directory in the commands it shows."""
    page = templates().get_template("report.html.j2")
    return page.render(
        summary=summary,
        extract=extract,
        conclusion=conclude(summary, place),
        orphans=orphans_of(summary),
        by_ledgers=lambda counts: _bars(counts, lambda count: count.ledgers),
        by_bytes=lambda counts: _bars(counts, lambda count: count.known_bytes),
        by_age=lambda counts: [
            _bar(label, counts.get(label, Count()).ledgers, counts.get(label, Count())) for label in AGE_LABELS
        ],
        trends=_trends,
    )


@cache
def templates() -> Environment:
    """The report's templates; everything that they are given is escaped."""
    environment = Environment(
        autoescape=True,
        loader=PackageLoader("pulsar_sidecar.audit.results"),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "age": formatting.format_age,
        "bytes": formatting.format_bytes,
        "number": "{:,}".format,
        "owner": formatting.format_owner,
        "size": format_size,
        "time": formatting.format_time,
    }
    return environment


def _bars(counts: Mapping[str, Count], length: Callable[[Count], int]) -> list[PlotItem]:
    """The longest bars, and one for all others."""
    ordered = sorted(counts.items(), key=lambda item: (-length(item[1]), item[0]))
    shown, others = ordered[:_BARS], [count for _, count in ordered[_BARS:]]
    if others:
        shown.append((f"{len(others):,} others", Count.sum(others)))
    return [_bar(name or "(no tenant)", length(count), count) for name, count in shown]


def _age_bars(counts: Mapping[str, Count]) -> list[PlotItem]:
    filled = {label: counts.get(label, Count()) for label in AGE_LABELS}
    return [_bar(label, count.ledgers, count) for label, count in filled.items()]


def _bar(label: str, length: int, count: Count) -> PlotItem:
    return PlotItem(label, length, f"{count.ledgers:,} · {format_size(count)}")


def _trends(history: Sequence[Look]) -> list[tuple[str, list[PlotItem]]]:
    figures: dict[str, Callable[[Look], tuple[int, str]]] = {
        "Unreferenced ledgers": lambda look: (look.orphans.ledgers, format_count(look.orphans.ledgers, "ledger")),
        "Unreferenced bytes": lambda look: (look.orphans.known_bytes, format_size(look.orphans)),
        "Bytes of all ledgers": lambda look: (look.existing.known_bytes, format_size(look.existing)),
        "References to missing ledgers": lambda look: (look.missing, format_count(look.missing, "reference")),
    }
    return [
        (caption, [PlotItem(format_minute(look.store_time_ms), *figure(look)) for look in history])
        for caption, figure in figures.items()
    ]
