"""What a broker writes down of a cursor, against the protobuf messages themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.ack_state.limits import (
    AckStateLimits,
    PauseSettings,
    PauseState,
    TopicPolicy,
    pause_state,
    persisted_ranges,
    written_bytes,
)
from pulsar_sidecar.ack_state.stored import stored_in_entry
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import SubscriptionType
from pulsar_sidecar.wire import MLDataFormats_pb2 as ml

from tests.fakes.positions import with_positions
from tests.unit.ack_state.test_stored import at, dense, sparse

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
def test_what_is_kept_is_part_of_what_was_there(acknowledged: set[tuple[int, int]], maximum: int) -> None:
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


@pytest.mark.parametrize(("ranges", "fits"), [(0, True), (20, True), (21, False)])
def test_dispatch_pauses_beyond_the_limit(ranges: int, fits: bool) -> None:
    enabled = PauseSettings(TopicPolicy.TRUE, None, False)
    state = pause_state(SubscriptionType.SHARED, ranges, enabled, AckStateLimits(max_unacked_ranges=20))
    assert state is (PauseState.ARMED if fits else PauseState.IN_FORCE)


@given(entries, maxima, st.booleans())
def test_the_bytes_are_those_of_the_message(acknowledged: set[tuple[int, int]], maximum: int, dense_form: bool) -> None:
    limits = AckStateLimits(max_unacked_ranges=maximum, as_long_array=dense_form)
    left = persisted_ranges(holes(*acknowledged), limits)
    info = ml.PositionInfo(ledgerId=0, entryId=-1)
    empty = info.ByteSize()
    if dense_form:
        info.individualDeletedMessageRanges.extend(dense(left))
    else:
        info.individualDeletedMessages.extend(sparse(left))
    assert written_bytes(holes(*acknowledged), limits) == info.ByteSize() - empty
    assert stored_in_entry(info.SerializeToString(), {}, LedgerId(1), EntryId(0)).acknowledged == left
