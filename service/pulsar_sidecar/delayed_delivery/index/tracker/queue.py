"""A queue of delayed messages by due time, ledger and entry: Java's ``TripleLongPriorityQueue``, for whole batches.

What is added is kept as it came and sorted when something of it falls due; what is sorted is kept as runs, few of them,
since a run is merged with those that are not much longer. So a batch taken is one slice of each.
"""

from array import array
from collections.abc import Mapping
from typing import Final

import numpy as np
from pyroaring import BitMap

from pulsar_sidecar.delayed_delivery.index.snapshot import DelayedIndexes
from pulsar_sidecar.delayed_delivery.index.tracker.packed import PackedIndexes, pack, sort_packed
from pulsar_sidecar.model.ids import LedgerId

NEVER: Final = 2**63 - 1
"""Later than any due time."""

_MOST_FRESH: Final = 8_192


class IndexQueue:
    """Equal triples are kept as often as they were added."""

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        fresh = sum(column.itemsize * len(column) for column in self._fresh)
        return fresh + sum(part.nbytes for part in (*self._pending, *self._runs))

    def clear(self) -> None:
        self._fresh = (array("q"), array("q"), array("q"))
        self._pending: list[PackedIndexes] = []
        self._unsorted_first_ms = NEVER
        self._runs: list[PackedIndexes] = []
        self._size = 0

    def add(self, deliver_at_ms: int, ledger_id: int, entry_id: int) -> None:
        times, ledgers, entries = self._fresh
        times.append(deliver_at_ms)
        ledgers.append(ledger_id)
        entries.append(entry_id)
        self._unsorted_first_ms = min(self._unsorted_first_ms, deliver_at_ms)
        self._size += 1
        if len(times) == _MOST_FRESH:
            self._keep_fresh()

    def add_many(self, indexes: DelayedIndexes) -> None:
        """As many, in any order."""
        if len(indexes):
            packed = pack(indexes)
            self._pending.append(packed)
            self._unsorted_first_ms = min(self._unsorted_first_ms, packed.first_ms)
            self._size += len(indexes)

    def put_back(self, indexes: PackedIndexes) -> None:
        """What `pop` gave and was not used, or anything else that is sorted."""
        if len(indexes):
            self._add_run(indexes)
            self._size += len(indexes)

    def first_ms(self) -> int | None:
        """The earliest due time; None when empty."""
        if not self._size:
            return None
        return min([self._unsorted_first_ms, *(run.time_at(0) for run in self._runs)])

    def pop(self, most: int, until_ms: int) -> PackedIndexes:
        """The first ones, in order, ``most`` at most, and none that is due later."""
        self._sort_until(until_ms)
        taken = self._heads(min(most, self._size), until_ms)
        merged = sort_packed(taken, parts_are_sorted=True)
        if len(merged) > most:
            self._add_run(merged.after(most))
            merged = merged.rows(0, most)
        self._size -= len(merged)
        return merged

    def pop_all(self) -> DelayedIndexes:
        """Everything, in order."""
        return self.pop(self._size, NEVER).unpacked()

    def rows(self) -> DelayedIndexes:
        """Everything, in order; it stays."""
        rows = self.pop(self._size, NEVER)
        self.put_back(rows)
        return rows.unpacked()

    def remove(self, positions: Mapping[LedgerId, BitMap]) -> int:
        """Take these out, however often they are in; the answer is how many rows that were."""
        rows = self.pop_all()
        gone = rows.within(positions)
        self.put_back(pack(rows[~gone]))
        return int(gone.sum())

    def _sort_until(self, until_ms: int) -> None:
        if self._size and self._unsorted_first_ms <= until_ms:
            self._keep_fresh()
            unsorted, self._pending, self._unsorted_first_ms = self._pending, [], NEVER
            if unsorted:
                self._add_run(sort_packed(unsorted, parts_are_sorted=False))

    def _heads(self, most: int, until_ms: int) -> list[PackedIndexes]:
        # Where a run alone has as many as are wanted, nothing beyond its last one of them is.
        ends = [run.time_at(most - 1) for run in self._runs if 0 < most <= len(run)]
        until_ms = min([until_ms, *ends])
        taken, rest = [], []
        for run in self._runs:
            count = min(run.count_until(until_ms), most)
            if count:
                taken.append(run.rows(0, count))
            if count < len(run):
                rest.append(run.after(count) if count else run)
        self._runs = rest
        return taken

    def _keep_fresh(self) -> None:
        times, ledgers, entries = (np.frombuffer(column, np.int64) for column in self._fresh)
        if len(times):
            self._pending.append(pack(DelayedIndexes(times, ledgers, entries)))
            self._fresh = (array("q"), array("q"), array("q"))

    def _add_run(self, run: PackedIndexes) -> None:
        runs = sorted((*self._runs, run), key=len, reverse=True)
        while len(runs) > 1 and len(runs[-2]) <= 2 * len(runs[-1]):
            runs.append(sort_packed((runs.pop(), runs.pop()), parts_are_sorted=True))
        self._runs = runs
