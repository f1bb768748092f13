"""Tracker of PIP-423, which accepts cancellations of messages.

Cancelling a tracked message removes its bit, and the tracker does not dispatch a message without a bit. Cancelling a
message that is not tracked (yet) creates a command: it takes effect two ticks before the message is due, and a seal
writes it into the segment of that time, so it is loaded before the message can be dispatched. Until two ticks after the
due time the tracker remembers the position as canceled and does not track it again.

As in the PIP, a restart knows only the cancellations that a bucket was sealed with.

No released broker knows field 4 of a ``DelayedIndex``, which marks a cancellation; a broker would read a cancellation
as a message. So these snapshots have their own store, type of segment and encoding: a storage that brokers read takes
`DelayedIndexes` and never `DelayedOperations`, and the bytes start with a tag that protobuf refuses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np

from pulsar_sidecar.features.delayed_index.ports import BucketOwner
from pulsar_sidecar.features.delayed_index.settings import Behaviour, TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    Flags,
    SegmentMetadata,
    SnapshotMetadata,
    decode_segment,
    encode_segment,
    joined,
)
from pulsar_sidecar.features.delayed_index.tracker.immutable_bucket import ImmutableBucket
from pulsar_sidecar.features.delayed_index.tracker.memory_storage import MemoryBucketProperties, MemorySnapshots
from pulsar_sidecar.features.delayed_index.tracker.packed import pack
from pulsar_sidecar.features.delayed_index.tracker.position_bits import PositionBits
from pulsar_sidecar.features.delayed_index.tracker.queue import NEVER, IndexQueue
from pulsar_sidecar.features.delayed_index.tracker.tracker import BucketDelayedDeliveryTracker, check_positions
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

_TICKS: Final = 2
"""Ticks before the due time at which a cancellation takes effect, and after it at which the tracker forgets it."""
_MAGIC: Final = b"\x00PIP-423\x00"
"""Tag of field 0, which protobuf refuses."""
_INDEX_TAG: Final = 0x0A
_CANCEL_FIELD: Final = b"\x20\x01"
"""Field 4 with the value 1."""


class DelayedOperationType(IntEnum):
    """``DelayedOperationType`` of the PIP."""

    DELAY = 0
    CANCEL = 1


@dataclass(frozen=True, slots=True)
class DelayedOperations:
    """Segment with operations.

    Attributes:
        delays: messages to deliver.
        cancels: messages not to deliver, with the latest time at which the cancellation must take effect.
    """

    delays: DelayedIndexes
    cancels: DelayedIndexes


class OperationSnapshots(MemorySnapshots[DelayedOperations]):
    """Snapshots with operations, in memory, and the properties that name them."""

    def __init__(self) -> None:
        super().__init__(encode_operations, decode_operations)
        self.pointers = MemoryBucketProperties()


class CancellableTracker(BucketDelayedDeliveryTracker):
    """Tracker of one subscription, on snapshots that no broker reads; follows the PIPs.

    Attributes:
        canceled: positions that the tracker must not track (``canceledMessages``).
    """

    def __init__(self, settings: TrackerSettings, snapshots: OperationSnapshots, now_ms: Callable[[], int]) -> None:
        """Create an empty tracker; `recover` loads the snapshots that the pointers name."""
        commands = self._commands = _Commands(snapshots, _TICKS * settings.tick_time_ms)
        super().__init__(
            settings, commands, commands, now_ms, topic_name="", cursor_name="", behaviour=Behaviour.AS_PIP
        )
        self.canceled = PositionBits()
        self._expiries = IndexQueue()
        self._ticks_ms = _TICKS * settings.tick_time_ms

    def apply_delay_operation(
        self, ledger_id: int, entry_id: int, deliver_at_ms: int, operation: DelayedOperationType
    ) -> bool:
        """``applyDelayOperation``: call `add_message` or `cancel_message`."""
        match operation:
            case DelayedOperationType.DELAY:
                return self.add_message(ledger_id, entry_id, deliver_at_ms)
            case DelayedOperationType.CANCEL:
                return self.cancel_message(ledger_id, entry_id, deliver_at_ms)

    def cancel_message(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> bool:
        """``doCancelOperation``: never dispatch the message; False if it is untracked and already due.

        Args:
            ledger_id: ledger of the message.
            entry_id: entry of the message.
            deliver_at_ms: due time of the message; with a wrong time the cancellation can take effect too late.
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


