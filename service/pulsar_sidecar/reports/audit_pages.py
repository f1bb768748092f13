"""Shared parts of an audit's report and the dashboard's pages of audits: its summary as words and plots.

The macros are in ``templates/audit_parts.html.j2``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from jinja2 import Environment

from pulsar_sidecar.reports.formatting import Row, format_bytes, format_count, format_minute
from pulsar_sidecar.reports.pages import PlotItem

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
AGE_STEPS: Final = (
    ("under 1 hour", _HOUR_MS),
    ("1 to 24 hours", _DAY_MS),
    ("1 to 3 days", 3 * _DAY_MS),
    ("3 to 7 days", 7 * _DAY_MS),
    ("7 to 30 days", 30 * _DAY_MS),
    ("30 to 90 days", 90 * _DAY_MS),
    ("90 to 365 days", 365 * _DAY_MS),
)
"""Labels, each with the age in milliseconds below which it applies, ascending."""
OLDEST: Final = "over 365 days"
UNKNOWN_AGE: Final = "unknown"
AGE_LABELS: Final = (*(label for label, _ in AGE_STEPS), OLDEST, UNKNOWN_AGE)
"""All labels of the histogram of ages, in the order shown, the same for both engines."""

NO_TENANT: Final = "(no tenant)"
STATUS_KINDS: Final = {
    "condemned": "warn",
    "too-young": "busy",
    "first-look": "busy",
    "changed": "busy",
    "unproven": "off",
    "withheld": "bad",
}
"""Kinds by which the macro ``state`` shows an unreferenced ledger's status."""
VERDICT_KINDS: Final = {"clean": "good", "plan": "busy", "findings": "warn", "stopped": "bad"}
_BARS: Final = 15


class Counted(Protocol):
    """Number of ledgers, and the bytes of those whose size is known; None if the size of none is."""

    @property
    def ledgers(self) -> int: ...

    @property
    def bytes(self) -> int | None: ...

    @property
    def unknown_size_ledgers(self) -> int: ...


class PastCounts(Protocol):
    """Audit in the history of a later one."""

    @property
    def store_time_ms(self) -> int: ...

    @property
    def existing(self) -> Counted: ...

    @property
    def orphans(self) -> Counted: ...

    @property
    def missing(self) -> int: ...


class _Sum(NamedTuple):
    ledgers: int
    bytes: int | None
    unknown_size_ledgers: int


def age_label(age_ms: int | None) -> str:
    """Return the label of an age by the store's clock; None is unknown."""
    if age_ms is None:
        return UNKNOWN_AGE
    return next((label for label, below in AGE_STEPS if age_ms < below), OLDEST)


def size_of(count: Counted) -> str:
    """Return ``1.5 GiB``; ``at least 1.5 GiB`` if some sizes are unknown, ``unknown`` if all are."""
    beginning = "at least " if count.unknown_size_ledgers and count.bytes is not None else ""
    return f"{beginning}{format_bytes(count.bytes)}"


def owner_of(row: Row) -> str:
    """Return the ledger's owner, in words."""
    cursor = f", subscription {row['cursor_name']}" if row["cursor_name"] else ""
    return f"{row['topic'] or row['managed_ledger'] or 'unknown'}{cursor}"


def bars_of(counts: Mapping[str, Counted], by: str) -> list[PlotItem]:
    """Return bars of the largest counts by ``ledgers`` or ``bytes`` and of the rest; the empty name is `NO_TENANT`."""
    shown = largest(counts, _BARS, by).items()
    return [PlotItem(name or NO_TENANT, getattr(count, by) or 0, _bar_text(count)) for name, count in shown]


def largest(counts: Mapping[str, Counted], most: int, by: str) -> dict[str, Counted]:
    """Return at most ``most`` of the largest counts by ``ledgers`` or ``bytes``, and one for all others."""
    value: Callable[[Counted], int | None] = attrgetter(by)
    ordered = sorted(counts.items(), key=lambda item: (-(value(item[1]) or 0), item[0]))
    others = [count for _, count in ordered[most:]]
    return dict(ordered[:most]) | ({format_count(len(others), "other"): _sum_of(others)} if others else {})


def ages_of(counts: Mapping[str, Counted]) -> list[PlotItem]:
    """Return the histogram of ages."""
    found = [(label, counts.get(label, _Sum(0, 0, 0))) for label in AGE_LABELS]
    return [PlotItem(label, count.ledgers, _bar_text(count)) for label, count in found]


def trends_of(history: Sequence[PastCounts]) -> list[tuple[str, list[PlotItem]]]:
    """Return caption and points of each trend over audits, oldest first; constant trends come last."""
    figures: dict[str, Callable[[PastCounts], tuple[int, str]]] = {
        "Unreferenced ledgers": lambda each: _ledgers(each.orphans),
        "Unreferenced bytes": lambda each: _bytes(each.orphans),
        "Bytes of all ledgers": lambda each: _bytes(each.existing),
        "References to missing ledgers": lambda each: (each.missing, format_count(each.missing, "reference")),
    }
    trends = [
        (caption, [PlotItem(format_minute(each.store_time_ms), *figure(each)) for each in history])
        for caption, figure in figures.items()
    ]
    return sorted(trends, key=lambda trend: len({point.value for point in trend[1]}) == 1)


def with_audits(environment: Environment) -> Environment:
    """Add to the environment the filters and names that ``audit_parts.html.j2`` needs; return it."""
    environment.filters |= {
        "size": size_of,
        "owner": owner_of,
        "by_ledgers": partial(bars_of, by="ledgers"),
        "by_bytes": partial(bars_of, by="bytes"),
        "by_age": ages_of,
        "trends": trends_of,
    }
    environment.globals |= {"status_kinds": STATUS_KINDS, "verdict_kinds": VERDICT_KINDS, "no_tenant": NO_TENANT}
    return environment


def _sum_of(counts: Sequence[Counted]) -> Counted:
    ledgers = sum(count.ledgers for count in counts)
    unknown = sum(count.unknown_size_ledgers for count in counts)
    known = sum(count.bytes or 0 for count in counts)
    return _Sum(ledgers, None if 0 < ledgers <= unknown else known, unknown)


def _bar_text(count: Counted) -> str:
    return f"{count.ledgers:,} · {size_of(count)}"


def _ledgers(count: Counted) -> tuple[int, str]:
    return count.ledgers, format_count(count.ledgers, "ledger")


def _bytes(count: Counted) -> tuple[int, str]:
    return count.bytes or 0, size_of(count)
