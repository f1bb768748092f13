"""Stored acknowledgements of a cursor: one entry of its ledger, or its node (``ManagedCursorImpl``).

Invariant: the result has exactly the acknowledgements that a broker would hold after recovering from these bytes. Bytes
that cannot be decoded whole are an error, never a cursor that has acknowledged less.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pulsar_sidecar.features.acknowledgements.results import StoredAcknowledgements, StoredPlace
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges, within_ledgers
from pulsar_sidecar.ownership.exact_decoding import decode_exactly, unwrap
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

_WORD_BITS = 64
_WORD = 2**_WORD_BITS
_SET_BITS = re.compile("1+")
_NO_PROPERTIES = ml.ManagedCursorInfo(cursorsLedgerId=0).ByteSize()
_NO_BATCHES = ml.PositionInfo(ledgerId=0, entryId=0).ByteSize()


@dataclass(frozen=True, slots=True)
class StoredCursor:
    """State that a broker would recover if it lost its memory now.

    Attributes:
        ledger_id: the cursor's ledger, None if the node holds everything.
        entry_id: entry of that ledger.
        ranges: number of written ranges, as they were cut when they were written.
        batch_indexes: number of entries of which some messages are acknowledged and some are not.
        size_bytes: bytes that the broker wrote for all of it.
        batch_bytes: part of these bytes for ``batch_indexes``.
        subscription_properties_bytes: bytes of the subscription's properties, which are always in the node.
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

    def result(self) -> StoredAcknowledgements:
        return StoredAcknowledgements(
            self.place,
            self.ledger_id,
            self.entry_id,
            str(self.acknowledged.mark_delete),
            self.ranges,
            self.batch_indexes,
            self.size_bytes,
        )


def stored_in_entry(
    payload: bytes, lengths: Mapping[LedgerId, int], ledger_id: LedgerId, entry_id: EntryId
) -> StoredCursor:
    """Decode the state in an entry of a cursor's ledger (``PositionInfo``).

    The topic's ``lengths`` are for ranges over several of its ledgers.
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
    """Decode the state in a cursor's own node (``ManagedCursorInfo``): all of it if the node names no ledger."""
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
    """Return the bytes of the subscription's properties in a cursor's node."""
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
    """Yield the runs of set bits in a ``java.util.BitSet``: bit ``i`` stands for entry ``i``."""
    bits = b"".join((word % _WORD).to_bytes(_WORD_BITS // 8, "little") for word in words)
    text = format(int.from_bytes(bits, "little"), "b")[::-1]
    for run in _SET_BITS.finditer(text):
        yield EntryRange(LedgerId(ledger_id), EntryId(run.start()), EntryId(run.end() - 1))
