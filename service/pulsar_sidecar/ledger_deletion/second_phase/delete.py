"""Deletes exactly the ledgers whose evaluation says so, and records of each how it ended.

BookKeeper's own delete ignores versions (``LedgerDeleteOp`` removes with ``Version.ANY``), so the rule is the metadata
store's guarded delete. Only where the store takes no deletion from us, although the ledger was evaluated again and
again, and bookie HTTP addresses are configured, is BookKeeper asked instead; the outcome then says that the deletion
was unconditional.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from pulsar_sidecar.ledger_deletion.outcomes import Decision
from pulsar_sidecar.ledger_deletion.ports import DirectLedgerDeletion, OffloadDeletion, OffloadedLedgers
from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_deletion.second_phase.batch_result import BatchResult
from pulsar_sidecar.ledger_deletion.second_phase.decide import Delete, DeleteOffloaded, Reason, RetryLater
from pulsar_sidecar.ledger_deletion.second_phase.evaluate import Candidate, Evaluation
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.model.errors import (
    DisabledError,
    OutcomeUnknownError,
    PermanentError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.metadata import DeletionResult, GuardedDeletion, MetadataStore


@dataclass(slots=True)
class Unfinished:
    """Candidates to evaluate again at once, and those whose turn did not come while their facts were fresh."""

    again: list[Candidate] = field(default_factory=list)
    unreached: list[Candidate] = field(default_factory=list)


class LedgerDeleter:
    """Carries out `Delete` and `DeleteOffloaded` verdicts."""

    def __init__(
        self,
        store: MetadataStore,
        direct: DirectLedgerDeletion | None,
        offloaded: OffloadedLedgers,
        steps: Steps,
        warn: Callable[[str], None],
    ) -> None:
        self._store = store
        self._direct = direct
        self._offloaded = offloaded
        self._steps = steps
        self._warn = warn

    def delete(
        self,
        batch: BatchResult,
        evaluations: Sequence[Evaluation],
        left: Unfinished,
        may_send: Callable[[], bool],
        *,
        last_resort: bool,
    ) -> None:
        """Delete what the evaluations say; none of it is sent once ``may_send`` says no.

        BookKeeper is asked only as a ``last_resort``: one lost answer of the store is no reason to do without guards.
        """
        self._delete_stored(batch, evaluations, left, may_send, last_resort=last_resort)
        for evaluation in evaluations:
            if isinstance(evaluation.verdict, DeleteOffloaded):
                if may_send():
                    self._delete_offloaded(batch, evaluation, evaluation.verdict)
                else:
                    left.unreached.append(evaluation.candidate)

    def finish(
        self,
        batch: BatchResult,
        evaluation: Evaluation,
        decision: Decision,
        reason: Reason,
        detail: str,
        *,
        conditional: bool = True,
    ) -> None:
        """End the record, and auto-recovery's note about a ledger that is gone: auto-recovery would try to repair it.

        See BookKeeper #3316.
        """
        gone = decision is Decision.DELETED or reason is Reason.ALREADY_GONE
        mark = evaluation.facts.under_replication_mark
        if gone and evaluation.candidate.record.ledger_type is LedgerType.LEDGER and mark is not None:
            with self._steps.taking(Step.UNDER_REPLICATION_CLEARED):
                self._clear_under_replication(mark)
        batch.finish(evaluation, decision, reason, detail, conditional=conditional)

    def _clear_under_replication(self, mark: str) -> None:
        try:
            self._store.delete(mark)
        except SidecarError as error:
            self._warn(f"auto-recovery's note {mark} about a deleted ledger stays: {error}")

    # --- in BookKeeper ----------------------------------------------------------------------------------------------

    def _delete_stored(
        self,
        batch: BatchResult,
        evaluations: Sequence[Evaluation],
        left: Unfinished,
        may_send: Callable[[], bool],
        *,
        last_resort: bool,
    ) -> None:
        chosen = [evaluation for evaluation in evaluations if isinstance(evaluation.verdict, Delete)]
        with self._steps.taking(Step.LEDGERS_DELETED):
            deletions = self._delete_ledgers(chosen, may_send, last_resort=last_resort)
        for evaluation, (result, conditional) in zip(chosen, deletions, strict=True):
            match result:
                case DeletionResult.DELETED:
                    self._deleted(batch, evaluation, conditional=conditional)
                case DeletionResult.GONE:
                    detail = "another client deleted it just now"
                    self.finish(batch, evaluation, Decision.KEPT, Reason.ALREADY_GONE, detail)
                case DeletionResult.CONFLICT | DeletionResult.UNKNOWN:
                    batch.metrics.delete_failed(*_kind(evaluation.candidate.record))
                    left.again.append(evaluation.candidate)
                case DeletionResult.NOT_SENT:
                    left.unreached.append(evaluation.candidate)
                case never:
                    assert_never(never)

    def _delete_ledgers(
        self, evaluations: Sequence[Evaluation], may_send: Callable[[], bool], *, last_resort: bool
    ) -> list[tuple[DeletionResult, bool]]:
        """What became of each ledger, and whether its version and its guards were the condition."""
        deletions = [
            GuardedDeletion(verdict.ledger.path, verdict.ledger.version, verdict.guards)
            for verdict in (evaluation.verdict for evaluation in evaluations)
            if isinstance(verdict, Delete)
        ]
        try:
            results = self._store.delete_many(deletions, may_send)
        except (TemporaryError, OutcomeUnknownError) as error:
            self._warn(f"the metadata store did not answer {len(deletions)} deletions: {error}")
            results = [DeletionResult.UNKNOWN] * len(deletions)
        return [
            (self._delete_directly(self._direct, evaluation.candidate.record.ledger_id, may_send), False)
            if self._direct is not None and last_resort and result is DeletionResult.UNKNOWN
            else (result, True)
            for evaluation, result in zip(evaluations, results, strict=True)
        ]

    def _delete_directly(
        self, direct: DirectLedgerDeletion, ledger_id: LedgerId, may_send: Callable[[], bool]
    ) -> DeletionResult:
        if not may_send():
            return DeletionResult.NOT_SENT
        try:
            direct.delete(ledger_id)
        except SidecarError as error:
            self._warn(f"ledger {ledger_id} could not be deleted over a bookie's HTTP either: {error}")
            return DeletionResult.UNKNOWN
        return DeletionResult.DELETED

    def _deleted(self, batch: BatchResult, evaluation: Evaluation, *, conditional: bool) -> None:
        verdict = evaluation.verdict
        length_bytes = verdict.ledger.metadata.length_bytes if isinstance(verdict, Delete) else 0
        batch.metrics.deleted(*_kind(evaluation.candidate.record), length_bytes=length_bytes)
        detail = "nothing references it"
        self.finish(batch, evaluation, Decision.DELETED, Reason.UNREFERENCED, detail, conditional=conditional)

    # --- in tiered storage ------------------------------------------------------------------------------------------

    def _delete_offloaded(self, batch: BatchResult, evaluation: Evaluation, verdict: DeleteOffloaded) -> None:
        candidate, record = evaluation.candidate, evaluation.candidate.record
        try:
            with self._steps.taking(Step.OFFLOADED_DELETED):
                result = self._offloaded.delete_offloaded(
                    record.ledger_id, verdict.context, record.topic.managed_ledger_name
                )
        except DisabledError as error:
            # An operator who adds the missing setting finds the record on the dead-letter topic at the latest.
            batch.retry(candidate, RetryLater(Reason.REFUSED_BY_STORAGE, str(error)), evaluation)
            return
        except PermanentError as error:
            batch.metrics.delete_failed(*_kind(record))
            self.finish(batch, evaluation, Decision.KEPT, Reason.REFUSED_BY_STORAGE, str(error))
            return
        except (TemporaryError, OutcomeUnknownError) as error:
            batch.metrics.delete_failed(*_kind(record))
            batch.retry(candidate, RetryLater(Reason.TEMPORARY_FAILURE, str(error)), evaluation)
            return
        if result is OffloadDeletion.DELETED:
            self._deleted(batch, evaluation, conditional=True)
        else:
            self.finish(batch, evaluation, Decision.KEPT, Reason.ALREADY_GONE, "tiered storage holds no such objects")


def _kind(record: PendingDeleteLedgerInfo) -> tuple[LedgerType, LedgerComponent]:
    return record.ledger_type, record.component
