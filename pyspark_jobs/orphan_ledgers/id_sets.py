"""Sets of ledger ids, cut into ranges of ids: what travels between Spark's tasks instead of rows.

A range is small enough for a bitmap; few ids of one travel as their offsets. Invariant: a set that was written reads
back as the same ids.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

RANGE_BITS = 20
_RANGE = 1 << RANGE_BITS
_OFFSETS, _BITMAP = b"o", b"b"
_DENSE = _RANGE // 32
"""From so many ids on, a bitmap is smaller than 4 bytes for each."""


class IdRanges:
    """Collects ids by range."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Ids]] = {}

    def add(self, ids: Ids) -> None:
        """Add some, in any order, repeated or not."""
        if not len(ids):
            return
        ordered = np.unique(ids)
        ranges = ordered >> RANGE_BITS
        starts = np.flatnonzero(np.diff(ranges, prepend=ranges[0] - 1))
        for first, last in zip(starts, [*starts[1:], len(ordered)], strict=True):
            parts = self._parts.setdefault(int(ranges[first]), [])
            parts.append(ordered[first:last])
            if sum(map(len, parts)) > _RANGE:
                parts[:] = [np.unique(np.concatenate(parts))]

    def sets(self) -> Iterator[tuple[int, bytes]]:
        """Every range and its set."""
        for number, parts in sorted(self._parts.items()):
            yield number, write_ids(np.unique(np.concatenate(parts)))


def write_ids(ids: Ids) -> bytes:
    """A set of ids of one range, in ascending order."""
    offsets = ids & (_RANGE - 1)
    if len(ids) < _DENSE:
        return _OFFSETS + offsets.astype("<u4").tobytes()
    bits = np.zeros(_RANGE, np.bool_)
    bits[offsets] = True
    return _BITMAP + np.packbits(bits).tobytes()


def read_ids(number: int, written: bytes) -> Ids:
    """The ids of a range, ascending."""
    if written[:1] == _OFFSETS:
        offsets = np.frombuffer(written, "<u4", offset=1).astype(np.int64)
    else:
        offsets = np.flatnonzero(np.unpackbits(np.frombuffer(written, np.uint8, offset=1)))
    return offsets + (number << RANGE_BITS)


def union(number: int, written: Iterable[bytes]) -> Ids:
    """All ids of several sets of one range, ascending."""
    sets = [read_ids(number, each) for each in written]
    if sum(map(len, sets)) < _DENSE:
        return np.unique(np.concatenate([np.zeros(0, np.int64), *sets]))
    first = number << RANGE_BITS
    bits = np.zeros(_RANGE, np.bool_)
    for each in sets:
        bits[each - first] = True
    return np.flatnonzero(bits) + first
