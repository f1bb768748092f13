"""Sizes of ledgers, the histogram of their ages, and their owners, as people read them, the same everywhere."""

from typing import Final

from pulsar_sidecar.analysis.formatting import Row, format_bytes
from pulsar_sidecar.audit.results.summaries import Count

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


def format_size(ledgers: Count) -> str:
    """``1.5 GiB``; ``at least 1.5 GiB`` where some sizes are unknown, ``unknown`` where all are."""
    beginning = "at least " if ledgers.unknown_size_ledgers and ledgers.bytes is not None else ""
    return f"{beginning}{format_bytes(ledgers.bytes)}"


def age_label(age_ms: int | None) -> str:
    """The label of an age by the store's clock; None is unknown."""
    if age_ms is None:
        return UNKNOWN_AGE
    return next((label for label, below in AGE_STEPS if age_ms < below), OLDEST)


def format_owner(row: Row) -> str:
    """Whose ledger it was."""
    cursor = f", subscription {row['cursor_name']}" if row["cursor_name"] else ""
    return f"{row['topic'] or row['managed_ledger'] or 'unknown'}{cursor}"
