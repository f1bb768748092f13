"""What an audit comes to, and its numbers, sizes, ages and times as people read them, the same everywhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from pulsar_sidecar.audit.results.guards import EXIT_ERROR, exit_code
from pulsar_sidecar.audit.results.summaries import AuditSummary, Count
from pulsar_sidecar.audit.results.tables import OrphanStatus

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


class Verdict(StrEnum):
    """What an audit comes to."""

    CLEAN = "clean"
    """Everything that exists is referenced, and everything that is referenced exists."""
    PLAN = "plan"
    """Some ledgers may be deleted."""
    FINDINGS = "findings"
    """There is something to look at, and nothing to delete (yet)."""
    STOPPED = "stopped"
    """A guard says that something is wrong with the inputs, or that too much would go."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A verdict, why, and what to do next."""

    verdict: Verdict
    sentence: str
    next_step: str


def conclude(summary: AuditSummary, place: str) -> Conclusion:
    """What an audit comes to; ``place`` is its directory as the user would write it."""
    failed = "; ".join(f"{guard.name}: {guard.explanation}" for guard in summary.guards if not guard.passed)
    if exit_code(summary) == EXIT_ERROR:
        next_step = "find out why, then make new inputs and a new audit; nothing of this one can be applied"
        return Conclusion(Verdict.STOPPED, f"{_found(summary)}, and nothing is condemned: {failed}", next_step)
    if summary.findings and summary.plan is None:
        sentence = f"{_found(summary)}, and nothing is condemned: {failed or 'the audit has no plan'}"
        return Conclusion(Verdict.FINDINGS, sentence, _rows_of(place))
    if summary.plan is not None and summary.plan.rows:
        sentence = (
            f"{format_count(summary.plan.rows, 'ledger')} ({format_size(summary.plan.ledgers)}) "
            f"{'is' if summary.plan.rows == 1 else 'are'} referenced by nothing and may be deleted"
        )
        return Conclusion(Verdict.PLAN, sentence, f"look at the plan: pulsar-sidecar audit apply {place}")
    if summary.findings:
        return Conclusion(Verdict.FINDINGS, f"{_found(summary)}; nothing may be deleted", _patience(summary, place))
    everything = f"everything that exists is referenced ({format_count(summary.existing.ledgers, 'ledger')})"
    return Conclusion(Verdict.CLEAN, f"{everything}, and everything that is referenced exists", "nothing to do")


def orphans_of(summary: AuditSummary) -> Count:
    """All orphans, of any standing."""
    return Count.sum(summary.orphans.values())


def _found(summary: AuditSummary) -> str:
    parts = (
        (orphans_of(summary).ledgers, "unreferenced ledger", "unreferenced ledgers"),
        (summary.missing, "reference to a ledger that does not exist", "references to ledgers that do not exist"),
        (len(summary.dangers), "topic that endangers another's ledgers", "topics that endanger others' ledgers"),
        (summary.unattributed.ledgers, "ledger that nobody known claims", "ledgers that nobody known claims"),
    )
    said = [f"{count:,} {one if count == 1 else many}" for count, one, many in parts if count]
    return ", ".join(said) or "nothing found"


def _patience(summary: AuditSummary, place: str) -> str:
    waiting = (OrphanStatus.FIRST_LOOK, OrphanStatus.TOO_YOUNG, OrphanStatus.CHANGED)
    if any(count.ledgers for standing, count in summary.orphans.items() if standing in waiting):
        return f"make new inputs after the window and audit them with --previous {place}"
    return _rows_of(place)


def _rows_of(place: str) -> str:
    return f"look at the rows: pulsar-sidecar audit show {place} --orphans --missing --unattributed"
