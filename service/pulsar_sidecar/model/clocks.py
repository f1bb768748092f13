"""The only place that reads the machine's clock, so that every rule about time can be tested."""

import time
from typing import Protocol

_PIECES_PER_SECOND = 10
_MADE_UP_FOR_SECONDS = 1.0


class StopSignal(Protocol):
    """What a waiting loop can be woken by (``threading.Event`` is one)."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds; True when the signal is set."""

    def is_set(self) -> bool:
        """Whether the signal is set."""


class Clock(Protocol):
    """Wall time, monotonic time and waiting."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def monotonic_seconds(self) -> float:
        """Seconds from an arbitrary start, never running backwards."""

    def wait_seconds(self, seconds: float, stop: StopSignal | None = None) -> bool:
        """Wait until ``stop`` is set (if one is given) or ``seconds`` have passed; True when stopped."""


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_seconds(self) -> float:
        return time.monotonic()

    def wait_seconds(self, seconds: float, stop: StopSignal | None = None) -> bool:
        if stop is None:
            time.sleep(max(0.0, seconds))
            return False
        return stop.wait(seconds)


class Pace:
    """Keeps bulk reading to so many things a second on average: others who use the same servers should not notice."""

    def __init__(self, clock: Clock, per_second: float | None) -> None:
        """``per_second`` None is no limit."""
        self._clock = clock
        self._per_second = per_second
        self._due: float | None = None

    def at_once(self, most: int) -> int:
        """How many things to ask for in one request, so that a low rate does not come in bursts."""
        return most if self._per_second is None else min(most, max(1, int(self._per_second / _PIECES_PER_SECOND)))

    def after(self, count: int, stop: StopSignal | None = None) -> None:
        """So many were done: wait until the average is right, or ``stop`` is set."""
        if self._per_second is None:
            return
        now = self._clock.monotonic_seconds()
        # After a stall no burst follows: servers that have just recovered would notice most.
        due = now if self._due is None else max(self._due, now - _MADE_UP_FOR_SECONDS)
        self._due = due + count / self._per_second
        if self._due > now:
            self._clock.wait_seconds(self._due - now, stop)
