"""What is stored of a cursor's acknowledgements: one entry of its ledger, or its node (``ManagedCursorImpl``).

Invariant: an acknowledgement is in the answer exactly if a broker that recovers from these bytes would hold it. Bytes
that cannot be understood whole are an error, never a cursor that has acknowledged less.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pulsar_sidecar.ledger_ownership.exact_decoding import decode_exactly, unwrap
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges, within_ledgers
from pulsar_sidecar.wire import MLDataFormats_pb2 as ml

_WORD_BITS = 64
_WORD = 2**_WORD_BITS
_SET_BITS = re.compile("1+")
_NO_PROPERTIES = ml.ManagedCursorInfo(cursorsLedgerId=0).ByteSize()
_NO_BATCHES = ml.PositionInfo(ledgerId=0, entryId=0).ByteSize()


class StoredPlace(Enum):
    """Where a broker would recover a cursor from."""

    CURSOR_LEDGER = "cursor ledger"
    METADATA_STORE = "metadata store"


@dataclass(frozen=True, slots=True)
class StoredCursor:
    """What a broker would recover if it lost its memory now.

    Attributes:
        ledger_id: the cursor's ledger, None if the node holds everything.
        entry_id: the entry of that ledger.
        ranges: ranges that are written, as they were cut when they were written.
        batch_indexes: entries of which some messages are acknowledged and some are not.
        size_bytes: what the broker wrote for all of it.
        batch_bytes: of that, for these entries.
        subscription_properties_bytes: what the subscription's properties take, which are always in the node.
    """

    place: StoredPlace
    acknowledged: PositionRanges
    ranges: int
    batch_indexes: int
    size_bytes: int
    ledger_id: LedgerId | None = None
    entry_id: EntryId | None = None
    batch_bytes: int = 0
    subscription_properties_bytes: int = 0


def stored_in_entry(
    payload: bytes, lengths: Mapping[LedgerId, int], ledger_id: LedgerId, entry_id: EntryId
) -> StoredCursor:
    """The state in an entry of a cursor's ledger (``PositionInfo``).

    Args:
        payload: the entry's.
        lengths: the entries of each of the topic's ledgers, for ranges over several of them.
        ledger_id: the cursor's ledger.
        entry_id: the entry.
    """
    info = decode_exactly(ml.PositionInfo, payload)
    dense = (found for each in info.individualDeletedMessageRanges for found in _dense_ranges(each.key, each.values))
    mark_delete = Position(LedgerId(info.ledgerId), EntryId(info.entryId))
    # A broker that finds both forms reads only the first (`recoverIndividualDeletedMessages`).
    ranges = _ranges(info.individualDeletedMessages, lengths) if info.individualDeletedMessages else dense
    acknowledged = PositionRanges(mark_delete, ranges)
    return StoredCursor(
        place=StoredPlace.CURSOR_LEDGER,
        acknowledged=acknowledged,
        ranges=len(info.individualDeletedMessages) or acknowledged.range_count,
        batch_indexes=len(info.batchedEntryDeletionIndexInfo),
        size_bytes=len(payload),
        ledger_id=ledger_id,
        entry_id=entry_id,
        batch_bytes=_batch_bytes(info.batchedEntryDeletionIndexInfo),
    )


def stored_in_node(data: bytes, lengths: Mapping[LedgerId, int]) -> StoredCursor:
    """The state in a cursor's own node (``ManagedCursorInfo``): all of it if the node names no ledger."""
    info = decode_exactly(ml.ManagedCursorInfo, unwrap(data))
    mark_delete = Position(LedgerId(info.markDeleteLedgerId), EntryId(info.markDeleteEntryId))
    return StoredCursor(
        place=StoredPlace.METADATA_STORE,
        acknowledged=PositionRanges(mark_delete, _ranges(info.individualDeletedMessages, lengths)),
        ranges=len(info.individualDeletedMessages),
        batch_indexes=len(info.batchedEntryDeletionIndexInfo),
        size_bytes=len(data),
        batch_bytes=_batch_bytes(info.batchedEntryDeletionIndexInfo),
        subscription_properties_bytes=_properties_bytes(info),
    )


def subscription_properties_bytes(data: bytes) -> int:
    """What the subscription's properties take in a cursor's node."""
    return _properties_bytes(decode_exactly(ml.ManagedCursorInfo, unwrap(data)))


def _properties_bytes(info: ml.ManagedCursorInfo) -> int:
    return ml.ManagedCursorInfo(cursorsLedgerId=0, cursorProperties=info.cursorProperties).ByteSize() - _NO_PROPERTIES


def _batch_bytes(batches: Iterable[ml.BatchedEntryDeletionIndexInfo]) -> int:
    return ml.PositionInfo(ledgerId=0, entryId=0, batchedEntryDeletionIndexInfo=batches).ByteSize() - _NO_BATCHES


def _ranges(written: Iterable[ml.MessageRange], lengths: Mapping[LedgerId, int]) -> Iterator[EntryRange]:
    for each in written:
        yield from within_ledgers(_position(each.lowerEndpoint), _position(each.upperEndpoint), lengths)


def _position(written: ml.NestedPositionInfo) -> Position:
    return Position(LedgerId(written.ledgerId), EntryId(written.entryId))


def _dense_ranges(ledger_id: int, words: Sequence[int]) -> Iterator[EntryRange]:
    """The runs of set bits in a ``java.util.BitSet``: bit ``i`` stands for entry ``i``."""
    bits = b"".join((word % _WORD).to_bytes(_WORD_BITS // 8, "little") for word in words)
    text = format(int.from_bytes(bits, "little"), "b")[::-1]
    for run in _SET_BITS.finditer(text):
        yield EntryRange(LedgerId(ledger_id), EntryId(run.start()), EntryId(run.end() - 1))
