"""ZooKeeper's snapshot format (``FileSnap``, version 2), read once from beginning to end.

A snapshot is *fuzzy*: ZooKeeper writes it while transactions continue, so a node in it is as of some moment between the
zxid in the file's name and the end of the writing. Every node still has a state that it really had, and ZooKeeper
writes a child after it took its parent's list, exactly as when a client walks the tree.

Invariant: all nodes are there or the reading raises. The stream must begin with the magic number, end with its seal
(checksum and end mark) and have nothing after it; a truncated or damaged compressed stream raises too. Batches read
before a failure are worthless.
"""

import gzip
import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce

import cramjam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.adapters.zookeeper.raw_nodes import cut, read_nodes
from pulsar_sidecar.model.errors import TemporaryError

BATCH_NODES = 65_536
_PIECE_BYTES = 4 * 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
# org.xerial.snappy.SnappyOutputStream: magic, version, oldest compatible version; then blocks, each after its length.
_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_SNAPPY_HEADER_BYTES = len(_SNAPPY_MAGIC) + 8
_MAX_BLOCK_BYTES = 512 * 1024 * 1024
_MAGIC = 0x5A4B534E  # "ZKSN"
_FORMAT = 2
_MAX_VALUE_BYTES = 256 * 1024 * 1024
_MAX_PATH_BYTES = 1024 * 1024
_MAX_TRAILER_BYTES = 4096
_END_MARK = b"/"

_HEADER = struct.Struct(">iiq")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_SESSION_BYTES = 12
_ACL_BYTES = 8
# ``StatPersisted``, of nine fields.
_STAT_PERSISTED_BYTES = 60
# A node beside its path's length, its path and its value: the value's length, the list's number and the stat.
_FIXED_BYTES = _INT.size + _ACL_BYTES + _STAT_PERSISTED_BYTES
_SEAL_BYTES = _LONG.size + _INT.size + len(_END_MARK)
# At least this much follows a node: the end mark's length and text, and the seal.
_AFTER_A_NODE_BYTES = _INT.size + len(_END_MARK) + _SEAL_BYTES


class DamagedSnapshotError(TemporaryError):
    """Raised for a stream that is not a whole snapshot, of which nothing may be used."""


def decompressed(stream: io.BufferedReader) -> Iterator[bytes]:
    """Yield the snapshot's own bytes; their beginning shows the compression (``snapshot.compression.method``)."""
    head = stream.peek(len(_SNAPPY_MAGIC))[: len(_SNAPPY_MAGIC)]
    if head == _SNAPPY_MAGIC:
        yield from _snappy_blocks(stream)
        return
    plain = gzip.GzipFile(fileobj=stream) if head.startswith(_GZIP_MAGIC) else stream
    try:
        while piece := plain.read(_PIECE_BYTES):
            yield piece
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedSnapshotError(f"the snapshot's gzip stream is damaged ({error}); take it again") from error


def _snappy_blocks(stream: io.BufferedReader) -> Iterator[bytes]:
    stream.read(_SNAPPY_HEADER_BYTES)
    while head := stream.read(_INT.size):
        length = _INT.unpack(head)[0] if len(head) == _INT.size else -1
        block = stream.read(length) if 0 < length <= _MAX_BLOCK_BYTES else b""
        if not block or len(block) != length:
            raise DamagedSnapshotError("the snapshot's snappy stream is damaged or cut off; take it again")
        try:
            plain = bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise DamagedSnapshotError(f"the snapshot's snappy stream is damaged ({error}); take it again") from error
        if not plain:
            raise DamagedSnapshotError("the snapshot's snappy stream has an empty block; take it again")
        yield plain


