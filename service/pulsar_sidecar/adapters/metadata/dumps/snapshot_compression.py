"""Snapshots as ZooKeeper compresses them (``snapshot.compression.method``): not at all, with gzip, or with snappy.

Invariant: a compressed stream that ends too early or is damaged raises; it never looks like a shorter snapshot.
"""

import gzip
import io
import struct
import zlib
from typing import Protocol

import cramjam

from pulsar_sidecar.model.errors import TemporaryError

_GZIP_MAGIC = b"\x1f\x8b"
# org.xerial.snappy.SnappyOutputStream: magic, version, oldest compatible version; then blocks, each after its length.
_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_SNAPPY_HEADER_BYTES = len(_SNAPPY_MAGIC) + 8
_LENGTH = struct.Struct(">i")
_MAX_BLOCK_BYTES = 512 * 1024 * 1024
_PEEK_BYTES = len(_SNAPPY_MAGIC)


class DamagedSnapshotError(TemporaryError):
    """This is not a whole snapshot; nothing of it may be used."""


class Readable(Protocol):
    """What a snapshot is read from."""

    def readinto(self, memory: memoryview, /) -> int | None:
        """Fill the beginning of ``memory``; how many bytes, none at the end."""
        ...


def decompressed(stream: io.BufferedReader) -> Readable:
    """The snapshot's own bytes; how they are compressed is told by the beginning, not by a name."""
    head = stream.peek(_PEEK_BYTES)[:_PEEK_BYTES]
    if head.startswith(_GZIP_MAGIC):
        return _Gunzipped(stream)
    if head == _SNAPPY_MAGIC:
        return _Unsnapped(stream)
    return stream


class _Gunzipped:
    def __init__(self, stream: io.BufferedReader) -> None:
        self._file = gzip.GzipFile(fileobj=stream)

    def readinto(self, memory: memoryview, /) -> int:
        try:
            return self._file.readinto(memory)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DamagedSnapshotError(f"the snapshot's gzip stream is damaged ({error}); take it again") from error


class _Unsnapped:
    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._block = memoryview(b"")
        stream.read(_SNAPPY_HEADER_BYTES)

    def readinto(self, memory: memoryview, /) -> int:
        if not self._block:
            self._block = memoryview(self._next_block())
        count = min(len(memory), len(self._block))
        memory[:count] = self._block[:count]
        self._block = self._block[count:]
        return count

    def _next_block(self) -> bytes:
        head = self._stream.read(_LENGTH.size)
        if not head:
            return b""
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else -1
        block = self._stream.read(length) if 0 < length <= _MAX_BLOCK_BYTES else b""
        if not block or len(block) != length:
            raise DamagedSnapshotError("the snapshot's snappy stream is damaged or cut off; take it again")
        try:
            plain = bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise DamagedSnapshotError(f"the snapshot's snappy stream is damaged ({error}); take it again") from error
        if not plain:
            raise DamagedSnapshotError("the snapshot's snappy stream has an empty block; take it again")
        return plain
