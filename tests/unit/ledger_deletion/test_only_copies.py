"""Reads of copies in tiered storage that lists name as the only ones, and the validity of a read."""

from dataclasses import replace

from pulsar_sidecar.features.ledger_deletion.second_phase.only_copies import OnlyCopies, OnlyCopy
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import ManagedLedgerName

from tests.fakes.clock import FakeClock
from tests.fakes.offload import FakeOffloadedLedgers

NAME = ManagedLedgerName("public/default/persistent/orders")


class SlowCopies(FakeOffloadedLedgers):
    """Copies whose reading takes some seconds each."""

    def __init__(self, clock: FakeClock, seconds: int) -> None:
        super().__init__()
        self.clock, self.seconds, self.read = clock, seconds, 0

    def is_whole(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> bool:
        self.read += 1
        self.clock.advance_ms(self.seconds * 1000)
        return super().is_whole(ledger_id, context, managed_ledger)


def copy(storage: FakeOffloadedLedgers, ledger_id: int) -> OnlyCopy:
    found = OnlyCopy(LedgerId(ledger_id), storage.context(ledger_id), NAME)
    storage.put(found.ledger_id, found.context, NAME)
    return found


def test_each_call_reads_for_some_seconds_and_at_least_one_copy_until_all_are_known() -> None:
    storage = SlowCopies(FakeClock(), 20)
    only, copies = OnlyCopies(storage.is_whole, storage.clock), [copy(storage, 1), None, copy(storage, 2)]
    assert only.whole(copies) == [True, None, None]
    assert only.whole(copies) == [True, None, True]
    assert storage.read == 2
    storage.clock.advance_ms(600_000)
    assert only.whole(copies)[0] is True
    assert storage.read == 3


def test_only_a_whole_copy_is_remembered_and_only_at_its_place() -> None:
    storage = SlowCopies(FakeClock(), 0)
    only, one = OnlyCopies(storage.is_whole, storage.clock), copy(storage, 1)
    storage.fail_next(TemporaryError("S3 is away"))
    assert only.whole([one]) == [Unreadable("S3 is away")]
    storage.cut(one.ledger_id, one.context)
    assert only.whole([one]) == [False]
    copy(storage, 1)
    assert only.whole([one]) == [True]
    moved = replace(one, context=replace(one.context, driver_metadata={"bucket": "another"}))
    (elsewhere,) = only.whole([moved])
    assert isinstance(elsewhere, Unreadable)
