"""What travels between Spark's tasks.

Rows cost Spark microseconds each whenever they are kept, filtered or grouped. So rows travel as Arrow batches, each a
single value, and ids as sets. What has to meet is packed by shares: all of a topic, or of a ledger, is in one of them.
Sets of ids are cut into ranges of ids, small enough for a bitmap; few ids of one travel as their offsets. Invariant:
what was packed comes out again as the same rows or ids.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pulsar_sidecar.audit.arrays import Ids, Numbers

from pyspark_jobs.running.tasks import pack

NO_IDS: Numbers = np.zeros(0, np.int64)

_RANGE_BITS = 20
_RANGE = 1 << _RANGE_BITS
_OFFSETS, _BITMAP = b"o", b"b"
_DENSE = _RANGE // 32
"""From so many ids on, a bitmap is smaller than 4 bytes for each."""
_MOST_HELD = 1 << 22


# --- batches -------------------------------------------------------------------------------------------------------


def pack_shares(batch: pa.RecordBatch, shares: Numbers) -> Iterator[tuple[int, bytes]]:
    """The rows by their shares; empty shares are left out."""
    for share in np.unique(shares).tolist():
        yield share, pack(batch.filter(pa.array(shares == share)))


def shares_of_ledgers(ids: Numbers, count: int) -> Numbers:
    """Which of so many shares each ledger belongs to."""
    return ids % count


def shares_of_topics(topics: pa.Array, count: int) -> Numbers:
    """The same for topics; what has none belongs to the first."""
    encoded = pc.dictionary_encode(topics)  # type: ignore[attr-defined]  # the stubs lack it
    hashed = [zlib.crc32(topic.encode()) % count for topic in encoded.dictionary.to_pylist()]
    found: Numbers = pa.array(hashed, pa.int64()).take(encoded.indices).fill_null(0).to_numpy()
    return found


def by_tag(share: pa.Table, *tags: str) -> dict[str, list[bytes]]:
    """What was packed under each of these tags."""
    packed: dict[str, list[bytes]] = {tag: [] for tag in tags}
    for row in share.select(["tag", "content"]).to_pylist():
        packed[row["tag"]].append(row["content"])
    return packed


# --- ids -----------------------------------------------------------------------------------------------------------


class IdSets:
    """The ids that one task has seen, by the tags of the sets that they belong to."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, list[Ids]] = defaultdict(list)

    def add(self, ids: Ids, *tags: str) -> None:
        """Add some, in any order, repeated or not."""
        for tag in tags:
            self._parts[tag].append(ids)

    def taken(self, *, only_full: bool) -> Iterator[tuple[str, int, bytes]]:
        """Tag, range and ids of every set, or of those with so many ids that they should go now; none is held then."""
        for tag in list(self._parts):
            if only_full and sum(map(len, self._parts[tag])) < _MOST_HELD:
                continue
            ordered = np.sort(np.concatenate(self._parts.pop(tag)))
            ordered = ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]
            for ids in np.split(ordered, np.flatnonzero(np.diff(ordered >> _RANGE_BITS)) + 1):
                if len(ids):
                    yield tag, int(ids[0]) >> _RANGE_BITS, write_ids(ids)


def write_ids(ids: Ids) -> bytes:
    """A set of ids of one range, in ascending order."""
    offsets = ids & (_RANGE - 1)
    if len(ids) < _DENSE:
        return _OFFSETS + offsets.astype("<u4").tobytes()
    bits = np.zeros(_RANGE, np.bool_)
    bits[offsets] = True
    return _BITMAP + np.packbits(bits).tobytes()


def union(number: int, written: Iterable[bytes]) -> Numbers:
    """All ids of several sets of one range, ascending."""
    sets = [_offsets(each) for each in written]
    if sum(map(len, sets)) < _DENSE:
        offsets = np.unique(np.concatenate([NO_IDS, *sets]))
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
