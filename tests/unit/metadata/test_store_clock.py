"""The time that all machines of a cluster share, told by one whose own clock is wrong."""

from service.adapters.metadata.store_clock import StoreTime
from service.model.errors import TemporaryError
from tests.fakes.clock import START_MS, FakeClock

HOUR_MS = 3_600_000


class Store:
    """A store whose clock is an hour ahead of this machine's, and which may not answer."""

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
