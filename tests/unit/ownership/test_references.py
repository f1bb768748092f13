"""References out of nodes that brokers wrote, and never fewer of them than the bytes hold."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import OffloadContext, OffloadSegment
from pulsar_sidecar.ownership.references import (
    CursorReferences,
    LedgerReference,
    ManagedLedgerReferences,
    cursor_references,
    managed_ledger_references,
    position_entry_compacted_ledger,
    schema_references,
)
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml
from pulsar_sidecar.protobuf import SchemaStorageFormat_pb2 as schema_storage

from tests.fakes import bookkeeper as builders
from tests.unit.ownership import golden

LEDGER_IDS = st.integers(0, MAX_LEDGER_ID)
DISTINCT_LEDGER_IDS = st.lists(LEDGER_IDS, unique=True, max_size=8)
BUCKETS = st.dictionaries(
    st.builds("#pulsar.internal.delayed.bucket_{}_{}".format, LEDGER_IDS, LEDGER_IDS), LEDGER_IDS, max_size=4
)
MESSAGES = {
    managed_ledger_references: ml.ManagedLedgerInfo,
    cursor_references: ml.ManagedCursorInfo,
    position_entry_compacted_ledger: ml.PositionInfo,
    schema_references: schema_storage.SchemaLocator,
}


def test_a_plain_managed_ledger() -> None:
    assert managed_ledger_references(golden.MANAGED_LEDGER_PLAIN) == ManagedLedgerReferences(
        {LedgerId(16): LedgerReference()}
    )


@pytest.mark.parametrize(
    ("node", "ledger_ids"),
    [(golden.MANAGED_LEDGER_ZSTD, [7, 8, 10, 12, 14]), (golden.MANAGED_LEDGER_SNAPPY, [16, 17, 19, 21, 23])],
)
def test_compressed_managed_ledgers(node: bytes, ledger_ids: list[int]) -> None:
    ledgers = managed_ledger_references(node).ledgers
    assert list(ledgers) == ledger_ids
    assert {(ledger.entries, ledger.size_bytes) for ledger in list(ledgers.values())[:-1]} == {(10, 480)}
    assert ledgers[LedgerId(ledger_ids[-1])] == LedgerReference()


@pytest.mark.parametrize(
    ("node", "buckets"),
    [
        (golden.CURSOR_LZ4, {"7_7": 9, "12_12": 15, "8_8": 11, "10_10": 13}),
        (golden.CURSOR_ZLIB, {"21_21": 24, "16_16": 18, "17_17": 20, "19_19": 22}),
    ],
)
def test_buckets_in_compressed_cursors(node: bytes, buckets: dict[str, int]) -> None:
    expected = {f"#pulsar.internal.delayed.bucket_{span}": ledger_id for span, ledger_id in buckets.items()}
    assert cursor_references(node).buckets == expected


def test_a_cursor_that_was_closed_after_compaction() -> None:
    assert cursor_references(golden.CURSOR_CLOSED_AFTER_COMPACTION) == CursorReferences(
        cursor_ledger=None,
        mark_delete=Position(LedgerId(56), EntryId(5)),
        compacted_ledger=LedgerId(59),
        buckets={},
    )


def test_an_open_cursor() -> None:
    assert cursor_references(golden.CURSOR_OPEN).cursor_ledger == 15


def test_every_version_of_a_schema() -> None:
    assert schema_references(golden.SCHEMA_OF_TWO_VERSIONS) == {20, 21}


def test_a_node_without_data_is_a_managed_ledger_without_ledgers_and_nothing_else() -> None:
    assert managed_ledger_references(b"") == ManagedLedgerReferences()
    for reader in (cursor_references, schema_references, position_entry_compacted_ledger):
        with pytest.raises(UndecodableError):
            reader(b"")


@given(DISTINCT_LEDGER_IDS, st.booleans(), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_managed_ledgers_round_trip(ledger_ids: list[int], terminated: bool, properties: dict[str, str]) -> None:
    """Whatever the order of the list: brokers store that of a topic with offloads as their hash map has it."""
    read = managed_ledger_references(
        builders.managed_ledger_bytes(ledger_ids, properties=properties, terminated=terminated)
    )
    assert list(read.ledgers) == sorted(ledger_ids)
    assert read.properties == properties
    assert read.terminated == (terminated and bool(ledger_ids))


@given(st.none() | LEDGER_IDS, st.none() | LEDGER_IDS, BUCKETS)
def test_cursors_round_trip(cursor_ledger: int | None, compacted: int | None, buckets: dict[str, int]) -> None:
    read = cursor_references(builders.cursor_bytes(cursor_ledger, compacted_ledger=compacted, buckets=buckets))
    assert (read.cursor_ledger, read.compacted_ledger, read.buckets) == (cursor_ledger, compacted, buckets)


@given(st.none() | LEDGER_IDS)
def test_positions_round_trip(compacted: int | None) -> None:
    assert position_entry_compacted_ledger(builders.position_entry(compacted)) == compacted


@given(st.lists(LEDGER_IDS, min_size=1, max_size=6))
def test_schemas_round_trip(ledger_ids: list[int]) -> None:
    assert schema_references(builders.schema_locator_bytes(ledger_ids)) == set(ledger_ids)


def test_schema_position_of_minus_one_is_not_a_ledger() -> None:
    assert schema_references(builders.schema_locator_bytes([-1, 5])) == {5}


OFFLOAD = OffloadContext(-1, 2**62, "S3", {"bucket": "b", "region": ""}, complete=True, bookkeeper_deleted=True)


def test_an_offloaded_ledger() -> None:
    node = builders.managed_ledger_bytes([3, 4], offloaded={3: OFFLOAD})
    ledgers = managed_ledger_references(node).ledgers
    assert ledgers[LedgerId(3)].offload == OFFLOAD
    assert ledgers[LedgerId(4)].offload is None


def test_brokers_read_an_attempt_that_is_not_complete_from_bookkeeper_whatever_else_it_holds() -> None:
    halted = replace(OFFLOAD, complete=False)
    node = builders.managed_ledger_bytes([3, 4, 5], offloaded={3: OFFLOAD, 4: halted})
    ledgers = managed_ledger_references(node).ledgers.values()
    assert [ledger.in_bookkeeper for ledger in ledgers] == [False, True, True]


def test_an_offload_in_segments() -> None:
    info = ml.ManagedLedgerInfo()
    context = info.ledgerInfo.add(ledgerId=3).offloadContext
    segment = context.offloadSegment.add(uidMsb=1, uidLsb=2, complete=True)
    segment.driverMetadata.name = "aws-s3"
    offload = managed_ledger_references(info.SerializeToString()).ledgers[LedgerId(3)].offload
    assert offload is not None
    assert offload.segments == (OffloadSegment(1, 2, "aws-s3", {}, complete=True),)


def test_offload_context_without_attempt_is_not_a_copy() -> None:
    info = ml.ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=3).offloadContext.complete = False
    assert managed_ledger_references(info.SerializeToString()).ledgers[LedgerId(3)].offload is None


def test_an_offload_without_a_driver_leaves_it_to_the_namespace() -> None:
    info = ml.ManagedLedgerInfo()
    context = info.ledgerInfo.add(ledgerId=3).offloadContext
    context.uidMsb, context.uidLsb = 1, 2
    offload = managed_ledger_references(info.SerializeToString()).ledgers[LedgerId(3)].offload
    assert offload == OffloadContext(1, 2, "", {}, complete=False)


@pytest.mark.parametrize("value", ["", "x", "-1", "+5", " 5", "5\n", "٣", "1e3", str(2**63), "9" * 30])
def test_a_bucket_that_names_no_ledger(value: str) -> None:
    info = ml.ManagedCursorInfo(cursorsLedgerId=-1)
    info.cursorProperties.add(name="#pulsar.internal.delayed.bucket_1_2", value=value)
    with pytest.raises(UndecodableError):
        cursor_references(info.SerializeToString())


def test_other_cursor_properties_are_nobodys_ledgers() -> None:
    info = ml.ManagedCursorInfo(cursorsLedgerId=-1)
    info.cursorProperties.add(name="owner", value="team-7")
    info.properties.add(name="pulsar.replicated.subscription", value=1)
    read = cursor_references(info.SerializeToString())
    assert (read.buckets, read.compacted_ledger) == ({}, None)


@pytest.mark.parametrize("ledger_id", [-2, -(2**63)])
def test_negative_ids(ledger_id: int) -> None:
    for reader, node in (
        (managed_ledger_references, builders.managed_ledger_bytes([ledger_id])),
        (cursor_references, builders.cursor_bytes(ledger_id)),
        (position_entry_compacted_ledger, builders.position_entry(ledger_id)),
        (schema_references, builders.schema_locator_bytes([ledger_id])),
    ):
        with pytest.raises(UndecodableError):
            reader(node)


NODES: list[tuple[Callable[[bytes], object], bytes]] = [
    (managed_ledger_references, builders.managed_ledger_bytes([1, 2, 300], properties={"a": "b"}, terminated=True)),
    (managed_ledger_references, builders.managed_ledger_bytes([3, 4], offloaded={3: OFFLOAD})),
    (managed_ledger_references, golden.MANAGED_LEDGER_SNAPPY),
    (managed_ledger_references, golden.MANAGED_LEDGER_ZSTD),
    (cursor_references, builders.cursor_bytes(7, compacted_ledger=9, buckets={"#pulsar.internal.delayed.bucket": 4})),
    (cursor_references, golden.CURSOR_LZ4),
    (cursor_references, golden.CURSOR_ZLIB),
    (schema_references, golden.SCHEMA_OF_TWO_VERSIONS),
    (position_entry_compacted_ledger, builders.position_entry(17)),
]


@pytest.mark.parametrize(("reader", "node"), NODES)
def test_a_node_cut_short_is_undecodable_unless_it_ends_between_fields(
    reader: Callable[[bytes], object], node: bytes
) -> None:
    """Protobuf has no end mark: a cut between two fields leaves a whole, shorter message; all others are noticed."""
    boundaries = _field_boundaries(node) if node[:1] != b"G" else set()
    for length in range(1, len(node)):
        if length not in boundaries:
            _undecodable_or_equal(reader, node[:length], reader(node))


@pytest.mark.parametrize(("reader", "node"), NODES)
@pytest.mark.parametrize("junk", [b"\x00", b"\xff", b"\x0a", b"\x0a\x00", b"\x7a\x00", b"\xf8\x01\x01", b"junk"])
def test_trailing_junk_is_undecodable(reader: Callable[[bytes], object], node: bytes, junk: bytes) -> None:
    with pytest.raises(UndecodableError):
        reader(node + junk)


@given(st.sampled_from(list(MESSAGES)), st.binary(max_size=60))
def test_garbage_is_read_exactly_or_not_at_all(reader: Callable[[bytes], object], data: bytes) -> None:
    try:
        reader(data)
    except UndecodableError:
        return
    assert len(MESSAGES[reader].FromString(data).SerializeToString()) == len(data)


def test_invalid_utf8_is_undecodable() -> None:
    node = bytes.fromhex("08ffffffffffffffffff01") + b"\x42\x07\x0a\x02\xff\xfe\x12\x01\x35"
    with pytest.raises(UndecodableError):
        cursor_references(node)


def _undecodable_or_equal(reader: Callable[[bytes], object], data: bytes, whole: object) -> None:
    try:
        read = reader(data)
    except UndecodableError:
        return
    assert read == whole


def _field_boundaries(node: bytes) -> set[int]:
    boundaries, position = set(), 0
    while position < len(node):
        key, position = _varint(node, position)
        length, position = _varint(node, position)
        position += length if key & 7 == 2 else 0
        boundaries.add(position)
    return boundaries


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while data[position] & 0x80:
        value |= (data[position] & 0x7F) << shift
        shift, position = shift + 7, position + 1
    return value | data[position] << shift, position + 1
