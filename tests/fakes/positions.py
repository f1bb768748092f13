"""Builders of sets of positions."""

from collections.abc import Iterable

from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges


def with_positions(ranges: PositionRanges, positions: Iterable[Position]) -> PositionRanges:
    """Return the set with these positions added, and the same mark-delete position."""
    added = (EntryRange(position.ledger_id, position.entry_id, position.entry_id) for position in positions)
    return PositionRanges(ranges.mark_delete, (*ranges, *added))
