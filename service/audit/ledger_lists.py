"""Managed ledgers' lists, read for a whole column of nodes at once.

`service.ledger_ownership.references.managed_ledger_references` reads one node exactly; here the plain shape that almost
all nodes have is read with a few array operations for each position of a list. Invariant: a node is read here only if
every byte of it was understood as that exact reader understands it; all others are left to it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_NODES_AT_ONCE = 4_096
"""So that the arrays of one step stay in the processor's cache."""
_PADDING = 16
_LEDGER_INFO = 0x0A
_LEDGER_ID, _ENTRIES, _SIZE, _TIMESTAMP = 0x08, 0x10, 0x18, 0x20
_MORE = np.uint64(0x8080808080808080)
_GROUPS = np.uint64(0x7F7F7F7F7F7F7F7F)


@dataclass(frozen=True, slots=True)
class LedgerLists:
    """The lists of some nodes, one element for each ledger, grouped by node and in the order of the node's list.

    Attributes:
        node: the node's position in the column.
        closed: whether the node tells the ledger's size.
        left: positions of the nodes that were not read here.
    """

    node: Numbers
    ledger_id: Numbers
    entries: Numbers
    size_bytes: Numbers
    closed: Mask
    left: Numbers


def read_ledger_lists(values: pa.Array) -> LedgerLists:
    """Read every node of a ``binary`` column that has the plain shape; an empty value is a list without ledgers."""
    parts = [
        _read(values.slice(start, _NODES_AT_ONCE), start) for start in range(0, max(len(values), 1), _NODES_AT_ONCE)
    ]
    return LedgerLists(*(np.concatenate([getattr(part, name) for part in parts]) for name in LedgerLists.__slots__))


def _read(values: pa.Array, first: int) -> LedgerLists:
    start, end, data = _bytes_of(values)
    readable = values.is_valid().to_numpy(zero_copy_only=False)
    reading = _Reading(data, end, failed=~readable)
    node = np.flatnonzero(readable & (end > start))
    position = start[node]
    while len(node):
        node, position = reading.step(node, position)
    return reading.result(first)


def _bytes_of(values: pa.Array) -> tuple[Numbers, Numbers, npt.NDArray[np.uint8]]:
    """Where each value starts and ends, and the bytes of all, padded so that a word may be read at each."""
    _, offsets, content = values.buffers()
    ends = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
    size = int(ends[-1] - ends[0])
    data = np.zeros(size + _PADDING, np.uint8)
    if size:
        data[:size] = np.frombuffer(content, np.uint8, size, int(ends[0]))
    ends -= ends[0]
    return ends[:-1], ends[1:], data


class _Reading:
    """Reads all lists in step: the first ledger of every node, then the second, until no node has one left."""

    def __init__(self, data: npt.NDArray[np.uint8], end: Numbers, failed: Mask) -> None:
        self._data = data
        self._end = end
        self._failed = failed
        self._last = np.full(len(end), -1, np.int64)
        words: Any = np.ndarray(len(data) - 8, np.dtype("<u8"), data, strides=(1,))
        self._words: Words = words
        self._found: list[tuple[Numbers, Numbers, Numbers, Numbers, Mask]] = []

    def step(self, node: Numbers, position: Numbers) -> tuple[Numbers, Numbers]:
        """Read one ledger of each node; the nodes that go on, and where."""
        length = self._data[position + 1].astype(np.int64)
        at = position + 2
        stop = at + length
        good = (self._data[position] == _LEDGER_INFO) & (length < 0x80) & (stop <= self._end[node])
        good &= self._data[at] == _LEDGER_ID
        ledger_id, at, ok = self._varint(at + 1)
        good &= ok
        entries, at, ok, _ = self._optional(at, stop, _ENTRIES)
        good &= ok
        size, at, ok, _ = self._optional(at, stop, _SIZE)
        good &= ok
        timestamp, at, ok, _ = self._optional(at, stop, _TIMESTAMP)
        # In ascending order no ledger is named twice, which the exact reader would refuse.
        good &= ok & (at == stop) & (ledger_id > self._last[node])
        self._failed[node[~good]] = True
        node, stop = node[good], stop[good]
        self._last[node] = ledger_id[good]
        self._found.append((node, ledger_id[good], entries[good], size[good], timestamp[good] != 0))
        more = stop < self._end[node]
        return node[more], stop[more]

    def result(self, first: int) -> LedgerLists:
        """What was read of the nodes that were read whole."""
        empty: Numbers = np.zeros(0, np.int64)
        found = self._found or [(empty, empty, empty, empty, np.zeros(0, np.bool_))]
        node, ledger_id, entries, size, closed = (np.concatenate(column) for column in zip(*found, strict=True))
        whole = np.flatnonzero(~self._failed[node])
        order = whole[np.argsort(node[whole], kind="stable")]
        left = np.flatnonzero(self._failed) + first
        return LedgerLists(node[order] + first, ledger_id[order], entries[order], size[order], closed[order], left)

    def _optional(self, at: Numbers, stop: Numbers, tag: int) -> tuple[Numbers, Numbers, Mask, Mask]:
        there = (at < stop) & (self._data[at] == tag)
        value, after, ok = self._varint(at + 1)
        return np.where(there, value, 0), np.where(there, after, at), ok | ~there, there

    def _varint(self, at: Numbers) -> tuple[Numbers, Numbers, Mask]:
        """Numbers of up to 8 bytes, where each ends, and whether it is one in its shortest form."""
        at = np.minimum(at, len(self._words) - 1)
        word = self._words[at]
        ends = ~word & _MORE
        # Everything up to the first byte without the mark that more follow.
        mask = ends ^ (ends - np.uint64(1))
        length = np.bitwise_count(mask) >> 3
        word &= mask & _GROUPS
        word = (word & np.uint64(0x007F007F007F007F)) | ((word & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
        word = (word & np.uint64(0x00003FFF00003FFF)) | ((word & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
        word = (word & np.uint64(0x000000000FFFFFFF)) | ((word & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
        shortest = (length == 1) | (word >> (7 * (length.astype(np.uint64) - np.uint64(1))) != 0)
        return word.view(np.int64), at + length, (ends != 0) & shortest
