"""Arrays and sets of ledger ids, as both engines pass them on and hold them against each other.

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
"""Stands for no ledger among ids."""

_WIDEST_SPAN = 1 << 28
"""A byte for each id in it."""
_IDS_AT_ONCE = 1 << 16
"""So that what one step makes stays in the processor's cache."""


@dataclass(frozen=True, slots=True)
class LedgerLists:
    """The lists of some nodes, one element for each ledger, grouped by node and in the order of the node's list.

    Attributes:
        node: the node's position in the column, ascending.
        entries: 0 everywhere if they were not asked for.
        closed: whether the node has the ledger's size.
    """

    node: Numbers
    ledger_id: Numbers
    entries: Numbers
    size_bytes: Numbers
    closed: Mask


def empty_lists() -> LedgerLists:
    """Of no node."""
    none = np.zeros(0, np.int64)
    return LedgerLists(none, none, none, none, np.zeros(0, np.bool_))


def as_narrow_ids(ids: Numbers) -> Ids:
    """The same ids in half the memory, which is what comparing millions of them takes time for, if they fit."""
    return ids.astype(np.int32) if not len(ids) or int(ids.max()) <= _WIDEST_NARROW else ids


def sums_between(values: Numbers | Mask, starts: Numbers) -> Numbers:
    """Exact sums of what lies between some places and the next of them."""
    if not len(starts):
        return np.zeros(0, np.int64)
    totals: Numbers = np.add.reduceat(values.astype(np.int64), starts)
    return totals


class IdSpan:
    """Gives every id of some sets a place in tables, and the place behind the last one to every other id."""

    def __init__(self, *sets: Ids) -> None:
        some = [ids for ids in sets if len(ids)]
        self.highest = max((int(ids.max()) for ids in some), default=NO_LEDGER)
        self._first = max(0, min((int(ids.min()) for ids in some), default=0))
        self._size = max(0, self.highest - self._first + 1)
        self._ordered: Numbers | None = None
        if self._size > _WIDEST_SPAN:
            ids = np.unique(np.concatenate(some)).astype(np.int64)
            self._ordered = ids[ids >= 0]
            self._size = len(self._ordered)

    def table(self, sets: Iterable[Ids]) -> Mask:
        """The union of these sets; -1 is never in it."""
        table = np.zeros(self._size + 1, np.bool_)
        for ids in sets:
            self.add(ids, table)
        return table

    def add(self, ids: Ids, table: Mask) -> Numbers:
        """Add these to a table; those without a place in it are answered, -1 among them."""
        placeless = [np.zeros(0, np.int64)]
        for piece in _pieces(len(ids)):
            places = self._places(ids[piece])
            table[places] = True
            if table[self._size]:
                table[self._size] = False
                placeless.append(ids[piece][places == self._size].astype(np.int64))
        return np.concatenate(placeless)

    def among(self, ids: Ids, table: Mask) -> Mask:
        """Which of these ids are in a set."""
        found = np.empty(len(ids), np.bool_)
        for piece in _pieces(len(ids)):
            found[piece] = table[self._places(ids[piece])]
        return found

    def ids(self, table: Mask) -> Numbers:
        """The ids of a set, ascending."""
        places = np.flatnonzero(table)
        return places + self._first if self._ordered is None else self._ordered[places]

    def _places(self, ids: Ids) -> Numbers:
        if self._ordered is None:
            distances = (ids.astype(np.int64) - self._first).view(np.uint64)
            return np.minimum(distances, np.uint64(self._size)).view(np.int64)
        at = np.searchsorted(self._ordered, ids)
        places: Numbers = np.where(self._ordered[np.minimum(at, self._size - 1)] == ids, at, self._size)
        return places


class IdTable:
    """A set of ledger ids; -1 is never in it."""

    def __init__(self, ids: Ids) -> None:
        self._span = IdSpan(ids)
        self._table = self._span.table([ids])

    def holds(self, ids: Ids) -> Mask:
        """Which of these are in the set."""
        return self._span.among(ids, self._table)


def _pieces(count: int) -> Iterator[slice]:
    return (slice(start, start + _IDS_AT_ONCE) for start in range(0, count, _IDS_AT_ONCE))


class LedgerSets:
    """Ledgers that are listed, dumped (in the order of the dump's rows, -1 for a row that is none) and referenced.

    What is listed comes in any number of pieces, what is referenced as it is found.

    Attributes:
        listed: how many ids were listed, repetitions included.
        references: the same for those that were referenced.
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
        """The ledgers that exist for certain and are not referenced, ascending."""
        return self._span.ids(_without(self._listed, self._referenced) & self._dumped)

    def rows_of(self, ids: Numbers) -> Numbers:
        """The places of the dump's rows of some ledgers."""
        return np.flatnonzero(self._span.among(self.dumped, self._span.table([ids])))

    def gone(self) -> Numbers:
        """Referenced and nowhere, ascending."""
        gone = self._span.ids(_without(_without(self._referenced, self._listed), self._dumped))
        nowhere = np.unique(np.concatenate(self._nowhere))
        return np.sort(np.concatenate([gone, nowhere[nowhere >= 0]]))

    def newest(self) -> int:
        """The highest id of a ledger that exists, -1 when there is none."""
        return self._span.highest

    def in_dump(self) -> int:
        """How many listed ledgers the dump has."""
        return int(np.count_nonzero(self._listed & self._dumped))

    def referenced_and_listed(self) -> int:
        """How many listed ledgers are referenced."""
        return int(np.count_nonzero(self._listed & self._referenced))


def _without(some: Mask, others: Mask) -> Mask:
    """In one, and not in the other."""
    answer: Mask = some > others
    return answer