class _Commands:
    """Storage and properties of a tracker that write commands into segments, and read them back.

    Attributes:
        waiting: commands in no segment that is still to be loaded.
    """

    def __init__(self, snapshots: OperationSnapshots, ticks_ms: int) -> None:
        self.waiting = IndexQueue()
        self._snapshots = snapshots
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
        bucket_id = self._snapshots.create_bucket_snapshot(
            tuple(map(self._with_commands, metadata, by_segment)),
            [DelayedOperations(delays, cancels) for delays, cancels in zip(segments, by_segment, strict=True)],
            owner,
        )
        self._note(bucket_id, commands)
        # The first segment is already in memory and will not be loaded.
        self.waiting.clear()
        self.waiting.put_back(pack(by_segment[0]))
        return bucket_id

    def get_bucket_snapshot_metadata(self, bucket_id: LedgerId) -> SnapshotMetadata:
        return self._snapshots.get_bucket_snapshot_metadata(bucket_id)

    def get_bucket_snapshot_segment(
        self, bucket_id: LedgerId, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> Sequence[DelayedIndexes]:
        segments = self._snapshots.get_bucket_snapshot_segment(bucket_id, first_segment_entry_id, last_segment_entry_id)
        for segment in segments:
            self.waiting.add_many(segment.cancels)
            self._note(bucket_id, segment.cancels)
        return [segment.delays for segment in segments]

    def get_bucket_snapshot_length(self, bucket_id: LedgerId) -> int:
        return self._snapshots.get_bucket_snapshot_length(bucket_id)

    def delete_bucket_snapshot(self, bucket_id: LedgerId) -> None:
        """Delete the snapshot, or defer that while only memory would hold its commands otherwise."""
        if bucket_id in self._needed_until_ms:
            pointers = self._snapshots.pointers.get()
            self._late |= {name: bucket_id for name, value in pointers.items() if value == str(bucket_id)}
        else:
            self._snapshots.delete_bucket_snapshot(bucket_id)

    def get(self) -> Mapping[str, str]:
        return self._snapshots.pointers.get()

    def put(self, name: str, value: str) -> None:
        self._snapshots.pointers.put(name, value)

    def remove(self, name: str) -> None:
        if name not in self._late:
            self._snapshots.pointers.remove(name)

    def delete_late(self, now_ms: int) -> None:
        """Delete deferred snapshots whose commands are no longer needed."""
        for name, bucket_id in tuple(self._late.items()):
            if self._needed_until_ms.get(bucket_id, 0) < now_ms:
                self._snapshots.delete_bucket_snapshot(bucket_id)
                if self.get().get(name) == str(bucket_id):
                    self._snapshots.pointers.remove(name)
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


# --- encoding ------------------------------------------------------------------------------------------------------


def encode_operations(segment: DelayedOperations) -> bytes:
    """Encode the PIP's ``SnapshotSegment``, delays first, behind a mark that keeps brokers from reading it."""
    cancels = (
        bytes([_INDEX_TAG, len(index) + len(_CANCEL_FIELD)]) + index + _CANCEL_FIELD
        for index, is_cancel in _indexes(encode_segment(segment.cancels))
        if not is_cancel
    )
    return _MAGIC + encode_segment(segment.delays) + b"".join(cancels)


def decode_operations(payload: bytes) -> DelayedOperations:
    """Decode a segment of `encode_operations`.

    Raises:
        UndecodableError: the payload is anything else, including a broker's segment.
    """
    if not payload.startswith(_MAGIC):
        raise UndecodableError(f"{len(payload)} bytes are not a segment with operations; perhaps a broker wrote them")
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    for index, is_cancel in _indexes(payload[len(_MAGIC) :]):
        parts[is_cancel].append(bytes([_INDEX_TAG, len(index)]) + index)
    return DelayedOperations(decode_segment(b"".join(parts[False])), decode_segment(b"".join(parts[True])))


def _indexes(payload: bytes) -> list[tuple[bytes, bool]]:
    """Return each index without field 4, and True if that marks a cancellation."""
    found, at = [], 0
    while at < len(payload):
        length = payload[at + 1] if at + 1 < len(payload) else 0
        index, at, tag = payload[at + 2 : at + 2 + length], at + 2 + length, payload[at]
        if tag != _INDEX_TAG or not length or at > len(payload):
            raise UndecodableError("a segment with operations is truncated or damaged; read it again")
        is_cancel = index.endswith(_CANCEL_FIELD) and _has_cancel_field(index)
        found.append((index.removesuffix(_CANCEL_FIELD) if is_cancel else index, is_cancel))
    return found


def _has_cancel_field(index: bytes) -> bool:
    # An entry's number can end with the same two bytes; then the index has too few numbers.
    numbers = np.count_nonzero(np.frombuffer(index, np.uint8) < 0x80)
    return bool(numbers == 2 * (len(DelayedIndexes.__slots__) + 1))
