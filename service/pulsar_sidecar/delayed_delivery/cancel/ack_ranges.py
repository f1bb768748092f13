"""How many ranges acknowledging adds to a cursor, and which positions to take first when room is short (PIP-299).

A cursor stores ranges of acknowledged entries, and only so many of them. Entries beside each other, or beside what is
acknowledged already, share a range.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.position_ranges import PositionRanges


@dataclass(frozen=True, slots=True)
class Run:
    """Entries of one ledger, one beside the other, that are to be acknowledged together."""

    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    added_ranges: int
    """What it adds to the cursor's ranges: 1, 0 beside another range, less where it closes gaps."""

    @property
    def positions(self) -> Iterator[Position]:
        """The entries."""
        return (Position(self.ledger_id, EntryId(entry)) for entry in range(self.first, self.last + 1))

    @property
    def entries(self) -> int:
        """How many."""
        return self.last - self.first + 1


def runs(acked: PositionRanges, positions: Collection[Position]) -> list[Run]:
    """The positions as runs, ascending; what is acknowledged already is left out."""
    found: list[tuple[LedgerId, int, int]] = []
    for position in sorted(set(positions)):
        if position in acked:
            continue
        if found and found[-1][0] == position.ledger_id and found[-1][2] == position.entry_id - 1:
            found[-1] = (position.ledger_id, found[-1][1], position.entry_id)
        else:
            found.append((position.ledger_id, position.entry_id, position.entry_id))
    return [_run(acked, ledger_id, first, last) for ledger_id, first, last in found]


def fitting(all_runs: Collection[Run], free_ranges: int) -> tuple[list[Run], list[Run]]:
    """Runs that fit into the room, and those that do not; those that merge come first, then the longest."""
    taken, left = [], []
    for run in sorted(all_runs, key=lambda run: (run.added_ranges, -run.entries, run.ledger_id, run.first)):
        if run.added_ranges <= 0 or run.added_ranges <= free_ranges:
            free_ranges -= run.added_ranges
            taken.append(run)
        else:
            left.append(run)
    return taken, left


def _run(acked: PositionRanges, ledger_id: LedgerId, first: int, last: int) -> Run:
    beside_mark = Position(ledger_id, EntryId(first - 1)) <= acked.mark_delete
    # Beside the mark-delete position it becomes part of "everything up to", with the range behind it if there is one.
    added = (0 if beside_mark else 1) - acked.touching(ledger_id, first, last)
    return Run(ledger_id, EntryId(first), EntryId(last), added)
