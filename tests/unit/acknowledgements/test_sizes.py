"""The bytes of a cursor's next write, against the protobuf messages themselves, and where they fit."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits, persisted_ranges, written_bytes
from pulsar_sidecar.features.acknowledgements.results import StoredPlace
from pulsar_sidecar.features.acknowledgements.sizes import CursorSizes, cursor_sizes, next_write, unload_write
from pulsar_sidecar.features.acknowledgements.stored import stored_in_entry, stored_in_node
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.topic_stats import Cursor
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.unit.acknowledgements.test_limits import entries, holes, maxima
from tests.unit.acknowledgements.test_stored import at, dense, sparse

LEDGER, NODE = StoredPlace.CURSOR_LEDGER, StoredPlace.METADATA_STORE
names = st.dictionaries(st.text(max_size=8), st.integers(-(2**62), 2**62), max_size=5)
SMALL = AckStateLimits(max_entry_bytes=100, max_node_bytes=200, max_node_ranges=10)


@given(entries, maxima, st.booleans(), names, st.integers(0, 5))
def test_the_sizes_are_those_of_the_messages(
    acknowledged: set[tuple[int, int]], maximum: int, as_long_array: bool, properties: dict[str, int], batches: int
) -> None:
    limits = AckStateLimits(max_unacked_ranges=maximum, as_long_array=as_long_array)
    memory = holes(*acknowledged)
    entry = ml.PositionInfo(ledgerId=memory.mark_delete.ledger_id, entryId=memory.mark_delete.entry_id)
    node = ml.ManagedCursorInfo(
        cursorsLedgerId=-1, markDeleteLedgerId=entry.ledgerId, markDeleteEntryId=entry.entryId, lastActive=1795949464232
    )
    node.cursorProperties.add(name="team", value="billing")
    for info in (entry, node):
        for name, value in properties.items():
            info.properties.add(name=name, value=value)
        for number in range(batches):
            position = ml.NestedPositionInfo(ledgerId=5, entryId=number)
            info.batchedEntryDeletionIndexInfo.add(position=position, deleteSet=[7, -1])
    if as_long_array:
        entry.individualDeletedMessageRanges.extend(dense(persisted_ranges(memory, limits)))
    else:
        entry.individualDeletedMessages.extend(sparse(persisted_ranges(memory, limits)))
    node.individualDeletedMessages.extend(sparse(persisted_ranges(memory, limits.in_node)))
    cursor = Cursor(memory, memory.range_count, at(0, 0), LedgerId(9), EntryId(1), properties)
    stored = stored_in_node(node.SerializeToString(), {})
    assert cursor_sizes(cursor, stored, limits) == CursorSizes(
        entry.ByteSize(), node.ByteSize(), written_bytes(memory, limits)
    )
    read = stored_in_entry(entry.SerializeToString(), {}, LedgerId(1), EntryId(0))
    assert (read.acknowledged, read.batch_bytes) == (persisted_ranges(memory, limits), stored.batch_bytes)


@pytest.mark.parametrize(
    ("entry", "node", "place"),
    [(100, 200, LEDGER), (100, 201, LEDGER), (101, 200, NODE), (101, 201, None)],
)
def test_state_too_large_for_an_entry_goes_to_the_node_or_nowhere(
    entry: int, node: int, place: StoredPlace | None
) -> None:
    assert next_write(CursorSizes(entry, node, 0), SMALL) is place


@pytest.mark.parametrize(
    ("ranges", "is_open", "sizes", "place"),
    [
        (10, True, CursorSizes(100, 200, 0), NODE),
        (10, True, CursorSizes(100, 201, 0), None),
        (11, True, CursorSizes(100, 201, 0), LEDGER),
        (11, True, CursorSizes(101, 200, 0), NODE),
        (11, True, CursorSizes(101, 201, 0), None),
        (11, False, CursorSizes(100, 200, 0), NODE),
        (11, False, CursorSizes(100, 201, 0), None),
    ],
)
def test_an_unload_writes_few_ranges_or_those_of_a_closed_ledger_to_the_node(
    ranges: int, is_open: bool, sizes: CursorSizes, place: StoredPlace | None
) -> None:
    cursor = Cursor(holes(), ranges, at(0, 0), LedgerId(9), EntryId(1), is_open=is_open)
    assert unload_write(cursor, sizes, SMALL) is place
    if is_open:
        no_ledger = replace(SMALL, max_unacked_ranges=0)
        assert unload_write(cursor, CursorSizes(1, 1, 0), no_ledger) is NODE
