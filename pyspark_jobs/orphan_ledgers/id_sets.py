"""Sets of ledger ids, cut into ranges of ids: what travels between Spark's tasks instead of rows.

A range is small enough for a bitmap; few ids of one travel as their offsets. Invariant: a set that was written reads
back as the same ids.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pulsar_sidecar.audit.arrays import Ids, Numbers

RANGE_BITS = 20
_RANGE = 1 << RANGE_BITS
_OFFSETS, _BITMAP = b"o", b"b"
_DENSE = _RANGE // 32
"""From so many ids on, a bitmap is smaller than 4 bytes for each."""
_MOST_HELD = 1 << 22


class IdRanges:
    """Collects ids and cuts them into sets by range."""

    def __init__(self) -> None:
        self._parts: list[Ids] = []
        self._held = 0

    def add(self, ids: Ids) -> None:
        """Add some, in any order, repeated or not."""
        self._parts.append(ids)
        self._held += len(ids)

    def full(self) -> bool:
        """Whether so many are held that `sets` should be taken now."""
        return self._held >= _MOST_HELD

    def sets(self) -> Iterator[tuple[int, bytes]]:
        """Every range and its set; nothing is held any more."""
        ordered = np.sort(np.concatenate([np.zeros(0, np.int64), *self._parts]))
        self._parts, self._held = [], 0
        ordered = ordered[_begins(ordered)]
        cuts = np.flatnonzero(_begins(ordered >> RANGE_BITS))
        for first, last in pairwise([*cuts.tolist(), len(ordered)]):
            yield int(ordered[first]) >> RANGE_BITS, write_ids(ordered[first:last])


def _begins(ordered: Ids) -> npt.NDArray[np.bool_]:
    """Where a value is that the one before is not."""
    begins: npt.NDArray[np.bool_] = np.diff(ordered, prepend=ordered[:1] - 1) != 0
    return begins


def write_ids(ids: Ids) -> bytes:
    """A set of ids of one range, in ascending order."""
    offsets = ids & (_RANGE - 1)
    if len(ids) < _DENSE:
        return _OFFSETS + offsets.astype("<u4").tobytes()
    bits = np.zeros(_RANGE, np.bool_)
    bits[offsets] = True
    return _BITMAP + np.packbits(bits).tobytes()


def read_ids(number: int, written: bytes) -> Numbers:
    """The ids of a range, ascending."""
    if written[:1] == _OFFSETS:
        offsets = np.frombuffer(written, "<u4", offset=1).astype(np.int64)
    else:
        offsets = np.flatnonzero(np.unpackbits(np.frombuffer(written, np.uint8, offset=1)))
    return offsets + (number << RANGE_BITS)


def union(number: int, written: Iterable[bytes]) -> Numbers:
    """All ids of several sets of one range, ascending."""
    sets = [read_ids(number, each) for each in written]
    if sum(map(len, sets)) < _DENSE:
        return np.unique(np.concatenate([np.zeros(0, np.int64), *sets]))
    first = number << RANGE_BITS
    bits = np.zeros(_RANGE, np.bool_)
    for each in sets:
        bits[each - first] = True
    return np.flatnonzero(bits) + first
