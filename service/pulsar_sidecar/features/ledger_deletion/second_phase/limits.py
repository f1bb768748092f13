"""Limits on the speed of deletion: the operator's rate and pause, and protection of the store's other clients.

A deletion occupies the store for longer than other requests do, since it also notifies every broker and bookie. Another
client waits behind the deletions in flight: their number, not their rate, determines its slowest requests. The limit
follows TCP's rule: increase slowly while probes are in time, halve when one is late.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from pulsar_sidecar.features.ledger_deletion.results import LimitReadings
from pulsar_sidecar.model.clocks import Clock, StopSignal

LOWEST_LEVEL: Final = 1.0
FIRST_LEVEL: Final = 8.0
HIGHEST_LEVEL: Final = 50.0
"""More would only queue: 20 to 50 in flight keep ZooKeeper busy."""
_GROWTH: Final = 0.125
"""From half of the highest level to the highest in 200 probes: in balance, about one probe in 100 is late."""
_CUT: Final = 0.5
_LEAST_IDLE_P99_SECONDS: Final = 0.005
"""Lower bound of the idle p99, since a busy machine varies by as much."""
_STALL_SECONDS: Final = 0.1
_BLIND_SECONDS: Final = 5.0

_IDLE_AFTER_SECONDS: Final = 1.0
_PROBES: Final = 100
"""Number of probes for a 99th percentile: 20 idle seconds, so that the time after the start soon drops out."""
_DELETING_INTERVAL_SECONDS: Final = 0.005
_BETWEEN_DELETIONS_SECONDS: Final = 0.1
_WORKING_INTERVAL_SECONDS: Final = 0.05
"""Interval of a batch that deletes nothing now; its probes count for nothing, but the next may meet a deletion."""
_IDLE_INTERVAL_SECONDS: Final = 0.2


class AdaptiveLimit:
    """Limit steered by probes, small requests that measure the store's latency as another client sees it.

    Only a probe during which a deletion was in flight measures what deletions do to others. It is late when it takes
    longer than ``factor`` times the idle 99th percentile, of at least 5 ms. A late probe halves the level; one over 100
    ms, or no response for seconds, sets it to 1. Thread-safe.
    """

    def __init__(self, clock: Clock, factor: float) -> None:
        """Create a limit; ``factor`` bounds another client's p99 as a multiple of its idle p99."""
        self._clock = clock
        self._factor = factor
        self._lock = threading.Lock()
        self._level = FIRST_LEVEL
        self._in_flight = 0
        self._batches = 0
        now = clock.monotonic_seconds()
        self._answered_at = self._worked_at = now - _IDLE_AFTER_SECONDS
        self._observed_at = now
        self._probed_at: float | None = None
        self._idle: deque[float] = deque(maxlen=_PROBES)
        self._recent: deque[float] = deque(maxlen=_PROBES)
        self._idle_p99_seconds: float | None = None

    def most_in_flight(self) -> int:
        """Return the number of deletions that may be in flight now; call it before each transaction."""
        with self._lock:
            now = self._clock.monotonic_seconds()
            probed_at = self._probed_at
            is_stalled = probed_at is not None and now - probed_at > _STALL_SECONDS and self._overlaps(probed_at)
            if is_stalled or now - self._observed_at > _BLIND_SECONDS:
                self._level = LOWEST_LEVEL
            return int(self._level)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Wrap a transaction with deletions, from sending it to its response."""
        with self._lock:
            self._in_flight += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= 1
                self._answered_at = self._worked_at = self._clock.monotonic_seconds()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Wrap a batch, so that probes meanwhile do not count as idle, even while nothing is in flight.

        A batch also calls brokers, which share the store's machines and call it themselves.
        """
        with self._lock:
            self._batches += 1
        try:
            yield
        finally:
            with self._lock:
                self._batches -= 1
                self._worked_at = self._clock.monotonic_seconds()

    def probe_interval_seconds(self) -> float:
        """Return the time from this probe to the next, in seconds."""
        with self._lock:
            now = self._clock.monotonic_seconds()
            if self._is_idle_since(now):
                return _IDLE_INTERVAL_SECONDS
            is_deleting = self._overlaps(now - _BETWEEN_DELETIONS_SECONDS)
            return _DELETING_INTERVAL_SECONDS if is_deleting else _WORKING_INTERVAL_SECONDS

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Wrap a probe, from sending it to its response; one that fails is not observed."""
        began = self._clock.monotonic_seconds()
        with self._lock:
            self._probed_at = began
        try:
            yield
        finally:
            with self._lock:
                self._probed_at = None
        self.observe(self._clock.monotonic_seconds() - began)

    def observe(self, seconds: float) -> None:
        """Record the duration of a probe."""
        with self._lock:
            self._observed_at = self._clock.monotonic_seconds()
            sent_at = self._observed_at - seconds
            if self._overlaps(sent_at):
                self._recent.append(seconds)
                late_seconds = self._factor * max(_LEAST_IDLE_P99_SECONDS, self._idle_p99_seconds or 0.0)
                if seconds > _STALL_SECONDS:
                    self._level = LOWEST_LEVEL
                elif seconds > late_seconds:
                    self._level = max(LOWEST_LEVEL, self._level * _CUT)
                else:
                    self._level = min(HIGHEST_LEVEL, self._level + _GROWTH)
            elif self._is_idle_since(sent_at):
                self._idle.append(seconds)
                if len(self._idle) == _PROBES:
                    self._idle_p99_seconds = percentile(self._idle, 0.99)

    def readings(self) -> LimitReadings:
        """Return the readings for the status and the metrics."""
        with self._lock:
            recent_p99 = percentile(self._recent, 0.99) if self._recent else None
            return LimitReadings(self._level, _milliseconds(self._idle_p99_seconds), _milliseconds(recent_p99))

    def _overlaps(self, sent_at: float) -> bool:
        """Return True if a deletion was in flight at any moment since then."""
        return self._in_flight > 0 or self._answered_at > sent_at

    def _is_idle_since(self, moment: float) -> bool:
        """Return True if this sidecar has sent the store nothing from a while before that moment until now."""
        at_work = self._in_flight > 0 or self._batches > 0
        return not at_work and moment - self._worked_at >= _IDLE_AFTER_SECONDS


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of ``values`` that the given share of them does not exceed."""
    ascending = sorted(values)
    return ascending[max(0, -int(-share * len(ascending) // 1) - 1)]


Item = TypeVar("Item")

_SLICE_SECONDS = 1.0
"""Interval at which a wait reads pause and rate again."""
_EARLY_SECONDS = 0.001
"""Rest of a wait that is too short to wait for."""


@dataclass(slots=True)
class RateLimiter:
    """Rate limiter that releases deletions in chunks of at most a second's worth.

    A raised or lifted rate counts at once, a lowered one from the next chunk on. Unused time is not saved up.
    """

    clock: Clock
    stop: StopSignal
    rate_per_second: Callable[[], float | None]
    is_paused: Callable[[], bool]
    _free_at_seconds: float = 0.0
    _handed_at_seconds: float = 0.0
    _handed: int = 0

    def may_continue(self) -> bool:
        """Return True if another deletion may begin: neither stopped nor paused."""
        return not self.stop.is_set() and not self.is_paused()

    def most_within(self, seconds: float) -> int | None:
        """Return the number that the rate allows within ``seconds``, at least one; None without a rate."""
        rate = self.rate_per_second()
        return None if rate is None else max(1, int(rate * seconds))

    def wait(self) -> bool:
        """Wait until the next deletion may start; return False when stopped or paused."""
        while self.may_continue():
            late_seconds = self._late_seconds()
            if late_seconds <= _EARLY_SECONDS:
                return True
            self.clock.wait_seconds(min(late_seconds, _SLICE_SECONDS), self.stop)
        return False

    def _late_seconds(self) -> float:
        rate = self.rate_per_second()
        if rate is None:
            return 0.0
        free_at_seconds = min(self._free_at_seconds, self._handed_at_seconds + self._handed / rate)
        return free_at_seconds - self.clock.monotonic_seconds()

    def chunks(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """Yield the items in order, each chunk not before its time; ends early when stopped or paused."""
        position = 0
        while position < len(items) and self.wait():
            rate = self.rate_per_second()
            size = len(items) if rate is None else max(1, int(rate))
            chunk = items[position : position + size]
            if rate is not None:
                # The remaining delay is too short to wait for.
                self._handed_at_seconds = self.clock.monotonic_seconds() + max(0.0, self._late_seconds())
                self._handed = len(chunk)
                self._free_at_seconds = self._handed_at_seconds + len(chunk) / rate
            yield chunk
            position += len(chunk)
