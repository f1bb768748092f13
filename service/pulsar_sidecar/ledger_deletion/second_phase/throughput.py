"""How fast this sidecar deletes now: from what it had deleted when batches ended and when the status was read."""

from collections import deque
from collections.abc import Callable

from pulsar_sidecar.model.clocks import Clock

_WINDOW_SECONDS = 60.0
_OLDEST_SECONDS = 180.0


class Throughput:
    """Samples of one counter; any thread may call."""

    def __init__(self, clock: Clock, total: Callable[[], float]) -> None:
        """``total`` counts what was deleted since the sidecar started."""
        self._clock, self._total = clock, total
        self._samples: deque[tuple[float, float]] = deque()

    def note(self) -> None:
        """Take a sample: a batch has ended."""
        self.per_second()

    def per_second(self) -> float | None:
        """On average over a minute, three at most; None until there are two samples."""
        now, total = self._clock.monotonic_seconds(), self._total()
        samples = self._samples
        samples.append((now, total))
        while len(samples) > 2 and samples[1][0] <= now - _WINDOW_SECONDS:
            samples.popleft()
        while samples[0][0] < now - _OLDEST_SECONDS:
            samples.popleft()
        since, before = samples[0]
        return (total - before) / (now - since) if now > since else None
