"""Sealed buckets of one index: seal, merge, recover, delete, and the last message of each loaded segment.

Where 4.0.8 departs from PIP-195, `Behaviour` selects which one the code follows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.settings import MAX_MERGE_NUM, Behaviour, TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import NO_INDEXES, DelayedIndexes, bitmaps_of, joined
from pulsar_sidecar.features.delayed_index.tracker.bucket_ranges import BucketRanges, CutRange, in_order_of_hash_map
from pulsar_sidecar.features.delayed_index.tracker.immutable_bucket import ImmutableBucket
from pulsar_sidecar.features.delayed_index.tracker.mutable_bucket import MutableBucket
from pulsar_sidecar.features.delayed_index.tracker.packed import NO_PACKED, PackedIndexes, pack
from pulsar_sidecar.features.delayed_index.tracker.position_bits import PositionBits
from pulsar_sidecar.features.delayed_index.tracker.queue import NEVER, IndexQueue
from pulsar_sidecar.features.delayed_index.tracker.sealing import SealedIndexes, seal, sort_indexes
from pulsar_sidecar.features.delayed_index.tracker.snapshot_access import BucketOperation, SnapshotAccess
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.ownership.references import DELAYED_BUCKET_KEY_PREFIX
from pulsar_sidecar.reports.formatting import format_count

_DEFAULT_CAPACITY: Final = 16
"""Default capacity of a ``HashMap``."""
_FEWEST: Final = 2
"""Minimum number of buckets to merge."""


class TrackerFailedError(ConflictError):
    """Raised when a 4.0.8 broker would throw and forget the message (`Behaviour.AS_BROKER` only).

    Attributes:
        row: row of a batch that failed; the rows before it were added.
    """

    def __init__(self, what: str, row: int | None = None) -> None:
        super().__init__(f"{what}; a broker of 4.0.8 throws here, and the subscription stops being dispatched")
        self.what = what
        self.row = row


class RecoveryFailedError(TemporaryError):
    """Raised when a bucket cannot be read: a broker falls back to its in-memory tracker; nothing was deleted."""


@dataclass(frozen=True, slots=True)
class _SegmentEnd:
    bucket: ImmutableBucket
    due_ms: int


@dataclass(slots=True)
class SealedBuckets:
    """Sealed buckets: seals from the mutable bucket, and loads into the shared queue.

    Attributes:
        ranges: buckets by the ledgers that they cover.
        ends: last messages of loaded segments; before one is dispatched, the next segment is loaded.
    """

    settings: TrackerSettings
    behaviour: Behaviour
    access: SnapshotAccess
    mutable: MutableBucket
    shared: IndexQueue
    ranges: BucketRanges = field(default_factory=BucketRanges)
    ends: dict[Position, _SegmentEnd] = field(default_factory=dict)

    # --- sealing and merging -----------------------------------------------------------------------------------------

    def seal(self, indexes: DelayedIndexes) -> None:
        """Seal indexes taken from the mutable bucket's queue, and merge if there are too many buckets.

        Raises:
            TrackerFailedError: a broker would throw too; earlier changes stay.
        """
        most = self.settings.max_num_buckets
        if self.behaviour is Behaviour.AS_PIP and 0 < most <= len(self.ranges):
            self._merge(select_as_pip(tuple(self.ranges)), self._merge_as_pip)
        if len(indexes):
            self._create(indexes, self.mutable.key)
        self.mutable.reset_range()
        if self.behaviour is Behaviour.AS_BROKER and 0 < most < len(self.ranges):
            self._merge(select_as_broker(tuple(self.ranges)), self._merge_as_broker)

    def _create(self, indexes: DelayedIndexes, key: BucketKey, merged: PositionBits | None = None) -> None:
        sealed = seal(indexes, self.settings)
        self._take_out_of_mutable(sealed, indexes, key)
        first = sealed.segments[0]
        self.shared.put_back(pack(first))
        bucket = ImmutableBucket.sealed(key, sealed)
        is_saved = self.access.save(bucket, sealed)
        bucket.bits = merged or bucket.bits
        self.ranges.put(key, bucket)
        self.expect_next(bucket, first)
        if not is_saved:
            for segment in sealed.segments[1:]:
                self.shared.put_back(pack(segment))
            self.ranges.remove(CutRange.closed(key))
            self.ends.pop(_last_position(first))

    def _take_out_of_mutable(self, sealed: SealedIndexes, indexes: DelayedIndexes, key: BucketKey) -> None:
        outside = np.flatnonzero((indexes.ledgers < key.start) | (indexes.ledgers > key.end))
        if len(outside):
            # Stop half-way, as a broker does.
            reached = int(outside[0])
            self.shared.put_back(pack(indexes[: min(reached, len(sealed.segments[0]))]))
            gone = indexes[: reached + 1]
            for ledger_id, entries in bitmaps_of(gone.ledgers, gone.entries).items():
                self.mutable.bits.remove_all(ledger_id, entries)
            raise TrackerFailedError(f"a ledger lies outside the bucket {key}")
        for segment in sealed.metadata:
            for ledger_id, entries in segment.bitmaps.items():
                self.mutable.bits.remove_all(ledger_id, entries)

    def _merge(self, old: Sequence[ImmutableBucket], merge: Callable[[Sequence[ImmutableBucket]], bool]) -> None:
        if old:
            self.access.attempt(BucketOperation.MERGE, lambda: merge(old))

    def _merge_as_broker(self, old: Sequence[ImmutableBucket]) -> bool:
        unloaded = [
            segment
            for bucket in old
            for segment in self.access.segments(bucket, bucket.current_segment + 1, bucket.last_segment)
        ]
        key = BucketKey(old[0].key.start, old[-1].key.end)
        merged = sort_indexes(joined(unloaded))
        if not len(merged):
            raise TrackerFailedError(f"the buckets of {key} hold no index")
        self._create(merged, key, PositionBits.union(bucket.bits.ledgers for bucket in old))
        return self.drop(old)

    def _merge_as_pip(self, old: Sequence[ImmutableBucket]) -> bool:
        """Write the remaining indexes of both buckets, loaded or not; a failure changes nothing."""
        key = BucketKey(old[0].key.start, old[-1].key.end)
        left = sort_indexes(joined([self._left_of(bucket) for bucket in old]))
        if not len(left):
            return self.drop(old)
        sealed = seal(left, self.settings)
        bucket = ImmutableBucket.sealed(key, sealed)
        if not self.access.save(bucket, sealed):
            raise TemporaryError(f"the merged bucket {key} was not written")
        self.shared.remove(bucket.bits.ledgers)
        self.shared.put_back(pack(sealed.segments[0]))
        self.ranges.put(key, bucket)
        self.expect_next(bucket, sealed.segments[0])
        return self.drop(old)

    def drop(self, buckets: Sequence[ImmutableBucket]) -> bool:
        """Delete buckets with their snapshots; always return True."""
        for bucket in buckets:
            self.ranges.remove(CutRange.closed(bucket.key))
            self.access.delete(bucket)
        return True

    def _left_of(self, bucket: ImmutableBucket) -> DelayedIndexes:
        indexes = joined(self.access.segments(bucket, max(1, bucket.current_segment), bucket.last_segment))
        return indexes[indexes.within(bucket.bits.ledgers)]

    def expect_next(self, bucket: ImmutableBucket, loaded: DelayedIndexes) -> None:
        """Record the last message of a segment that is now in memory."""
        self.ends[_last_position(loaded)] = _SegmentEnd(bucket, int(loaded.deliver_at_ms[-1]))

    # --- segments in memory ------------------------------------------------------------------------------------------

    def pop_until_end(self, most: int, cutoff_ms: int) -> PackedIndexes:
        """Pop due indexes of the shared queue, up to the time at which the first loaded segment ends."""
        first_ms = self.shared.first_ms()
        if first_ms is None or first_ms > cutoff_ms:
            return NO_PACKED
        ends = [each.due_ms for each in self.ends.values() if each.bucket.ranges]
        return self.shared.pop(most, min(cutoff_ms, max(first_ms, min(ends, default=NEVER))))

    def first_end(self, due: PackedIndexes) -> tuple[int, Position | None]:
        """Return the first row that ends a loaded segment, and its position; the number of rows if none does."""
        lasts = [position.entry_id for position, each in self.ends.items() if each.bucket.ranges]
        for row in due.rows_of_entries(lasts):
            position = due.position_at(row)
            last = self.ends.get(position)
            if last is not None and last.bucket.ranges:
                return row, position
        return len(due), None

    # --- recovery and closing ----------------------------------------------------------------------------------------

    def recover(self, cutoff_ms: int) -> None:
        """Recover the buckets that the cursor's properties name; raises as the tracker's ``recover`` does."""
        dropped = name_buckets(self.ranges, self.access, self.behaviour)
        loaded = {
            held: (bucket, recover_bucket(bucket, self.access, cutoff_ms, self.behaviour))
            for held, bucket in self.ranges.items()
        }
        # If segments of two buckets end with the same message, a broker remembers the one that it reads last.
        for held in in_order_of_hash_map(tuple(loaded), len(loaded)):
            bucket, indexes = loaded[held]
            if len(indexes):
                self.expect_next(bucket, indexes)
                self.shared.add_many(indexes)
            else:
                dropped[held] = bucket
        for held in in_order_of_hash_map(tuple(dropped), _DEFAULT_CAPACITY):
            self.ranges.remove(held)
            self.access.delete(dropped[held])

    def clear(self) -> None:
        """Forget all buckets; snapshots and properties stay."""
        self.ranges.clear()
        self.ends.clear()


def _last_position(rows: DelayedIndexes) -> Position:
    return Position(LedgerId(int(rows.ledgers[-1])), EntryId(int(rows.entries[-1])))


# --- selection of buckets to merge ---------------------------------------------------------------------------------


def select_as_broker(buckets: Sequence[ImmutableBucket], number: int = MAX_MERGE_NUM) -> Sequence[ImmutableBucket]:
    """Select buckets to merge like ``selectMergedBuckets`` of 4.0.8, with its faults.

    The choice falls on neighbours that all have segments to load, four at first, then fewer, with the fewest messages;
    but if those with fewer messages are not also due earlier, it stays with neighbours that have more. "Due" refers to
    the segment after the next one.

    Raises:
        TrackerFailedError: there are no more buckets than to merge, or a bucket has exactly one segment to load.
    """
    if number >= len(buckets):
        raise TrackerFailedError(f"{number} of {format_count(len(buckets), 'bucket')} are to be merged")
    fewest = earliest = None
    chosen: Sequence[ImmutableBucket] = ()
    for at in range(len(buckets) - number + 1):
        window = buckets[at : at + number]
        if not all(bucket.has_unloaded for bucket in window):
            continue
        count = sum(bucket.count for bucket in window)
        if fewest is not None and count > fewest:
            continue
        fewest = count
        due = min(_due_after_next(bucket) for bucket in window)
        if earliest is None or due < earliest:
            earliest, chosen = due, window
    if chosen or number == _FEWEST:
        return chosen
    return select_as_broker(buckets, number - 1)


def select_as_pip(buckets: Sequence[ImmutableBucket]) -> Sequence[ImmutableBucket]:
    """Return the two neighbours with the fewest messages, the earliest of several; empty if there are none."""
    pairs = [buckets[at : at + _FEWEST] for at in range(len(buckets) - 1)]
    return min(pairs, key=lambda pair: sum(bucket.count for bucket in pair), default=())


def _due_after_next(bucket: ImmutableBucket) -> int:
    # Segments count from 1, and this list from 0.
    if bucket.current_segment + 1 >= len(bucket.first_times_ms):
        raise TrackerFailedError(f"{bucket.key} has one segment left to load")
    return bucket.first_times_ms[bucket.current_segment + 1]


# --- recovery of buckets: ``recoverBucketSnapshot`` of 4.0.8 --------------------------------------------------------


def name_buckets(
    buckets: BucketRanges, access: SnapshotAccess, behaviour: Behaviour
) -> dict[CutRange, ImmutableBucket]:
    """Insert the buckets that the cursor's properties name, and return those dropped as overlapping.

    Raises:
        UndecodableError: a property's name is malformed.
    """
    keys = [BucketKey.parse(name) for name in access.names() if name.startswith(DELAYED_BUCKET_KEY_PREFIX)]
    dropped: dict[CutRange, ImmutableBucket] = {}
    match behaviour:
        case Behaviour.AS_BROKER:
            for key in keys:
                dropped |= dict(buckets.overlapping(key))
                buckets.put(key, ImmutableBucket(key))
        case Behaviour.AS_PIP:
            # If two buckets overlap, a merge wrote the wider one, which begins with the other or before it.
            for key in sorted(keys, key=lambda each: (each.start, -each.end)):
                if buckets.overlapping(key):
                    dropped[CutRange.closed(key)] = ImmutableBucket(key)
                else:
                    buckets.put(key, ImmutableBucket(key))
    return dropped


def recover_bucket(
    bucket: ImmutableBucket, access: SnapshotAccess, cutoff_ms: int, behaviour: Behaviour
) -> DelayedIndexes:
    """Load and return the first segment not entirely due; empty if all are due, so that the bucket is dropped.

    Raises:
        UndecodableError: the property's value is malformed.
        RecoveryFailedError: the bucket could not be read.
    """
    access.id_of(bucket)
    try:
        first = bucket.recover(access.metadata(bucket), cutoff_ms)
        if first > bucket.last_segment:
            return NO_INDEXES
        segments = access.segments(bucket, first, first)
    except NotFoundError as error:
        if behaviour is Behaviour.AS_PIP:
            return NO_INDEXES
        raise RecoveryFailedError(f"the bucket {bucket.key} no longer exists") from error
    except SidecarError as error:
        raise RecoveryFailedError(f"the bucket {bucket.key} was not read: {error}") from error
    if not segments:
        return NO_INDEXES
    bucket.current_segment = first
    access.measure(bucket)
    return segments[0]
