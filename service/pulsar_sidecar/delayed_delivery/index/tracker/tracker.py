"""``BucketDelayedDeliveryTracker`` of Pulsar 4.0.8: what a dispatcher asks which delayed messages are due.

Invariants: a position is handed out only when it is due, less a tick unless the settings are strict. Indexes that are
in no snapshot (of the mutable bucket, of older ledgers) are gone after a restart; whoever drives the tracker reads
messages again from the mark-delete position and adds them, as a dispatcher does.

Waiting for the storage happens within the calls, so nothing of Java's states between is seen. Where 4.0.8 departs from
PIP-195 the tracker follows the one or the other (`Behaviour`; docs/delayed-index.md has the table).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap

from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.ports import BucketProperties, BucketSnapshotStorage
from pulsar_sidecar.delayed_delivery.index.settings import Behaviour, TrackerSettings
from pulsar_sidecar.delayed_delivery.index.snapshot import (
    NO_INDEXES,
    DelayedIndexes,
    Flags,
    Longs,
    bitmap_of,
    bitmaps_of,
    joined,
)
from pulsar_sidecar.delayed_delivery.index.tracker.bucket_ranges import BucketRanges, CutRange, in_order_of_hash_map
from pulsar_sidecar.delayed_delivery.index.tracker.failures import TrackerFailedError
from pulsar_sidecar.delayed_delivery.index.tracker.immutable_bucket import ImmutableBucket
from pulsar_sidecar.delayed_delivery.index.tracker.merging import select_as_broker, select_as_pip
from pulsar_sidecar.delayed_delivery.index.tracker.mutable_bucket import MutableBucket
from pulsar_sidecar.delayed_delivery.index.tracker.packed import NO_PACKED, PackedIndexes, pack
from pulsar_sidecar.delayed_delivery.index.tracker.position_bits import PositionBits
from pulsar_sidecar.delayed_delivery.index.tracker.queue import NEVER, IndexQueue
from pulsar_sidecar.delayed_delivery.index.tracker.recovery import name_buckets, recover_bucket
from pulsar_sidecar.delayed_delivery.index.tracker.sealing import SealedIndexes, seal, sort_indexes
from pulsar_sidecar.delayed_delivery.index.tracker.snapshot_access import BucketOperation, SnapshotAccess
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

_MAX_ENTRY_ID = 2**32 - 1
"""Roaring bitmaps hold 32 bits; a broker throws half-way for more."""

_DEFAULT_CAPACITY = 16
"""Of a ``HashMap``."""


@dataclass(frozen=True, slots=True)
class _LastOfSegment:
    """With which index a loaded segment ends: before it is handed out the next segment is loaded."""

    bucket: ImmutableBucket
    due_ms: int


class BucketDelayedDeliveryTracker:
    """One subscription's; not for several threads at once.

    Attributes:
        settings: how the index is kept.
        behaviour: what it follows where the broker departs from the PIP.
        mutable: the bucket that is being filled.
        shared: what is loaded of the buckets, and late messages.
        buckets: the sealed ones.
        access: the way to the snapshots, with counts of what was done.
    """

    def __init__(
        self,
        settings: TrackerSettings,
        storage: BucketSnapshotStorage,
        properties: BucketProperties,
        clock: Clock,
        *,
        topic_name: str,
        cursor_name: str,
        behaviour: Behaviour = Behaviour.AS_BROKER,
    ) -> None:
        """Empty; `recover` takes over the buckets that the properties name."""
        self.settings = settings
        self.behaviour = behaviour
        self.mutable = MutableBucket()
        self.shared = IndexQueue()
        self.buckets = BucketRanges()
        self.access = SnapshotAccess(storage, properties, topic_name, cursor_name)
        self._clock = clock
        self._last_of_segment: dict[Position, _LastOfSegment] = {}
        self._count = 0

    # --- asking ------------------------------------------------------------------------------------------------------

    @property
    def number_of_delayed_messages(self) -> int:
        """As the broker counts them (``getNumberOfDelayedMessages``)."""
        return self._count

    @property
    def held_bytes(self) -> int:
        """Bytes of memory for indexes and bitmaps here; not what a broker takes."""
        bitmaps = (self.mutable.bits, *(bucket.bits for bucket in self.buckets))
        return self.mutable.queue.nbytes + self.shared.nbytes + sum(bits.nbytes for bits in bitmaps)

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the position has an index that was not handed out."""
        if self.mutable.bits.contains(ledger_id, entry_id):
            return True
        bucket = self.buckets.find(ledger_id)
        return bucket is not None and bucket.bits.contains(ledger_id, entry_id)

    def next_delivery_time(self) -> int | None:
        """The earliest due time in memory, milliseconds since the epoch; None when memory holds none."""
        times = (self.mutable.queue.first_ms(), self.shared.first_ms())
        return min((each for each in times if each is not None), default=None)

    def has_message_available(self) -> bool:
        """Whether `get_scheduled_messages` would give one.

        Raises:
            TrackerFailedError: as a broker, when messages are counted and none is in memory.
        """
        next_ms = self._next_of_counted()
        return next_ms is not None and next_ms <= self._cutoff_ms()

    # --- adding ------------------------------------------------------------------------------------------------------

    def add_message(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> bool:
        """Track it; False when it is due already and is to be delivered at once.

        Raises:
            InvalidInputError: a negative id, or an entry beyond 32 bits; nothing was changed.
            TrackerFailedError: as a broker, with what was changed before left changed.
        """
        check_positions(ledger_id, entry_id, entry_id)
        if self.contains_message(ledger_id, entry_id):
            return True
        if deliver_at_ms < 0 or deliver_at_ms <= self._cutoff_ms():
            return False
        is_covered = self.buckets.find(ledger_id) is not None
        if not is_covered and ledger_id > self.mutable.end and self._can_seal():
            self._seal()
        if self._is_late(ledger_id, is_covered):
            self.shared.add(deliver_at_ms, ledger_id, entry_id)
            self.mutable.bits.add(ledger_id, entry_id)
        else:
            self.mutable.add(deliver_at_ms, ledger_id, entry_id)
        self._count += 1
        return True

    def add_messages(self, indexes: DelayedIndexes) -> Flags:
        """`add_message` for each in order, with what each would answer; fast where a ledger's are side by side.

        Raises:
            InvalidInputError: like `add_message`, and none was added.
            TrackerFailedError: like `add_message`; the rows before ``error.row`` were added.
        """
        if not len(indexes):
            return np.empty(0, np.bool_)
        ledgers, entries = indexes.ledgers, indexes.entries
        check_positions(int(ledgers.min()), int(entries.min()), int(entries.max()))
        answers = np.empty(len(indexes), np.bool_)
        starts = np.concatenate(([0], np.flatnonzero(ledgers[1:] != ledgers[:-1]) + 1)).tolist()
        for start, end in zip(starts, [*starts[1:], len(indexes)], strict=True):
            try:
                answers[start:end] = self._add_of_one_ledger(indexes[start:end])
            except TrackerFailedError as error:
                raise TrackerFailedError(error.what, start + (error.row or 0)) from error
        return answers

    def _add_of_one_ledger(self, indexes: DelayedIndexes) -> Flags:
        ledger_id = int(indexes.ledgers[0])
        entries = bitmap_of(indexes.entries)
        if len(entries) < len(indexes):
            return np.array([self._add_row(indexes, row) for row in range(len(indexes))], np.bool_)
        is_due = indexes.deliver_at_ms <= self._cutoff_ms()
        known = self._known(ledger_id, indexes.entries, entries)
        new = np.flatnonzero(~(is_due | known))
        if not len(new):
            return known
        first, merges = int(new[0]), self.access.operations[BucketOperation.MERGE, True]
        known[first] = self._add_row(indexes, first)
        if self.access.operations[BucketOperation.MERGE, True] > merges:
            # A merge can make the ledger a covered one.
            known = self._known(ledger_id, indexes.entries, entries)
            new = np.flatnonzero(~(is_due | known))
        else:
            new = new[1:]
        # None of the same ledger after the first one seals a bucket.
        if len(new) == len(indexes) - 1 and first == 0:
            self._add_to_open_ledger(ledger_id, indexes[1:], entries)
        elif len(new):
            self._add_to_open_ledger(ledger_id, indexes[new], bitmap_of(indexes.entries[new]))
        known[new] = True
        return known

    def _add_row(self, indexes: DelayedIndexes, row: int) -> bool:
        try:
            return self.add_message(
                int(indexes.ledgers[row]), int(indexes.entries[row]), int(indexes.deliver_at_ms[row])
            )
        except TrackerFailedError as error:
            raise TrackerFailedError(error.what, row) from error

    def _add_to_open_ledger(self, ledger_id: int, indexes: DelayedIndexes, entries: BitMap) -> None:
        if self._is_late(ledger_id, self.buckets.find(ledger_id) is not None):
            self.shared.add_many(indexes)
            self.mutable.bits.add_all(ledger_id, entries)
        else:
            self.mutable.add_many(indexes, ledger_id, entries)
        self._count += len(indexes)

    def _known(self, ledger_id: int, entry_ids: Longs, entries: BitMap) -> Flags:
        bucket = self.buckets.find(ledger_id)
        known = np.zeros(len(entry_ids), np.bool_)
        for held in (self.mutable.bits.of(ledger_id), bucket.bits.of(ledger_id) if bucket is not None else None):
            if held is not None and held.intersect(entries):
                known |= np.isin(entry_ids, np.frombuffer((held & entries).to_array(), np.uint32))
        return known

    def _is_late(self, ledger_id: int, is_covered: bool) -> bool:
        """Whether only memory will hold it, since it belongs to no bucket that is still filled."""
        if is_covered or ledger_id < self.mutable.start:
            return True
        match self.behaviour:
            case Behaviour.AS_BROKER:
                if ledger_id < self.mutable.end:
                    raise TrackerFailedError(f"ledger {ledger_id} lies within the bucket {self.mutable.key}")
                return False
            case Behaviour.AS_PIP:
                return ledger_id < self.buckets.last_ledger_id()

    # --- sealing and merging -----------------------------------------------------------------------------------------

    def _can_seal(self) -> bool:
        return len(self.mutable.queue) >= max(1, self.settings.min_index_count)

    def _seal(self) -> None:
        most = self.settings.max_num_buckets
        if self.behaviour is Behaviour.AS_PIP and 0 < most <= len(self.buckets):
            self._merge_as_pip()
        indexes = self._rows_to_seal()
        if len(indexes):
            self._create(indexes, self.mutable.key)
        self.mutable.reset_range()
        if self.behaviour is Behaviour.AS_BROKER and 0 < most < len(self.buckets):
            self._merge_as_broker()

    def _rows_to_seal(self) -> DelayedIndexes:
        return self.mutable.take_all()

    def _create(self, indexes: DelayedIndexes, key: BucketKey, merged: PositionBits | None = None) -> None:
        sealed = seal(indexes, self.settings)
        self._take_out_of_mutable(sealed, indexes, key)
        first = sealed.segments[0]
        self.shared.put_back(pack(first))
        bucket = ImmutableBucket.sealed(key, sealed)
        is_saved = self.access.save(bucket, sealed)
        bucket.bits = merged or bucket.bits
        self.buckets.put(key, bucket)
        self._expect_next(bucket, first)
        if not is_saved:
            for segment in sealed.segments[1:]:
                self.shared.put_back(pack(segment))
            self.buckets.remove(CutRange.closed(key))
            self._last_of_segment.pop(_last_position(first))

    def _take_out_of_mutable(self, sealed: SealedIndexes, indexes: DelayedIndexes, key: BucketKey) -> None:
        outside = np.flatnonzero((indexes.ledgers < key.start) | (indexes.ledgers > key.end))
        if len(outside):
            # Half-way through, as a broker leaves it.
            reached = int(outside[0])
            self.shared.put_back(pack(indexes[: min(reached, len(sealed.segments[0]))]))
            gone = indexes[: reached + 1]
            for ledger_id, entries in bitmaps_of(gone.ledgers, gone.entries).items():
                self.mutable.bits.remove_all(ledger_id, entries)
            raise TrackerFailedError(f"a ledger lies outside the bucket {key}")
        for segment in sealed.metadata:
            for ledger_id, entries in segment.bitmaps.items():
                self.mutable.bits.remove_all(ledger_id, entries)

    def _merge_as_broker(self) -> None:
        old = select_as_broker(tuple(self.buckets))
        if not old:
            return

        def merge() -> bool:
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
            return self._drop(old)

        self.access.attempt(BucketOperation.MERGE, old[0], merge)

    def _merge_as_pip(self) -> None:
        """Write what is left of both, whether loaded or not; when that fails nothing has changed."""
        old = select_as_pip(tuple(self.buckets))
        if not old:
            return

        def merge() -> bool:
            key = BucketKey(old[0].key.start, old[-1].key.end)
            left = sort_indexes(joined([self._left_of(bucket) for bucket in old]))
            if not len(left):
                return self._drop(old)
            sealed = seal(left, self.settings)
            bucket = ImmutableBucket.sealed(key, sealed)
            if not self.access.save(bucket, sealed):
                raise TemporaryError(f"the merged bucket {key} was not written")
            self.shared.remove(bucket.bits.ledgers)
            self.shared.put_back(pack(sealed.segments[0]))
            self.buckets.put(key, bucket)
            self._expect_next(bucket, sealed.segments[0])
            return self._drop(old)

        self.access.attempt(BucketOperation.MERGE, old[0], merge)

    def _drop(self, buckets: Sequence[ImmutableBucket]) -> bool:
        for bucket in buckets:
            self.buckets.remove(CutRange.closed(bucket.key))
            self.access.delete(bucket)
        return True

    def _left_of(self, bucket: ImmutableBucket) -> DelayedIndexes:
        indexes = joined(self.access.segments(bucket, max(1, bucket.current_segment), bucket.last_segment))
        return indexes[indexes.within(bucket.bits.ledgers)]

    def _expect_next(self, bucket: ImmutableBucket, loaded: DelayedIndexes) -> None:
        self._last_of_segment[_last_position(loaded)] = _LastOfSegment(bucket, int(loaded.deliver_at_ms[-1]))

    # --- handing out -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """What the broker's timer does before it asks: what is due leaves the mutable bucket, and seals no more."""
        self.mutable.move_due(self._cutoff_ms(), self.shared)

    def get_scheduled_messages(self, max_messages: int) -> list[Position]:
        """Up to so many that are due; ascending by position, as a broker hands them out.

        Raises:
            TrackerFailedError: as a broker, when messages are counted and none is in memory; those taken are lost.
        """
        rows = self.pop_scheduled(max_messages)
        return sorted(set(rows.positions()))

    def pop_scheduled(self, max_messages: int) -> DelayedIndexes:
        """The same as columns, by due time; a position that was added twice is in twice.

        Raises:
            TrackerFailedError: like `get_scheduled_messages`.
        """
        handed_out = self._take(max_messages)
        self._hand_out(handed_out)
        self._next_of_counted()
        return handed_out

    def _take(self, max_messages: int) -> DelayedIndexes:
        """Out of the queues, with the segments loaded that are needed for it."""
        cutoff_ms = self._cutoff_ms()
        self.mutable.move_due(cutoff_ms, self.shared)
        taken: list[PackedIndexes] = []
        left = max_messages
        while left > 0:
            due = self._pop_until_last_of_segment(left, cutoff_ms)
            if not len(due):
                break
            row, position = self._first_last_of_segment(due)
            taken.append(due.rows(0, row))
            left -= row
            if position is None:
                continue
            self.shared.put_back(due.after(row))
            if not self._load_after(position):
                break
            taken.append(due.rows(row, row + 1))
            self.shared.pop(1, NEVER)
            left -= 1
        return joined([part.unpacked() for part in taken])

    def _pop_until_last_of_segment(self, most: int, cutoff_ms: int) -> PackedIndexes:
        first_ms = self.shared.first_ms()
        if first_ms is None or first_ms > cutoff_ms:
            return NO_PACKED
        ends = [each.due_ms for each in self._last_of_segment.values() if each.bucket.ranges]
        return self.shared.pop(most, min(cutoff_ms, max(first_ms, min(ends, default=NEVER))))

    def _first_last_of_segment(self, due: PackedIndexes) -> tuple[int, Position | None]:
        """The first row that ends a loaded segment, and its position; the number of rows when none does."""
        lasts = [position.entry_id for position, each in self._last_of_segment.items() if each.bucket.ranges]
        for row in due.rows_of_entries(lasts):
            position = due.position_at(row)
            last = self._last_of_segment.get(position)
            if last is not None and last.bucket.ranges:
                return row, position
        return len(due), None

    def _load_after(self, position: Position) -> bool:
        """Load the segment after the one that ends there, or delete the bucket if that was its last; False: failed."""
        bucket = self._last_of_segment[position].bucket
        following = bucket.current_segment + 1

        def load() -> DelayedIndexes:
            if following > bucket.last_segment:
                return NO_INDEXES
            segments = self.access.segments(bucket, following, following)
            if not segments:
                return NO_INDEXES
            bucket.current_segment = following
            return segments[0]

        loaded = self.access.attempt(BucketOperation.LOAD, bucket, load)
        if loaded is None:
            return False
        del self._last_of_segment[position]
        if len(loaded):
            self.shared.add_many(loaded)
            self._expect_next(bucket, loaded)
        else:
            self._finish(bucket)
        return True

    def _finish(self, bucket: ImmutableBucket) -> None:
        """Its last index is about to be handed out."""
        self._drop([bucket])

    def _hand_out(self, rows: DelayedIndexes) -> None:
        self._count -= len(rows)
        by_ledger = bitmaps_of(rows.ledgers, rows.entries)
        if sum(map(len, by_ledger.values())) < len(rows):
            for position in rows.positions():
                self._remove_bit(position)
            return
        for ledger_id, entries in by_ledger.items():
            removed = self.mutable.bits.remove_all(ledger_id, entries)
            rest = entries - removed if removed else entries
            bucket = self.buckets.find(ledger_id)
            if rest and bucket is not None:
                bucket.remove_all(ledger_id, rest)

    def _remove_bit(self, position: Position) -> bool:
        if self.mutable.bits.remove(*position):
            return True
        bucket = self.buckets.find(position.ledger_id)
        return bucket is not None and bucket.remove(*position)

    def _next_of_counted(self) -> int | None:
        # A broker that handed out what a lost bucket had left in memory counts less than none.
        if self._count == 0:
            return None
        next_ms = self.next_delivery_time()
        if next_ms is None and self.behaviour is Behaviour.AS_BROKER:
            raise TrackerFailedError(f"{self._count} messages are counted and none is in memory")
        return next_ms if self._count > 0 else None

    def _cutoff_ms(self) -> int:
        now_ms = self._clock.now_ms()
        return now_ms if self.settings.strict else now_ms + self.settings.tick_time_ms

    # --- beginning and ending ----------------------------------------------------------------------------------------

    def recover(self) -> int:
        """Take over the buckets that the cursor's properties name; to be called once, first.

        Returns:
            How many delayed messages that makes.

        Raises:
            UndecodableError: a property's name or value; a broker throws, and the subscription has no tracker at all.
            RecoveryFailedError: a bucket was not read; a broker uses its in-memory tracker. Nothing was deleted.
        """
        dropped = name_buckets(self.buckets, self.access, self.behaviour)
        cutoff_ms = self._cutoff_ms()
        loaded = {
            held: (bucket, recover_bucket(bucket, self.access, cutoff_ms, self.behaviour))
            for held, bucket in self.buckets.items()
        }
        # Where segments of two buckets end with the same message, a broker remembers the one that comes last.
        for held in in_order_of_hash_map(tuple(loaded), len(loaded)):
            bucket, indexes = loaded[held]
            if len(indexes):
                self._expect_next(bucket, indexes)
                self.shared.add_many(indexes)
            else:
                dropped[held] = bucket
        for held in in_order_of_hash_map(tuple(dropped), _DEFAULT_CAPACITY):
            self.buckets.remove(held)
            self.access.delete(dropped[held])
        self._count = sum(bucket.count for bucket in self.buckets)
        return self._count

    def clear(self) -> None:
        """Forget every message and delete every snapshot: when all is skipped, and before the cursor goes."""
        for bucket in dict.fromkeys(self.buckets):
            self.access.delete(bucket)
        self._forget()

    def close(self) -> None:
        """Let go of the memory; snapshots and properties stay for the next one. Idempotent."""
        self._forget()

    def _forget(self) -> None:
        self.buckets.clear()
        self.shared.clear()
        self.mutable.clear()
        self._last_of_segment.clear()
        self._count = 0


def _position(rows: DelayedIndexes, row: int) -> Position:
    return Position(LedgerId(int(rows.ledgers[row])), EntryId(int(rows.entries[row])))


def _last_position(rows: DelayedIndexes) -> Position:
    return _position(rows, len(rows) - 1)


def check_positions(least_ledger: int, least_entry: int, most_entry: int) -> None:
    """Raises `InvalidInputError` for ids that no message has."""
    if least_ledger < 0 or least_entry < 0 or most_entry > _MAX_ENTRY_ID:
        raise InvalidInputError(
            f"ids are not negative, and an entry's has 32 bits; given were ledger {least_ledger} "
            f"and entries {least_entry} to {most_entry}"
        )
