"""Deletes exactly the ledgers that were judged, and says of each how.

BookKeeper's own delete ignores versions (``LedgerDeleteOp`` removes with ``Version.ANY``), so the rule is the metadata
store's guarded delete. Only where the store takes no deletion from us, although the ledger was judged again and again,
and bookie HTTP addresses are configured, is BookKeeper asked instead; the outcome then says that the deletion was
unconditional.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pulsar_sidecar.ledger_deletion.ports import DirectLedgerDeletion
from pulsar_sidecar.ledger_deletion.second_phase.decide import Delete
from pulsar_sidecar.model.errors import OutcomeUnknownError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import DeletionResult, GuardedDeletion, MetadataStore


@dataclass(frozen=True, slots=True)
class Deletion:
    """What became of one ledger; ``conditional`` is false when BookKeeper deleted it without a version."""

    result: DeletionResult
    conditional: bool = True


class LedgerDeleter:
    """Carries out `Delete` verdicts."""

    def __init__(self, store: MetadataStore, direct: DirectLedgerDeletion | None, warn: Callable[[str], None]) -> None:
        self._store = store
        self._direct = direct
        self._warn = warn

    def delete(
        self, ledgers: Sequence[tuple[LedgerId, Delete]], may_send: Callable[[], bool], *, last_resort: bool
    ) -> list[Deletion]:
        """One answer per ledger, in order; CONFLICT, UNKNOWN and NOT_SENT have to be judged again.

        BookKeeper is asked only as a ``last_resort``: one lost answer of the store is no reason to do without guards.
        No deletion is sent once ``may_send`` says no.
        """
        deletions = [
            GuardedDeletion(verdict.ledger.path, verdict.ledger.version, verdict.guards) for _, verdict in ledgers
        ]
        return [
            self._without_store(ledger_id, may_send)
            if last_resort and result is DeletionResult.UNKNOWN
            else Deletion(result)
            for (ledger_id, _), result in zip(ledgers, self._delete_many(deletions, may_send), strict=True)
        ]

    def clear_under_replication(self, mark: str) -> None:
        """Remove auto-recovery's note about a ledger that is gone: it would try to repair it (BookKeeper #3316)."""
        try:
            self._store.delete(mark)
        except SidecarError as error:
            self._warn(f"auto-recovery's note {mark} about a deleted ledger stays: {error}")

    def _delete_many(self, deletions: Sequence[GuardedDeletion], may_send: Callable[[], bool]) -> list[DeletionResult]:
        try:
            return self._store.delete_many(deletions, may_send)
        except (TemporaryError, OutcomeUnknownError) as error:
            self._warn(f"the metadata store did not answer {len(deletions)} deletions: {error}")
            return [DeletionResult.UNKNOWN] * len(deletions)

    def _without_store(self, ledger_id: LedgerId, may_send: Callable[[], bool]) -> Deletion:
        if self._direct is None:
            return Deletion(DeletionResult.UNKNOWN)
        if not may_send():
            return Deletion(DeletionResult.NOT_SENT)
        try:
            self._direct.delete(ledger_id)
        except SidecarError as error:
            self._warn(f"ledger {ledger_id} could not be deleted over a bookie's HTTP either: {error}")
            return Deletion(DeletionResult.UNKNOWN)
        return Deletion(DeletionResult.DELETED, conditional=False)
