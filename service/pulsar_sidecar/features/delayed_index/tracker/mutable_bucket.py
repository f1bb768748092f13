"""Bucket that is being filled (``MutableBucket``, the PIP's LastMutableBucket)."""

from pyroaring import BitMap

from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes
from pulsar_sidecar.features.delayed_index.tracker.position_bits import PositionBits
from pulsar_sidecar.features.delayed_index.tracker.queue import IndexQueue
from pulsar_sidecar.model.ids import LedgerId

NO_LEDGER = LedgerId(-1)


class MutableBucket:
    """Indexes of the latest ledgers, in memory only.

    Attributes:
        start: first ledger; `NO_LEDGER` for none yet.
        end: last ledger.
        queue: indexes that the next seal will write.
        bits: positions in ``queue``, and those that only memory holds: indexes of older ledgers, and indexes moved to
            the shared queue. A seal keeps the latter two.
    """

    def __init__(self) -> None:
        self.start = NO_LEDGER
        self.end = NO_LEDGER
        self.queue = IndexQueue()
        self.bits = PositionBits()

    @property
    def key(self) -> BucketKey:
        """Ledgers that it covers."""
        return BucketKey(self.start, self.end)

    def add(self, deliver_at_ms: int, ledger_id: int, entry_id: int) -> None:
        """Add an index of a ledger that is not before ``end``."""
        self.queue.add(deliver_at_ms, ledger_id, entry_id)
        self._extend(ledger_id)
        self.bits.add(ledger_id, entry_id)

    def add_many(self, indexes: DelayedIndexes, ledger_id: int, entries: BitMap) -> None:
        """Add indexes of one ledger that is not before ``end``."""
        self.queue.add_many(indexes)
        self._extend(ledger_id)
        self.bits.add_all(ledger_id, entries)

    def move_due(self, cutoff_ms: int, shared: IndexQueue) -> None:
        """Move due indexes to the shared queue; their bits and the range stay."""
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
