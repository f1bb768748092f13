"""Current deletion rate of this sidecar, from samples at the ends of batches and at readings of the status."""

from collections import deque
from collections.abc import Callable

from pulsar_sidecar.model.clocks import Clock

_WINDOW_SECONDS = 60.0
_OLDEST_SECONDS = 180.0


class Throughput:
    """Samples of one counter; thread-safe."""

    def __init__(self, clock: Clock, total: Callable[[], float]) -> None:
        """Sample ``total``, the number of ledgers deleted since the sidecar started."""
        self._clock, self._total = clock, total
        self._samples: deque[tuple[float, float]] = deque()

    def per_second(self) -> float | None:
        """Take a sample; return the average rate over a minute, three at most; None until there are two samples."""
        now, total = self._clock.monotonic_seconds(), self._total()
        samples = self._samples
        samples.append((now, total))
        while len(samples) > 2 and samples[1][0] <= now - _WINDOW_SECONDS:
            samples.popleft()
        while samples[0][0] < now - _OLDEST_SECONDS:
            samples.popleft()
        since, before = samples[0]
        return (total - before) / (now - since) if now > since else None
