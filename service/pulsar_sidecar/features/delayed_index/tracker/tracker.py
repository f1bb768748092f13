"""``BucketDelayedDeliveryTracker`` of Pulsar 4.0.8, which hands the due delayed messages to a dispatcher.

Invariants: a position is dispatched only when it is due, or one tick earlier unless the settings are strict. Indexes
that are in no snapshot (of the mutable bucket, of older ledgers) are lost upon a restart; the dispatcher then reads
messages again from the mark-delete position and adds them.

Calls wait for the storage, so Java's intermediate states do not occur. Where 4.0.8 departs from PIP-195, `Behaviour`
selects which one the tracker follows (docs/delayed-index.md has the table).
"""

from collections.abc import Callable

import numpy as np
from pyroaring import BitMap

from pulsar_sidecar.features.delayed_index.ports import BucketProperties, BucketSnapshotStorage
from pulsar_sidecar.features.delayed_index.segment_bytes import Longs
from pulsar_sidecar.features.delayed_index.settings import Behaviour, TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import (
    MAX_ENTRY_ID,
    NO_INDEXES,
    DelayedIndexes,
    Flags,
    bitmap_of,
    bitmaps_of,
    joined,
)
from pulsar_sidecar.features.delayed_index.tracker.immutable_bucket import ImmutableBucket
from pulsar_sidecar.features.delayed_index.tracker.mutable_bucket import MutableBucket
from pulsar_sidecar.features.delayed_index.tracker.packed import PackedIndexes
from pulsar_sidecar.features.delayed_index.tracker.queue import NEVER, IndexQueue
from pulsar_sidecar.features.delayed_index.tracker.sealed_buckets import SealedBuckets, TrackerFailedError
from pulsar_sidecar.features.delayed_index.tracker.snapshot_access import BucketOperation, SnapshotAccess
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.reports.formatting import format_count


