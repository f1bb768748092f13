"""Ranges, records, selections and chunks: the pure parts of cancelling."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.delayed_delivery.backlog import Selection, preview, select, waiting_positions
from pulsar_sidecar.delayed_delivery.cancel.cancellation_index import CancellationIndex
from pulsar_sidecar.delayed_delivery.cancel.log_records import decode, encode_all, key_of, parse_key
from pulsar_sidecar.delayed_delivery.cancel.plan import added_ranges, chunk_candidates, chunks_of, runs, without_room
from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, CancellationStatus, Cause
from pulsar_sidecar.delayed_delivery.ports import Chunk, EntryFacts, Unreadable
from pulsar_sidecar.model.errors import InvalidInputError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import TopicInternalStats

from tests.fakes.delayed_messages import TOPIC, at
from tests.fakes.positions import with_positions

NOW = 1_700_000_000_000
entries = st.sets(st.integers(0, 40), max_size=25)


def ranges_of(acked: set[int], mark_delete: int = -1) -> PositionRanges:
    return with_positions(PositionRanges(at(mark_delete)), (at(entry) for entry in acked))


# --- merging -------------------------------------------------------------------------------------------------------


@given(acked=entries, wanted=entries, mark=st.integers(-1, 10))
def test_the_ranges_a_run_adds_are_those_a_cursor_then_has_more(acked: set[int], wanted: set[int], mark: int) -> None:
    before = ranges_of(acked, mark)
    found = runs(before, [at(entry) for entry in wanted])
    assert {at(entry) for run in found for entry in range(run.first, run.last + 1)} == {
        at(entry) for entry in wanted if at(entry) not in before
    }
    after = ranges_of(acked | wanted, mark)
    added = sum(added_ranges(before, run) for run in found)
    # What lies beside the mark-delete position joins it, and only a broker moves that.
    beside_mark = (mark + 1) in (acked | wanted)
    assert after.range_count - before.range_count - added in ({0, 1} if beside_mark else {0})


@given(acked=entries, wanted=entries, free=st.integers(0, 10))
def test_what_fits_adds_no_more_ranges_than_there_is_room_for(acked: set[int], wanted: set[int], free: int) -> None:
    before, asked = ranges_of(acked), {at(entry) for entry in wanted}
    left = without_room(before, asked, before.range_count + free)
    assert left <= asked
    assert not any(position in before for position in left)
    assert sum(added_ranges(before, run) for run in runs(before, asked - left)) <= free
    assert all(added_ranges(before, run) > 0 for run in runs(before, left))


# --- records -------------------------------------------------------------------------------------------------------

topics = st.text(min_size=1, max_size=20).filter(lambda name: name not in (".", "..") and "/" not in name)
cancellations = st.builds(
    Cancellation,
    topic=topics.map(lambda name: replace(TOPIC, local_name=name)),
    subscription=st.text(min_size=1, max_size=20),
    position=st.builds(at, st.integers(0, 2**62), st.integers(0, 2**62)),
    deliver_at_ms=st.integers(1, 2**62),
    requested_ms=st.integers(1, 2**62),
    status=st.sampled_from(CancellationStatus),
    positions=st.lists(st.builds(at, st.integers(0, 99)), max_size=3).map(tuple),
    cause=st.none() | st.sampled_from(Cause),
    reason=st.none() | st.text(max_size=40),
    requested_by=st.none() | st.text(max_size=20),
)


@given(cancellations)
def test_a_record_is_read_as_it_was_written(cancellation: Cancellation) -> None:
    ((key, value),) = encode_all([cancellation])
    assert decode(key, value) == cancellation
    assert parse_key(key) == (cancellation.topic, cancellation.position, cancellation.subscription)


@given(st.text(max_size=60), st.binary(max_size=80))
def test_any_other_record_is_undecodable(key: str, value: bytes) -> None:
    with pytest.raises(UndecodableError):
        decode(key, value)


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b'{"version":2}', b'{"version":1,"deliverAt":"5","requestedMs":1,"proof":"ACKED"}']
)
def test_a_damaged_value_is_undecodable(value: bytes) -> None:
    with pytest.raises(UndecodableError):
        decode(key_of(TOPIC, at(1), "s"), value)


def test_levels_rise_and_what_is_over_may_be_asked_for_again() -> None:
    index = CancellationIndex()
    first = Cancellation(TOPIC, "s", at(1), NOW + 5, NOW, CancellationStatus.ACCEPTED)
    assert index.learn(first)
    assert index.learn(first.at(CancellationStatus.PERSISTED))
    assert not index.learn(first.at(CancellationStatus.ACKED))
    index.forget(TOPIC, at(1), "s")
    assert index.open_count == 0
    assert [one.status for one in index.find(TOPIC, at(1))] == [CancellationStatus.EXPIRED]
    again = first._replace(requested_ms=NOW + 1)
    assert index.learn(again)
    assert [one.status for one in index.find(TOPIC, at(1))] == [CancellationStatus.ACCEPTED]


@given(
    steps=st.lists(st.tuples(st.sampled_from(list(CancellationStatus)), st.integers(0, 4), st.booleans()), max_size=40)
)
def test_what_is_not_proven_yet_is_counted_right(steps: list[tuple[CancellationStatus, int, bool]]) -> None:
    index, place = CancellationIndex(), (TOPIC, "s")
    for requested_ms, (status, entry, lower) in enumerate(steps):
        one = Cancellation(TOPIC, "s", at(entry), NOW, requested_ms, status)
        if lower and status.open:
            index.lower([one])
        elif lower:
            index.forget(TOPIC, at(entry), "s")
        else:
            index.learn_all([one])
        assert index.unpersisted_count(place) == sum(
            known.status is not CancellationStatus.PERSISTED for known in index.at(place)
        )
        assert {one.position for one in index.unpersisted_at(place)} == {
            known.position for known in index.at(place) if known.status is not CancellationStatus.PERSISTED
        }
        assert [index.known_at(place)(at(known)) for known in range(5)] == [
            index.known(TOPIC, at(known), "s") for known in range(5)
        ]


# --- selections ----------------------------------------------------------------------------------------------------


def waiting(entry: int, due_ms: int = NOW + 60_000, **facts: object) -> tuple[Position, EntryFacts]:
    return at(entry), EntryFacts(deliver_at_ms=due_ms, publish_time_ms=NOW)._replace(**facts)  # type: ignore[arg-type]


def found(selection: Selection, *answers: tuple[Position, EntryFacts]) -> list[int]:
    return [one.position.entry_id for one in select(TOPIC, selection, dict(answers), NOW)]


def test_a_selection_by_due_time_key_and_properties() -> None:
    answers = [
        waiting(0, NOW + 10),
        waiting(1, NOW + 20, key="k"),
        waiting(2, NOW + 30, key="k", properties={"a": "1", "b": "2"}),
        waiting(3, NOW - 1, key="k"),
        waiting(4, NOW + 40, key="k", publish_time_ms=NOW + 9),
        (at(5), EntryFacts(deliver_at_ms=None, publish_time_ms=NOW, key="k")),
    ]
    assert found(Selection(due_from_ms=NOW + 10, due_to_ms=NOW + 30), *answers) == [0, 1]
    assert found(Selection(key="k"), *answers) == [1, 2, 4]
    assert found(Selection(key="k", published_before_ms=NOW + 5), *answers) == [1, 2]
    assert found(Selection(properties={"a": "1"}), *answers) == [2]
    assert found(Selection(properties={"a": "1", "b": "3"}), *answers) == []


def test_of_a_chunked_message_only_the_last_chunk_is_selected() -> None:
    answers = [waiting(index, chunk=Chunk("u", index, 3), key="k") for index in range(3)]
    assert found(Selection(key="k"), *answers) == [2]
    assert select(TOPIC, Selection(key="k"), {at(0): Unreadable("x")}, NOW) == []


def test_the_hash_stands_for_exactly_the_messages() -> None:
    one, two = waiting(0, key="k"), waiting(1, key="k")
    selection = Selection(key="k")

    def hash_of(*answers: tuple[Position, EntryFacts]) -> str:
        return preview(selection, select(TOPIC, selection, dict(answers), NOW), 0).hash

    assert hash_of(one, two) == hash_of(two, one)
    assert len({hash_of(one, two), hash_of(one), hash_of(two), hash_of()}) == 4
    assert (
        hash_of(one)
        != preview(replace(selection, subscriptions=("s",)), select(TOPIC, selection, dict([one]), NOW), 0).hash
    )


def test_a_selection_of_everything_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        Selection(published_before_ms=5).check()


def test_what_waits_is_what_some_cursor_has_not_acknowledged() -> None:
    cursor = with_positions(PositionRanges(at(-1, 5)), [at(0, 5)])
    other = with_positions(PositionRanges(at(-1, 5)), [at(1, 5), at(0, 6)])
    state = TopicInternalStats({LedgerId(5): 2, LedgerId(6): 2}, at(1, 6))
    assert list(waiting_positions(state, [cursor])) == [at(1, 5), at(0, 6), at(1, 6)]
    assert list(waiting_positions(state, [cursor, other])) == [at(0, 5), at(1, 5), at(0, 6), at(1, 6)]
    assert list(waiting_positions(state, [])) == []


# --- chunks --------------------------------------------------------------------------------------------------------


@given(total=st.integers(2, 12), index=st.integers(0, 11), entry=st.integers(0, 300))
def test_the_other_chunks_are_looked_for_in_the_right_direction(total: int, index: int, entry: int) -> None:
    chunk = Chunk("u", min(index, total - 1), total)
    candidates = chunk_candidates(at(entry), chunk)
    assert at(entry) not in candidates
    assert all(position.entry_id >= 0 for position in candidates)
    if chunk.chunk_id == 0:
        assert all(position > at(entry) for position in candidates)
    if chunk.chunk_id == total - 1:
        assert all(position < at(entry) for position in candidates)


def test_chunks_of_another_producer_are_not_mixed_up() -> None:
    mine = EntryFacts(NOW, NOW, chunk=Chunk("u", 0, 2), producer_name="a")
    answers = {
        at(0): mine,
        at(1): mine._replace(chunk=Chunk("u", 1, 2), producer_name="b"),
        at(2): mine._replace(chunk=Chunk("u", 1, 2)),
    }
    assert chunks_of(mine, answers) == {0: at(0), 1: at(2)}
