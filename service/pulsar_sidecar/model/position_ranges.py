"""Sets of acknowledged positions, as a cursor of Pulsar keeps them (``ManagedCursorImpl``, ``OpenLongPairRangeSet``).

Invariant: inside one ledger ranges are disjoint, ascending, and never touch; two that touch are one. No range spans two
ledgers; `within_ledgers` cuts those that a broker wrote.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import le, lt
from typing import NamedTuple

from pulsar_sidecar.model.ids import EntryId, LedgerId, Position


class EntryRange(NamedTuple):
    """Entries ``first`` to ``last`` of one ledger, both included."""

    ledger_id: LedgerId
    first: EntryId
    last: EntryId

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return (
            f"{self.ledger_id}:{self.first}"
            if self.first == self.last
            else f"{self.ledger_id}:{self.first}-{self.last}"
        )


class PositionRanges:
    """All positions up to the mark-delete position, and ranges beyond it. Immutable.

    Ranges that begin at or below the mark-delete position lose what lies below it.
    """

    __slots__ = ("_by_ledger", "mark_delete", "range_count")

    def __init__(self, mark_delete: Position, ranges: Iterable[EntryRange] = ()) -> None:
        """Make the set of these ranges, in any order, overlapping or not."""
        self.mark_delete = mark_delete
        self._by_ledger = _merged(mark_delete, ranges)
        self.range_count = sum(len(firsts) for firsts, _ in self._by_ledger.values())
        """Number of ranges beyond the mark-delete position."""

    @classmethod
    def from_single_ledger(
        cls, mark_delete: Position, ledger_id: LedgerId, firsts: Sequence[int], lasts: Sequence[int]
    ) -> "PositionRanges":
        """Make the set of one ledger's ranges; quicker for very many that ascend and do not touch."""
        apart = all(map(le, firsts, lasts)) and all(map(lt, map((1).__add__, lasts), firsts[1:]))
        beyond = not firsts or (mark_delete.ledger_id, mark_delete.entry_id + 1) < (ledger_id, firsts[0])
        if not apart or not beyond:
            ranges = zip(firsts, lasts, strict=True)
            return cls(mark_delete, (EntryRange(ledger_id, EntryId(a), EntryId(b)) for a, b in ranges))
        made = cls.__new__(cls)
        made.mark_delete = mark_delete
        made._by_ledger = {ledger_id: (tuple(firsts), tuple(lasts))} if firsts else {}
        made.range_count = len(firsts)
        return made

    def __contains__(self, position: Position) -> bool:
        return position <= self.mark_delete or self._in_range(position.ledger_id, position.entry_id)

    def __iter__(self) -> Iterator[EntryRange]:
        """Yield the ranges beyond the mark-delete position, ascending."""
        for ledger_id, (firsts, lasts) in self._by_ledger.items():
            for first, last in zip(firsts, lasts, strict=True):
                yield EntryRange(ledger_id, EntryId(first), EntryId(last))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PositionRanges):
            return NotImplemented
        return self.mark_delete == other.mark_delete and self._by_ledger == other._by_ledger

    def __hash__(self) -> int:
        return hash((self.mark_delete, self.range_count))

    def __repr__(self) -> str:
        return f"PositionRanges({self.mark_delete}, {[str(found) for found in self]})"

    @property
    def entries(self) -> int:
        """Number of entries in the ranges beyond the mark-delete position."""
        return sum(found.entries for found in self)

    def holds_all_of(self, other: "PositionRanges") -> bool:
        """Return True if this set certainly holds the whole other one, whose mark-delete position is not later."""
        if self.mark_delete < other.mark_delete:
            return False
        return self._by_ledger == other._by_ledger or next(other.without(self, {}), None) is None

    def without(self, others: "PositionRanges", lengths: Mapping[LedgerId, int]) -> Iterator[EntryRange]:
        """Yield the positions of this set that are not in the other, ascending.

        Args:
            others: the other set.
            lengths: the entries of each ledger of the topic, up to which the mark-delete position reaches; a ledger
                that is not listed counts as empty.
        """
        for found in self._whole(others.mark_delete, lengths):
            yield from others._cut(found)

    def count_touching(self, ledger_id: LedgerId, first: int, last: int) -> int:
        """Return the number of the ledger's ranges that touch or overlap the entries ``first`` to ``last``."""
        firsts, lasts = self._by_ledger.get(ledger_id, ((), ()))
        return max(0, bisect_right(firsts, last + 1) - bisect_left(lasts, first - 1))

    def acknowledged_between(self, ledger_id: LedgerId, first: int, last: int) -> int:
        """Return the number of the entries ``first`` to ``last`` of a ledger that belong to the set."""
        if ledger_id < self.mark_delete.ledger_id:
            return last - first + 1
        marked = self.mark_delete.entry_id if ledger_id == self.mark_delete.ledger_id else -1
        below = max(0, min(last, marked) - first + 1)
        firsts, lasts = self._by_ledger.get(ledger_id, ((), ()))
        inside = slice(bisect_left(lasts, first), bisect_right(firsts, last))
        return below + sum(
            min(end, last) - max(begin, first) + 1 for begin, end in zip(firsts[inside], lasts[inside], strict=True)
        )

    def _in_range(self, ledger_id: LedgerId, entry_id: int) -> bool:
        firsts, lasts = self._by_ledger.get(ledger_id, ((), ()))
        index = bisect_right(firsts, entry_id) - 1
        return index >= 0 and entry_id <= lasts[index]

    def _whole(self, above: Position, lengths: Mapping[LedgerId, int]) -> Iterator[EntryRange]:
        """Yield the entries of this set above a position, those up to the mark-delete position included."""
        for ledger_id in sorted(lengths.keys() | self._by_ledger.keys()):
            if ledger_id < above.ledger_id:
                continue
            from_entry = above.entry_id + 1 if ledger_id == above.ledger_id else 0
            marked = self._marked(ledger_id, lengths.get(ledger_id, 0))
            if from_entry <= marked:
                yield EntryRange(ledger_id, EntryId(from_entry), EntryId(marked))
            for first, last in zip(*self._by_ledger.get(ledger_id, ((), ())), strict=True):
                if last >= from_entry:
                    yield EntryRange(ledger_id, EntryId(max(first, from_entry)), EntryId(last))

    def _marked(self, ledger_id: LedgerId, length: int) -> int:
        """Return the last entry of a ledger at or below the mark-delete position, -1 for none."""
        if ledger_id > self.mark_delete.ledger_id:
            return -1
        return min(self.mark_delete.entry_id, length - 1) if ledger_id == self.mark_delete.ledger_id else length - 1

    def _cut(self, found: EntryRange) -> Iterator[EntryRange]:
        """Yield the parts of a range above the mark-delete position that no range of this set covers."""
        firsts, lasts = self._by_ledger.get(found.ledger_id, ((), ()))
        start: int = found.first
        for index in range(bisect_left(lasts, found.first), bisect_right(firsts, found.last)):
            if start < firsts[index]:
                yield EntryRange(found.ledger_id, EntryId(start), EntryId(firsts[index] - 1))
            start = lasts[index] + 1
        if start <= found.last:
            yield EntryRange(found.ledger_id, EntryId(start), found.last)


