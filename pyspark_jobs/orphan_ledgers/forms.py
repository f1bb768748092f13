"""Encoding of ids, and shares of rows, between Spark's tasks.

Each row costs Spark microseconds whenever it is kept, filtered or grouped. So rows travel as Arrow batches, each a
single value, and ids as sets. Rows to be joined are packed by shares: all rows of a topic, or of a ledger, are in the
same share. Sets of ids are cut into ranges of ids, small enough for a bitmap; a few ids of a range travel as offsets.
Invariant: unpacking returns the same rows or ids.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pulsar_sidecar.features.audit.arrays import Ids, Mask, Numbers, distinct

NO_IDS: Numbers = np.zeros(0, np.int64)

_RANGE_BITS = 20
_RANGE = 1 << _RANGE_BITS
_OFFSETS, _BITMAP = b"o", b"b"
_DENSE = _RANGE // 32
"""Fewest ids of which a bitmap is smaller than 4 bytes for each."""
_MOST_HELD = 1 << 22


# --- shares --------------------------------------------------------------------------------------------------------


def shares_of_ledgers(ids: Numbers, count: int) -> Numbers:
    """Return the share of each ledger, out of ``count``."""
    return ids % count


def ranges_of_ledgers(ids: Numbers) -> Numbers:
    """Return the range of each ledger, as sets of ids have them."""
    return ids >> _RANGE_BITS


def shares_of_topics(topics: pa.Array, count: int) -> Numbers:
    """Return the share of each topic, out of ``count``; the first one for rows without a topic."""
    encoded = pc.dictionary_encode(topics)  # type: ignore[attr-defined]  # the stubs lack it
    hashed = [zlib.crc32(topic.encode()) % count for topic in encoded.dictionary.to_pylist()]
    found: Numbers = pa.array(hashed, pa.int64()).take(encoded.indices).fill_null(0).to_numpy()
    return found


# --- ids -----------------------------------------------------------------------------------------------------------


class IdSets:
    """Ids that a task has seen, by the tags of their sets."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, list[Ids]] = defaultdict(list)

    def add(self, ids: Ids, *tags: str) -> None:
        """Add ids in any order, with or without repetitions."""
        for tag in tags:
            self._parts[tag].append(ids)

    def taken(self, *, only_full: bool) -> Iterator[tuple[str, int, bytes]]:
        """Yield tag, range and ids of every set, or only of full ones, and release them."""
        for tag in list(self._parts):
            if only_full and sum(map(len, self._parts[tag])) < _MOST_HELD:
                continue
            ordered = distinct(self._parts.pop(tag))
            for ids in np.split(ordered, np.flatnonzero(np.diff(ordered >> _RANGE_BITS)) + 1):
                if len(ids):
                    yield tag, int(ids[0]) >> _RANGE_BITS, write_ids(ids)


class PackedIds:
    """Set of ids in the form in which it travels.

    It has at most 4 bytes for each id, and a bit for each of the span.
    """

    def __init__(self, sets: Mapping[int, bytes]) -> None:
        self._sets = sets

    def holds(self, ids: Ids) -> Mask:
        order = np.argsort(ids, kind="stable")
        ranges = ids[order] >> _RANGE_BITS
        found = np.zeros(len(ids), np.bool_)
        for places in np.split(order, np.flatnonzero(np.diff(ranges)) + 1):
            written = self._sets.get(int(ids[places[0]]) >> _RANGE_BITS) if len(places) else None
            if written is not None:
                found[places] = _among(written, ids[places] & (_RANGE - 1))
        return found


def _among(written: bytes, offsets: Ids) -> Mask:
    """Return True for each offset that is in a written set."""
    found: Mask
    if written[:1] == _BITMAP:
        found = (np.frombuffer(written, np.uint8, offset=1)[offsets >> 3] << (offsets & 7) & 1 << 7) != 0
        return found
    members = np.frombuffer(written, "<u4", offset=1)
    found = members[np.searchsorted(members[:-1], offsets)] == offsets
    return found


def write_ids(ids: Ids) -> bytes:
    """Encode a set of ids of one range, in ascending order."""
    offsets = ids & (_RANGE - 1)
    if len(ids) < _DENSE:
        return _OFFSETS + offsets.astype("<u4").tobytes()
    bits = np.zeros(_RANGE, np.bool_)
    bits[offsets] = True
    return _BITMAP + np.packbits(bits).tobytes()


def union(number: int, written: Iterable[bytes]) -> Numbers:
    """Return the union of several sets of one range, ascending."""
    sets = [_offsets(each) for each in written]
    if sum(map(len, sets)) < _DENSE:
        offsets = distinct(sets)
    else:
        bits = np.zeros(_RANGE, np.bool_)
        for each in sets:
            bits[each] = True
        offsets = np.flatnonzero(bits)
    return offsets + (number << _RANGE_BITS)


def _offsets(written: bytes) -> Numbers:
    if written[:1] == _OFFSETS:
        return np.frombuffer(written, "<u4", offset=1).astype(np.int64)
    return np.flatnonzero(np.unpackbits(np.frombuffer(written, np.uint8, offset=1)))
