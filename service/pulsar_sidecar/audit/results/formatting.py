"""Sizes of counted ledgers and labels of ages, the same everywhere."""

from pulsar_sidecar.analysis.audit_pages import AGE_STEPS, OLDEST, UNKNOWN_AGE, size_words
from pulsar_sidecar.audit.results.summaries import Count


def format_size(ledgers: Count) -> str:
    """``1.5 GiB``; ``at least 1.5 GiB`` where some sizes are unknown, ``unknown`` where all are."""
    return size_words(ledgers.bytes, ledgers.unknown_size_ledgers)


def age_label(age_ms: int | None) -> str:
    """The label of an age by the store's clock; None is unknown."""
    if age_ms is None:
        return UNKNOWN_AGE
    return next((label for label, below in AGE_STEPS if age_ms < below), OLDEST)
