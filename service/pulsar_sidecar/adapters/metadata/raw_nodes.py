"""Nodes as ZooKeeper serialises them, by the ten thousand, into the columns of `audit.tables.NODES`.

Python only notes where in memory each node is; cutting and decoding is done for a whole batch at once, which is several
times faster than an object for each part of each node.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.results.tables import NODES
from pulsar_sidecar.model.errors import TemporaryError

STAT_BYTES = 72
"""A piece starts at ``czxid`` and is nine words long; ZooKeeper's own record ends before that, so bytes of whatever
follows are in it."""

# The start of StatPersisted and of Stat, which agree so far: czxid, mzxid, ctime, mtime in words of eight bytes;
# version, cversion, aversion and the two halves of ephemeralOwner in words of four.
_LONGS, _INTS = STAT_BYTES // 8, STAT_BYTES // 4
_CZXID, _MZXID, _CTIME, _MTIME = range(4)
_VERSION, _OWNER_HIGH, _OWNER_LOW = 8, 11, 12
_INT_BYTES = 4
_CONTAINER = -(2**31)
_TIME_TO_LIVE = -1


@dataclass(frozen=True, slots=True)
class Places:
    """Where in a piece of memory the parts of some nodes are, as arrays of int32, ascending."""

    value_starts: pa.Array
    value_ends: pa.Array
    stat_starts: pa.Array


def read_nodes(paths: pa.Array, data: bytes | bytearray, places: Places) -> pa.RecordBatch:
    """A batch of nodes that were read; at each ``stat_starts`` there must be `STAT_BYTES`."""
    count = len(paths)
    values = cut(data, places.value_starts, places.value_ends)
    pieces = cut(data, places.stat_starts, shifted(places.stat_starts, STAT_BYTES))
    joined = pieces.buffers()[2] or b""
    longs, ints = _words("q", joined), _words("i", joined)
    return pa.RecordBatch.from_arrays(
        [
            paths,
            values,
            _ints(ints, _VERSION, count).cast(pa.int64()),
            _longs(longs, _CTIME, count),
            _longs(longs, _MTIME, count),
            _longs(longs, _CZXID, count),
            _longs(longs, _MZXID, count),
            _ephemeral(_ints(ints, _OWNER_HIGH, count), _ints(ints, _OWNER_LOW, count)),
            pa.nulls(count, pa.string()),
        ],
        schema=NODES,
    )


def cut(data: bytes | bytearray, starts: pa.Array, ends: pa.Array) -> pa.Array:
    """The pieces of ``data`` as an array of binaries, copied out of it.

    An array of binaries is laid over the whole memory, in which every second element is a piece; Arrow copies those
    out in one go.
    """
    if not len(starts):
        return pa.array([], pa.binary())
    bounds = array("i", bytes(2 * len(starts) * _INT_BYTES))
    bounds[0::2], bounds[1::2] = _as_words(starts), _as_words(ends)
    laid_over = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return laid_over.take(pa.array(range(0, len(bounds), 2), pa.int32()))


def shifted(places: pa.Array, by: int) -> pa.Array:
    """Every place so many bytes further on."""
    return pc.add(places, pa.scalar(by, pa.int32()))


def as_texts(paths: pa.Array) -> pa.Array:
    """The same bytes as texts.

    Raises:
        TemporaryError: one is not text.
    """
    try:
        return paths.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise TemporaryError("a node's path is not text; the source is damaged, take it again") from error


def named_nodes(paths: Sequence[str], unreadable: str | None) -> pa.RecordBatch:
    """A batch of nodes that exist and could not be read for this reason; were not asked for, if None."""
    nothing = [pa.nulls(len(paths), field.type) for field in NODES][1:-1]
    reasons = pa.array([unreadable] * len(paths), pa.string())
    return pa.RecordBatch.from_arrays([pa.array(paths, pa.string()), *nothing, reasons], schema=NODES)


def _ephemeral(owner_high: pa.Array, owner_low: pa.Array) -> pa.Array:
    """Whether the owner is a session, and not the mark of a container or of a time to live (``EphemeralType``)."""
    owned = pc.not_equal(pc.bit_wise_or(owner_high, owner_low), 0)
    marked = pc.or_(pc.equal(owner_high, _CONTAINER), pc.equal(pc.shift_right(owner_high, 24), _TIME_TO_LIVE))
    return pc.and_not(owned, marked)


def _as_words(places: pa.Array) -> "array[int]":
    words = array("i")
    words.frombytes(memoryview(places.buffers()[1])[places.offset * _INT_BYTES :][: len(places) * _INT_BYTES])
    return words


def _words(code: str, data: "bytes | pa.Buffer") -> "array[int]":
    words = array(code)
    words.frombytes(data)
    if sys.byteorder == "little":
        words.byteswap()
    return words


def _longs(words: "array[int]", offset: int, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(words[offset::_LONGS])])


def _ints(words: "array[int]", offset: int, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(words[offset::_INTS])])
