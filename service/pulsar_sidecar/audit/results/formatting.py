"""Numbers, sizes, ages, times and owners as people read them, the same everywhere."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pulsar_sidecar.audit.results.summaries import Count

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_AGES: Final = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))

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

Row = Mapping[str, Any]


def format_count(count: int, noun: str) -> str:
    """``1 ledger``, ``12,345 ledgers``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_bytes(size: int | None) -> str:
    """``1.5 GiB``; ``unknown`` for None."""
    if size is None:
        return "unknown"
    if size < 1024:
        return f"{size} B"
    steps = min(len(_UNITS), (size.bit_length() - 1) // 10)
    return f"{size / 1024**steps:.1f} {_UNITS[steps - 1]}"


def format_size(ledgers: Count) -> str:
    """``1.5 GiB``; ``at least 1.5 GiB`` where some sizes are unknown, ``unknown`` where all are."""
    beginning = "at least " if ledgers.unknown_size_ledgers and ledgers.bytes is not None else ""
    return f"{beginning}{format_bytes(ledgers.bytes)}"


def format_age(age_ms: int | None) -> str:
    """``3 days``, ``5 hours``: the largest unit that fits, rounded down; ``unknown`` for None."""
    if age_ms is None:
        return "unknown"
    for unit_ms, name in _AGES:
        if age_ms >= unit_ms:
            return format_count(age_ms // unit_ms, name)
    return "less than a second"


def format_time(time_ms: int | None) -> str:
    """UTC to the second; ``unknown`` for None."""
    if time_ms is None:
        return "unknown"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_minute(time_ms: int) -> str:
    """UTC to the minute, short."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def age_label(age_ms: int | None) -> str:
    """The label of an age by the store's clock; None is unknown."""
    if age_ms is None:
        return UNKNOWN_AGE
    return next((label for label, below in AGE_STEPS if age_ms < below), OLDEST)


def format_owner(row: Row) -> str:
    """Whose ledger it was."""
    cursor = f", subscription {row['cursor_name']}" if row["cursor_name"] else ""
    return f"{row['topic'] or row['managed_ledger'] or 'unknown'}{cursor}"
