"""The estimate of the backlog: never older than a second, and measured ahead of those who ask."""

import threading

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import Backlog
from pulsar_sidecar.features.ledger_deletion.workflow.backlog_cache import MAX_AGE_MS, BacklogCache
from pulsar_sidecar.model.errors import TemporaryError

from tests.fakes.clock import FakeClock


class Brokers:
    """Counts the calls; each response takes some time."""

    def __init__(self, clock: FakeClock, milliseconds: int = 0) -> None:
        self.clock = clock
        self.milliseconds = milliseconds
        self.asked_ms: list[int] = []
        self.down = False

    def measure(self) -> Backlog:
        measured_ms = self.clock.now_ms()
        self.asked_ms.append(measured_ms)
        self.clock.advance_ms(self.milliseconds)
        if self.down:
            raise TemporaryError("no broker answers")
        return Backlog({"t": len(self.asked_ms)}, None, measured_ms)


class StopAfter:
    """A stop signal that is set once the clock has come so far; asks ``memory`` as a client would."""

    def __init__(self, clock: FakeClock, seconds: float, asking: BacklogCache | None = None) -> None:
        self._clock = clock
        self._end = clock.monotonic_seconds() + seconds
        self._asking = asking
        self.unknown = 0

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()

    def is_set(self) -> bool:
        if self._asking is not None and self._asking.cached() is None:
            self.unknown += 1
        return self._clock.monotonic_seconds() >= self._end


def test_backlog_is_measured_once_and_cached_for_a_second() -> None:
    clock = FakeClock()
    brokers = Brokers(clock)
    memory = BacklogCache(brokers.measure, clock)
    assert memory.cached() is None
    first = memory.fresh()
    clock.advance_ms(MAX_AGE_MS)
    assert memory.fresh() is first
    assert memory.cached() is first
    clock.advance_ms(1)
    assert memory.cached() is None
    assert memory.fresh() is not first
    assert len(brokers.asked_ms) == 2


def test_while_requests_come_there_is_always_one_in_memory() -> None:
    clock = FakeClock()
    brokers = Brokers(clock, milliseconds=150)
    memory = BacklogCache(brokers.measure, clock)
    memory.fresh()
    stop = StopAfter(clock, 60, asking=memory)
    memory.keep_fresh(stop)
    assert stop.unknown == 0
    assert 100 <= len(brokers.asked_ms) <= 160


def test_the_brokers_are_not_asked_without_a_request() -> None:
    clock = FakeClock()
    brokers = Brokers(clock)
    memory = BacklogCache(brokers.measure, clock)
    memory.fresh()
    memory.keep_fresh(StopAfter(clock, 60))
    assert len(brokers.asked_ms) == 1
    memory.cached()
    memory.keep_fresh(StopAfter(clock, 60))
    assert 3 < len(brokers.asked_ms) < 12
    assert brokers.asked_ms[-1] - brokers.asked_ms[1] <= 4_000


def test_the_caller_learns_when_brokers_cannot_be_asked_and_the_thread_goes_on() -> None:
    clock = FakeClock()
    brokers = Brokers(clock)
    memory = BacklogCache(brokers.measure, clock)
    brokers.down = True
    with pytest.raises(TemporaryError):
        memory.fresh()
    memory.keep_fresh(StopAfter(clock, 5, asking=memory))
    assert memory.cached() is None
    brokers.down = False
    memory.keep_fresh(StopAfter(clock, 5, asking=memory))
    assert memory.cached() is not None


def test_a_clock_that_was_set_back_makes_nothing_younger() -> None:
    clock = FakeClock()
    other = FakeClock(clock.now_ms() + 10_000)
    memory = BacklogCache(Brokers(other).measure, clock)
    memory.fresh()
    assert memory.cached() is None


def test_concurrent_callers_share_one_measurement() -> None:
    clock = FakeClock()
    started, go_on = threading.Event(), threading.Event()
    asked: list[int] = []

    def measure() -> Backlog:
        asked.append(1)
        started.set()
        go_on.wait(10)
        return Backlog({}, None, clock.now_ms())

    memory = BacklogCache(measure, clock)
    threads = [threading.Thread(target=memory.fresh) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    go_on.set()
    for thread in threads:
        thread.join()
    assert asked == [1]
