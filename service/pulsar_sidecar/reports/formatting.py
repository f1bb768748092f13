"""Uniform formats of numbers, sizes, ages, times and tables, for people."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_AGES: Final = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))

Row = Mapping[str, Any]


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 ledger``, ``12,345 ledgers``, ``2 entries``; ``plural`` is for irregular nouns."""
    return f"{count:,} {noun if count == 1 else plural or _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("ch", "s", "sh", "x")) else f"{noun}s"


def format_bytes(size: int | None) -> str:
    """Return ``1.5 GiB``; ``unknown`` for None."""
    if size is None:
        return "unknown"
    if size < 1024:
        return f"{size} B"
    steps = min(len(_UNITS), (size.bit_length() - 1) // 10)
    return f"{size / 1024**steps:.1f} {_UNITS[steps - 1]}"


def format_age(age_ms: int | None) -> str:
    """Return ``3 days``, ``5 hours``: the largest unit that fits, rounded down; ``unknown`` for None."""
    if age_ms is None:
        return "unknown"
    for unit_ms, name in _AGES:
        if age_ms >= unit_ms:
            return format_count(age_ms // unit_ms, name)
    return "less than a second"


def format_time(time_ms: int | None) -> str:
    """Return UTC to the second; ``unknown`` for None, a number for a client's time outside the calendar."""
    if time_ms is None:
        return "unknown"
    moment = _moment(time_ms)
    return f"{time_ms} ms" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S UTC}"


def format_instant(time_ms: int) -> str:
    """Return UTC for programs, as ``<time datetime>`` takes it; the calendar's end for a time beyond it."""
    moment = _moment(time_ms)
    if moment is None:
        return "9999-12-31T23:59:59Z" if time_ms > 0 else "0001-01-01T00:00:00Z"
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def format_minute(time_ms: int) -> str:
    """Return UTC to the minute, short; a number for a time outside the calendar."""
    moment = _moment(time_ms)
    return f"{time_ms} ms" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def _moment(time_ms: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def format_columns(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the rows below their columns' names, each column as wide as necessary."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    widths = {name: max(len(name), *(len(row.get(name, "")) for row in rows)) for name in names}
    lines = [{name: name for name in names}, *rows]
    return "\n".join("  ".join(f"{line.get(name, ''):{widths[name]}}" for name in names).rstrip() for line in lines)