class SnapshotReader:
    """Decoder and verifier of one snapshot, in non-empty pieces of any size.

    Attributes:
        last_zxid: the store's zxid when the writing ended, None before the end and for ZooKeeper before 3.9.
        nodes: number of nodes, skipped ones included.
        read_bytes: number of (decompressed) bytes read.
    """

    def __init__(self, pieces: Iterator[bytes], skip: tuple[bytes, ...] = ()) -> None:
        """Read ``pieces``; skip paths with a beginning in ``skip``."""
        self.last_zxid: int | None = None
        self.nodes = 0
        self._input = _CheckedInput(pieces)
        self._skip = skip

    @property
    def read_bytes(self) -> int:
        return self._input.before_data + self._input.position

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the nodes, the root first and every child after its parent, as `audit.results.tables.NODES`.

        Raises:
            DamagedSnapshotError: not a snapshot, of another version, truncated, damaged, or followed by something.
        """
        self._read_over_head()
        more = True
        while more:
            starts, value_lengths_at, more = self._find_nodes()
            if value_lengths_at:
                yield self._read(starts, value_lengths_at)
        self._input.check_seal()
        self._read_trailer()

    def _read_over_head(self) -> None:
        magic, version, _ = _HEADER.unpack(self._input.take(_HEADER.size))
        if magic != _MAGIC:
            raise DamagedSnapshotError("this is not a ZooKeeper snapshot: it does not begin with ZKSN; check the file")
        if version != _FORMAT:
            raise DamagedSnapshotError(f"snapshot format {version} is not known to this version; upgrade first")
        for _ in range(self._input.take_count("sessions")):
            self._input.take(_SESSION_BYTES)
        for _ in range(self._input.take_count("access control lists")):
            self._input.take(_LONG.size)
            for _ in range(self._input.take_count("entries of an access control list")):
                self._input.take(_INT.size)
                for part in ("scheme", "id"):
                    self._input.take(self._input.take_count(f"bytes of an access control list's {part}"))

    def _find_nodes(self) -> tuple[list[int], list[int], bool]:
        """Return the next nodes' starts and one more, the offsets of their values' lengths, and True if more follow.

        The hot loop: it only jumps from length to length, within the bytes in memory.
        """
        data, start = self._input.data, self._input.position
        length_at, last = _INT.unpack_from, len(data) - _AFTER_A_NODE_BYTES
        starts, value_lengths_at = [start], list[int]()
        with suppress(struct.error):
            for _ in range(BATCH_NODES if start <= last else 0):
                (path_bytes,) = length_at(data, start)
                if path_bytes <= 1 and not (start == starts[0] and path_bytes == self.nodes == 0):
                    break
                value_length_at = start + 4 + path_bytes
                (value_bytes,) = length_at(data, value_length_at)
                if value_bytes < 0:
                    if value_length_at > last:
                        break
                    _demand(value_bytes == -1, "a node's value is damaged")
                    value_bytes = 0
                start = value_length_at + value_bytes + _FIXED_BYTES
                if start > last:
                    break
                value_lengths_at.append(value_length_at)
                starts.append(start)
        self._input.position = starts[-1]
        self.nodes += len(value_lengths_at)
        return starts, value_lengths_at, bool(value_lengths_at) or self._grow()

    def _read(self, starts: list[int], value_lengths_at: list[int]) -> pa.RecordBatch:
        bounds, values_at = np.array(starts, np.int32), np.array(value_lengths_at, np.int32)
        ends = bounds[1:]
        data = self._input.data
        paths = cut(data, bounds[:-1] + _INT.size, values_at)
        if self._skip:
            skipped = reduce(pc.or_, (pc.starts_with(paths, beginning) for beginning in self._skip))
            kept = np.logical_not(np.asarray(skipped))
            paths, ends, values_at = paths.filter(pa.array(kept)), ends[kept], values_at[kept]
        try:
            texts = paths.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise TemporaryError("a node's path is not a UTF-8 string; the source is damaged, take it again") from error
        value_ends = ends - (_FIXED_BYTES - _INT.size)
        return read_nodes(texts, data, values_at + _INT.size, value_ends, ends - _STAT_PERSISTED_BYTES)

    def _grow(self) -> bool:
        """Read the whole next node into memory, after checking that it can be one; return False at the end mark."""
        (path_bytes,) = _INT.unpack(self._input.peek(_INT.size))
        if path_bytes == len(_END_MARK):
            _demand(self._input.take(_INT.size + 1)[_INT.size :] == _END_MARK, "a node's path is damaged")
            return False
        _demand(0 < path_bytes <= _MAX_PATH_BYTES or (path_bytes == self.nodes == 0), "a node's path is damaged")
        head = self._input.peek(2 * _INT.size + path_bytes)
        (value_bytes,) = _INT.unpack(head[-_INT.size :])
        _demand(-1 <= value_bytes <= _MAX_VALUE_BYTES, "a node's value is damaged")
        self._input.require_bytes(len(head) + max(0, value_bytes) + _FIXED_BYTES + _AFTER_A_NODE_BYTES)
        return True

    def _read_trailer(self) -> None:
        """Read the optional ends: the tree's digest (3.6 and later) and the last zxid (3.9 and later), each sealed."""
        left = self._input.rest()
        last_zxid_bytes = _LONG.size + _SEAL_BYTES
        if len(left) > last_zxid_bytes:
            self._input.take(_LONG.size)
            (digest_version,) = _INT.unpack(self._input.take(_INT.size))
            # Before version 2 the digest was a string.
            self._input.take(_LONG.size if digest_version >= 2 else self._input.take_count("bytes of the digest"))
            self._input.check_seal()
        if self._input.rest():
            (self.last_zxid,) = _LONG.unpack(self._input.take(_LONG.size))
            self._input.check_seal()
        _demand(not self._input.rest(), "something follows its end")


