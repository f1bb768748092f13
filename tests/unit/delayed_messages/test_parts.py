"""Ranges, records and chunks: the pure parts of cancelling."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.backlog.ports import Chunk, EntryFacts
from pulsar_sidecar.backlog.waiting import positions_of, waiting_entries
from pulsar_sidecar.features.delayed_messages.cancel.cancellation_index import CancellationIndex
from pulsar_sidecar.features.delayed_messages.cancel.log_records import decode, encode_all, key_of, parse_key
from pulsar_sidecar.features.delayed_messages.cancel.plan import (
    added_ranges,
    beyond_limit,
    chunk_candidates,
    chunks_of,
    neighbour_ranges,
)
from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus, Cause
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.position_ranges import PositionRanges

from tests.fakes.delayed_messages import LEDGER, TOPIC, at
from tests.fakes.positions import with_positions

NOW = 1_700_000_000_000
entries = st.sets(st.integers(0, 40), max_size=25)


def ranges_of(acked: set[int], mark_delete: int = -1) -> PositionRanges:
    return with_positions(PositionRanges(at(mark_delete)), (at(entry) for entry in acked))


# --- merging -------------------------------------------------------------------------------------------------------


@given(acked=entries, wanted=entries, mark=st.integers(-1, 10))
def test_the_ranges_a_run_adds_are_those_a_cursor_then_has_more(acked: set[int], wanted: set[int], mark: int) -> None:
    before = ranges_of(acked, mark)
    found = neighbour_ranges(before, [at(entry) for entry in wanted])
    assert {at(entry) for run in found for entry in range(run.first, run.last + 1)} == {
        at(entry) for entry in wanted if at(entry) not in before
    }
    after = ranges_of(acked | wanted, mark)
    added = sum(added_ranges(before, run) for run in found)
    # A range beside the mark-delete position joins it, and only a broker moves that.
    beside_mark = (mark + 1) in (acked | wanted)
    assert after.range_count - before.range_count - added in ({0, 1} if beside_mark else {0})


@given(acked=entries, wanted=entries, free=st.integers(0, 10))
def test_fitting_entries_add_no_more_ranges_than_allowed(acked: set[int], wanted: set[int], free: int) -> None:
    before, asked = ranges_of(acked), {at(entry) for entry in wanted}
    left = beyond_limit(before, asked, before.range_count + free)
    assert left <= asked
    assert not any(position in before for position in left)
    assert sum(added_ranges(before, run) for run in neighbour_ranges(before, asked - left)) <= free
    assert all(added_ranges(before, run) > 0 for run in neighbour_ranges(before, left))


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
    index.learn_all([first, first.at(CancellationStatus.PERSISTED), first.at(CancellationStatus.ACKED)])
    assert index.find(TOPIC, at(1)) == [first.at(CancellationStatus.PERSISTED)]
    index.forget(TOPIC, at(1), "s")
    assert index.open_count == 0
    assert [one.status for one in index.find(TOPIC, at(1))] == [CancellationStatus.EXPIRED]
    again = first._replace(requested_ms=NOW + 1)
    index.learn_all([again])
    assert [one.status for one in index.find(TOPIC, at(1))] == [CancellationStatus.ACCEPTED]


@given(
    steps=st.lists(st.tuples(st.sampled_from(list(CancellationStatus)), st.integers(0, 4), st.booleans()), max_size=40)
)
def test_unpersisted_count_matches_a_recount(steps: list[tuple[CancellationStatus, int, bool]]) -> None:
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
        assert [index.known(TOPIC, at(known), "s") for known in range(5)] == [
            next(iter(index.find(TOPIC, at(known))), None) for known in range(5)
        ]


# --- waiting messages ---------------------------------------------------------------------------------------------


@given(acked=st.lists(entries, min_size=1, max_size=3), mark=st.integers(-1, 10), length=st.integers(0, 45))
def test_waiting_entries_match_an_entry_by_entry_scan(acked: list[set[int]], mark: int, length: int) -> None:
    cursors = [ranges_of(one, mark + number) for number, one in enumerate(acked)]
    lengths = {LEDGER: length, LedgerId(LEDGER + 1): 2}
    every = [at(entry, ledger) for ledger, entries_there in lengths.items() for entry in range(entries_there)]
    found = [position for position in every if not all(position in cursor for cursor in cursors)]
    assert list(positions_of(waiting_entries(lengths, cursors))) == found


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


def test_chunks_of_other_messages_are_not_mixed_up_and_of_one_sent_twice_the_later_counts() -> None:
    mine = EntryFacts(NOW, NOW, chunk=Chunk("u", 0, 2), producer_name="a")
    last = mine._replace(chunk=Chunk("u", 1, 2))
    other = {
        at(3): last._replace(producer_name="b"),
        at(4): mine._replace(publish_time_ms=NOW + 1),
        at(5): last._replace(publish_time_ms=NOW + 1),
    }
    assert chunks_of(mine, {at(0): mine, at(1): last, at(2): last, **other}) == {0: at(0), 1: at(2)}
    assert chunks_of(mine, {at(0): mine, **other}) == {0: at(0)}
