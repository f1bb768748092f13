"""The time that all machines of a cluster share, read by one whose own clock is wrong."""

import pytest
from pulsar_sidecar.adapters.metadata_access import StoreTime
from pulsar_sidecar.adapters.zookeeper.zookeeper import StoreClock
from pulsar_sidecar.model.errors import TemporaryError

from tests.fakes.clock import START_MS, FakeClock

HOUR_MS = 3_600_000


class Store:
    """A store whose clock is an hour ahead of this machine's, and which may not respond."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.answers = True

    def now_ms(self) -> int:
        if not self.answers:
            raise TemporaryError("no answer")
        return self._clock.now_ms() + HOUR_MS


def test_the_time_is_the_stores() -> None:
    clock = FakeClock()
    time = StoreTime(Store(clock), clock)  # type: ignore[arg-type]
    clock.advance_ms(5_000)
    assert time.now_ms() == START_MS + 5_000 + HOUR_MS


def test_while_the_store_does_not_answer_its_time_goes_on() -> None:
    clock = FakeClock()
    store = Store(clock)
    time = StoreTime(store, clock)  # type: ignore[arg-type]
    time.now_ms()
    store.answers = False
    clock.advance_ms(7_000)
    assert time.now_ms() == START_MS + 7_000 + HOUR_MS


def test_before_the_store_ever_answered_it_is_this_machines() -> None:
    clock = FakeClock()
    store = Store(clock)
    store.answers = False
    assert StoreTime(store, clock).now_ms() == START_MS  # type: ignore[arg-type]


class Session:
    """Answers after this many milliseconds each, having looked at the store's clock at once."""

    def __init__(self, clock: FakeClock, *round_trips_ms: int) -> None:
        self.epoch = 1
        self._clock = clock
        self._round_trips_ms = list(round_trips_ms)

    def reading(self, *_: object) -> tuple[float, int, float]:
        started, stamped_ms = self._clock.monotonic_seconds(), self._clock.now_ms() + HOUR_MS
        self._clock.advance_ms(self._round_trips_ms.pop(0))
        return started, stamped_ms, self._clock.monotonic_seconds()


@pytest.mark.parametrize("round_trips_ms", [(10,), (1_900, 20), (1_900, 150, 1_500)])
def test_the_quickest_answer_gives_the_time(round_trips_ms: tuple[int, ...]) -> None:
    # A response that came after two seconds once made the time a second early, so that retries had no delay at all.
    clock = FakeClock()
    store = StoreClock(Session(clock, *round_trips_ms), clock)  # type: ignore[arg-type]
    assert abs(store.now_ms() - clock.now_ms() - HOUR_MS) <= min(round_trips_ms) / 2


def test_slow_clock_reading_is_rejected() -> None:
    clock = FakeClock()
    store = StoreClock(Session(clock, 2_500, 2_100, 9_000), clock)  # type: ignore[arg-type]
    with pytest.raises(TemporaryError, match="too long to read its clock"):
        store.now_ms()
