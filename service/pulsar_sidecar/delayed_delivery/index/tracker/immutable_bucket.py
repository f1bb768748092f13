"""A sealed bucket: what is held in memory of its snapshot (``ImmutableBucket``)."""

from dataclasses import dataclass, field
from typing import Self

from pyroaring import BitMap

from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.snapshot import SnapshotMetadata
from pulsar_sidecar.delayed_delivery.index.tracker.position_bits import PositionBits
from pulsar_sidecar.delayed_delivery.index.tracker.sealing import SealedIndexes
from pulsar_sidecar.model.ids import LedgerId


@dataclass(slots=True, eq=False)
class ImmutableBucket:
    """One bucket; the same one only if the same object.

    Attributes:
        key: the ledgers it was made for.
        bucket_id: its snapshot's ledger; None until that is known.
        bits: the positions that are not handed out yet, of segments that are not skipped.
        count: how many indexes those are (``numberBucketDelayedMessages``); -1 until it is read.
        current_segment: the entry of the segment that was loaded last; 0 for none.
        last_segment: the entry of the last segment; -1 until it is read.
        first_times_ms: each segment's earliest due time.
        snapshot_bytes: length of its entries; 0 until it is known.
        ranges: how many ranges it has in `BucketRanges`, which alone sets this.
    """

    key: BucketKey
    bucket_id: LedgerId | None = None
    bits: PositionBits = field(default_factory=PositionBits)
    count: int = -1
    current_segment: int = 0
    last_segment: int = -1
    first_times_ms: list[int] = field(default_factory=list)
    snapshot_bytes: int = 0
    ranges: int = 0

    @classmethod
    def sealed(cls, key: BucketKey, content: SealedIndexes) -> Self:
        """One that was made just now: its first segment is in memory."""
        return cls(
            key,
            bits=PositionBits.union(segment.bitmaps for segment in content.metadata),
            count=sum(map(len, content.segments)),
            current_segment=1,
            last_segment=len(content.segments),
            first_times_ms=[segment.min_schedule_timestamp for segment in content.metadata],
        )

    @property
    def has_unloaded(self) -> bool:
        return self.last_segment > self.current_segment

    def recover(self, metadata: SnapshotMetadata, cutoff_ms: int) -> int:
        """Take over entry 0; the entry of the first segment that is not due as a whole, which is to be loaded."""
        skipped = 0
        while skipped < len(metadata) and metadata[skipped].max_schedule_timestamp <= cutoff_ms:
            skipped += 1
        self.last_segment = len(metadata)
        self.bits = PositionBits.union(segment.bitmaps for segment in metadata[skipped:])
        self.count = sum(segment.count for segment in metadata[skipped:])
        self.first_times_ms = [segment.min_schedule_timestamp for segment in metadata]
        return skipped + 1

    def remove(self, ledger_id: int, entry_id: int) -> bool:
        """One was handed out; whether it was in."""
        removed = self.bits.remove(ledger_id, entry_id)
        self._less(int(removed))
        return removed

    def remove_all(self, ledger_id: int, entries: BitMap) -> None:
        """These were handed out, as far as they were in."""
        self._less(len(self.bits.remove_all(ledger_id, entries)))

    def _less(self, removed: int) -> None:
        if self.count > 0:
            self.count = max(0, self.count - removed)
