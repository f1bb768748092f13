"""The clock; nothing else reads the machine's, so that every rule about time can be tested."""

import time
from collections.abc import Iterator
from typing import Protocol

_PIECES_PER_SECOND = 10
_MADE_UP_FOR_SECONDS = 1.0


class StopSignal(Protocol):
    """Signal that wakes a waiting loop (``threading.Event`` is one)."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds; return True if the signal is set."""

    def is_set(self) -> bool:
        """Return True if the signal is set."""


class Clock(Protocol):
    """Wall time, monotonic time and waiting."""

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch."""

    def monotonic_seconds(self) -> float:
        """Return the seconds since an arbitrary start, never fewer than before."""

    def wait_seconds(self, seconds: float, stop: StopSignal | None = None) -> bool:
        """Wait until ``stop`` is set (if given) or ``seconds`` have passed; return True if stopped."""


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


def attempts(clock: Clock, seconds: float, pause_seconds: float, stop: StopSignal | None = None) -> Iterator[None]:
    """Yield at once, and after each pause, until ``seconds`` have passed or ``stop`` is set."""
    end = clock.monotonic_seconds() + seconds
    yield
    while clock.monotonic_seconds() < end and not clock.wait_seconds(pause_seconds, stop):
        yield


def rest_seconds(least_seconds: float, took_seconds: float) -> float:
    """Return the pause after a check of this duration, so that a loop checks for at most a tenth of the time."""
    return max(least_seconds, 9 * took_seconds)


class Pace:
    """Rate limit of bulk reading, on average per second: other clients of the same servers should not notice it."""

    def __init__(self, clock: Clock, per_second: float | None, hurry: StopSignal | None = None) -> None:
        """Allow ``per_second`` items per second (None: no limit); ``hurry`` lifts the limit while it is set."""
        self._clock = clock
        self._per_second = per_second
        self._hurry = hurry
        self._due: float | None = None

    def batch_size(self, most: int) -> int:
        """Return the number of items for one request, at most ``most``, so that a low rate avoids bursts."""
        per_second = self._limit()
        return most if per_second is None else min(most, max(1, int(per_second / _PIECES_PER_SECOND)))

    def wait_after(self, count: int, stop: StopSignal | None = None) -> None:
        """Wait, after ``count`` things were done, until the average is right or ``stop`` is set."""
        per_second = self._limit()
        if per_second is None:
            # Without a limit, earlier excess is forgotten.
            self._due = None
            return
        now = self._clock.monotonic_seconds()
        # No burst follows a stall: it would hit servers that have just recovered.
        due = now if self._due is None else max(self._due, now - _MADE_UP_FOR_SECONDS)
        self._due = due + count / per_second
        if self._due > now:
            self._clock.wait_seconds(self._due - now, stop or self._hurry)

    def _limit(self) -> float | None:
        return None if self._hurry is not None and self._hurry.is_set() else self._per_second
