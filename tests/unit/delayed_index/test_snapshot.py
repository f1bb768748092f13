"""Snapshots as bytes: written ones can be read, and damaged ones are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.settings import TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    decode_metadata,
    decode_segment,
    encode_metadata,
    encode_segment,
    segment_metadata_of,
)
from pulsar_sidecar.model.errors import InvalidInputError, UndecodableError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId
from pulsar_sidecar.ownership.exact_decoding import decode_exactly
from pulsar_sidecar.protobuf import DelayedMessageIndexBucketMetadata_pb2 as metadata_pb
from pulsar_sidecar.protobuf import DelayedMessageIndexBucketSegment_pb2 as segment_pb
from pyroaring import BitMap

ROWS = st.lists(
    st.tuples(
        st.integers(0, MAX_LEDGER_ID),
        st.sampled_from([0, 7, 8, 2**40, MAX_LEDGER_ID]),
        st.one_of(st.integers(0, 50), st.integers(0, 2**32 - 1)),
    ),
    min_size=1,
    max_size=40,
)


@given(ROWS)
def test_snapshot_round_trip(rows: list[tuple[int, int, int]]) -> None:
    segment = DelayedIndexes.of(rows)
    payload = encode_segment(segment)
    assert payload == _one_by_one(rows)
    again = decode_segment(payload)
    assert list(zip(again.deliver_at_ms.tolist(), *zip(*again.positions(), strict=True), strict=True)) == rows

    metadata = segment_metadata_of(segment)
    assert metadata.count == len({row[1:] for row in rows})
    assert {(id_, entry) for id_, bits in metadata.bitmaps.items() for entry in bits} == {row[1:] for row in rows}
    assert (metadata.min_schedule_timestamp, metadata.max_schedule_timestamp) == (min(rows)[0], max(rows)[0])
    assert decode_metadata(encode_metadata([metadata, metadata])) == (metadata, metadata)


def _one_by_one(rows: list[tuple[int, int, int]]) -> bytes:
    indexes = [segment_pb.DelayedIndex(timestamp=time, ledger_id=id_, entry_id=entry) for time, id_, entry in rows]
    return segment_pb.SnapshotSegment(indexes=indexes).SerializeToString()


CORRUPTIONS = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.sampled_from(["set", "drop", "add"]),
        st.sampled_from([0, 8, 10, 16, 24, 32, 127, 128, 255]),
    ),
    min_size=1,
    max_size=3,
)


@given(ROWS, CORRUPTIONS)
def test_damaged_segments_are_read_as_protobuf_reads_them(
    rows: list[tuple[int, int, int]], corruptions: list[tuple[int, str, int]]
) -> None:
    payload = bytearray(encode_segment(DelayedIndexes.of(rows[:3])))
    for at, kind, byte in corruptions:
        payload[at : at + (kind != "add")] = b"" if kind == "drop" else bytes([byte])
    try:
        indexes = decode_exactly(segment_pb.SnapshotSegment, bytes(payload)).indexes
        expected = [(index.timestamp, index.ledger_id, index.entry_id) for index in indexes]
    except UndecodableError:
        expected = None
    if expected is None or any(max(row) > MAX_LEDGER_ID or row[2] >= 2**32 for row in expected):
        with pytest.raises(UndecodableError):
            decode_segment(bytes(payload))
    else:
        read = decode_segment(bytes(payload))
        assert [*zip(*(c.tolist() for c in (read.deliver_at_ms, read.ledgers, read.entries)), strict=True)] == expected


def test_an_empty_segment_and_an_empty_snapshot() -> None:
    assert len(decode_segment(b"")) == 0
    assert decode_metadata(b"") == ()
    assert encode_metadata([]) == b""


def test_any_cut_is_refused() -> None:
    segment = DelayedIndexes.of([(1_700_000_000_000 + at, 5, at) for at in range(3)])
    whole, metadata = encode_segment(segment), encode_metadata([segment_metadata_of(segment)])
    borders = {len(encode_segment(segment[:rows])) for rows in range(4)}
    for end in set(range(len(whole))) - borders:
        with pytest.raises(UndecodableError):
            decode_segment(whole[:end])
    for end in range(1, len(metadata)):
        with pytest.raises(UndecodableError):
            decode_metadata(metadata[:end])


def _with_bitmap(data: bytes, ledger_id: int = 5) -> bytes:
    message = metadata_pb.SnapshotMetadata()
    message.metadata_list.add(min_schedule_timestamp=1, max_schedule_timestamp=2).delayed_index_bit_map[ledger_id] = (
        data
    )
    return message.SerializeToString()


GOOD = BitMap([1, 2, 9]).serialize()


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (_with_bitmap(b""), "not a roaring bitmap"),
        (_with_bitmap(GOOD[:-1]), "not a roaring bitmap"),
        (_with_bitmap(GOOD + b"\0"), "longer than its header"),
        (_with_bitmap(GOOD[:-6] + b"\x02\0\x01\0\x09\0"), "not strictly increasing"),
        (_with_bitmap(b"\x3b\x30\xff\xff" + b"\xff" * 65536), "not a roaring bitmap"),
        (_with_bitmap(GOOD, 2**63), "not a ledger id"),
    ],
)
def test_a_damaged_bitmap_is_refused(payload: bytes, why: str) -> None:
    with pytest.raises(UndecodableError, match=why):
        decode_metadata(payload)


def test_a_bitmap_that_claims_too_much_is_refused() -> None:
    everything = BitMap()
    everything.add_range(0, 2**32)
    everything.run_optimize()
    with pytest.raises(UndecodableError, match="claims 4,294,967,296 entries"):
        decode_metadata(_with_bitmap(everything.serialize()))


def test_numbers_beyond_javas_are_refused() -> None:
    index = segment_pb.DelayedIndex(timestamp=2**63, ledger_id=1, entry_id=1)
    with pytest.raises(UndecodableError, match="63 bits"):
        decode_segment(segment_pb.SnapshotSegment(indexes=[index]).SerializeToString())


@pytest.mark.parametrize("entry_id", [2**32, 2**62])
def test_entries_that_no_bitmap_can_hold_are_refused(entry_id: int) -> None:
    """The library of bitmaps would take a part of the number, or end the process."""
    for rows in ([(1, 7, 0), (2, 7, entry_id)], [(1, 7, entry_id), (2, 7, entry_id + 1)]):
        with pytest.raises(UndecodableError, match=f"entry {rows[1][2]}, but an entry id has at most 32 bits"):
            decode_segment(_one_by_one(rows))


@pytest.mark.parametrize(("first", "count", "length"), [(10, 3, 22), (10, 4, 15), (65_534, 4, 32)])
def test_bitmaps_are_as_long_as_javas(first: int, count: int, length: int) -> None:
    """An array of the same size is preferred to a run, also in one of two containers."""
    segment = DelayedIndexes.of((1, 7, entry) for entry in range(first, first + count))
    message = decode_exactly(metadata_pb.SnapshotMetadata, encode_metadata([segment_metadata_of(segment)]))
    assert len(message.metadata_list[0].delayed_index_bit_map[7]) == length


def test_rows_can_be_chosen() -> None:
    segment = DelayedIndexes.of([(3, 1, 1), (1, 1, 2), (2, 2, 1)])
    assert segment[np.argsort(segment.deliver_at_ms)].positions() == [(1, 2), (2, 1), (1, 1)]


@given(st.integers(0, MAX_LEDGER_ID), st.integers(0, MAX_LEDGER_ID))
def test_keys_are_read_as_brokers_write_them(one: int, other: int) -> None:
    start, end = sorted((one, other))
    key = BucketKey.parse(f"#pulsar.internal.delayed.bucket_{start}_{end}")
    assert (key.start, key.end) == (start, end)
    assert str(key) == f"#pulsar.internal.delayed.bucket_{start}_{end}"
    assert LedgerId(start) in key
    assert LedgerId(end) in key
    assert LedgerId(end + 1) not in key


@pytest.mark.parametrize(
    "name", ["", "1_2", "_1", "_1_2_3", "_2_1", "_a_2", "_1_", "_-1_2", "_1_9223372036854775808", "_¹_2"]
)
def test_other_keys_are_refused(name: str) -> None:
    with pytest.raises(UndecodableError):
        BucketKey.parse(f"#pulsar.internal.delayed.bucket{name}")
    with pytest.raises(UndecodableError):
        BucketKey.parse(name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tick_time_ms": 0},
        {"min_index_count": 0},
        {"time_step_ms": -1},
        {"max_indexes_per_segment": 0},
        {"max_num_buckets": -2},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError):
        TrackerSettings(**wrong)


def test_settings_that_break_a_broker_are_known() -> None:
    broken = [number for number in (-1, 1, 2, 3, 4, 5) if TrackerSettings(max_num_buckets=number).breaks_dispatch]
    assert broken == [1, 2, 3]
