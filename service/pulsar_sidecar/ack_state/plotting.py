"""A cursor's acknowledgements as a row of stretches, each standing for the same number of entries."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some entries in a row.

    Attributes:
        first: where it begins, as ``ledgerId:entryId``.
        entries: how many there are.
        acknowledged: how many of them are acknowledged.
        stored: how many of the acknowledged ones are stored as such.
    """

    first: str
    entries: int
    acknowledged: int
    stored: int


def stretches(
    acknowledged: PositionRanges, stored: PositionRanges, lengths: Mapping[LedgerId, int], count: int
) -> tuple[Stretch, ...]:
    """Everything beyond the mark-delete position in at most ``count`` stretches; () when nothing is beyond it."""
    beyond = list(_beyond(acknowledged, lengths))
    total = sum(found.entries for found in beyond)
    if not total or count < 1:
        return ()
    ends = [total * (number + 1) // count for number in range(count)]
    return tuple(_stretch(parts, acknowledged, stored) for parts in _cut(beyond, ends) if parts)


def _beyond(acknowledged: PositionRanges, lengths: Mapping[LedgerId, int]) -> Iterator[EntryRange]:
    marked = acknowledged.mark_delete
    for ledger_id in sorted(lengths):
        first = marked.entry_id + 1 if ledger_id == marked.ledger_id else 0
        if ledger_id >= marked.ledger_id and first < lengths[ledger_id]:
            yield EntryRange(ledger_id, EntryId(first), EntryId(lengths[ledger_id] - 1))


def _cut(beyond: list[EntryRange], ends: list[int]) -> Iterator[list[EntryRange]]:
    """The ranges cut so that each part ends after so many entries of all."""
    waiting, seen = iter(beyond), 0
    rest = next(waiting, None)
    for end in ends:
        part = []
        while rest is not None and seen < end:
            last = min(rest.last, rest.first + end - seen - 1)
            taken = EntryRange(rest.ledger_id, rest.first, EntryId(last))
            part.append(taken)
            seen += taken.entries
            after = EntryRange(rest.ledger_id, EntryId(last + 1), rest.last)
            rest = after if after.entries else next(waiting, None)
        yield part


def _stretch(parts: list[EntryRange], acknowledged: PositionRanges, stored: PositionRanges) -> Stretch:
    # Acknowledged in memory is a superset of what is stored, but for what was acknowledged between the two looks.
    counts = [(acknowledged.acknowledged_between(*part), stored.acknowledged_between(*part)) for part in parts]
    return Stretch(
        first=f"{parts[0].ledger_id}:{parts[0].first}",
        entries=sum(part.entries for part in parts),
        acknowledged=sum(now for now, _ in counts),
        stored=sum(min(now, kept) for now, kept in counts),
    )
