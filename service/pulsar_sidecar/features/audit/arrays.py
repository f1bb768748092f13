"""Arrays and sets of ledger ids, which both engines pass on and compare.

Sets of millions of ids are tables over the whole span of ids where that fits memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int64] | npt.NDArray[np.int32]
"""Many ledger ids, in the narrower numbers wherever all of them fit."""

Mask = npt.NDArray[np.bool_]

_WIDEST_NARROW = 2**31 - 1
NO_LEDGER = -1
"""Id that stands for no ledger."""

_WIDEST_SPAN = 1 << 28
"""Largest span of ids that a table covers, with one byte for each id."""
_IDS_AT_ONCE = 1 << 16
"""Ids in one step, few enough for the processor's cache."""


@dataclass(frozen=True, slots=True)
class LedgerLists:
    """Lists of some nodes, one element for each ledger, grouped by node and in the order of the node's list.

    Attributes:
        node: the node's position in the column, ascending.
        entries: entries of the ledger; 0 everywhere if the caller did not request them.
        closed: True where the node has the ledger's size.
    """

    node: Numbers
    ledger_id: Numbers
    entries: Numbers
    size_bytes: Numbers
    closed: Mask


def as_narrow_ids(ids: Numbers) -> Ids:
    """Return the ids as 32-bit integers, if all of them fit: memory bandwidth limits comparisons of millions of ids."""
    return ids.astype(np.int32) if not len(ids) or int(ids.max()) <= _WIDEST_NARROW else ids


def distinct(sets: Sequence[Ids]) -> Numbers:
    """Return each id once, ascending.

    `numpy.unique` hashes, which takes ten times as long for millions of ids.
    """
    ordered = np.sort(np.concatenate([np.zeros(0, np.int64), *sets]))
    found: Numbers = ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]
    return found


def sums_between(values: Numbers | Mask, starts: Numbers) -> Numbers:
    """Return the exact sum of the values from each start to the next."""
    if not len(starts):
        return np.zeros(0, np.int64)
    totals: Numbers = np.add.reduceat(values.astype(np.int64), starts)
    return totals


class IdSpan:
    """Map from ids to places in tables; an id that is in none of the given sets has the place behind the last one."""

    def __init__(self, *sets: Ids) -> None:
        some = [ids for ids in sets if len(ids)]
        self.highest = max((int(ids.max()) for ids in some), default=NO_LEDGER)
        self._first = max(0, min((int(ids.min()) for ids in some), default=0))
        self._size = max(0, self.highest - self._first + 1)
        self._ordered: Numbers | None = None
        if self._size > _WIDEST_SPAN:
            ids = distinct(some)
            self._ordered = ids[ids >= 0]
            self._size = len(self._ordered)

    def table(self, sets: Iterable[Ids]) -> Mask:
        """Return the union of these sets as a table; -1 is never in it."""
        table = np.zeros(self._size + 1, np.bool_)
        for ids in sets:
            self.add(ids, table)
        return table

    def add(self, ids: Ids, table: Mask) -> Numbers:
        """Add ids to a table, and return those without a place in it, including -1."""
        placeless = [np.zeros(0, np.int64)]
        for piece in _pieces(len(ids)):
            places = self._places(ids[piece])
            table[places] = True
            if table[self._size]:
                table[self._size] = False
                placeless.append(ids[piece][places == self._size].astype(np.int64))
        return np.concatenate(placeless)

    def among(self, ids: Ids, table: Mask) -> Mask:
        found = np.empty(len(ids), np.bool_)
        for piece in _pieces(len(ids)):
            found[piece] = table[self._places(ids[piece])]
        return found

    def ids(self, table: Mask) -> Numbers:
        places = np.flatnonzero(table)
        return places + self._first if self._ordered is None else self._ordered[places]

    def _places(self, ids: Ids) -> Numbers:
        if self._ordered is None:
            distances = (ids.astype(np.int64) - self._first).view(np.uint64)
            return np.minimum(distances, np.uint64(self._size)).view(np.int64)
        # Ids in any order would miss the processor's cache in most steps of a search.
        order = np.argsort(ids)
        asked = ids[order]
        at = np.searchsorted(self._ordered, asked)
        places = np.empty(len(ids), np.int64)
        places[order] = np.where(self._ordered[np.minimum(at, self._size - 1)] == asked, at, self._size)
        return places


class IdTable:
    """Set of ledger ids; -1 is never in it."""

    def __init__(self, ids: Ids) -> None:
        self._span = IdSpan(ids)
        self._table = self._span.table([ids])

    def holds(self, ids: Ids) -> Mask:
        return self._span.among(ids, self._table)


def _pieces(count: int) -> Iterator[slice]:
    return (slice(start, start + _IDS_AT_ONCE) for start in range(0, count, _IDS_AT_ONCE))


class LedgerSets:
    """Listed, dumped and referenced ledgers; dumped ids have the order of the dump's rows, with -1 for other rows.

    Listed ids come in any number of pieces, referenced ids as an engine finds them.

    Attributes:
        listed: number of listed ids, including repetitions.
        references: number of referenced ids, including repetitions.
    """

    def __init__(self, listed: Sequence[Ids], dumped: Ids) -> None:
        self.dumped = dumped
        self.listed = sum(map(len, listed))
        self.references = 0
        self._span = IdSpan(*listed, dumped)
        self._listed, self._dumped, self._referenced = map(self._span.table, (listed, [dumped], []))
        self._nowhere = [np.zeros(0, np.int64)]

    def refer(self, ids: Ids) -> None:
        self.references += len(ids)
        self._nowhere.append(self._span.add(ids, self._referenced))

    def candidates(self) -> Numbers:
        """Return the ledgers that certainly exist and are not referenced, ascending."""
        return self._span.ids(_without(self._listed, self._referenced) & self._dumped)

    def rows_of(self, ids: Numbers) -> Numbers:
        """Return the positions of the dump's rows of some ledgers."""
        return np.flatnonzero(self._span.among(self.dumped, self._span.table([ids])))

    def gone(self) -> Numbers:
        """Return the referenced ledgers that are neither listed nor dumped, ascending."""
        gone = self._span.ids(_without(_without(self._referenced, self._listed), self._dumped))
        nowhere = distinct(self._nowhere)
        return np.sort(np.concatenate([gone, nowhere[nowhere >= 0]]))

    def exist(self, ids: Ids) -> Mask:
        return self._span.among(ids, self._listed | self._dumped)

    def newest(self) -> int:
        """Return the highest id of an existing ledger, or -1."""
        return self._span.highest

    def in_dump(self) -> int:
        return int(np.count_nonzero(self._listed & self._dumped))

    def referenced_and_listed(self) -> int:
        return int(np.count_nonzero(self._listed & self._referenced))


def _without(some: Mask, others: Mask) -> Mask:
    answer: Mask = some > others
    return answer
