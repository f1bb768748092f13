"""The sealed buckets of one index, and with which message each loaded segment ends: seals, merges, recovers, deletes.

Where 4.0.8 departs from PIP-195 it follows the one or the other (`Behaviour`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.settings import MAX_MERGE_NUM, Behaviour, TrackerSettings
from pulsar_sidecar.delayed_delivery.index.snapshot import NO_INDEXES, DelayedIndexes, bitmaps_of, joined
from pulsar_sidecar.delayed_delivery.index.tracker.bucket_ranges import BucketRanges, CutRange, in_order_of_hash_map
from pulsar_sidecar.delayed_delivery.index.tracker.failures import RecoveryFailedError, TrackerFailedError
from pulsar_sidecar.delayed_delivery.index.tracker.immutable_bucket import ImmutableBucket
from pulsar_sidecar.delayed_delivery.index.tracker.mutable_bucket import MutableBucket
from pulsar_sidecar.delayed_delivery.index.tracker.packed import NO_PACKED, PackedIndexes, pack
from pulsar_sidecar.delayed_delivery.index.tracker.position_bits import PositionBits
from pulsar_sidecar.delayed_delivery.index.tracker.queue import NEVER, IndexQueue
from pulsar_sidecar.delayed_delivery.index.tracker.sealing import SealedIndexes, seal, sort_indexes
from pulsar_sidecar.delayed_delivery.index.tracker.snapshot_access import BucketOperation, SnapshotAccess
from pulsar_sidecar.ledger_ownership.references import DELAYED_BUCKET_KEY_PREFIX
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

_DEFAULT_CAPACITY: Final = 16
"""Of a ``HashMap``."""
_FEWEST: Final = 2
"""So many buckets are merged at least."""


@dataclass(frozen=True, slots=True)
class _SegmentEnd:
    bucket: ImmutableBucket
    due_ms: int


class SealedBuckets:
    """Takes what it seals out of the mutable bucket, and puts what it loads into the shared queue.

    Attributes:
        ranges: the buckets.
        ends: messages with which loaded segments end; before one is handed out, the next segment is loaded.
    """

    def __init__(
        self,
        settings: TrackerSettings,
        behaviour: Behaviour,
        access: SnapshotAccess,
        mutable: MutableBucket,
        shared: IndexQueue,
    ) -> None:
        self.ranges = BucketRanges()
        self._settings = settings
        self._behaviour = behaviour
        self._access = access
        self._mutable = mutable
        self._shared = shared
        self.ends: dict[Position, _SegmentEnd] = {}

    # --- sealing and merging -----------------------------------------------------------------------------------------

    def seal(self, indexes: DelayedIndexes) -> None:
        """Make a bucket of what was taken out of the mutable bucket's queue; merge where there are too many.

        Raises:
            TrackerFailedError: as a broker, with what was changed before left changed.
        """
        most = self._settings.max_num_buckets
        if self._behaviour is Behaviour.AS_PIP and 0 < most <= len(self.ranges):
            self._merge(select_as_pip(tuple(self.ranges)), self._merge_as_pip)
        if len(indexes):
            self._create(indexes, self._mutable.key)
        self._mutable.reset_range()
        if self._behaviour is Behaviour.AS_BROKER and 0 < most < len(self.ranges):
            self._merge(select_as_broker(tuple(self.ranges)), self._merge_as_broker)

    def _create(self, indexes: DelayedIndexes, key: BucketKey, merged: PositionBits | None = None) -> None:
        sealed = seal(indexes, self._settings)
        self._take_out_of_mutable(sealed, indexes, key)
        first = sealed.segments[0]
        self._shared.put_back(pack(first))
        bucket = ImmutableBucket.sealed(key, sealed)
        is_saved = self._access.save(bucket, sealed)
        bucket.bits = merged or bucket.bits
        self.ranges.put(key, bucket)
        self.expect_next(bucket, first)
        if not is_saved:
            for segment in sealed.segments[1:]:
                self._shared.put_back(pack(segment))
            self.ranges.remove(CutRange.closed(key))
            self.ends.pop(_last_position(first))

    def _take_out_of_mutable(self, sealed: SealedIndexes, indexes: DelayedIndexes, key: BucketKey) -> None:
        outside = np.flatnonzero((indexes.ledgers < key.start) | (indexes.ledgers > key.end))
        if len(outside):
            # Half-way through, as a broker leaves it.
            reached = int(outside[0])
            self._shared.put_back(pack(indexes[: min(reached, len(sealed.segments[0]))]))
            gone = indexes[: reached + 1]
            for ledger_id, entries in bitmaps_of(gone.ledgers, gone.entries).items():
                self._mutable.bits.remove_all(ledger_id, entries)
            raise TrackerFailedError(f"a ledger lies outside the bucket {key}")
        for segment in sealed.metadata:
            for ledger_id, entries in segment.bitmaps.items():
                self._mutable.bits.remove_all(ledger_id, entries)

    def _merge(self, old: Sequence[ImmutableBucket], merge: Callable[[Sequence[ImmutableBucket]], bool]) -> None:
        if old:
            self._access.attempt(BucketOperation.MERGE, lambda: merge(old))

    def _merge_as_broker(self, old: Sequence[ImmutableBucket]) -> bool:
        unloaded = [
            segment
            for bucket in old
            for segment in self._access.segments(bucket, bucket.current_segment + 1, bucket.last_segment)
        ]
        key = BucketKey(old[0].key.start, old[-1].key.end)
        merged = sort_indexes(joined(unloaded))
        if not len(merged):
            raise TrackerFailedError(f"the buckets of {key} hold no index")
        self._create(merged, key, PositionBits.union(bucket.bits.ledgers for bucket in old))
        return self.drop(old)

    def _merge_as_pip(self, old: Sequence[ImmutableBucket]) -> bool:
        """Write what is left of both, whether loaded or not; when that fails nothing has changed."""
        key = BucketKey(old[0].key.start, old[-1].key.end)
        left = sort_indexes(joined([self._left_of(bucket) for bucket in old]))
        if not len(left):
            return self.drop(old)
        sealed = seal(left, self._settings)
        bucket = ImmutableBucket.sealed(key, sealed)
        if not self._access.save(bucket, sealed):
            raise TemporaryError(f"the merged bucket {key} was not written")
        self._shared.remove(bucket.bits.ledgers)
        self._shared.put_back(pack(sealed.segments[0]))
        self.ranges.put(key, bucket)
        self.expect_next(bucket, sealed.segments[0])
        return self.drop(old)

    def drop(self, buckets: Sequence[ImmutableBucket]) -> bool:
        """Delete buckets, with their snapshots; always True."""
        for bucket in buckets:
            self.ranges.remove(CutRange.closed(bucket.key))
            self._access.delete(bucket)
        return True

    def _left_of(self, bucket: ImmutableBucket) -> DelayedIndexes:
        indexes = joined(self._access.segments(bucket, max(1, bucket.current_segment), bucket.last_segment))
        return indexes[indexes.within(bucket.bits.ledgers)]

    def expect_next(self, bucket: ImmutableBucket, loaded: DelayedIndexes) -> None:
        """Remember where a segment ends that is in memory now."""
        self.ends[_last_position(loaded)] = _SegmentEnd(bucket, int(loaded.deliver_at_ms[-1]))

    # --- segments in memory ------------------------------------------------------------------------------------------

    def pop_until_end(self, most: int, cutoff_ms: int) -> PackedIndexes:
        """What is due of the shared queue, up to the time at which the first loaded segment ends."""
        first_ms = self._shared.first_ms()
        if first_ms is None or first_ms > cutoff_ms:
            return NO_PACKED
        ends = [each.due_ms for each in self.ends.values() if each.bucket.ranges]
        return self._shared.pop(most, min(cutoff_ms, max(first_ms, min(ends, default=NEVER))))

    def first_end(self, due: PackedIndexes) -> tuple[int, Position | None]:
        """The first row that ends a loaded segment, and its position; the number of rows when none does."""
        lasts = [position.entry_id for position, each in self.ends.items() if each.bucket.ranges]
        for row in due.rows_of_entries(lasts):
            position = due.position_at(row)
            last = self.ends.get(position)
            if last is not None and last.bucket.ranges:
                return row, position
        return len(due), None

    # --- beginning and ending ----------------------------------------------------------------------------------------

    def recover(self, cutoff_ms: int) -> None:
        """Take over the buckets that the cursor's properties name. Raises as the tracker's ``recover`` does."""
        dropped = name_buckets(self.ranges, self._access, self._behaviour)
        loaded = {
            held: (bucket, recover_bucket(bucket, self._access, cutoff_ms, self._behaviour))
            for held, bucket in self.ranges.items()
        }
        # Where segments of two buckets end with the same message, a broker remembers the one that comes last.
        for held in in_order_of_hash_map(tuple(loaded), len(loaded)):
            bucket, indexes = loaded[held]
            if len(indexes):
                self.expect_next(bucket, indexes)
                self._shared.add_many(indexes)
            else:
                dropped[held] = bucket
        for held in in_order_of_hash_map(tuple(dropped), _DEFAULT_CAPACITY):
            self.ranges.remove(held)
            self._access.delete(dropped[held])

    def clear(self) -> None:
        """Forget all; snapshots and properties stay."""
        self.ranges.clear()
        self.ends.clear()


def _last_position(rows: DelayedIndexes) -> Position:
    return Position(LedgerId(int(rows.ledgers[-1])), EntryId(int(rows.entries[-1])))


# --- which adjacent buckets are merged -----------------------------------------------------------------------------


def select_as_broker(buckets: Sequence[ImmutableBucket], number: int = MAX_MERGE_NUM) -> Sequence[ImmutableBucket]:
    """``selectMergedBuckets`` of 4.0.8, with its faults.

    Of each number of neighbours that all have segments to load, four at first, those with the fewest messages; but
    where fewer messages are not also due earlier, the choice stays with neighbours that have more. "Due" is the segment
    after the next one.

    Raises:
        TrackerFailedError: not more buckets than are to be merged, or a bucket with exactly one segment to load.
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
    """The two neighbours with the fewest messages; the earliest ones of several. None of fewer than two."""
    pairs = [buckets[at : at + _FEWEST] for at in range(len(buckets) - 1)]
    return min(pairs, key=lambda pair: sum(bucket.count for bucket in pair), default=())


