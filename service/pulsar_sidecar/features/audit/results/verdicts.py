"""Verdict on an audit, in a sentence, with the next step."""

from dataclasses import dataclass

from pulsar_sidecar.features.audit.results.answers import AuditVerdict
from pulsar_sidecar.features.audit.results.guards import exit_code
from pulsar_sidecar.features.audit.results.summaries import AuditSummary, Count
from pulsar_sidecar.features.audit.results.tables import OrphanStatus
from pulsar_sidecar.reports.audit_pages import size_of
from pulsar_sidecar.reports.documents import EXIT_ERROR
from pulsar_sidecar.reports.formatting import format_count


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Verdict with its reason and the next step."""

    verdict: AuditVerdict
    sentence: str
    next_step: str


def conclude(summary: AuditSummary, place: str) -> Conclusion:
    """Return the conclusion of an audit; ``place`` is its directory as the user would write it."""
    failed = "; ".join(f"{guard.name}: {guard.explanation}" for guard in summary.guards if not guard.passed)
    if exit_code(summary) == EXIT_ERROR:
        next_step = "find the cause, then take new inputs and audit them; this one cannot be applied"
        return Conclusion(
            AuditVerdict.STOPPED, f"{_what_was_found(summary)}, and no ledger is deletable: {failed}", next_step
        )
    if summary.findings and summary.plan is None:
        sentence = f"{_what_was_found(summary)}, and no ledger is deletable: {failed or 'the audit has no plan'}"
        return Conclusion(AuditVerdict.FINDINGS, sentence, _rows_of(summary, place))
    if summary.plan is not None and summary.plan.rows:
        sentence = (
            f"{_of_plan(summary)} ({_size(summary.plan.ledgers)}) "
            f"{'is' if summary.plan.rows == 1 else 'are'} unreferenced and deletable"
        )
        return Conclusion(AuditVerdict.PLAN, sentence, f"show the plan: pulsar-sidecar audit apply {place}")
    if summary.findings:
        return Conclusion(
            AuditVerdict.FINDINGS, f"{_what_was_found(summary)}; no ledger is deletable", _next_step(summary, place)
        )
    everything = f"every ledger that exists is referenced ({format_count(summary.existing.ledgers, 'ledger')})"
    return Conclusion(AuditVerdict.CLEAN, f"{everything}, and every referenced ledger exists", "nothing to do")


def _of_plan(summary: AuditSummary) -> str:
    assert summary.plan is not None
    copies = summary.offload.standings.get(OrphanStatus.DELETABLE.value, Count()).ledgers
    ledgers = summary.plan.rows - copies
    parts = ((ledgers, "ledger", "ledgers"), (copies, "copy in tiered storage", "copies in tiered storage"))
    return " and ".join(format_count(*part) for part in parts if part[0])


def orphans_of(summary: AuditSummary) -> Count:
    return Count.sum(summary.orphans.values())


def _size(ledgers: Count) -> str:
    return "size unknown" if ledgers.bytes is None else size_of(ledgers)


def _what_was_found(summary: AuditSummary) -> str:
    parts = (
        (orphans_of(summary).ledgers, "unreferenced ledger", "unreferenced ledgers"),
        (summary.missing, "reference to a ledger that does not exist", "references to ledgers that do not exist"),
        (len(summary.dangers), "topic that endangers another's ledgers", "topics that endanger others' ledgers"),
        (summary.unattributed.ledgers, "ledger whose owner is not known", "ledgers whose owner is not known"),
        (
            summary.offload.finding_count,
            "finding in tiered storage",
            "findings in tiered storage",
        ),
    )
    found = [f"{count:,} {one if count == 1 else many}" for count, one, many in parts if count]
    return ", ".join(found) or "nothing found"


def _next_step(summary: AuditSummary, place: str) -> str:
    waiting = (OrphanStatus.FIRST_LOOK, OrphanStatus.TOO_YOUNG, OrphanStatus.CHANGED)
    standings = (*summary.orphans.items(), *summary.offload.standings.items())
    if any(count.ledgers for standing, count in standings if standing in waiting):
        return f"take new inputs after the window and audit them with --previous {place}"
    return _rows_of(summary, place)


def _rows_of(summary: AuditSummary, place: str) -> str:
    offloaded = " --offloaded" if summary.offload.findings else ""
    return f"show the rows: pulsar-sidecar audit show {place} --orphans --missing --unattributed{offloaded}"
