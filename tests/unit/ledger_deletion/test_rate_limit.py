"""The operator's rate: as fast as allowed, never faster, and no waiting without one."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.second_phase.limits import RateLimiter

from tests.fakes.clock import FakeClock


def rate_limiter(clock: FakeClock, rate: float | None) -> RateLimiter:
    return RateLimiter(clock, threading.Event(), lambda: rate, is_paused=lambda: False)


def test_unlimited_rate_yields_one_chunk() -> None:
    clock = FakeClock()
    assert list(rate_limiter(clock, None).chunks([1, 2, 3])) == [[1, 2, 3]]
    assert list(rate_limiter(clock, None).chunks([])) == []
    assert rate_limiter(clock, None).most_within(10) is None
    assert clock.monotonic_seconds() == 0


@given(rate=st.floats(0.05, 1_000), batches=st.lists(st.integers(0, 50), max_size=6))
def test_never_more_than_the_rate_allows(rate: float, batches: list[int]) -> None:
    clock = FakeClock()
    one = rate_limiter(clock, rate)
    handed = [(clock.monotonic_seconds(), len(chunk)) for size in batches for chunk in one.chunks(list(range(size)))]
    first = handed[0][0] if handed else 0
    before = 0
    for moment, count in handed:
        assert before <= (moment - first) * rate + 1 + 0.001 * rate * len(handed)
        before += count


@given(rate=st.floats(0.05, 1_000))
def test_most_within_fits_into_the_given_seconds(rate: float) -> None:
    clock = FakeClock()
    one = rate_limiter(clock, rate)
    most = one.most_within(10)
    assert most >= 1
    moments = [clock.monotonic_seconds() for _ in one.chunks(range(most))]
    assert moments[-1] <= 10


def test_a_second_holds_as_many_as_the_rate_allows() -> None:
    clock = FakeClock()
    moments = [(clock.monotonic_seconds(), len(chunk)) for chunk in rate_limiter(clock, 10.0).chunks(range(25))]
    assert moments == [(0, 10), (1, 10), (2, 5)]


def test_a_turn_that_was_waited_for_is_not_waited_for_again() -> None:
    clock = FakeClock()
    one = rate_limiter(clock, 0.1)
    list(one.chunks(range(1)))
    assert one.wait()
    assert clock.monotonic_seconds() == 10
    assert one.wait()
    list(one.chunks(range(1)))
    assert clock.monotonic_seconds() == 10


def test_idle_time_is_not_saved_up() -> None:
    clock = FakeClock()
    one = rate_limiter(clock, 10.0)
    list(one.chunks(range(10)))
    clock.advance_ms(3_600_000)
    started = clock.monotonic_seconds()
    list(one.chunks(range(30)))
    assert clock.monotonic_seconds() - started == 2


@pytest.mark.parametrize("after", [None, 100.0])
def test_a_rate_that_is_lifted_or_raised_counts_from_the_next_chunk(after: float | None) -> None:
    clock = FakeClock()
    rates: list[float | None] = [1.0]
    one = RateLimiter(clock, threading.Event(), lambda: rates[-1], is_paused=lambda: False)
    sizes = []
    for chunk in one.chunks(range(50)):
        sizes.append(len(chunk))
        rates.append(after)
    assert sizes == [1, 49]
    assert clock.monotonic_seconds() <= 1


@pytest.mark.parametrize("rate", [None, 10.0])
def test_stop_prevents_further_chunks(rate: float | None) -> None:
    clock, stop = FakeClock(), threading.Event()
    one = RateLimiter(clock, stop, lambda: rate, is_paused=lambda: False)
    list(one.chunks(range(10)))
    assert one.wait()
    stop.set()
    assert one.stop.is_set()
    assert not one.wait()
    assert list(one.chunks(range(100))) == []


@pytest.mark.parametrize(
    ("before", "after", "second"), [(0.01, None, 5), (0.01, 1.0, 5), (0.01, 0.02, 50), (0.1, 0.01, 10)]
)
def test_a_rate_that_changes_while_it_is_waited_for_counts(before: float, after: float | None, second: int) -> None:
    clock = FakeClock()
    one = RateLimiter(
        clock,
        threading.Event(),
        lambda: before if clock.monotonic_seconds() < 5 else after,
        is_paused=lambda: False,
    )
    moments = [clock.monotonic_seconds() for _ in one.chunks(range(2))]
    assert moments == [0, second]


@pytest.mark.parametrize("rate", [10.0, 0.01])
def test_pause_prevents_further_chunks(rate: float) -> None:
    clock = FakeClock()
    one = RateLimiter(clock, threading.Event(), lambda: rate, is_paused=lambda: clock.monotonic_seconds() >= 2.5)
    assert sum(len(chunk) for chunk in one.chunks(range(100))) == min(30, max(1, int(rate * 3)))
    assert clock.monotonic_seconds() <= 3.5
    assert one.is_paused()
    assert not one.may_continue()
    assert not one.stop.is_set()
