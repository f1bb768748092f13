"""What an audit comes to, in a sentence, and what to do next."""

from dataclasses import dataclass
from enum import StrEnum

from pulsar_sidecar.analysis.documents import EXIT_ERROR
from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.audit.results.formatting import format_size
from pulsar_sidecar.audit.results.guards import exit_code
from pulsar_sidecar.audit.results.summaries import AuditSummary, Count
from pulsar_sidecar.audit.results.tables import OrphanStatus


class AuditVerdict(StrEnum):
    """What an audit comes to."""

    CLEAN = "clean"
    """Everything that exists is referenced, and everything that is referenced exists."""
    PLAN = "plan"
    """Some ledgers may be deleted."""
    FINDINGS = "findings"
    """There is something to look at, and nothing to delete (yet)."""
    STOPPED = "stopped"
    """A guard failed: something is wrong with the inputs, or the plan would be too large."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A verdict, why, and what to do next."""

    verdict: AuditVerdict
    sentence: str
    next_step: str


def conclude(summary: AuditSummary, place: str) -> Conclusion:
    """What an audit comes to; ``place`` is its directory as the user would write it."""
    failed = "; ".join(f"{guard.name}: {guard.explanation}" for guard in summary.guards if not guard.passed)
    if exit_code(summary) == EXIT_ERROR:
        next_step = "find the cause, then make new inputs and a new audit; this one cannot be applied"
        return Conclusion(
            AuditVerdict.STOPPED, f"{_what_was_found(summary)}, and no ledger is deletable: {failed}", next_step
        )
    if summary.findings and summary.plan is None:
        sentence = f"{_what_was_found(summary)}, and no ledger is deletable: {failed or 'the audit has no plan'}"
        return Conclusion(AuditVerdict.FINDINGS, sentence, _rows_of(place))
    if summary.plan is not None and summary.plan.rows:
        sentence = (
            f"{format_count(summary.plan.rows, 'ledger')} ({_size(summary.plan.ledgers)}) "
            f"{'is' if summary.plan.rows == 1 else 'are'} unreferenced and deletable"
        )
        return Conclusion(AuditVerdict.PLAN, sentence, f"show the plan: pulsar-sidecar audit apply {place}")
    if summary.findings:
        return Conclusion(
            AuditVerdict.FINDINGS, f"{_what_was_found(summary)}; no ledger is deletable", _next_step(summary, place)
        )
    everything = f"every ledger that exists is referenced ({format_count(summary.existing.ledgers, 'ledger')})"
    return Conclusion(AuditVerdict.CLEAN, f"{everything}, and every referenced ledger exists", "nothing to do")


def orphans_of(summary: AuditSummary) -> Count:
    """All orphans, of any status."""
    return Count.sum(summary.orphans.values())


def _size(ledgers: Count) -> str:
    return "size unknown" if ledgers.bytes is None else format_size(ledgers)


def _what_was_found(summary: AuditSummary) -> str:
    parts = (
        (orphans_of(summary).ledgers, "unreferenced ledger", "unreferenced ledgers"),
        (summary.missing, "reference to a ledger that does not exist", "references to ledgers that do not exist"),
        (len(summary.dangers), "topic that endangers another's ledgers", "topics that endanger others' ledgers"),
        (summary.unattributed.ledgers, "ledger whose owner is not known", "ledgers whose owner is not known"),
    )
    found = [f"{count:,} {one if count == 1 else many}" for count, one, many in parts if count]
    return ", ".join(found) or "nothing found"


def _next_step(summary: AuditSummary, place: str) -> str:
    waiting = (OrphanStatus.FIRST_LOOK, OrphanStatus.TOO_YOUNG, OrphanStatus.CHANGED)
    if any(count.ledgers for standing, count in summary.orphans.items() if standing in waiting):
        return f"make new inputs after the window and audit them with --previous {place}"
    return _rows_of(place)


def _rows_of(place: str) -> str:
    return f"show the rows: pulsar-sidecar audit show {place} --orphans --missing --unattributed"
