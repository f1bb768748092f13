"""Tiered storage in memory, for tests of decisions on offloaded copies.

Invariant: the responses are those of the real storages; ``tests/contract/test_offloaded_ledgers.py`` runs one suite on
all.
"""

from collections.abc import Collection
from dataclasses import dataclass

from pulsar_sidecar.features.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.model.errors import DisabledError, OutcomeUnknownError, PermanentError, SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName

FAKE_BUCKET = "fake-offload"
FAKE_DRIVER = "aws-s3"
FAKE_CLUSTER = "local"
PARTS = frozenset({"data", "index"})


@dataclass(frozen=True, slots=True)
class DeleteOffloaded:
    """A call of the deletion."""

    ledger_id: LedgerId
    context: OffloadContext
    managed_ledger: ManagedLedgerName


@dataclass(frozen=True, slots=True)
class _Name:
    ledger_id: LedgerId
    uid_msb: int
    uid_lsb: int


@dataclass(slots=True)
class _Copy:
    managed_ledger: ManagedLedgerName
    cluster_name: str
    parts: set[str]
    cut: bool = False


class FakeOffloadedLedgers:
    """A single bucket, which the sidecar knows.

    Attributes:
        journal: all calls of the deletion in order, including failed ones.
        looks: number of calls of `exists`.
    """

    def __init__(self, cluster_name: str = FAKE_CLUSTER) -> None:
        self.journal: list[DeleteOffloaded] = []
        self.looks = 0
        self._cluster_name = cluster_name
        self._copies: dict[_Name, _Copy] = {}
        self._failures: list[SidecarError] = []
        self._lost_answers: list[bool] = []

    # Setup by tests ----------------------------------------------------------------------------------------------

    @staticmethod
    def context(uid_msb: int = 7, uid_lsb: int = -9) -> OffloadContext:
        """Return the context of a complete copy in the bucket."""
        return OffloadContext(uid_msb, uid_lsb, FAKE_DRIVER, {"bucket": FAKE_BUCKET, "region": "us-east-1"})

    def put(
        self,
        ledger_id: LedgerId,
        context: OffloadContext,
        managed_ledger: ManagedLedgerName,
        *,
        parts: Collection[str] = PARTS,
        cluster_name: str | None = None,
    ) -> None:
        """Add a copy, of another cluster if ``cluster_name`` differs."""
        copy = _Copy(managed_ledger, cluster_name or self._cluster_name, set(parts))
        self._copies[_Name(ledger_id, context.uid_msb, context.uid_lsb)] = copy

    def cut(self, ledger_id: LedgerId, context: OffloadContext) -> None:
        """Make a part of the copy shorter than its index states."""
        self._copies[_Name(ledger_id, context.uid_msb, context.uid_lsb)].cut = True

    def parts(self, ledger_id: LedgerId, context: OffloadContext) -> set[str]:
        """Return the existing parts of a copy, out of ``data`` and ``index``."""
        copy = self._copies.get(_Name(ledger_id, context.uid_msb, context.uid_lsb))
        return set() if copy is None else set(copy.parts)

    def fail_next(self, error: SidecarError, *, times: int = 1) -> None:
        """Make the next calls raise ``error`` without any effect."""
        self._failures += [error] * times

    def lose_answer_next(self, *, applied: bool) -> None:
        """Lose the response of the next call, with or without its effect."""
        self._lost_answers.append(applied)

    # The port ----------------------------------------------------------------------------------------------------

    def delete_offloaded(
        self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName
    ) -> OffloadDeletion:
        self.journal.append(DeleteOffloaded(ledger_id, context, managed_ledger))
        if self._failures:
            raise self._failures.pop(0)
        if not self._lost_answers:
            return self._delete(ledger_id, context, managed_ledger)
        if self._lost_answers.pop(0):
            self._delete(ledger_id, context, managed_ledger)
        raise OutcomeUnknownError(f"the answer to the deletion of the copy of ledger {ledger_id} was lost; look again")

    def exists(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> bool:
        self.looks += 1
        if self._failures:
            raise self._failures.pop(0)
        return self._found(ledger_id, context, managed_ledger) is not None

    def is_whole(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> bool:
        if self._failures:
            raise self._failures.pop(0)
        if not context.complete or context.segments:
            return False
        copy = self._found(ledger_id, context, managed_ledger)
        return copy is not None and copy.parts == PARTS and not copy.cut

    # Inside ------------------------------------------------------------------------------------------------------

    def _delete(
        self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName
    ) -> OffloadDeletion:
        if self._found(ledger_id, context, managed_ledger) is None:
            return OffloadDeletion.GONE
        del self._copies[_Name(ledger_id, context.uid_msb, context.uid_lsb)]
        return OffloadDeletion.DELETED

    def _found(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> _Copy | None:
        if context.segments or (context.uid_msb, context.uid_lsb) == (0, 0):
            raise PermanentError(f"the offload context of ledger {ledger_id} names no single copy")
        if context.driver_name != FAKE_DRIVER:
            raise PermanentError(f"offload driver {context.driver_name!r} is unknown")
        if context.driver_metadata.get("bucket") != FAKE_BUCKET:
            raise DisabledError("the bucket is not in offloadAllowedLocations; add it and send the record again")
        copy = self._copies.get(_Name(ledger_id, context.uid_msb, context.uid_lsb))
        if copy is not None and (copy.managed_ledger, copy.cluster_name) != (managed_ledger, self._cluster_name):
            raise PermanentError(f"the copy of ledger {ledger_id} belongs to somebody else")
        return copy
