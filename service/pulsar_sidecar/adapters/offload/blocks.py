"""Checks that objects of a bucket hold a whole ledger, as ``BlobStoreManagedLedgerOffloader`` writes them.

A complete attempt does not prove it: the offloader reports success, too, where it found no further entry to write.
Invariant: an index that is not understood to its last byte describes nothing.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.ownership.exact_decoding import decode_exactly
from pulsar_sidecar.protobuf.DataFormats_pb2 import LedgerMetadataFormat

MAX_INDEX_BYTES = 64 * 1024 * 1024
_INDEX_HEAD = struct.Struct(">IiqqiI")
"""``OffloadIndexBlockImpl.toStream``: magic word, length of the index, length of the data object, length of a data
block's header, number of index entries, length of the ledger's metadata."""
_INDEX_MAGIC = 0xDE47DE47
"""Magic word; streaming offload's index (``OffloadIndexBlockV2Impl``) has another, which brokers cannot read here."""
_INDEX_ENTRY = struct.Struct(">qiq")
"""First entry of a block, the part of the upload, and the block's offset in the data object."""
_BLOCK_HEAD = struct.Struct(">Iqqq")
"""``DataBlockHeaderImpl.toStream``: magic word, lengths of the header and of the block, first entry; then zeros."""
_BLOCK_MAGIC = 0xFBDBABCB
_BLOCK_HEADER_BYTES = 128
_ENTRY_HEAD = struct.Struct(">iq")
"""Length and id of an entry; its bytes follow."""
_PADDING = bytes.fromhex("FEDCDEAD")


@dataclass(frozen=True, slots=True)
class Block:
    """Part of a data object: bytes from ``start`` to before ``end``, entries from ``first`` to before ``following``."""

    start: int
    end: int
    first: int
    following: int


def indexed_blocks(index: bytes, data_bytes: int) -> Sequence[Block]:
    """Return the blocks in which a data object of this length holds the ledger's entries from 0 to the last one.

    There are none if the index does not describe such an object.
    """
    try:
        return _blocks(index, data_bytes)
    except (struct.error, UndecodableError):
        return ()


def indexed_data_bytes(index: bytes) -> int | None:
    """Return the length of the data object that an index describes; None unless the index is whole."""
    try:
        data_bytes = int(_INDEX_HEAD.unpack_from(index)[2])
    except struct.error:
        return None
    return data_bytes if indexed_blocks(index, data_bytes) else None


def _blocks(index: bytes, data_bytes: int) -> Sequence[Block]:
    magic, index_bytes, indexed_data_bytes, header_bytes, count, metadata_bytes = _INDEX_HEAD.unpack_from(index)
    entries_at = _INDEX_HEAD.size + metadata_bytes
    described = (_INDEX_MAGIC, len(index), data_bytes, _BLOCK_HEADER_BYTES, len(index))
    if (magic, index_bytes, indexed_data_bytes, header_bytes, entries_at + count * _INDEX_ENTRY.size) != described:
        return ()
    metadata = decode_exactly(LedgerMetadataFormat, index[_INDEX_HEAD.size : entries_at])
    if metadata.state != LedgerMetadataFormat.CLOSED:
        return ()
    starts = [(first, offset) for first, _, offset in _INDEX_ENTRY.iter_unpack(index[entries_at:])]
    starts.append((metadata.lastEntryId + 1, data_bytes))
    blocks = [Block(start, end, first, following) for (first, start), (following, end) in pairwise(starts)]
    is_ascending = all(each.first < each.following and each.start < each.end for each in blocks)
    return blocks if is_ascending and starts[0] == (0, 0) else ()


def holds_entries(read: Callable[[int], bytes], block: Block) -> bool:
    """Return True if a block is exactly its entries, and padding; ``read`` yields at most as many bytes, in order."""
    head = _read_all(read, _BLOCK_HEADER_BYTES)
    left = block.end - block.start - _BLOCK_HEADER_BYTES
    expected = (_BLOCK_MAGIC, _BLOCK_HEADER_BYTES, block.end - block.start, block.first)
    if len(head) < _BLOCK_HEADER_BYTES or _BLOCK_HEAD.unpack_from(head) != expected:
        return False
    for entry_id in range(block.first, block.following):
        entry_head = _read_all(read, _ENTRY_HEAD.size)
        if len(entry_head) < _ENTRY_HEAD.size:
            return False
        length, found_id = _ENTRY_HEAD.unpack(entry_head)
        left -= _ENTRY_HEAD.size + length
        if found_id != entry_id or length < 0 or left < 0 or len(_read_all(read, length)) < length:
            return False
    return _read_all(read, left) == (_PADDING * (left // len(_PADDING) + 1))[:left]


def _read_all(read: Callable[[int], bytes], length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0 and (part := read(length)):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
