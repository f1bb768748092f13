"""Recovery of a cursor from a broker's bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.acknowledgements.results import StoredPlace
from pulsar_sidecar.features.acknowledgements.stored import stored_in_entry, stored_in_node
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.fakes.positions import with_positions

LENGTHS = {LedgerId(3): 200, LedgerId(5): 7, LedgerId(9): 10}
SPARSE_4_0_8 = bytes.fromhex("080610ffffffffffffffffff011a0c0a04080610001204080610011a0c0a0408061002120408061003")
"""Two ranges of a 4.0.8 broker's cursor: 6:1 and 6:3."""

members = st.sets(st.tuples(st.sampled_from([3, 9]), st.integers(0, 199)))


def at(ledger_id: int, entry_id: int) -> Position:
    return Position(LedgerId(ledger_id), EntryId(entry_id))


def stored(payload: bytes) -> PositionRanges:
    return stored_in_entry(payload, LENGTHS, LedgerId(70), EntryId(4)).acknowledged


def message_range(lower: Position, upper: Position) -> ml.MessageRange:
    written = ml.MessageRange()
    written.lowerEndpoint.ledgerId, written.lowerEndpoint.entryId = lower.ledger_id, lower.entry_id
    written.upperEndpoint.ledgerId, written.upperEndpoint.entryId = upper.ledger_id, upper.entry_id
    return written


def sparse(ranges: PositionRanges) -> list[ml.MessageRange]:
    return [message_range(at(each.ledger_id, each.first - 1), at(each.ledger_id, each.last)) for each in ranges]


def dense(ranges: PositionRanges) -> list[ml.LongListMap]:
    """Encode like ``java.util.BitSet.toLongArray``: 64 entries a word, the lowest first, signed."""
    words: dict[int, list[int]] = {}
    for ledger_id, first, last in ranges:
        bits = words.setdefault(ledger_id, [])
        for entry in range(first, last + 1):
            bits.extend([0] * (entry // 64 + 1 - len(bits)))
            bits[entry // 64] |= 1 << entry % 64
    signed = {ledger: [word - 2**64 if word >= 2**63 else word for word in found] for ledger, found in words.items()}
    return [ml.LongListMap(key=ledger_id, values=values) for ledger_id, values in signed.items()]


def test_an_entry_that_a_broker_wrote() -> None:
    found = stored_in_entry(SPARSE_4_0_8, {LedgerId(6): 24}, LedgerId(7), EntryId(5))
    assert found.acknowledged == with_positions(PositionRanges(at(6, -1)), [at(6, 1), at(6, 3)])
    assert (found.place, found.ledger_id, found.entry_id) == (StoredPlace.CURSOR_LEDGER, 7, 5)
    assert (found.ranges, found.batch_indexes, found.size_bytes) == (2, 0, len(SPARSE_4_0_8))


@given(members, st.integers(-1, 30))
def test_both_forms_read_back(entries: set[tuple[int, int]], marked: int) -> None:
    ranges = with_positions(PositionRanges(at(3, marked)), (at(*entry) for entry in entries))
    head = {"ledgerId": 3, "entryId": marked}
    as_list = ml.PositionInfo(**head, individualDeletedMessages=sparse(ranges))
    as_bits = ml.PositionInfo(**head, individualDeletedMessageRanges=dense(ranges))
    as_node = ml.ManagedCursorInfo(
        cursorsLedgerId=-1, markDeleteLedgerId=3, markDeleteEntryId=marked, individualDeletedMessages=sparse(ranges)
    )
    assert stored(as_list.SerializeToString()) == ranges
    assert stored(as_bits.SerializeToString()) == ranges
    assert stored_in_node(as_node.SerializeToString(), LENGTHS).acknowledged == ranges


def test_of_two_forms_the_list_counts_as_for_brokers() -> None:
    one, other = (with_positions(PositionRanges(at(3, -1)), [at(3, entry)]) for entry in (5, 7))
    info = ml.PositionInfo(
        ledgerId=3, entryId=-1, individualDeletedMessages=sparse(one), individualDeletedMessageRanges=dense(other)
    )
    assert stored(info.SerializeToString()) == one


def test_a_range_over_ledgers_is_read_as_brokers_do() -> None:
    info = ml.PositionInfo(ledgerId=3, entryId=0, individualDeletedMessages=[message_range(at(3, 197), at(9, 1))])
    assert [str(found) for found in stored(info.SerializeToString())] == ["3:198-199", "5:0-6", "9:0-1"]


def test_batches_acknowledged_in_part_are_counted() -> None:
    info = ml.PositionInfo(ledgerId=3, entryId=0)
    for entry in range(3):
        part = info.batchedEntryDeletionIndexInfo.add(deleteSet=[7])
        part.position.ledgerId, part.position.entryId = 3, entry + 1
    found = stored_in_entry(info.SerializeToString(), LENGTHS, LedgerId(70), EntryId(4))
    assert found.batch_indexes == 3
    assert at(3, 1) not in found.acknowledged, "a part of an entry is not the entry"


@pytest.mark.parametrize("cut", range(1, len(SPARSE_4_0_8)))
def test_truncated_cursor_is_undecodable_but_between_ranges(cut: int) -> None:
    try:
        found = stored(SPARSE_4_0_8[:cut])
    except UndecodableError:
        return
    # Protobuf cannot see a cut between two ranges; the entry's digest does.
    assert found == PositionRanges(at(6, -1)) or found == with_positions(PositionRanges(at(6, -1)), [at(6, 1)])


def test_unknown_field_is_undecodable() -> None:
    with pytest.raises(UndecodableError):
        stored(SPARSE_4_0_8 + b"\xf8\x07\x01")
