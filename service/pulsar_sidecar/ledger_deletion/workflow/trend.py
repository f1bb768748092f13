"""The last hour of ledger deletion, a point a minute: what waited, what this sidecar deleted, what was leaked.

Invariant: it costs one estimate of the backlog a minute, and never more than an hour of points; what could not be read
is None in its point.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pulsar_sidecar.model.clocks import Clock, StopSignal
from pulsar_sidecar.model.errors import SidecarError

_PERIOD_SECONDS = 60.0
_POINTS = 61
_RECENT_POINTS = 11


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """One reading.

    Attributes:
        deleted_per_second: by this sidecar, since the point before; None in the first one.
        leaked: None where this sidecar does not watch.
    """

    at_ms: int
    pending: int | None
    deleted_per_second: float | None
    leaked: int | None


@dataclass(frozen=True, slots=True)
class DeletionTrend:
    """The points, the oldest first; ``seconds_left`` None: the pending ledgers do not become fewer."""

    points: tuple[TrendPoint, ...]
    seconds_left: float | None


class Trend:
    """A ring of points; one thread runs it, any thread may read."""

    def __init__(
        self,
        clock: Clock,
        pending: Callable[[], int],
        deleted: Callable[[], float],
        leaked: Callable[[], int | None],
    ) -> None:
        """``deleted`` counts what was deleted since the sidecar started; ``pending`` may raise `SidecarError`."""
        self._clock, self._pending, self._deleted, self._leaked = clock, pending, deleted, leaked
        self._points: deque[TrendPoint] = deque(maxlen=_POINTS)
        self._before: tuple[float, float] | None = None

    def run(self, stop: StopSignal) -> None:
        """Take a point each minute until stopped."""
        while not stop.is_set():
            self.take()
            self._clock.wait_seconds(_PERIOD_SECONDS, stop)

    def take(self) -> None:
        """Take a point now."""
        now, deleted, speed = self._clock.monotonic_seconds(), self._deleted(), None
        if self._before is not None and now > self._before[0]:
            speed = (deleted - self._before[1]) / (now - self._before[0])
        self._before = now, deleted
        self._points.append(TrendPoint(self._clock.now_ms(), self._pending_or_none(), speed, self._leaked()))

    def read(self) -> DeletionTrend:
        """The last hour, and how long the pending ledgers will take at the pace of its last ten minutes."""
        points = tuple(self._points)
        return DeletionTrend(points, _seconds_left(points[-_RECENT_POINTS:]))

    def _pending_or_none(self) -> int | None:
        try:
            return self._pending()
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
