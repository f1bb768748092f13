"""The bucket that is being filled (``MutableBucket``, the PIP's LastMutableBucket)."""

from pyroaring import BitMap

from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.snapshot import DelayedIndexes
from pulsar_sidecar.delayed_delivery.index.tracker.position_bits import PositionBits
from pulsar_sidecar.delayed_delivery.index.tracker.queue import IndexQueue
from pulsar_sidecar.model.ids import LedgerId

NO_LEDGER = LedgerId(-1)


class MutableBucket:
    """Indexes of the latest ledgers, in memory only.

    Attributes:
        start: the first ledger; `NO_LEDGER` for none yet.
        end: the last one.
        queue: what the next seal will write.
        bits: what is in ``queue``, and besides it what only memory holds: indexes of older ledgers, and those that
            were moved to the shared queue. A seal leaves the latter two.
    """

    def __init__(self) -> None:
        self.start = NO_LEDGER
        self.end = NO_LEDGER
        self.queue = IndexQueue()
        self.bits = PositionBits()

    @property
    def key(self) -> BucketKey:
        """The ledgers it covers."""
        return BucketKey(self.start, self.end)

    def add(self, deliver_at_ms: int, ledger_id: int, entry_id: int) -> None:
        """One more, of a ledger that is not before ``end``."""
        self.queue.add(deliver_at_ms, ledger_id, entry_id)
        self._extend(ledger_id)
        self.bits.add(ledger_id, entry_id)

    def add_many(self, indexes: DelayedIndexes, ledger_id: int, entries: BitMap) -> None:
        """As many of one ledger, which is not before ``end``."""
        self.queue.add_many(indexes)
        self._extend(ledger_id)
        self.bits.add_all(ledger_id, entries)

    def move_due(self, cutoff_ms: int, shared: IndexQueue) -> None:
        """What is due leaves for the shared queue; its bits and the range stay."""
        first_ms = self.queue.first_ms()
        if first_ms is not None and first_ms <= cutoff_ms:
            shared.put_back(self.queue.pop(len(self.queue), cutoff_ms))

    def reset_range(self) -> None:
        self.start = self.end = NO_LEDGER

    def clear(self) -> None:
        self.reset_range()
        self.queue.clear()
        self.bits = PositionBits()

    def _extend(self, ledger_id: int) -> None:
        if self.start == NO_LEDGER:
            self.start = LedgerId(ledger_id)
        self.end = LedgerId(max(self.end, ledger_id))
