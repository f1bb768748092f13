"""The operator's rate limit: so many ledgers a second on each sidecar, spread evenly."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from service.model.clocks import Clock, StopSignal

Item = TypeVar("Item")


class Pacer:
    """Hands out work in portions that keep the rate; a raised or lifted limit counts from the next portion on."""

    def __init__(self, clock: Clock, stop: StopSignal, rate_per_second: Callable[[], float | None]) -> None:
        self._clock = clock
        self._stop = stop
        self._rate_per_second = rate_per_second
        self._free_at_seconds = 0.0

    def chunks(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """The items in order, each portion not before its time; without a limit all at once.

        Ends early when waiting is stopped: what was not handed out was not begun.
        """
        position = 0
        while position < len(items):
            rate = self._rate_per_second()
            size = len(items) if rate is None else max(1, int(rate))
            chunk = items[position : position + size]
            if self._stopped_before(len(chunk), rate):
                return
            yield chunk
            position += len(chunk)

    def _stopped_before(self, count: int, rate: float | None) -> bool:
        if rate is None:
            return False
        now = self._clock.monotonic_seconds()
        start = max(now, self._free_at_seconds)
        self._free_at_seconds = start + count / rate
        return start > now and self._clock.wait_seconds(start - now, self._stop)
