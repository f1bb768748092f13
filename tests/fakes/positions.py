"""Sets of positions as tests write them down."""

from collections.abc import Iterable

from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges


def with_positions(ranges: PositionRanges, positions: Iterable[Position]) -> PositionRanges:
    """The set and these positions; the mark-delete position stays where it is."""
    added = (EntryRange(position.ledger_id, position.entry_id, position.entry_id) for position in positions)
    return PositionRanges(ranges.mark_delete, (*ranges, *added))
