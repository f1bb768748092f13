"""Tracker of PIP-423, which accepts cancellations of messages.

Cancelling a tracked message removes its bit, and the tracker does not dispatch a message without a bit. Cancelling a
message that is not tracked (yet) creates a command: it takes effect two ticks before the message is due, and a seal
writes it into the segment of that time, so it is loaded before the message can be dispatched. Until two ticks after the
due time the tracker remembers the position as canceled and does not track it again.

As in the PIP, a restart knows only the cancellations that a bucket was sealed with.

No released broker knows field 4 of a ``DelayedIndex``, which marks a cancellation; a broker would read a cancellation
as a message. So these snapshots stay in memory, and keep the cancellations beside the indexes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pulsar_sidecar.features.delayed_index.ports import BucketOwner
from pulsar_sidecar.features.delayed_index.settings import Behaviour, TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    Flags,
    SegmentMetadata,
    SnapshotMetadata,
    joined,
)
from pulsar_sidecar.features.delayed_index.tracker.immutable_bucket import ImmutableBucket
from pulsar_sidecar.features.delayed_index.tracker.memory_storage import MemoryBucketProperties, MemorySnapshotStorage
from pulsar_sidecar.features.delayed_index.tracker.packed import pack
from pulsar_sidecar.features.delayed_index.tracker.position_bits import PositionBits
from pulsar_sidecar.features.delayed_index.tracker.queue import NEVER, IndexQueue
from pulsar_sidecar.features.delayed_index.tracker.tracker import BucketDelayedDeliveryTracker, check_positions
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

_TICKS: Final = 2
"""Ticks before the due time at which a cancellation takes effect, and after it at which the tracker forgets it."""


class CancellableTracker(BucketDelayedDeliveryTracker):
    """Tracker of one subscription, on snapshots that no broker reads; follows the PIPs.

    Attributes:
        canceled: positions that the tracker must not track (``canceledMessages``).
    """

    def __init__(self, settings: TrackerSettings, snapshots: "OperationSnapshots", now_ms: Callable[[], int]) -> None:
        """Create an empty tracker; `recover` loads the snapshots that the pointers name."""
        super().__init__(
            settings, snapshots, snapshots, now_ms, topic_name="", cursor_name="", behaviour=Behaviour.AS_PIP
        )
        self.canceled = PositionBits()
        self._expiries = IndexQueue()
        self._ticks_ms = _TICKS * settings.tick_time_ms
        self._commands = snapshots
        snapshots.restart(self._ticks_ms)

    def cancel_message(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> bool:
        """PIP-423's ``doCancelOperation``: never dispatch the message; False if it is untracked and already due.

        With a wrong due time the cancellation can take effect too late.
        """
        check_positions(ledger_id, entry_id, entry_id)
        if self.contains_message(ledger_id, entry_id):
            self._cancel(Position(LedgerId(ledger_id), EntryId(entry_id)), deliver_at_ms + self._ticks_ms)
        elif deliver_at_ms <= self._cutoff_ms():
            return False
        self._commands.waiting.add(max(self._now_ms(), deliver_at_ms - self._ticks_ms), ledger_id, entry_id)
        return True

    def add_message(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> bool:
        """Add a message as other trackers do; True without tracking if it was canceled."""
        return self.canceled.contains(ledger_id, entry_id) or super().add_message(ledger_id, entry_id, deliver_at_ms)

    def add_messages(self, indexes: DelayedIndexes) -> Flags:
        answers = np.array([self.canceled.contains(*position) for position in indexes.positions()], np.bool_)
        answers[~answers] = super().add_messages(indexes[~answers])
        return answers

    def pop_scheduled(self, max_messages: int) -> DelayedIndexes:
        """Pop messages as other trackers do, without canceled ones."""
        self.tick()
        kept: list[DelayedIndexes] = []
        left = max_messages
        while left > 0 and len(taken := self._take(left)):
            # The segments loaded for these messages may cancel some of them.
            self._apply_commands()
            is_tracked = np.array([self.contains_message(*position) for position in taken.positions()], np.bool_)
            kept.append(taken[is_tracked])
            self._hand_out(kept[-1])
            left -= len(kept[-1])
        return joined(kept)

    def tick(self) -> None:
        """Tick as other trackers do, apply due cancellations, and forget expired ones."""
        super().tick()
        self._apply_commands()
        for position in self._expiries.pop(len(self._expiries), self._now_ms()).unpacked().positions():
            self.canceled.remove(*position)
        self._commands.delete_late(self._now_ms())

    def recover(self) -> int:
        super().recover()
        self._apply_commands()
        return self.number_of_delayed_messages

    def clear(self) -> None:
        super().clear()
        self._commands.delete_late(NEVER)

    def _rows_to_seal(self) -> DelayedIndexes:
        # A snapshot's bits are those of its rows, so a canceled message would be tracked again.
        rows = super()._rows_to_seal()
        return rows[np.array([self.mutable.bits.contains(*position) for position in rows.positions()], np.bool_)]

    def _finish(self, bucket: ImmutableBucket) -> None:
        # Its remaining indexes are in the queue, and without bits they would count as canceled.
        for ledger_id, entries in bucket.bits.ledgers.items():
            self.mutable.bits.add_all(ledger_id, entries)
        super()._finish(bucket)

    def _forget(self) -> None:
        super()._forget()
        self._commands.waiting.clear()
        self._expiries.clear()
        self.canceled = PositionBits()

    def _apply_commands(self) -> None:
        commands = self._commands.waiting
        due = commands.pop(len(commands), self._cutoff_ms()).unpacked()
        for known_ms, position in zip(due.deliver_at_ms.tolist(), due.positions(), strict=True):
            # The message is due two ticks after its cancellation is known, at the latest.
            self._cancel(position, known_ms + 2 * self._ticks_ms)

    def _cancel(self, position: Position, until_ms: int) -> None:
        self._count -= self._remove_bit(position)
        self.canceled.add(*position)
        self._expiries.add(until_ms, *position)


class OperationSnapshots(MemorySnapshotStorage, MemoryBucketProperties):
    """Snapshots with operations, in memory, and the properties that name them.

    Attributes:
        waiting: commands of the running tracker in no segment that is still to be loaded.
    """

    def __init__(self) -> None:
        MemorySnapshotStorage.__init__(self)
        MemoryBucketProperties.__init__(self)
        self._cancels: dict[LedgerId, Sequence[DelayedIndexes]] = {}
        self.restart(0)

    def restart(self, ticks_ms: int) -> None:
        """Forget what only the memory of a tracker held."""
        self.waiting = IndexQueue()
        self._ticks_ms = ticks_ms
        self._needed_until_ms: dict[LedgerId, int] = {}
        self._late: dict[str, LedgerId] = {}

    def create_bucket_snapshot(
        self, metadata: SnapshotMetadata, segments: Sequence[DelayedIndexes], owner: BucketOwner
    ) -> LedgerId:
        """Write the waiting commands as well, each into the last segment that begins before it."""
        commands = self.waiting.rows()
        firsts = np.array([segment.min_schedule_timestamp for segment in metadata])
        places = np.maximum(np.searchsorted(firsts, commands.deliver_at_ms, side="right") - 1, 0)
        by_segment = [commands[places == place] for place in range(len(segments))]
        with_commands = tuple(map(self._with_commands, metadata, by_segment))
        bucket_id = super().create_bucket_snapshot(with_commands, segments, owner)
        self._cancels[bucket_id] = by_segment
        self._note(bucket_id, commands)
        # The first segment is already in memory and will not be loaded.
        self.waiting.clear()
        self.waiting.put_back(pack(by_segment[0]))
        return bucket_id

    def get_bucket_snapshot_segment(
        self, bucket_id: LedgerId, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> Sequence[DelayedIndexes]:
        segments = super().get_bucket_snapshot_segment(bucket_id, first_segment_entry_id, last_segment_entry_id)
        for cancels in self._cancels[bucket_id][first_segment_entry_id - 1 : last_segment_entry_id]:
            self.waiting.add_many(cancels)
            self._note(bucket_id, cancels)
        return segments

    def delete_bucket_snapshot(self, bucket_id: LedgerId) -> None:
        """Delete the snapshot, or defer that while only memory would hold its commands otherwise."""
        if bucket_id in self._needed_until_ms:
            self._late |= {name: bucket_id for name, value in self.properties.items() if value == str(bucket_id)}
        else:
            super().delete_bucket_snapshot(bucket_id)

    def remove(self, name: str) -> None:
        if name not in self._late:
            super().remove(name)

    def delete_late(self, now_ms: int) -> None:
        """Delete deferred snapshots whose commands are no longer needed."""
        for name, bucket_id in tuple(self._late.items()):
            if self._needed_until_ms.get(bucket_id, 0) < now_ms:
                super().delete_bucket_snapshot(bucket_id)
                if self.properties.get(name) == str(bucket_id):
                    super().remove(name)
                del self._late[name]

    def _note(self, bucket_id: LedgerId, commands: DelayedIndexes) -> None:
        if len(commands):
            until_ms = int(commands.deliver_at_ms.max()) + self._ticks_ms
            self._needed_until_ms[bucket_id] = max(self._needed_until_ms.get(bucket_id, 0), until_ms)

    def _with_commands(self, segment: SegmentMetadata, commands: DelayedIndexes) -> SegmentMetadata:
        """Extend the segment's time, so that recovery skips it only when its commands' messages are due too."""
        if not len(commands):
            return segment
        last_ms = int(commands.deliver_at_ms.max()) + self._ticks_ms
        return replace(segment, max_schedule_timestamp=max(segment.max_schedule_timestamp, last_ms))
