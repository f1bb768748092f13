"""Times of etcd's revisions: whatever was seen, forgotten and kept, no age is overestimated."""

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.etcd.revision_times import RevisionTimes, thinned
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError

from tests.fakes.clock import FakeClock

LEAD_SECONDS = 1_700_000_000.0
"""The store's time less this machine's monotonic time."""

looks = st.tuples(
    st.floats(0, 4_000, allow_nan=False),  # pause before it
    st.integers(0, 3),  # revisions made meanwhile
    st.floats(0, 3),  # the request's way
    st.floats(0, 3),  # the response's way
    st.booleans(),  # whether another process continues afterwards
)


@given(st.lists(looks, min_size=1, max_size=40))
def test_no_revision_is_older_than_it_seems(sequence: list[tuple[float, int, float, float, bool]]) -> None:
    clock = FakeClock()
    times, stored = RevisionTimes(clock), b""
    made: list[float] = []
    for pause, changes, there, back, restarts in sequence:
        for _ in range(changes):
            clock.advance_ms(round((pause / (changes + 1)) * 1000))
            made.append(clock.monotonic_seconds() + LEAD_SECONDS)
        sent = clock.monotonic_seconds()
        clock.advance_ms(round((there) * 1000))
        date = formatdate(clock.monotonic_seconds() + LEAD_SECONDS, usegmt=True)
        clock.advance_ms(round((back) * 1000))
        times.observe(len(made) + 1, date, sent, clock.monotonic_seconds())
        stored = times.to_store(stored) or stored
        if restarts:
            times = RevisionTimes(clock)
            times.learn(stored)
        else:
            assert times.now_ms() <= (clock.monotonic_seconds() + LEAD_SECONDS) * 1000
    times.observe(len(made) + 1, date, sent, clock.monotonic_seconds())
    for revision, seconds in enumerate(made, start=2):
        assert times.made_before_ms(revision) >= seconds * 1000


def test_a_kept_mark_dates_what_is_older_and_nothing_younger() -> None:
    clock = FakeClock()
    times = RevisionTimes(clock)
    times.learn(b"[[10,1000],[20,2000]]")
    times.observe(30, formatdate(9, usegmt=True), clock.monotonic_seconds(), clock.monotonic_seconds())
    assert [times.made_before_ms(revision) for revision in (1, 10, 11, 20)] == [1000, 1000, 2000, 2000]
    assert times.made_before_ms(21) >= 9_000
    clock.advance_ms(100_000)
    assert times.made_before_ms(31) >= 109_000


def test_nothing_is_known_without_an_answer_or_from_another_node() -> None:
    times = RevisionTimes(FakeClock())
    with pytest.raises(TemporaryError, match="Date"):
        times.now_ms()
    with pytest.raises(UndecodableError):
        times.learn(b"{}x")


def test_old_marks_are_thinned() -> None:
    marks = [(number, number) for number in range(1000)]
    kept = thinned(marks, 100)
    assert len(kept) <= 100
    assert kept[-1] == marks[-1]
    assert set(kept) <= set(marks)
    assert kept[-20:] == marks[-20:]
