"""Queue of delayed messages by due time, ledger and entry: Java's ``TripleLongPriorityQueue``, in batches.

Added indexes stay unsorted until one of them falls due. Sorted indexes form a few runs, because a run is merged with
runs that are not much longer. So a popped batch takes one slice of each run.
"""

from array import array
from collections.abc import Mapping
from typing import Final

import numpy as np
from pyroaring import BitMap

from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes
from pulsar_sidecar.features.delayed_index.tracker.packed import PackedIndexes, pack, sort_packed
from pulsar_sidecar.model.ids import LedgerId

NEVER: Final = 2**63 - 1
"""Time later than any due time."""

_MOST_FRESH: Final = 8_192


class IndexQueue:
    """Queue of indexes; equal triples stay as often as they were added."""

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
        """Add indexes in any order."""
        if len(indexes):
            packed = pack(indexes)
            self._pending.append(packed)
            self._unsorted_first_ms = min(self._unsorted_first_ms, packed.first_ms)
            self._size += len(indexes)

    def put_back(self, indexes: PackedIndexes) -> None:
        """Put back sorted indexes, such as unused ones of `pop`."""
        if len(indexes):
            self._add_run(indexes)
            self._size += len(indexes)

    def first_ms(self) -> int | None:
        """Return the earliest due time; None if the queue is empty."""
        if not self._size:
            return None
        return min([self._unsorted_first_ms, *(run.time_at(0) for run in self._runs)])

    def pop(self, most: int, until_ms: int) -> PackedIndexes:
        """Remove and return the first indexes, in order: at most ``most``, and none due after ``until_ms``."""
        self._sort_until(until_ms)
        taken = self._heads(min(most, self._size), until_ms)
        merged = sort_packed(taken, parts_are_sorted=True)
        if len(merged) > most:
            self._add_run(merged.after(most))
            merged = merged.rows(0, most)
        self._size -= len(merged)
        return merged

    def pop_all(self) -> DelayedIndexes:
        """Remove and return all indexes, in order."""
        return self.pop(self._size, NEVER).unpacked()

    def rows(self) -> DelayedIndexes:
        """Return all indexes, in order, without removing them."""
        rows = self.pop(self._size, NEVER)
        self.put_back(rows)
        return rows.unpacked()

    def remove(self, positions: Mapping[LedgerId, BitMap]) -> None:
        """Remove all rows with these positions."""
        rows = self.pop_all()
        self.put_back(pack(rows[~rows.within(positions)]))

    def _sort_until(self, until_ms: int) -> None:
        if self._size and self._unsorted_first_ms <= until_ms:
            self._keep_fresh()
            unsorted, self._pending, self._unsorted_first_ms = self._pending, [], NEVER
            if unsorted:
                self._add_run(sort_packed(unsorted, parts_are_sorted=False))

    def _heads(self, most: int, until_ms: int) -> list[PackedIndexes]:
        # If a single run has ``most`` rows, no row later than its ``most``-th is needed.
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
