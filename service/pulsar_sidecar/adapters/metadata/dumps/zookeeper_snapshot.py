"""ZooKeeper's snapshot format (``FileSnap``, version 2), read once from beginning to end.

A snapshot is *fuzzy*: ZooKeeper writes it while transactions go on, so a node in it is as of some moment between the
zxid in the file's name and the end of the writing. Every node still has one state that it really had, and a child is
written after its parent's list was taken, exactly as when a client walks the tree.

Invariant: the nodes are all there or the reading raises. The stream must begin with the magic number, end with its seal
(checksum and end mark) and hold nothing after it. Batches read before a failure was seen are worthless.
"""

import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.adapters.metadata.dumps.raw_nodes import Places, as_texts, cut, read_nodes, shifted
from pulsar_sidecar.adapters.metadata.dumps.snapshot_compression import DamagedSnapshotError, Readable

BATCH_NODES = 65_536
_CHUNK_BYTES = 4 * 1024 * 1024
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


class SnapshotReader:
    """One snapshot in one stream.

    Attributes:
        last_zxid: the store's zxid when the writing ended, None before the end and for ZooKeeper before 3.9.
        nodes: how many nodes there were, those skipped included.
        read_bytes: how much of the stream (decompressed) was read.
    """

    def __init__(self, stream: Readable, skip: tuple[bytes, ...] = ()) -> None:
        """``skip`` has beginnings of paths that are read over."""
        self.last_zxid: int | None = None
        self.nodes = 0
        self._input = _CheckedInput(stream)
        self._skip = skip

    @property
    def read_bytes(self) -> int:
        return self._input.consumed_bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The nodes, the root first and every child after its parent, as `audit.tables.NODES`.

        Raises:
            DamagedSnapshotError: not a snapshot, of another version, truncated, damaged, or followed by something.
        """
        self._read_header()
        self._read_over_sessions()
        self._read_over_access_control_lists()
        yield from self._nodes()
        self._input.check_seal()
        self._read_trailer()

    def _read_header(self) -> None:
        magic, version, _ = _HEADER.unpack(self._input.take(_HEADER.size))
        if magic != _MAGIC:
            raise DamagedSnapshotError("this is no ZooKeeper snapshot: it does not begin with ZKSN; check the file")
        if version != _FORMAT:
            raise DamagedSnapshotError(f"snapshot format {version} is not known to this version; upgrade first")

    def _read_over_sessions(self) -> None:
        for _ in range(self._input.take_count("sessions")):
            self._input.take(_SESSION_BYTES)

    def _read_over_access_control_lists(self) -> None:
        for _ in range(self._input.take_count("access control lists")):
            self._input.take(_LONG.size)
            for _ in range(self._input.take_count("entries of an access control list")):
                self._input.take(_INT.size)
                for part in ("scheme", "id"):
                    self._input.take(self._input.take_count(f"bytes of an access control list's {part}"))

    def _nodes(self) -> Iterator[pa.RecordBatch]:
        more = True
        while more:
            starts, value_lengths_at, more = self._find_nodes()
            if value_lengths_at:
                yield self._read(starts, value_lengths_at)

    def _find_nodes(self) -> tuple[list[int], list[int], bool]:
        """Where the next nodes and the lengths of their values are; one start more than nodes, and whether more follow.

        The hot loop: it only jumps from length to length, within what is in memory.
        """
        data, start = self._input.data, self._input.position
        length_at, last = _INT.unpack_from, self._input.end - _AFTER_A_NODE_BYTES
        starts, value_lengths_at = [start], list[int]()
        # Beyond the end there is old memory, so what was read there is looked at by nobody.
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
        bounds = pa.array(starts, pa.int32())
        begins, ends, values_at = bounds[:-1], bounds[1:], pa.array(value_lengths_at, pa.int32())
        data = self._input.data
        paths = cut(data, shifted(begins, _INT.size), values_at)
        kept = self._not_skipped(paths)
        if kept is not None:
            paths, ends, values_at = paths.filter(kept), ends.filter(kept), values_at.filter(kept)
        places = Places(
            value_starts=shifted(values_at, _INT.size),
            value_ends=shifted(ends, -(_FIXED_BYTES - _INT.size)),
            stat_starts=shifted(ends, -_STAT_PERSISTED_BYTES),
        )
        return read_nodes(as_texts(paths), data, places)

    def _not_skipped(self, paths: pa.Array) -> pa.Array | None:
        if not self._skip:
            return None
        skipped = pc.starts_with(paths, self._skip[0])
        for beginning in self._skip[1:]:
            skipped = pc.or_(skipped, pc.starts_with(paths, beginning))
        return pc.invert(skipped)

    def _grow(self) -> bool:
        """Have the whole next node in memory, after checking that it can be one; False at the end mark."""
        (path_bytes,) = _INT.unpack(self._input.peek(_INT.size))
        if path_bytes == len(_END_MARK):
            _demand(self._input.take(_INT.size + 1)[_INT.size :] == _END_MARK, "a node's path is damaged")
            return False
        _demand(0 < path_bytes <= _MAX_PATH_BYTES or (path_bytes == self.nodes == 0), "a node's path is damaged")
        head = self._input.peek(2 * _INT.size + path_bytes)
        (value_bytes,) = _INT.unpack(head[-_INT.size :])
        _demand(-1 <= value_bytes <= _MAX_VALUE_BYTES, "a node's value is damaged")
        self._input.need(len(head) + max(0, value_bytes) + _FIXED_BYTES + _AFTER_A_NODE_BYTES)
        return True

    def _read_trailer(self) -> None:
        """The optional ends: the tree's digest (3.6 and later) and the last zxid (3.9 and later), each sealed."""
        left = self._input.rest()
        last_zxid_bytes = _LONG.size + _SEAL_BYTES
        if len(left) > last_zxid_bytes:
            self._input.take(_LONG.size)
            (digest_version,) = _INT.unpack(self._input.take(_INT.size))
            # Before version 2 of the digest it was a text.
            self._input.take(_LONG.size if digest_version >= 2 else self._input.take_count("bytes of the digest"))
            self._input.check_seal()
        if self._input.rest():
            (self.last_zxid,) = _LONG.unpack(self._input.take(_LONG.size))
            self._input.check_seal()
        _demand(not self._input.rest(), "something follows its end")


