"""The rate limit: as fast as allowed, never faster, and no waiting without one."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.ledger_deletion.limiting import Pacer, seconds_of_work
from tests.fakes.clock import FakeClock


class Stop:
    """A stop signal that is set when the clock has been waited on so often."""

    def __init__(self, after_waits: int | None = None) -> None:
        self.waits = 0
        self._after = after_waits

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()

    def is_set(self) -> bool:
        self.waits += 1
        return self._after is not None and self.waits > self._after


def test_without_a_limit_everything_goes_at_once() -> None:
    clock = FakeClock()
    assert list(Pacer(clock, Stop(), lambda: None).chunks([1, 2, 3])) == [[1, 2, 3]]
    assert clock.monotonic_seconds() == 0
    assert list(Pacer(clock, Stop(), lambda: None).chunks([])) == []


def test_without_a_rate_portions_follow_what_the_store_bears() -> None:
    clock = FakeClock()
    portions = iter([2, 5, 5])
    pacer = Pacer(clock, Stop(), lambda: None, lambda: next(portions))
    assert [len(chunk) for chunk in pacer.chunks(range(10))] == [2, 5, 3]
    assert clock.monotonic_seconds() == 0
    assert (seconds_of_work(0.25), seconds_of_work(25)) == (100, 5_000)


def test_without_a_rate_a_stop_ends_it_after_the_portion_in_hand() -> None:
    clock = FakeClock()
    stop = threading.Event()
    pacer = Pacer(clock, stop, lambda: None, lambda: 2)
    handed_out = []
    for chunk in pacer.chunks(range(10)):
        handed_out.extend(chunk)
        stop.set()
    assert handed_out == [0, 1]


@given(rate=st.floats(0.05, 1_000), batches=st.lists(st.integers(0, 50), max_size=6))
def test_never_more_than_the_rate_allows(rate: float, batches: list[int]) -> None:
    clock = FakeClock()
    pacer = Pacer(clock, Stop(), lambda: rate)
    handed = [(clock.monotonic_seconds(), len(chunk)) for size in batches for chunk in pacer.chunks(list(range(size)))]
    first = handed[0][0] if handed else 0
    before = 0
    for moment, count in handed:
        assert before <= (moment - first) * rate + 1 + 0.001 * rate * len(handed)
        before += count


def test_a_second_holds_as_many_as_the_rate_says() -> None:
    clock = FakeClock()
    moments = [
        (clock.monotonic_seconds(), len(chunk)) for chunk in Pacer(clock, Stop(), lambda: 10.0).chunks(range(25))
    ]
    assert moments == [(0, 10), (1, 10), (2, 5)]


def test_a_slow_rate_hands_out_one_at_a_time() -> None:
    clock = FakeClock()
    moments = [clock.monotonic_seconds() for _ in Pacer(clock, Stop(), lambda: 0.5).chunks(range(3))]
    assert moments == [0, 2, 4]


def test_idle_time_is_not_saved_up() -> None:
    clock = FakeClock()
    pacer = Pacer(clock, Stop(), lambda: 10.0)
    list(pacer.chunks(range(10)))
    clock.advance_ms(3_600_000)
    started = clock.monotonic_seconds()
    list(pacer.chunks(range(30)))
    assert clock.monotonic_seconds() - started == 2


@pytest.mark.parametrize("after", [None, 100.0])
def test_a_limit_that_is_lifted_or_raised_counts_from_the_next_portion(after: float | None) -> None:
    clock = FakeClock()
    rates = iter([1.0, after, after, after])
    chunks = [len(chunk) for chunk in Pacer(clock, Stop(), lambda: next(rates)).chunks(range(50))]
    assert chunks == [1, 49]
    assert clock.monotonic_seconds() <= 1


def test_what_waits_when_it_is_stopped_is_not_begun() -> None:
    clock = FakeClock()
    chunks = [len(chunk) for chunk in Pacer(clock, Stop(after_waits=2), lambda: 10.0).chunks(range(100))]
    assert chunks == [10, 10]
