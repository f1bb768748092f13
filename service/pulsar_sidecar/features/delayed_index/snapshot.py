"""Snapshot of a bucket: entry 0 describes the segments, which are entries 1 to n (PIP-195).

Invariants: bytes are decoded completely or not at all (`UndecodableError`). Decoded data keeps the order in which it
was written; `fsck` and the tracker check if it is sorted, and if bitmaps and segments agree.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from pulsar_sidecar.features.delayed_index.segment_bytes import Longs, decode_indexes, encode_indexes
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, EntryId, LedgerId, Position
from pulsar_sidecar.ownership.exact_decoding import decode_exactly
from pulsar_sidecar.protobuf import DelayedMessageIndexBucketMetadata_pb2 as metadata_pb
from pulsar_sidecar.protobuf import DelayedMessageIndexBucketSegment_pb2 as segment_pb
from pulsar_sidecar.reports.formatting import format_count

Flags = npt.NDArray[np.bool_]

MAX_INDEXES: Final = 1 << 26
"""Upper bound for a segment: a bitmap of a few kilobytes can claim four thousand million entries."""

_ENTRY_BITS: Final = 32
MAX_ENTRY_ID: Final = (1 << _ENTRY_BITS) - 1
"""Bitmaps hold 32 bits: above that a broker throws, and pyroaring truncates the number or ends the process."""
_REMEDY: Final = "check the topic with `delayed-index fsck`"


@dataclass(frozen=True, slots=True)
class DelayedIndexes:
    """Delayed messages, column by column (``DelayedIndex``); the three arrays have the same length.

    Attributes:
        deliver_at_ms: due times, milliseconds since the epoch.
        ledgers: ledger ids.
        entries: entry ids.
    """

    deliver_at_ms: Longs
    ledgers: Longs
    entries: Longs

    def __len__(self) -> int:
        return len(self.deliver_at_ms)

    @property
    def columns(self) -> tuple[Longs, Longs, Longs]:
        return self.deliver_at_ms, self.ledgers, self.entries

    def __getitem__(self, rows: slice | Longs | Flags) -> "DelayedIndexes":
        return DelayedIndexes(self.deliver_at_ms[rows], self.ledgers[rows], self.entries[rows])

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int]]) -> Self:
        """Create indexes from rows of due time, ledger and entry."""
        columns = np.array(list(rows), np.int64).reshape(-1, 3).T
        return cls(*(np.ascontiguousarray(column) for column in columns))

    def within(self, bitmaps: Mapping[LedgerId, BitMap]) -> Flags:
        """Return a flag per row, True if the row is among these entries of its ledger."""
        found = np.zeros(len(self), np.bool_)
        for ledger_id, entries in bitmaps.items():
            of_ledger = np.flatnonzero(self.ledgers == ledger_id)
            found[of_ledger] = np.isin(self.entries[of_ledger], np.frombuffer(entries.to_array(), np.uint32))
        return found

    def positions(self) -> list[Position]:
        """Return the positions, in the order of the rows."""
        pairs = zip(self.ledgers.tolist(), self.entries.tolist(), strict=True)
        return [Position(LedgerId(ledger), EntryId(entry)) for ledger, entry in pairs]


NO_INDEXES: Final = DelayedIndexes.of(())


def joined(parts: Sequence[DelayedIndexes]) -> DelayedIndexes:
    """Return all rows, part after part."""
    if len(parts) == 1:
        return parts[0]
    return DelayedIndexes(*map(np.concatenate, zip(NO_INDEXES.columns, *(part.columns for part in parts), strict=True)))


@dataclass(frozen=True)
class SegmentMetadata:
    """Metadata of one segment in entry 0 (``SnapshotSegmentMetadata``).

    Attributes:
        bitmaps: entries of each ledger that have an index in the segment.
        min_schedule_timestamp: earliest due time, milliseconds since the epoch.
        max_schedule_timestamp: latest due time; a recovering broker skips the segment once it is past.
    """

    bitmaps: Mapping[LedgerId, BitMap]
    min_schedule_timestamp: int
    max_schedule_timestamp: int

    @cached_property
    def count(self) -> int:
        """Number of indexes in the bitmaps."""
        return sum(map(len, self.bitmaps.values()))


SnapshotMetadata = tuple[SegmentMetadata, ...]
"""Entry 0, one row per segment (``SnapshotMetadata``)."""


def segment_metadata_of(segment: DelayedIndexes) -> SegmentMetadata:
    """Return the metadata of a segment, which must not be empty."""
    bitmaps = bitmaps_of(segment.ledgers, segment.entries)
    return SegmentMetadata(bitmaps, int(segment.deliver_at_ms.min()), int(segment.deliver_at_ms.max()))


def bitmaps_of(ledgers: Longs, entries: Longs) -> dict[LedgerId, BitMap]:
    """Return the entries of each ledger; the positions may be in any order."""
    if not len(ledgers):
        return {}
    lowest, highest = int(ledgers.min()), int(ledgers.max())
    if lowest == highest:
        return {LedgerId(lowest): bitmap_of(entries)}
    if highest - lowest <= MAX_ENTRY_ID:
        # Sorting one number per position is much faster than sorting two columns.
        keys = np.sort((ledgers - lowest << _ENTRY_BITS).astype(np.uint64) | entries.astype(np.uint64))
        ledgers = (keys >> np.uint64(_ENTRY_BITS)).astype(np.int64) + lowest
        entries = (keys & np.uint64(MAX_ENTRY_ID)).astype(np.int64)
    else:
        order = np.lexsort((entries, ledgers))
        ledgers, entries = ledgers[order], entries[order]
    starts = [0, *(np.flatnonzero(ledgers[1:] != ledgers[:-1]) + 1).tolist()]
    bounds = zip(starts, [*starts[1:], len(ledgers)], strict=True)
    narrow = array("I", entries.astype(np.uint32).tobytes())
    return {LedgerId(int(ledgers[start])): BitMap(narrow[start:end]) for start, end in bounds}


def bitmap_of(entries: Longs) -> BitMap:
    """Return the set of these entries."""
    if len(entries) > 1 and entries[-1] - entries[0] == len(entries) - 1 and bool((entries[1:] > entries[:-1]).all()):
        return BitMap(range(int(entries[0]), int(entries[-1]) + 1))
    # pyroaring takes an array of this type as it is, and converts any other number by number; an unsorted one takes
    # several times as long.
    return BitMap(array("I", np.sort(entries.astype(np.uint32)).tobytes()))


# --- encoding ------------------------------------------------------------------------------------------------------


def encode_metadata(segments: Iterable[SegmentMetadata]) -> bytes:
    """Encode entry 0 as `MutableBucket` in a broker does: portable bitmaps, optimised for runs."""
    message = metadata_pb.SnapshotMetadata()
    for segment in segments:
        written = message.metadata_list.add(
            min_schedule_timestamp=segment.min_schedule_timestamp, max_schedule_timestamp=segment.max_schedule_timestamp
        )
        for ledger_id, bitmap in segment.bitmaps.items():
            # An existing run would stay one where Java, at equal sizes, prefers an array; so the bitmap starts without
            # runs.
            optimised = BitMap(bitmap.to_array())
            optimised.run_optimize()
            written.delayed_index_bit_map[ledger_id] = optimised.serialize()
    return message.SerializeToString()


def decode_metadata(payload: bytes) -> SnapshotMetadata:
    """Decode entry 0.

    Raises:
        UndecodableError: the payload is truncated, is not a snapshot's metadata, names a ledger twice, or has a bitmap
            that is damaged or claims more than `MAX_INDEXES` entries.
    """
    message = decode_exactly(metadata_pb.SnapshotMetadata, payload)
    return tuple(
        SegmentMetadata(
            {LedgerId(_long(id_, "ledger id")): _bitmap(data) for id_, data in segment.delayed_index_bit_map.items()},
            _long(segment.min_schedule_timestamp, "time"),
            _long(segment.max_schedule_timestamp, "time"),
        )
        for segment in message.metadata_list
    )


def encode_segment(segment: DelayedIndexes) -> bytes:
    """Encode one of entries 1 to n (``SnapshotSegment``)."""
    payload = encode_indexes(*segment.columns)
    if payload is not None:
        return payload
    message = segment_pb.SnapshotSegment()
    for timestamp, ledger_id, entry_id in zip(*(column.tolist() for column in segment.columns), strict=True):
        message.indexes.add(timestamp=timestamp, ledger_id=ledger_id, entry_id=entry_id)
    return message.SerializeToString()


def decode_segment(payload: bytes) -> DelayedIndexes:
    """Decode one of entries 1 to n.

    Raises:
        UndecodableError: the payload is truncated, is not a segment, or has a number beyond Java's long or an entry
            beyond `MAX_ENTRY_ID`.
    """
    columns = decode_indexes(payload)
    segment = _one_by_one(payload) if columns is None else DelayedIndexes(*columns)
    last = int(segment.entries.max(initial=0))
    if last > MAX_ENTRY_ID:
        raise UndecodableError(f"a segment has entry {last}, but an entry id has at most 32 bits; {_REMEDY}")
    return segment


def _one_by_one(payload: bytes) -> DelayedIndexes:
    indexes: Sequence[segment_pb.DelayedIndex] = decode_exactly(segment_pb.SnapshotSegment, payload).indexes
    try:
        return DelayedIndexes.of((each.timestamp, each.ledger_id, each.entry_id) for each in indexes)
    except OverflowError as error:
        raise UndecodableError(f"a segment holds a number beyond 63 bits; {_REMEDY}") from error


def _bitmap(data: bytes) -> BitMap:
    try:
        bitmap = BitMap.deserialize(data)
    except (ValueError, IndexError) as error:
        raise UndecodableError(f"{len(data)} bytes are not a roaring bitmap ({error}); read them again") from error
    if len(bitmap) > MAX_INDEXES:
        raise UndecodableError(
            f"a bitmap claims {format_count(len(bitmap), 'entry')}, more than any ledger of messages has"
        )
    if bitmap.serialize() != data:
        raise UndecodableError(f"a roaring bitmap is longer than its header; {_REMEDY}")
    return bitmap


def _long(value: int, what: str) -> int:
    if value > MAX_LEDGER_ID:
        raise UndecodableError(f"{value} is not a {what}; {_REMEDY}")
    return value
