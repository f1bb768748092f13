"""States of a subscription, from its broker, the store and the settings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits, PauseSettings, persisted_ranges
from pulsar_sidecar.features.acknowledgements.results import AckState, PauseState, StoredPlace, TopicPolicy
from pulsar_sidecar.features.acknowledgements.states import DetailOptions, ack_state_of
from pulsar_sidecar.features.acknowledgements.stored import StoredCursor
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import Cursor, Subscription, SubscriptionType, TopicInternalStats

from tests.fakes.positions import with_positions
from tests.unit.acknowledgements.test_stored import at

TOPIC = parse_topic_name("persistent://public/default/orders")
LENGTHS = {LedgerId(3): 40, LedgerId(5): 25}
NOTHING = PauseSettings(TopicPolicy.FALSE_OR_UNSET, None, False)

entries = st.sets(
    st.one_of(st.tuples(st.just(3), st.integers(0, 39)), st.tuples(st.just(5), st.integers(0, 24))), max_size=50
)
marks = st.one_of(st.tuples(st.just(3), st.integers(-1, 39)), st.tuples(st.just(5), st.integers(-1, 24)))


def cursor(acknowledged: PositionRanges) -> Cursor:
    return Cursor(acknowledged, acknowledged.range_count, at(5, 25), LedgerId(9), EntryId(1))


def stored(acknowledged: PositionRanges) -> StoredCursor:
    return StoredCursor(
        StoredPlace.CURSOR_LEDGER, acknowledged, acknowledged.range_count, 0, 10, LedgerId(9), EntryId(1)
    )


def judged(
    memory: PositionRanges,
    written: PositionRanges | None = None,
    *,
    limits: AckStateLimits | None = None,
    policies: PauseSettings = NOTHING,
    options: DetailOptions | None = None,
    kind: str = "Shared",
) -> AckState:
    return ack_state_of(
        TOPIC,
        Subscription("sub", SubscriptionType(kind)),
        "broker:8080",
        TopicInternalStats(LENGTHS, at(5, 24), {"sub": cursor(memory)}),
        None if written is None else stored(written),
        limits or AckStateLimits(max_unacked_ranges=3),
        policies,
        options or DetailOptions(),
    )


def ranges(mark: tuple[int, int], members: set[tuple[int, int]]) -> PositionRanges:
    return with_positions(PositionRanges(at(*mark)), (at(*member) for member in members))


@given(marks, entries, marks, entries)
def test_unstored_acknowledgements_are_redelivered(
    mark: tuple[int, int], members: set[tuple[int, int]], old_mark: tuple[int, int], old_members: set[tuple[int, int]]
) -> None:
    memory, written = ranges(mark, members), ranges(old_mark, old_members)
    state = judged(memory, written)
    everything = [at(ledger, entry) for ledger, length in LENGTHS.items() for entry in range(length)]
    again = [position for position in everything if position in memory and position not in written]
    assert state.after_crash.entries == len(again)
    read = [position for position in everything if position < at(5, 25)]
    assert state.read_unacknowledged_entries == sum(position not in memory for position in read)
    persisted = persisted_ranges(memory, AckStateLimits(max_unacked_ranges=3))
    after_unload = [position for position in everything if position in memory and position not in persisted]
    assert state.after_unload.entries == len(after_unload)


@given(marks, entries, st.integers(1, 200))
def test_the_histogram_covers_every_entry_beyond_the_mark_delete_position_once(
    mark: tuple[int, int], members: set[tuple[int, int]], count: int
) -> None:
    memory = ranges(mark, members)
    written = persisted_ranges(memory, AckStateLimits(max_unacked_ranges=2))
    state = judged(memory, written, options=DetailOptions(stretches=count))
    beyond = [at(id_, e) for id_, length in LENGTHS.items() for e in range(length) if at(id_, e) > memory.mark_delete]
    assert sum(each.entries for each in state.stretches) == len(beyond)
    assert len(state.stretches) == min(count, len(beyond))
    assert sum(each.acknowledged for each in state.stretches) == memory.entries
    assert sum(each.stored for each in state.stretches) == written.entries
    lengths = {each.entries for each in state.stretches}
    assert not lengths or max(lengths) - min(lengths) <= 1
    if beyond:
        assert state.stretches[0].first == str(beyond[0])


def test_a_cursor_that_is_not_stored_would_forget_everything() -> None:
    state = judged(ranges((3, 9), {(5, 1)}), None)
    assert state.after_crash.entries == 11
    assert list(state.after_crash.ranges) == ["3:0-9", "5:1"]


def test_only_so_many_ranges_are_shown_and_all_are_counted() -> None:
    memory = ranges((3, -1), {(3, entry) for entry in range(0, 40, 2)})
    state = judged(memory, ranges((3, -1), set()), options=DetailOptions(ranges=2))
    assert (state.after_crash.entries, state.after_crash.range_count) == (20, 20)
    assert len(state.after_crash.ranges) == 2
    assert (state.ranges_left, state.after_unload.entries) == (0, 16)
    assert judged(ranges((3, -1), {(3, 2)})).ranges_left == 2


FALSE_OR_UNSET, TRUE = TopicPolicy.FALSE_OR_UNSET, TopicPolicy.TRUE


@pytest.mark.parametrize(
    ("policies", "kind", "count", "state", "blocked"),
    [
        (PauseSettings(FALSE_OR_UNSET, None, False), "Shared", 9, PauseState.OFF, False),
        (PauseSettings(FALSE_OR_UNSET, False, True), "Shared", 9, PauseState.OFF, False),
        (PauseSettings(TRUE, None, False), "Shared", 3, PauseState.ARMED, False),
        (PauseSettings(TRUE, None, False), "Shared", 4, PauseState.IN_FORCE, True),
        (PauseSettings(TRUE, False, False), "Key_Shared", 4, PauseState.IN_FORCE, True),
        (PauseSettings(TRUE, True, True), "Failover", 4, PauseState.NOT_APPLICABLE, False),
        (PauseSettings(TRUE, True, True), "None", 4, PauseState.NOT_APPLICABLE, False),
        (PauseSettings(FALSE_OR_UNSET, True, False), "Shared", 4, PauseState.UNKNOWN, None),
        (PauseSettings(FALSE_OR_UNSET, None, True), "Shared", 4, PauseState.UNKNOWN, None),
        (PauseSettings(FALSE_OR_UNSET, None, True), "Shared", 3, PauseState.ARMED, False),
    ],
)
def test_the_pause(policies: PauseSettings, kind: str, count: int, state: PauseState, blocked: bool | None) -> None:
    memory = ranges((3, -1), {(3, 2 * entry + 1) for entry in range(count)})
    found = judged(memory, policies=policies, kind=kind)
    assert (found.pause, found.blocked_on_ack_state_persistent) == (state, blocked)


def test_unload_keeps_the_stored_state_if_the_new_one_fits_nowhere() -> None:
    memory, written = ranges((3, -1), {(3, 1), (3, 3)}), ranges((3, -1), {(3, 1)})
    state = judged(memory, written, limits=AckStateLimits(max_entry_bytes=5, max_node_bytes=5))
    assert (state.next_write, state.unload_write) == (None, None)
    assert state.after_unload == state.after_crash
    assert state.after_unload.entries == 1
    assert (state.entry_bytes_left, state.node_bytes_left) == (5 - state.entry_bytes, 5 - state.node_bytes)


def test_unload_stores_an_oversized_state_in_the_node() -> None:
    memory = ranges((3, -1), {(3, 1), (3, 3)})
    state = judged(memory, ranges((3, -1), set()), limits=AckStateLimits(max_entry_bytes=5, max_node_ranges=1))
    assert (state.next_write, state.unload_write) == (StoredPlace.METADATA_STORE, StoredPlace.METADATA_STORE)
    assert (state.after_unload.entries, state.after_crash.entries) == (0, 2)


@pytest.mark.parametrize(("most", "loadable"), [(10, True), (9, False)])
def test_a_stored_entry_that_brokers_cannot_read_ends_loads(most: int, loadable: bool) -> None:
    memory = ranges((3, -1), {(3, 1)})
    assert judged(memory, memory, limits=AckStateLimits(max_entry_bytes=most)).loadable is loadable
    assert judged(memory, None, limits=AckStateLimits(max_entry_bytes=most)).loadable
