"""Sizes of a broker's stored cursor, against the protobuf messages themselves."""

from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.acknowledgements.limits import (
    AckStateLimits,
    persisted_ranges,
)
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.position_ranges import PositionRanges

from tests.fakes.positions import with_positions
from tests.unit.acknowledgements.test_stored import at

entries = st.sets(
    st.tuples(st.sampled_from([0, 6, 300, 2**40]), st.one_of(st.integers(0, 90), st.integers(0, 5000))), max_size=60
)
maxima = st.integers(1, 30)


def holes(*positions: tuple[int, int]) -> PositionRanges:
    return with_positions(PositionRanges(Position(LedgerId(0), EntryId(-1))), (at(*position) for position in positions))


@given(entries, maxima)
def test_one_range_more_than_the_limit_is_written(acknowledged: set[tuple[int, int]], maximum: int) -> None:
    ranges = holes(*acknowledged)
    left = persisted_ranges(ranges, AckStateLimits(max_unacked_ranges=maximum))
    assert list(left) == list(ranges)[: maximum + 1], "the lowest positions"
    assert left.mark_delete == ranges.mark_delete


@given(entries, maxima)
def test_stored_ranges_are_a_subset_of_the_ranges(acknowledged: set[tuple[int, int]], maximum: int) -> None:
    ranges = holes(*acknowledged)
    for as_long_array in (False, True):
        left = persisted_ranges(ranges, AckStateLimits(max_unacked_ranges=maximum, as_long_array=as_long_array))
        assert set(left) <= set(ranges)
        assert persisted_ranges(left, AckStateLimits(max_unacked_ranges=maximum, as_long_array=as_long_array)) == left


def test_long_arrays_keep_whole_ledgers_until_there_are_more_entries_than_the_limit() -> None:
    ranges = holes((1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (4, 5))
    assert persisted_ranges(ranges, AckStateLimits(max_unacked_ranges=2, as_long_array=True)) == holes(
        (1, 0), (1, 1), (1, 2)
    )
    assert persisted_ranges(ranges, AckStateLimits(max_unacked_ranges=3, as_long_array=True)) == holes(
        (1, 0), (1, 1), (1, 2), (2, 0)
    )
    assert persisted_ranges(ranges, AckStateLimits(max_unacked_ranges=6, as_long_array=True)) == ranges
