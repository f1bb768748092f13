"""The operator's rate: so many deletions a second."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from service.model.clocks import Clock, StopSignal

Item = TypeVar("Item")


class Pacer:
    """Hands out deletions in chunks of at most a second's worth; another rate counts from the next chunk on.

    Time in which nothing was handed out is not saved up.
    """

    def __init__(self, clock: Clock, stop: StopSignal, rate_per_second: Callable[[], float | None]) -> None:
        self._clock = clock
        self._stop = stop
        self._rate_per_second = rate_per_second
        self._free_at_seconds = 0.0

    def is_stopped(self) -> bool:
        """Whether the sidecar is being stopped: nothing more is to be begun."""
        return self._stop.is_set()

    def most_within(self, seconds: float) -> int | None:
        """How many the rate lets through in so many seconds, at least one; None when there is no rate."""
        rate = self._rate_per_second()
        return None if rate is None else max(1, int(rate * seconds))

    def wait(self) -> bool:
        """Wait until the next may be handed out; False when stopped."""
        late_seconds = self._free_at_seconds - self._clock.monotonic_seconds()
        if self._rate_per_second() is None or late_seconds <= 0:
            return not self._stop.is_set()
        return not self._clock.wait_seconds(late_seconds, self._stop)

    def chunks(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """The items in order, each chunk not before its time; ends early when stopped."""
        position = 0
        while position < len(items) and self.wait():
            rate = self._rate_per_second()
            size = len(items) if rate is None else max(1, int(rate))
            chunk = items[position : position + size]
            if rate is not None:
                start = max(self._clock.monotonic_seconds(), self._free_at_seconds)
                self._free_at_seconds = start + len(chunk) / rate
            yield chunk
            position += len(chunk)