class _CheckedInput:
    """A stream with the running checksum of all bytes taken from it.

    Attributes:
        data: bytes in memory; those from ``position`` on are not yet taken.
        before_data: number of bytes before them.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.data = b""
        self.position = 0
        self._pieces = pieces
        self._checked = 0
        self._checksum = zlib.adler32(b"")
        self.before_data = 0

    def require_bytes(self, count: int) -> None:
        """Read until ``data`` has ``count`` bytes from ``position`` on."""
        if not self._has(count):
            raise DamagedSnapshotError("the snapshot ends too early; it was cut off, take it again")

    def peek(self, count: int) -> bytes:
        self.require_bytes(count)
        return self.data[self.position : self.position + count]

    def take(self, count: int) -> bytes:
        taken = self.peek(count)
        self.position += count
        return taken

    def take_count(self, what: str) -> int:
        """Take a length; null counts as 0."""
        count: int = _INT.unpack(self.take(_INT.size))[0]
        _demand(-1 <= count <= _MAX_VALUE_BYTES, f"it claims {count} {what}")
        return max(0, count)

    def check_seal(self) -> None:
        """Compare ZooKeeper's checksum of everything so far, and require the end mark (``SnapStream``)."""
        self._add_to_checksum()
        expected = self._checksum
        (sealed,) = _LONG.unpack(self.take(_LONG.size))
        _demand(sealed == expected, "its checksum is wrong")
        _demand(self.take(self.take_count("bytes of its end mark")) == _END_MARK, "its end mark is damaged")

    def rest(self) -> bytes:
        """Return all remaining bytes without taking them; they must be few."""
        _demand(not self._has(_MAX_TRAILER_BYTES), "something follows its end")
        return self.data[self.position :]

    def _has(self, count: int) -> bool:
        missing = count - (len(self.data) - self.position)
        if missing <= 0:
            return True
        self._add_to_checksum()
        found = [self.data[self.position :]]
        while missing > 0 and (piece := next(self._pieces, b"")):
            found.append(piece)
            missing -= len(piece)
        self.data = b"".join(found)
        self.before_data += self.position
        self.position, self._checked = 0, 0
        return missing <= 0

    def _add_to_checksum(self) -> None:
        self._checksum = zlib.adler32(memoryview(self.data)[self._checked : self.position], self._checksum)
        self._checked = self.position


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DamagedSnapshotError(f"the snapshot is damaged: {otherwise}; take it again")