def within_ledgers(lower: Position, upper: Position, lengths: Mapping[LedgerId, int]) -> Iterator[EntryRange]:
    """Cut the range ``(lower, upper]`` at the ends of ledgers.

    Brokers write ranges over several ledgers when ``managedLedgerUnackedRangesOpenCacheSetEnabled`` is off.

    Args:
        lower: excluded.
        upper: included.
        lengths: the entries of each ledger of the topic.
    """
    # Most ranges are in one ledger, and a topic may have thousands.
    for ledger_id in [upper.ledger_id] if lower.ledger_id == upper.ledger_id else sorted({*lengths, upper.ledger_id}):
        first = lower.entry_id + 1 if ledger_id == lower.ledger_id else 0
        last = upper.entry_id if ledger_id == upper.ledger_id else lengths[ledger_id] - 1
        if lower.ledger_id <= ledger_id <= upper.ledger_id and first <= last:
            yield EntryRange(ledger_id, EntryId(first), EntryId(last))


_Bounds = tuple[tuple[int, ...], tuple[int, ...]]


def _merged(mark_delete: Position, ranges: Iterable[EntryRange]) -> dict[LedgerId, _Bounds]:
    building: dict[LedgerId, tuple[list[int], list[int]]] = {}
    for ledger_id, begin, last in sorted(ranges):
        first = max(begin, mark_delete.entry_id + 1) if ledger_id == mark_delete.ledger_id else begin
        if last < first or ledger_id < mark_delete.ledger_id:
            continue
        firsts, lasts = building.setdefault(ledger_id, ([], []))
        if lasts and first <= lasts[-1] + 1:
            lasts[-1] = max(lasts[-1], last)
        else:
            firsts.append(first)
            lasts.append(last)
    return {ledger_id: (tuple(firsts), tuple(lasts)) for ledger_id, (firsts, lasts) in building.items()}
