"""What an audit's report and the dashboard's pages of audits share: its ``summary.json`` as words and plots.

Counts are those of the JSON: ``ledgers``, ``bytes`` (None if no size is known) and ``unknownSizeLedgers``. The macros
are in ``templates/audit_parts.html.j2``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from jinja2 import Environment

from pulsar_sidecar.analysis.formatting import Row, format_bytes, format_count, format_minute
from pulsar_sidecar.analysis.pages import PlotItem

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
"""Label and the age in milliseconds below which it holds, ascending."""
OLDEST: Final = "over 365 days"
UNKNOWN_AGE: Final = "unknown"
AGE_LABELS: Final = (*(label for label, _ in AGE_STEPS), OLDEST, UNKNOWN_AGE)
"""All labels of the histogram of ages, in the order they are shown, the same from both engines."""

NO_TENANT: Final = "(no tenant)"
STATUS_KINDS: Final = {
    "condemned": "warn",
    "too-young": "busy",
    "first-look": "busy",
    "changed": "busy",
    "unproven": "off",
    "withheld": "bad",
}
"""How the macro ``state`` shows an unreferenced ledger's status."""
VERDICT_KINDS: Final = {"clean": "good", "plan": "busy", "findings": "warn", "stopped": "bad"}
_BARS: Final = 15
_NOTHING: Final = {"ledgers": 0, "bytes": 0, "unknownSizeLedgers": 0}
_Counts = Mapping[str, Mapping[str, Any]]


def size_words(known_bytes: int | None, unknown_size_ledgers: int) -> str:
    """``1.5 GiB``; ``at least 1.5 GiB`` where some sizes are unknown, ``unknown`` where all are."""
    beginning = "at least " if unknown_size_ledgers and known_bytes is not None else ""
    return f"{beginning}{format_bytes(known_bytes)}"


def size_of(count: Mapping[str, Any]) -> str:
    """The size of a count."""
    return size_words(count["bytes"], count["unknownSizeLedgers"])


def owner_of(row: Row) -> str:
    """Whose ledger it was."""
    cursor = f", subscription {row['cursor_name']}" if row["cursor_name"] else ""
    return f"{row['topic'] or row['managed_ledger'] or 'unknown'}{cursor}"


def sum_of(counts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All of them together."""
    ledgers = sum(count["ledgers"] for count in counts)
    unknown = sum(count["unknownSizeLedgers"] for count in counts)
    known = sum(count["bytes"] or 0 for count in counts)
    return {
        "ledgers": ledgers,
        "bytes": None if 0 < ledgers <= unknown else known,
        "unknownSizeLedgers": unknown,
    }


def bars_of(counts: _Counts, by: str) -> list[PlotItem]:
    """The largest counts by ``ledgers`` or ``bytes``, and one bar for all others; the empty name is `NO_TENANT`."""
    ordered = sorted(counts.items(), key=lambda item: (-(item[1][by] or 0), item[0]))
    others = [count for _, count in ordered[_BARS:]]
    shown = [(name or NO_TENANT, count) for name, count in ordered[:_BARS]]
    if others:
        shown.append((format_count(len(others), "other"), sum_of(others)))
    return [PlotItem(name, count[by] or 0, _bar_text(count)) for name, count in shown]


def ages_of(counts: _Counts) -> list[PlotItem]:
    """The histogram of ages."""
    found = [(label, counts.get(label, _NOTHING)) for label in AGE_LABELS]
    return [PlotItem(label, count["ledgers"], _bar_text(count)) for label, count in found]


def trends_of(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[PlotItem]]]:
    """Caption and points of each trend over audits, oldest first; those that have not changed come last."""
    figures: dict[str, Callable[[Mapping[str, Any]], tuple[int, str]]] = {
        "Unreferenced ledgers": lambda each: _ledgers(each["orphans"]),
        "Unreferenced bytes": lambda each: _bytes(each["orphans"]),
        "Bytes of all ledgers": lambda each: _bytes(each["existing"]),
        "References to missing ledgers": lambda each: (each["missing"], format_count(each["missing"], "reference")),
    }
    trends = [
        (caption, [PlotItem(format_minute(each["storeTimeMs"]), *figure(each)) for each in history])
        for caption, figure in figures.items()
    ]
    return sorted(trends, key=lambda trend: len({point.value for point in trend[1]}) == 1)


def with_audits(environment: Environment) -> Environment:
    """The same environment, for templates that import ``audit_parts.html.j2``."""
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


def _bar_text(count: Mapping[str, Any]) -> str:
    return f"{count['ledgers']:,} · {size_of(count)}"


def _ledgers(count: Mapping[str, Any]) -> tuple[int, str]:
    return count["ledgers"], format_count(count["ledgers"], "ledger")


def _bytes(count: Mapping[str, Any]) -> tuple[int, str]:
    return count["bytes"] or 0, size_of(count)