class _CheckedInput:
    """A stream with the running checksum of everything that was taken from it.

    Attributes:
        data: memory that is used again and again; what was read and not yet taken is from ``position`` to ``end``.
    """

    def __init__(self, stream: Readable) -> None:
        self.data = bytearray(_CHUNK_BYTES)
        self.position = 0
        self.end = 0
        self._stream = stream
        self._checked = 0
        self._checksum = zlib.adler32(b"")
        self._before_data = 0

    @property
    def consumed_bytes(self) -> int:
        return self._before_data + self.position

    def need(self, count: int) -> None:
        """Have ``count`` bytes more in ``data``, from ``position`` on."""
        if self.end - self.position >= count:
            return
        self._add_to_checksum()
        rest = self.data[self.position : self.end]
        if count > len(self.data):
            self.data = bytearray(count + _CHUNK_BYTES)
        self.data[: len(rest)] = rest
        self._before_data += self.position
        self.position, self._checked, self.end = 0, 0, len(rest)
        with memoryview(self.data) as memory:
            while self.end < count:
                read = self._stream.readinto(memory[self.end :])
                if not read:
                    raise DamagedSnapshotError("the snapshot ends too early; it was cut off, take it again")
                self.end += read

    def peek(self, count: int) -> bytes:
        """The next ``count`` bytes, which are not taken."""
        self.need(count)
        return bytes(self.data[self.position : self.position + count])

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        taken = self.peek(count)
        self.position += count
        return taken

    def take_count(self, what: str) -> int:
        """A length; null counts as none."""
        count: int = _INT.unpack(self.take(_INT.size))[0]
        _demand(-1 <= count <= _MAX_VALUE_BYTES, f"it claims {count} {what}")
        return max(0, count)

    def check_seal(self) -> None:
        """Compare ZooKeeper's checksum of everything so far, and demand the end mark (``SnapStream``)."""
        self._add_to_checksum()
        expected = self._checksum
        (sealed,) = _LONG.unpack(self.take(_LONG.size))
        _demand(sealed == expected, "its checksum is wrong")
        _demand(self.take(self.take_count("bytes of its end mark")) == _END_MARK, "its end mark is damaged")

    def rest(self) -> bytes:
        """Everything that is left, not taken; it must be little."""
        try:
            self.need(_MAX_TRAILER_BYTES)
        except DamagedSnapshotError:
            return bytes(self.data[self.position : self.end])
        raise DamagedSnapshotError("the snapshot is damaged: something follows its end; take it again")

    def _add_to_checksum(self) -> None:
        self._checksum = zlib.adler32(memoryview(self.data)[self._checked : self.position], self._checksum)
        self._checked = self.position


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DamagedSnapshotError(f"the snapshot is damaged: {otherwise}; take it again")