class BucketDelayedDeliveryTracker:
    """Tracker of one subscription; not thread-safe.

    Attributes:
        settings: settings of the index.
        behaviour: model to follow where the broker departs from the PIP.
        mutable: bucket that is being filled.
        shared: queue of loaded segments and late messages.
        buckets: sealed buckets.
        access: access to the snapshots, with counts of operations.
    """

    def __init__(
        self,
        settings: TrackerSettings,
        storage: BucketSnapshotStorage,
        properties: BucketProperties,
        now_ms: Callable[[], int],
        *,
        topic_name: str,
        cursor_name: str,
        behaviour: Behaviour = Behaviour.AS_BROKER,
    ) -> None:
        """Create an empty tracker; `recover` loads the buckets that the properties name."""
        self.settings = settings
        self.behaviour = behaviour
        self.mutable = MutableBucket()
        self.shared = IndexQueue()
        self.access = SnapshotAccess(storage, properties, topic_name, cursor_name)
        self._sealed = SealedBuckets(settings, behaviour, self.access, self.mutable, self.shared)
        self.buckets = self._sealed.ranges
        self._now_ms = now_ms
        self._count = 0

    # --- queries -----------------------------------------------------------------------------------------------------

    @property
    def number_of_delayed_messages(self) -> int:
        """Number of delayed messages by the broker's count (``getNumberOfDelayedMessages``)."""
        return self._count

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Return True if the position has an index that was not dispatched."""
        if self.mutable.bits.contains(ledger_id, entry_id):
            return True
        bucket = self.buckets.find(ledger_id)
        return bucket is not None and bucket.bits.contains(ledger_id, entry_id)

    def next_delivery_time(self) -> int | None:
        """Return the earliest due time in memory, milliseconds since the epoch; None if memory holds none."""
        times = (self.mutable.queue.first_ms(), self.shared.first_ms())
        return min((each for each in times if each is not None), default=None)

    def has_message_available(self) -> bool:
        """Return True if `get_scheduled_messages` would return a message.

        Raises:
            TrackerFailedError: a broker would throw too: messages are counted, but none is in memory.
        """
        next_ms = self._next_of_counted()
        return next_ms is not None and next_ms <= self._cutoff_ms()

    # --- adding ------------------------------------------------------------------------------------------------------

    def add_message(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> bool:
        """Track a message; return False if it is already due and is to be delivered at once.

        Raises:
            InvalidInputError: an id is negative, or an entry exceeds 32 bits; nothing was changed.
            TrackerFailedError: a broker would throw too; earlier changes stay.
        """
        check_positions(ledger_id, entry_id, entry_id)
        if self.contains_message(ledger_id, entry_id):
            return True
        if deliver_at_ms < 0 or deliver_at_ms <= self._cutoff_ms():
            return False
        is_covered = self.buckets.find(ledger_id) is not None
        if not is_covered and ledger_id > self.mutable.end and self._can_seal():
            self._sealed.seal(self._rows_to_seal())
        if self._is_late(ledger_id, is_covered):
            self.shared.add(deliver_at_ms, ledger_id, entry_id)
            self.mutable.bits.add(ledger_id, entry_id)
        else:
            self.mutable.add(deliver_at_ms, ledger_id, entry_id)
        self._count += 1
        return True

    def add_messages(self, indexes: DelayedIndexes) -> Flags:
        """Call `add_message` for each row and return its results; fast for adjacent rows of one ledger.

        Raises:
            InvalidInputError: as `add_message`; none was added.
            TrackerFailedError: as `add_message`; the rows before ``error.row`` were added.
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
            # A merge can cover the ledger.
            known = self._known(ledger_id, indexes.entries, entries)
            new = np.flatnonzero(~(is_due | known))
        else:
            new = new[1:]
        # Only the first message of a ledger can seal a bucket.
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
        """Return True if only memory will hold the message, because no bucket being filled covers its ledger."""
        if is_covered or ledger_id < self.mutable.start:
            return True
        match self.behaviour:
            case Behaviour.AS_BROKER:
                if ledger_id < self.mutable.end:
                    raise TrackerFailedError(f"ledger {ledger_id} lies within the bucket {self.mutable.key}")
                return False
            case Behaviour.AS_PIP:
                return ledger_id < self.buckets.last_ledger_id()

    def _can_seal(self) -> bool:
        return len(self.mutable.queue) >= max(1, self.settings.min_index_count)

    def _rows_to_seal(self) -> DelayedIndexes:
        return self.mutable.queue.pop_all()

    # --- dispatching -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Run the broker's timer task: move due indexes out of the mutable bucket, so that no seal writes them."""
        self.mutable.move_due(self._cutoff_ms(), self.shared)

    def get_scheduled_messages(self, max_messages: int) -> list[Position]:
        """Return due positions, at most ``max_messages``, ascending as a broker dispatches them.

        Raises:
            TrackerFailedError: a broker would throw too: messages are counted, but none is in memory; popped ones are
                lost.
        """
        return sorted(set(self.pop_scheduled(max_messages).positions()))

    def pop_scheduled(self, max_messages: int) -> DelayedIndexes:
        """Pop due indexes as columns, by due time; a position that was added twice appears twice.

        Raises:
            TrackerFailedError: as `get_scheduled_messages`.
        """
        handed_out = self._take(max_messages)
        self._hand_out(handed_out)
        self._next_of_counted()
        return handed_out

    def _take(self, max_messages: int) -> DelayedIndexes:
        cutoff_ms = self._cutoff_ms()
        self.mutable.move_due(cutoff_ms, self.shared)
        taken: list[PackedIndexes] = []
        left = max_messages
        while left > 0:
            due = self._sealed.pop_until_end(left, cutoff_ms)
            if not len(due):
                break
            row, position = self._sealed.first_end(due)
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

    def _load_after(self, position: Position) -> bool:
        """Load the next segment, or delete the bucket after its last; return False upon a failure."""
        bucket = self._sealed.ends[position].bucket
        following = bucket.current_segment + 1

        def load() -> DelayedIndexes:
            if following > bucket.last_segment:
                return NO_INDEXES
            segments = self.access.segments(bucket, following, following)
            if not segments:
                return NO_INDEXES
            bucket.current_segment = following
            return segments[0]

        loaded = self.access.attempt(BucketOperation.LOAD, load)
        if loaded is None:
            return False
        del self._sealed.ends[position]
        if len(loaded):
            self.shared.add_many(loaded)
            self._sealed.expect_next(bucket, loaded)
        else:
            self._finish(bucket)
        return True

    def _finish(self, bucket: ImmutableBucket) -> None:
        self._sealed.drop([bucket])

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
        # A broker's count is negative after it dispatched messages that a lost bucket had left in memory.
        if self._count == 0:
            return None
        next_ms = self.next_delivery_time()
        if next_ms is None and self.behaviour is Behaviour.AS_BROKER:
            raise TrackerFailedError(f"none of {format_count(self._count, 'counted message')} is in memory")
        return next_ms if self._count > 0 else None

    def _cutoff_ms(self) -> int:
        now_ms = self._now_ms()
        return now_ms if self.settings.strict else now_ms + self.settings.tick_time_ms

    # --- recovery and closing ----------------------------------------------------------------------------------------

    def recover(self) -> int:
        """Recover the buckets that the cursor's properties name; call it once, before any other method.

        Returns:
            Number of delayed messages recovered.

        Raises:
            UndecodableError: a property's name or value is malformed; a broker throws, and the subscription has no
                tracker.
            RecoveryFailedError: a bucket could not be read; a broker uses its in-memory tracker. Nothing was deleted.
        """
        self._sealed.recover(self._cutoff_ms())
        self._count = sum(bucket.count for bucket in self.buckets)
        return self._count

    def clear(self) -> None:
        """Forget every message and delete every snapshot: on skip-all, and before the cursor is deleted."""
        for bucket in dict.fromkeys(self.buckets):
            self.access.delete(bucket)
        self._forget()

    def close(self) -> None:
        """Release the memory; snapshots and properties stay for the next tracker. Idempotent."""
        self._forget()

    def _forget(self) -> None:
        self._sealed.clear()
        self.shared.clear()
        self.mutable.clear()
        self._count = 0


def check_positions(least_ledger: int, least_entry: int, most_entry: int) -> None:
    """Raise `InvalidInputError` for ids that no message has."""
    if least_ledger < 0 or least_entry < 0 or most_entry > MAX_ENTRY_ID:
        raise InvalidInputError(
            f"ledger {least_ledger} or entries {least_entry} to {most_entry} are out of range: ids are not negative, "
            "and entry ids have 32 bits"
        )
