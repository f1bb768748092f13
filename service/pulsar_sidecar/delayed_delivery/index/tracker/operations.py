"""PIP-423: a tracker that accepts cancellations of messages.

A cancellation of a message that is tracked takes its bit, and what has no bit is not handed out. One of a message that
is not tracked (yet) is a command: it is known two ticks before the message is due, and a seal writes it into the
segment of that time, so it is loaded before the message can be handed out. Until two ticks after the due time the
position is remembered as canceled and not tracked again.

Known to a restart is only what a bucket was sealed with, as the PIP has it.

No released broker knows field 4 of a ``DelayedIndex``, which marks a cancellation, and one that met it would take a
cancellation for a message. So these snapshots have a port, a type of segment and bytes of their own: a storage that
brokers read takes `DelayedIndexes` and never `DelayedOperations`, and the bytes begin with what protobuf refuses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Protocol

import numpy as np

from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.ports import BucketOwner
from pulsar_sidecar.delayed_delivery.index.settings import Behaviour, TrackerSettings
from pulsar_sidecar.delayed_delivery.index.snapshot import (
    DelayedIndexes,
    Flags,
    SegmentMetadata,
    SnapshotMetadata,
    decode_segment,
    encode_segment,
    joined,
)
from pulsar_sidecar.delayed_delivery.index.tracker.immutable_bucket import ImmutableBucket
from pulsar_sidecar.delayed_delivery.index.tracker.packed import pack
from pulsar_sidecar.delayed_delivery.index.tracker.position_bits import PositionBits
from pulsar_sidecar.delayed_delivery.index.tracker.queue import NEVER, IndexQueue
from pulsar_sidecar.delayed_delivery.index.tracker.tracker import BucketDelayedDeliveryTracker, check_positions
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

_TICKS: Final = 2
"""So many before a message is due its cancellation is known, and so many after it is forgotten."""
_MAGIC: Final = b"\x00PIP-423\x00"
"""A tag of field 0, which protobuf refuses."""
_INDEX_TAG: Final = 0x0A
_CANCEL_FIELD: Final = b"\x20\x01"
"""Field 4, the number 1."""


class DelayedOperationType(IntEnum):
    """``DelayedOperationType`` of the PIP."""

    DELAY = 0
    CANCEL = 1


@dataclass(frozen=True, slots=True)
class DelayedOperations:
    """One segment.

    Attributes:
        delays: messages to be delivered.
        cancels: messages not to be delivered; their times are those at which the cancellation is to be known at the
        latest.
    """

    delays: DelayedIndexes
    cancels: DelayedIndexes


class OperationSnapshots(Protocol):
    """Where they are kept. Raises what `ports.BucketSnapshotStorage` raises."""

    def create(self, key: BucketKey, metadata: SnapshotMetadata, segments: Sequence[DelayedOperations]) -> LedgerId:
        """Write it whole; returns when it is durable."""

    def metadata(self, bucket_id: LedgerId) -> SnapshotMetadata:
        """Entry 0."""

    def segments(self, bucket_id: LedgerId, first: int, last: int) -> Sequence[DelayedOperations]:
        """Entries ``first`` to ``last``, both included; the first segment is 1."""

    def length(self, bucket_id: LedgerId) -> int:
        """Bytes of all entries."""

    def delete(self, bucket_id: LedgerId) -> None:
        """Delete it; one that is gone already is not an error."""

    def pointers(self) -> Mapping[BucketKey, LedgerId]:
        """Which snapshot each bucket has."""

    def point(self, key: BucketKey, bucket_id: LedgerId) -> None:
        """Record that it has this one."""

    def unpoint(self, key: BucketKey) -> None:
        """Record that it has none; not an error if it had none."""


class CancellableTracker(BucketDelayedDeliveryTracker):
    """One subscription's, on snapshots that no broker reads; follows the PIPs.

    Attributes:
        canceled: positions that are not to be tracked (``canceledMessages``).
    """

    def __init__(self, settings: TrackerSettings, snapshots: OperationSnapshots, now_ms: Callable[[], int]) -> None:
        """Empty; `recover` takes over what the snapshots' pointers name."""
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
        """``applyDelayOperation``: `add_message` or `cancel_message`."""
        match operation:
            case DelayedOperationType.DELAY:
                return self.add_message(ledger_id, entry_id, deliver_at_ms)
            case DelayedOperationType.CANCEL:
                return self.cancel_message(ledger_id, entry_id, deliver_at_ms)

    def cancel_message(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> bool:
        """``doCancelOperation``: never hand it out; False when it is not tracked and due already.

        Args:
            ledger_id: the message's.
            entry_id: the message's.
            deliver_at_ms: when the message is due; a wrong time can make the cancellation come too late.
        """
        check_positions(ledger_id, entry_id, entry_id)
        if self.contains_message(ledger_id, entry_id):
            self._cancel(Position(LedgerId(ledger_id), EntryId(entry_id)), deliver_at_ms + self._ticks_ms)
        elif deliver_at_ms <= self._cutoff_ms():
            return False
        self._commands.waiting.add(max(self._now_ms(), deliver_at_ms - self._ticks_ms), ledger_id, entry_id)
        return True

    def add_message(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> bool:
        """Like the other trackers'; True without tracking it when it was canceled."""
        return self.canceled.contains(ledger_id, entry_id) or super().add_message(ledger_id, entry_id, deliver_at_ms)

    def add_messages(self, indexes: DelayedIndexes) -> Flags:
        answers = np.array([self.canceled.contains(*position) for position in indexes.positions()], np.bool_)
        answers[~answers] = super().add_messages(indexes[~answers])
        return answers

    def pop_scheduled(self, max_messages: int) -> DelayedIndexes:
        """Like the other trackers', without what was canceled."""
        self.tick()
        kept: list[DelayedIndexes] = []
        left = max_messages
        while left > 0 and len(taken := self._take(left)):
            # The segments that were loaded for these may cancel some of them.
            self._apply_commands()
            is_tracked = np.array([self.contains_message(*position) for position in taken.positions()], np.bool_)
            kept.append(taken[is_tracked])
            self._hand_out(kept[-1])
            left -= len(kept[-1])
        return joined(kept)

    def tick(self) -> None:
        """Make known which cancellations are due, forget the old ones, and what the other trackers do."""
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
        # A snapshot's bits are those of its rows, so a canceled one would be tracked again.
        rows = super()._rows_to_seal()
        return rows[np.array([self.mutable.bits.contains(*position) for position in rows.positions()], np.bool_)]

    def _finish(self, bucket: ImmutableBucket) -> None:
        # What it has left is in the queue, and without a bit it would be taken for canceled.
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
    """What a tracker takes for its storage and its cursor: puts commands into its segments, and takes them out again.

    Attributes:
        waiting: commands that are in no segment to be loaded later.
    """

    def __init__(self, snapshots: OperationSnapshots, ticks_ms: int) -> None:
        self.waiting = IndexQueue()
        self._snapshots = snapshots
        self._ticks_ms = ticks_ms
        self._needed_until_ms: dict[LedgerId, int] = {}
        self._late: dict[BucketKey, LedgerId] = {}

    def start(self) -> None:
        """Nothing to get ready."""

    def create_bucket_snapshot(
        self, metadata: SnapshotMetadata, segments: Sequence[DelayedIndexes], owner: BucketOwner
    ) -> LedgerId:
        """Write the waiting commands as well, each into the last segment that begins before it."""
        commands = self.waiting.rows()
        firsts = np.array([segment.min_schedule_timestamp for segment in metadata])
        places = np.maximum(np.searchsorted(firsts, commands.deliver_at_ms, side="right") - 1, 0)
        by_segment = [commands[places == place] for place in range(len(segments))]
        bucket_id = self._snapshots.create(
            owner.bucket_key,
            tuple(map(self._with_commands, metadata, by_segment)),
            [DelayedOperations(delays, cancels) for delays, cancels in zip(segments, by_segment, strict=True)],
        )
        self._note(bucket_id, commands)
        # The first segment is in memory already and will not be loaded.
        self.waiting.clear()
        self.waiting.put_back(pack(by_segment[0]))
        return bucket_id

    def get_bucket_snapshot_metadata(self, bucket_id: LedgerId) -> SnapshotMetadata:
        return self._snapshots.metadata(bucket_id)

    def get_bucket_snapshot_segment(
        self, bucket_id: LedgerId, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> Sequence[DelayedIndexes]:
        segments = self._snapshots.segments(bucket_id, first_segment_entry_id, last_segment_entry_id)
        for segment in segments:
            self.waiting.add_many(segment.cancels)
            self._note(bucket_id, segment.cancels)
        return [segment.delays for segment in segments]

    def get_bucket_snapshot_length(self, bucket_id: LedgerId) -> int:
        return self._snapshots.length(bucket_id)

    def delete_bucket_snapshot(self, bucket_id: LedgerId) -> None:
        """Later, if memory alone would have its commands then."""
        if bucket_id in self._needed_until_ms:
            self._late |= {key: each for key, each in self._snapshots.pointers().items() if each == bucket_id}
        else:
            self._snapshots.delete(bucket_id)

    def close(self) -> None:
        """Nothing is kept open."""

    def get(self) -> Mapping[str, str]:
        return {str(key): str(bucket_id) for key, bucket_id in self._snapshots.pointers().items()}

    def put(self, name: str, value: str) -> None:
        self._snapshots.point(BucketKey.parse(name), LedgerId(int(value)))

    def remove(self, name: str) -> None:
        key = BucketKey.parse(name)
        if key not in self._late:
            self._snapshots.unpoint(key)

    def delete_late(self, now_ms: int) -> None:
        """Delete those that were to be deleted and whose commands are not needed any more."""
        for key, bucket_id in tuple(self._late.items()):
            if self._needed_until_ms.get(bucket_id, 0) < now_ms:
                self._snapshots.delete(bucket_id)
                if self._snapshots.pointers().get(key) == bucket_id:
                    self._snapshots.unpoint(key)
                del self._late[key]

    def _note(self, bucket_id: LedgerId, commands: DelayedIndexes) -> None:
        if len(commands):
            until_ms = int(commands.deliver_at_ms.max()) + self._ticks_ms
            self._needed_until_ms[bucket_id] = max(self._needed_until_ms.get(bucket_id, 0), until_ms)

    def _with_commands(self, segment: SegmentMetadata, commands: DelayedIndexes) -> SegmentMetadata:
        """A recovery skips a segment only when its commands' messages are due as well."""
        if not len(commands):
            return segment
        last_ms = int(commands.deliver_at_ms.max()) + self._ticks_ms
        return replace(segment, max_schedule_timestamp=max(segment.max_schedule_timestamp, last_ms))


# --- as bytes ------------------------------------------------------------------------------------------------------


def encode_operations(segment: DelayedOperations) -> bytes:
    """The PIP's ``SnapshotSegment``, delays first, behind a mark that keeps brokers from reading it."""
    cancels = (
        bytes([_INDEX_TAG, len(index) + len(_CANCEL_FIELD)]) + index + _CANCEL_FIELD
        for index, is_cancel in _indexes(encode_segment(segment.cancels))
        if not is_cancel
    )
    return _MAGIC + encode_segment(segment.delays) + b"".join(cancels)


def decode_operations(payload: bytes) -> DelayedOperations:
    """What `encode_operations` wrote.

    Raises:
        UndecodableError: anything else, a broker's segment too.
    """
    if not payload.startswith(_MAGIC):
        raise UndecodableError(f"{len(payload)} bytes are not a segment with operations; perhaps a broker wrote them")
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    for index, is_cancel in _indexes(payload[len(_MAGIC) :]):
        parts[is_cancel].append(bytes([_INDEX_TAG, len(index)]) + index)
    return DelayedOperations(decode_segment(b"".join(parts[False])), decode_segment(b"".join(parts[True])))


def _indexes(payload: bytes) -> list[tuple[bytes, bool]]:
    """Each index without field 4, and whether that marks a cancellation."""
    found, at = [], 0
    while at < len(payload):
        length = payload[at + 1] if at + 1 < len(payload) else 0
        index, at, tag = payload[at + 2 : at + 2 + length], at + 2 + length, payload[at]
        if tag != _INDEX_TAG or not length or at > len(payload):
            raise UndecodableError("a segment with operations is cut off or damaged; read it again")
        is_cancel = index.endswith(_CANCEL_FIELD) and _has_cancel_field(index)
        found.append((index.removesuffix(_CANCEL_FIELD) if is_cancel else index, is_cancel))
    return found


def _has_cancel_field(index: bytes) -> bool:
    # An entry's number can end with the same two bytes: then the fields before it are one number too few.
    numbers = np.count_nonzero(np.frombuffer(index, np.uint8) < 0x80)
    return bool(numbers == 2 * (len(DelayedIndexes.__slots__) + 1))