def _due_after_next(bucket: ImmutableBucket) -> int:
    # Segments count from 1 and this list from 0.
    if bucket.current_segment + 1 >= len(bucket.first_times_ms):
        raise TrackerFailedError(f"{bucket.key} has one segment left to load")
    return bucket.first_times_ms[bucket.current_segment + 1]


# --- taking over the buckets that a cursor names: ``recoverBucketSnapshot`` of 4.0.8 --------------------------------


def name_buckets(
    buckets: BucketRanges, access: SnapshotAccess, behaviour: Behaviour
) -> dict[CutRange, ImmutableBucket]:
    """Put those in that the cursor's properties name; the answer are those that are dropped since they overlap.

    Raises:
        UndecodableError: a property's name.
    """
    keys = [BucketKey.parse(name) for name in access.names() if name.startswith(DELAYED_BUCKET_KEY_PREFIX)]
    dropped: dict[CutRange, ImmutableBucket] = {}
    match behaviour:
        case Behaviour.AS_BROKER:
            for key in keys:
                dropped |= dict(buckets.overlapping(key))
                buckets.put(key, ImmutableBucket(key))
        case Behaviour.AS_PIP:
            # Of two that overlap, what a merge wrote is the wider one and begins with the other or before it.
            for key in sorted(keys, key=lambda each: (each.start, -each.end)):
                if buckets.overlapping(key):
                    dropped[CutRange.closed(key)] = ImmutableBucket(key)
                else:
                    buckets.put(key, ImmutableBucket(key))
    return dropped


def recover_bucket(
    bucket: ImmutableBucket, access: SnapshotAccess, cutoff_ms: int, behaviour: Behaviour
) -> DelayedIndexes:
    """Its first segment that is not due as a whole, which it is now at; none if all are, and it is to be dropped.

    Raises:
        UndecodableError: the property's value.
        RecoveryFailedError: the bucket was not read.
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
        raise RecoveryFailedError(f"the bucket {bucket.key} does not exist any more") from error
    except SidecarError as error:
        raise RecoveryFailedError(f"the bucket {bucket.key} was not read: {error}") from error
    if not segments:
        return NO_INDEXES
    bucket.current_segment = first
    access.measure(bucket)
    return segments[0]
