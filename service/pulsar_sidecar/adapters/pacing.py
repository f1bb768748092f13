"""Keeps bulk reading to a rate, so that those who use the same servers do not notice."""

from pulsar_sidecar.model.clocks import Clock

_PIECES_PER_SECOND = 10


class Pace:
    """So many things a second on average, by waiting after they were done."""

    def __init__(self, clock: Clock, per_second: float | None) -> None:
        """``per_second`` None is no limit."""
        self._clock = clock
        self._per_second = per_second
        self._started: float | None = None
        self._done = 0

    def at_once(self, most: int) -> int:
        """How many things to ask for in one request, so that a low rate does not come in bursts."""
        return most if self._per_second is None else min(most, max(1, int(self._per_second / _PIECES_PER_SECOND)))

    def after(self, count: int) -> None:
        """So many were done: wait until the average is right."""
        if self._per_second is None:
            return
        now = self._clock.monotonic_seconds()
        if self._started is None:
            self._started = now
        self._done += count
        ahead_seconds = self._started + self._done / self._per_second - now
        if ahead_seconds > 0:
            self._clock.wait_seconds(ahead_seconds)
