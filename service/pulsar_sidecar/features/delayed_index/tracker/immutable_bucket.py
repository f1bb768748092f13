"""Sealed bucket: the part of its snapshot that is in memory (``ImmutableBucket``)."""

from dataclasses import dataclass, field
from typing import Self

from pyroaring import BitMap

from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.snapshot import SnapshotMetadata
from pulsar_sidecar.features.delayed_index.tracker.position_bits import PositionBits
from pulsar_sidecar.features.delayed_index.tracker.sealing import SealedIndexes
from pulsar_sidecar.model.ids import LedgerId


@dataclass(slots=True, eq=False)
class ImmutableBucket:
    """Sealed bucket, compared by identity.

    Attributes:
        key: ledgers that it was sealed for.
        bucket_id: ledger of its snapshot; None until known.
        bits: positions not dispatched yet, of segments that are not skipped.
        count: number of these indexes (``numberBucketDelayedMessages``); -1 until read.
        current_segment: entry of the segment loaded last; 0 for none.
        last_segment: entry of the last segment; -1 until read.
        first_times_ms: earliest due time of each segment, milliseconds since the epoch.
        snapshot_bytes: bytes of its entries; 0 until known.
        ranges: number of its ranges in `BucketRanges`, the only writer of this field.
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
        """Create a newly sealed bucket, whose first segment is in memory."""
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
        """Apply entry 0, and return the entry of the first segment not entirely due, which is to be loaded."""
        skipped = 0
        while skipped < len(metadata) and metadata[skipped].max_schedule_timestamp <= cutoff_ms:
            skipped += 1
        self.last_segment = len(metadata)
        self.bits = PositionBits.union(segment.bitmaps for segment in metadata[skipped:])
        self.count = sum(segment.count for segment in metadata[skipped:])
        self.first_times_ms = [segment.min_schedule_timestamp for segment in metadata]
        return skipped + 1

    def remove(self, ledger_id: int, entry_id: int) -> bool:
        """Remove a dispatched position; return True if it was present."""
        removed = self.bits.remove(ledger_id, entry_id)
        self._less(int(removed))
        return removed

    def remove_all(self, ledger_id: int, entries: BitMap) -> None:
        """Remove dispatched positions, as far as they are present."""
        self._less(len(self.bits.remove_all(ledger_id, entries)))

    def _less(self, removed: int) -> None:
        if self.count > 0:
            self.count = max(0, self.count - removed)
