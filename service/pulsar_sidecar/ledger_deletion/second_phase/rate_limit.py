"""The operator's rate and pause: so many deletions a second, or none."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pulsar_sidecar.model.clocks import Clock, StopSignal

Item = TypeVar("Item")

_SLICE_SECONDS = 1.0
"""A wait reads pause and rate again after this time."""
_EARLY_SECONDS = 0.001
"""So much of a wait is not worth waiting for."""


class RateLimiter:
    """Hands out deletions in chunks of at most a second's worth.

    A rate that is raised or lifted counts at once, one that is lowered from the next chunk on. Time in which nothing
    was handed out is not saved up.
    """

    def __init__(
        self,
        clock: Clock,
        stop: StopSignal,
        rate_per_second: Callable[[], float | None],
        is_paused: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._stop = stop
        self._rate_per_second = rate_per_second
        self._is_paused = is_paused
        self._free_at_seconds = 0.0
        self._handed_at_seconds = 0.0
        self._handed = 0

    def is_stopped(self) -> bool:
        """Whether the sidecar is being stopped: nothing more is to be begun."""
        return self._stop.is_set()

    def is_paused(self) -> bool:
        """Whether an operator has paused deletion."""
        return self._is_paused()

    def may_continue(self) -> bool:
        """Whether another deletion may be begun: neither stopped nor paused."""
        return not self.is_stopped() and not self.is_paused()

    def most_within(self, seconds: float) -> int | None:
        """How many the rate lets through in so many seconds, at least one; None when there is no rate."""
        rate = self._rate_per_second()
        return None if rate is None else max(1, int(rate * seconds))

    def wait(self) -> bool:
        """Wait until the next may be handed out; False when stopped or paused."""
        while self.may_continue():
            late_seconds = self._late_seconds()
            if late_seconds <= _EARLY_SECONDS:
                return True
            self._clock.wait_seconds(min(late_seconds, _SLICE_SECONDS), self._stop)
        return False

    def _late_seconds(self) -> float:
        rate = self._rate_per_second()
        if rate is None:
            return 0.0
        free_at_seconds = min(self._free_at_seconds, self._handed_at_seconds + self._handed / rate)
        return free_at_seconds - self._clock.monotonic_seconds()

    def chunks(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """The items in order, each chunk not before its time; ends early when stopped or paused."""
        position = 0
        while position < len(items) and self.wait():
            rate = self._rate_per_second()
            size = len(items) if rate is None else max(1, int(rate))
            chunk = items[position : position + size]
            if rate is not None:
                self._hand_out(len(chunk), rate)
            yield chunk
            position += len(chunk)

    def _hand_out(self, count: int, rate: float) -> None:
        # Late only by what is not worth waiting for.
        self._handed_at_seconds = self._clock.monotonic_seconds() + max(0.0, self._late_seconds())
        self._handed = count
        self._free_at_seconds = self._handed_at_seconds + count / rate
