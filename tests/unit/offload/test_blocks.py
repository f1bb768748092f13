"""Indexes that describe a whole ledger in a data object, and blocks that hold its entries."""

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.offload.blocks import Block, holds_entries, indexed_blocks
from pulsar_sidecar.protobuf.DataFormats_pb2 import LedgerMetadataFormat

from tests.fakes.map_files import ledger_metadata
from tests.fakes.offloaded_objects import BLOCKS, objects

WRITTEN = objects()
DATA, INDEX = WRITTEN["data"], WRITTEN["index"]


def held(data: bytes, block: Block) -> bool:
    """Return whether the block holds its entries, read by two bytes at most, as a client's buffer ends anywhere."""
    content = io.BytesIO(data[block.start : block.end])
    return holds_entries(lambda at_most: content.read(min(2, at_most)), block)


@given(st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=4), min_size=1, max_size=4))
def test_every_block_of_an_offloaded_ledger_is_found_and_holds_its_entries(payloads: list[list[bytes]]) -> None:
    written = objects(payloads)
    blocks = indexed_blocks(written["index"], len(written["data"]))
    assert [each.following - each.first for each in blocks] == [len(each) for each in payloads]
    assert all(held(written["data"], block) for block in blocks)


@given(st.integers(0, len(INDEX) - 1))
def test_an_index_that_ends_early_describes_nothing(length: int) -> None:
    assert not indexed_blocks(INDEX[:length], len(DATA))


@pytest.mark.parametrize("difference", [-1, 1])
def test_an_index_of_data_of_another_length_describes_nothing(difference: int) -> None:
    assert not indexed_blocks(INDEX, len(DATA) + difference)


HEAD = struct.Struct(">IiqqiI")


@pytest.mark.parametrize(
    ("place", "value"), [(0, 0x3D1FB0BC), (1, len(INDEX) + 1), (3, 127), (4, 2), (4, -1), (5, 0), (5, 2**32 - 1)]
)
def test_an_index_with_another_head_describes_nothing(place: int, value: int) -> None:
    head = list(HEAD.unpack_from(INDEX))
    head[place] = value
    assert not indexed_blocks(HEAD.pack(*head) + INDEX[HEAD.size :], len(DATA))


LAST = sum(map(len, BLOCKS)) - 1


@pytest.mark.parametrize(
    "metadata", [ledger_metadata(LAST, state=LedgerMetadataFormat.OPEN), ledger_metadata(1), b"", b"\xff"]
)
def test_an_index_of_a_ledger_that_is_not_closed_or_ends_before_describes_nothing(metadata: bytes) -> None:
    found = objects(metadata=metadata)
    assert not indexed_blocks(found["index"], len(found["data"]))


def test_a_last_block_without_the_last_entry_is_not_whole() -> None:
    """Block of an offloader that found no further entry."""
    found = objects(metadata=ledger_metadata(LAST + 1))
    *before, last = indexed_blocks(found["index"], len(found["data"]))
    assert all(held(found["data"], block) for block in before)
    assert not held(found["data"], last)


@pytest.mark.parametrize(
    "entries", [struct.pack(">qiqqiq", 1, 1, 0, 2, 2, 9), struct.pack(">qiqqiq", 0, 1, 0, 0, 2, 9)]
)
def test_blocks_that_leave_out_entries_or_have_none_describe_nothing(entries: bytes) -> None:
    metadata = ledger_metadata(9)
    head = HEAD.pack(0xDE47DE47, HEAD.size + len(metadata) + len(entries), len(DATA), 128, 2, len(metadata))
    assert not indexed_blocks(head + metadata + entries, len(DATA))


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_changed_frame_is_found_in_its_block(place: int, change: int) -> None:
    """Payloads are not compared: the store's own checksums protect them. The header's zeros have no meaning."""
    frames = frame_bytes()
    (block,) = (each for each in indexed_blocks(INDEX, len(DATA)) if each.start <= place < each.end)
    changed = DATA[:place] + bytes([DATA[place] ^ change]) + DATA[place + 1 :]
    assert held(changed, block) is (place not in frames)


@given(st.integers(0, len(DATA) - 1))
def test_a_block_that_ends_early_does_not_hold_its_entries(length: int) -> None:
    (block,) = (each for each in indexed_blocks(INDEX, len(DATA)) if each.start <= length < each.end)
    assert not held(DATA[:length], block)


def frame_bytes() -> set[int]:
    """Return the places of headers, entries' lengths and ids, and padding."""
    found: set[int] = set()
    for block, payloads in zip(indexed_blocks(INDEX, len(DATA)), BLOCKS, strict=True):
        found |= set(range(block.start, block.start + 28))
        at = block.start + 128
        for payload in payloads:
            found |= set(range(at, at + 12))
            at += 12 + len(payload)
        found |= set(range(at, block.end))
    return found
