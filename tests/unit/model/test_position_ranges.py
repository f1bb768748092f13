"""Sets of acknowledged positions, against plain Python sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges, within_ledgers

from tests.fakes.positions import with_positions

LENGTHS = {LedgerId(3): 12, LedgerId(5): 7, LedgerId(9): 10}
EVERYTHING = frozenset(
    Position(ledger_id, EntryId(entry)) for ledger_id, length in LENGTHS.items() for entry in range(length)
)

positions = st.sampled_from(sorted(EVERYTHING))
mark_deletes = st.one_of(
    positions, st.sampled_from([Position(ledger_id, EntryId(-1)) for ledger_id in (*LENGTHS, LedgerId(1))])
)
contents = st.sets(positions)


def at(ledger_id: int, entry_id: int) -> Position:
    return Position(LedgerId(ledger_id), EntryId(entry_id))


def ranges_of(mark_delete: Position, members: frozenset[Position] | set[Position]) -> PositionRanges:
    return with_positions(PositionRanges(mark_delete), members)


def members_of(ranges: PositionRanges) -> frozenset[Position]:
    return frozenset(position for position in EVERYTHING if position in ranges)


def expanded(ranges: list[EntryRange]) -> list[Position]:
    return [at(ledger_id, entry) for ledger_id, first, last in ranges for entry in range(first, last + 1)]


@given(mark_deletes, contents)
def test_a_set_holds_what_was_put_in_and_what_is_marked(mark_delete: Position, members: set[Position]) -> None:
    ranges = ranges_of(mark_delete, members)
    assert members_of(ranges) == {p for p in EVERYTHING if p <= mark_delete} | members
    beyond = sorted(position for position in members if position > mark_delete)
    assert expanded(list(ranges)) == beyond
    assert ranges.entries == len(beyond)


@given(mark_deletes, contents)
def test_ranges_are_as_few_as_can_be(mark_delete: Position, members: set[Position]) -> None:
    ranges = ranges_of(mark_delete, members)
    beyond = {position for position in members if position > mark_delete}
    begins = [p for p in beyond if at(p.ledger_id, p.entry_id - 1) not in beyond]
    assert ranges.range_count == len(begins) == len(list(ranges))


@given(mark_deletes, st.lists(st.tuples(st.integers(0, 11), st.integers(0, 3)), max_size=5), st.booleans())
def test_ranges_of_one_ledger_are_the_same_made_quickly(
    mark_delete: Position, found: list[tuple[int, int]], ascending: bool
) -> None:
    chosen = sorted(found) if ascending else found
    firsts, lasts = [first for first, _ in chosen], [first + more for first, more in chosen]
    ranges = [EntryRange(LedgerId(5), EntryId(a), EntryId(b)) for a, b in zip(firsts, lasts, strict=True)]
    quick = PositionRanges.from_single_ledger(mark_delete, LedgerId(5), firsts, lasts)
    assert quick == PositionRanges(mark_delete, ranges)
    assert quick.range_count == len(list(quick))


@given(mark_deletes, contents, mark_deletes, contents)
def test_without_is_the_difference(
    mark_delete: Position, members: set[Position], other_mark_delete: Position, other_members: set[Position]
) -> None:
    ranges, others = ranges_of(mark_delete, members), ranges_of(other_mark_delete, other_members)
    left = expanded(list(ranges.without(others, LENGTHS)))
    assert len(left) == len(set(left))
    assert set(left) == members_of(ranges) - members_of(others)
    assert left == sorted(left)


@given(mark_deletes, contents, mark_deletes, contents)
def test_holds_all_of_agrees_with_set_inclusion(
    mark_delete: Position, members: set[Position], other_mark_delete: Position, other_members: set[Position]
) -> None:
    ranges, other = ranges_of(mark_delete, members), ranges_of(other_mark_delete, other_members)
    moved_back = mark_delete < other_mark_delete
    assert ranges.holds_all_of(other) == (not moved_back and members_of(other) <= members_of(ranges))


@given(mark_deletes, contents, st.sampled_from(sorted(LENGTHS)), st.integers(0, 11), st.integers(0, 11))
def test_counting_between_is_counting_members(
    mark_delete: Position, members: set[Position], ledger_id: LedgerId, one: int, other: int
) -> None:
    first, last = sorted((min(one, LENGTHS[ledger_id] - 1), min(other, LENGTHS[ledger_id] - 1)))
    ranges = ranges_of(mark_delete, members)
    inside = [entry for entry in range(first, last + 1) if at(ledger_id, entry) in ranges]
    assert ranges.acknowledged_between(ledger_id, first, last) == len(inside)
    touching = [r for r in ranges if r.ledger_id == ledger_id and r.first <= last + 1 and r.last >= first - 1]
    assert ranges.count_touching(ledger_id, first, last) == len(touching)


@given(mark_deletes, contents)
def test_equal_sets_are_equal_however_they_were_made(mark_delete: Position, members: set[Position]) -> None:
    ranges = ranges_of(mark_delete, members)
    again = PositionRanges(mark_delete, reversed(list(ranges)))
    assert ranges == again
    assert hash(ranges) == hash(again)
    assert ranges != with_positions(ranges, [at(99, 1)])


def test_a_range_over_several_ledgers_is_cut_at_their_ends() -> None:
    cut = list(within_ledgers(at(3, 9), at(9, 2), LENGTHS))
    assert [str(found) for found in cut] == ["3:10-11", "5:0-6", "9:0-2"]


def test_a_range_of_one_ledger_is_not_cut_whatever_is_known_of_its_end() -> None:
    assert list(within_ledgers(at(7, 1), at(7, 9), {})) == [EntryRange(LedgerId(7), EntryId(2), EntryId(9))]


@given(mark_deletes, positions, positions)
def test_a_cut_range_holds_what_lies_between(mark_delete: Position, one: Position, other: Position) -> None:
    lower, upper = sorted((one, other))
    ranges = PositionRanges(mark_delete, within_ledgers(lower, upper, LENGTHS))
    between = {position for position in EVERYTHING if lower < position <= upper}
    assert members_of(ranges) == between | {position for position in EVERYTHING if position <= mark_delete}


@pytest.mark.parametrize(("first", "last", "text"), [(4, 4, "7:4"), (4, 6, "7:4-6")])
def test_a_range_prints_as_a_person_would_write_it(first: int, last: int, text: str) -> None:
    assert str(EntryRange(LedgerId(7), EntryId(first), EntryId(last))) == text
