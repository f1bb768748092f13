"""Rate of deletion now, and the trend of the last hour: pending ledgers, this sidecar's deletions, and leaks.

Invariant: the trend costs one estimate of the backlog a minute, and at most an hour of points; a value that could not
be read is None in its point.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pulsar_sidecar.features.ledger_deletion.results import DeletionTrend, TrendPoint
from pulsar_sidecar.model.clocks import Clock, StopSignal
from pulsar_sidecar.model.errors import SidecarError

_WINDOW_SECONDS = 60.0
_OLDEST_SECONDS = 180.0
_PERIOD_SECONDS = 60.0
_POINTS = 61
_RECENT_POINTS = 11


@dataclass(slots=True)
class Throughput:
    """Samples of ``total``, the number of ledgers deleted since the sidecar started; thread-safe."""

    clock: Clock
    total: Callable[[], float]
    _samples: deque[tuple[float, float]] = field(default_factory=deque)

    def per_second(self) -> float | None:
        """Take a sample; return the average rate over a minute, three at most; None until there are two samples."""
        now, total = self.clock.monotonic_seconds(), self.total()
        samples = self._samples
        samples.append((now, total))
        while len(samples) > 2 and samples[1][0] <= now - _WINDOW_SECONDS:
            samples.popleft()
        while samples[0][0] < now - _OLDEST_SECONDS:
            samples.popleft()
        since, before = samples[0]
        return (total - before) / (now - since) if now > since else None


@dataclass(slots=True)
class Trend:
    """Ring buffer of points; one thread runs it, any thread may read.

    ``deleted`` counts since the sidecar started; ``pending`` may raise `SidecarError`.
    """

    clock: Clock
    pending: Callable[[], int]
    deleted: Callable[[], float]
    leaked: Callable[[], int | None]
    _points: deque[TrendPoint] = field(default_factory=lambda: deque(maxlen=_POINTS))
    _before: tuple[float, float] | None = None

    def run(self, stop: StopSignal) -> None:
        """Take a point each minute until stopped."""
        while not stop.is_set():
            self.take()
            self.clock.wait_seconds(_PERIOD_SECONDS, stop)

    def take(self) -> None:
        """Take a point now."""
        now, deleted, speed = self.clock.monotonic_seconds(), self.deleted(), None
        if self._before is not None and now > self._before[0]:
            speed = (deleted - self._before[1]) / (now - self._before[0])
        self._before = now, deleted
        self._points.append(TrendPoint(self.clock.now_ms(), self._pending_or_none(), speed, self.leaked()))

    def read(self) -> DeletionTrend:
        """Return the last hour, and the time left for pending ledgers at the rate of its last ten minutes."""
        points = tuple(self._points)
        return DeletionTrend(points, _seconds_left(points[-_RECENT_POINTS:]))

    def _pending_or_none(self) -> int | None:
        try:
            return self.pending()
        except SidecarError:
            return None


def _seconds_left(points: tuple[TrendPoint, ...]) -> float | None:
    known = [(point.at_ms, point.pending) for point in points if point.pending is not None]
    if not known:
        return None
    (first_ms, before), (last_ms, left) = known[0], known[-1]
    if left == 0:
        return 0.0
    return left * (last_ms - first_ms) / 1000 / (before - left) if before > left else None
