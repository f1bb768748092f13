"""How fast ledgers may be deleted: the operator's rate (`Pacer`), and what others can bear (`AdaptiveLimit`).

A deletion occupies the metadata store for longer than others' requests do, since it also notifies every broker and
bookie. Whoever asks meanwhile waits for what is on its way, so the number of deletions on their way, not their rate, is
what decides about another client's slowest requests.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from service.model.clocks import Clock, StopSignal
from service.model.metadata import Allowance

Item = TypeVar("Item")

_QUIET_SECONDS: Final = 0.5
_SAMPLES_TO_KNOW: Final = 100
_IDLE_SAMPLES: Final = 500
_IDLE_SAMPLES_AGE_SECONDS: Final = 600.0
_RECENT_SAMPLES: Final = 400
_BLIND_SECONDS: Final = 15.0
_IDLE_PROBE_SECONDS: Final = 0.2
_BUSY_PROBE_SECONDS: Final = 0.005

LOWEST_LEVEL: Final = 0.25
"""Deletions on their way at the least; below `_SMALLEST_MULTI` it is made of rests (see `Allowance`)."""
HIGHEST_LEVEL: Final = 200.0
_FIRST_LEVEL: Final = 25.0
_BLIND_LEVEL: Final = 25.0
_SMALLEST_MULTI: Final = 5
_TWO_MULTIS_FROM: Final = 40
_REST_SECONDS: Final = 0.005

_SLOW_GROWTH: Final = 0.00125
"""By so much the level grows with each probe in time. A late one takes a fifth to a half, so that in balance about one
probe in 200 is late: others' p99 then stays below what counts as late."""
_FAST_GROWTH: Final = 0.01
_FAST_AFTER_SECONDS: Final = 1.0
_EVENT_SECONDS: Final = 0.05
_SHARPEST_CUT: Final = 0.5
_SLIGHTEST_CUT: Final = 0.8


@dataclass(frozen=True, slots=True)
class LimitReadings:
    """What the adaptive limit knows; None is what it does not know (yet).

    Attributes:
        level: deletions that may be on their way at a time; below one they are spread in time.
        idle_p99_seconds: the store's latency while this sidecar lets it alone, 99th percentile.
        recent_p99_seconds: the same of the last probes while this sidecar worked.
    """

    level: float
    idle_p99_seconds: float | None
    recent_p99_seconds: float | None


class IdleLatency:
    """The store's latency while this sidecar lets it alone: the last probes, none of them old."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_IDLE_SAMPLES)
        self._p99_seconds: float | None = None

    def add(self, now: float, seconds: float) -> None:
        """Take note of one probe."""
        self._samples.append((now, seconds))
        self._forget(now)
        known = len(self._samples) >= _SAMPLES_TO_KNOW
        self._p99_seconds = percentile([each for _, each in self._samples], 0.99) if known else None

    def p99_seconds(self, now: float) -> float | None:
        """The 99th percentile; None before there are enough probes, and after all of them are old."""
        if self._samples and now - self._samples[-1][0] > _IDLE_SAMPLES_AGE_SECONDS:
            self._samples.clear()
            self._p99_seconds = None
        return self._p99_seconds

    def _forget(self, now: float) -> None:
        while now - self._samples[0][0] > _IDLE_SAMPLES_AGE_SECONDS:
            self._samples.popleft()


class AdaptiveLimit:
    """Lets so many deletions be on their way that others' p99 stays below a multiple of what it is without them.

    Small probes measure the store's latency all the time (`observe`), rarely while this sidecar does nothing and often
    while it deletes. A probe that takes longer than ``factor`` times the idle p99 cuts the level, each other one raises
    it a little. At the lowest level the sidecar's own load is next to nothing, so what is measured there counts as
    idle too: a store that has become slow for other reasons does not hold deletions up for ever. The level never leaves
    `LOWEST_LEVEL` to `HIGHEST_LEVEL`. Thread-safe; decides, and leaves waiting to its callers.
    """

    def __init__(self, clock: Clock, factor: float) -> None:
        """``factor``: how many times its idle p99 another client's p99 may be."""
        self._clock = clock
        self._factor = factor
        self._lock = threading.Lock()
        self._idle = IdleLatency()
        self._recent: deque[float] = deque(maxlen=_RECENT_SAMPLES)
        self._level = LOWEST_LEVEL
        self._learnt = False
        started = clock.monotonic_seconds()
        self._worked_at = started - _QUIET_SECONDS
        self._observed_at = started
        self._cut_at = started
        self._lowest_since: float | None = started - _QUIET_SECONDS

    # --- what the metadata store's driver asks -----------------------------------------------------------------------

    def allowance(self) -> Allowance:
        """What may be on its way now; to be asked before each transaction."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            self._worked_at = now
            blind = now - self._observed_at > _BLIND_SECONDS
            return _allowance(_BLIND_LEVEL if blind else self._level)

    def working(self) -> None:
        """The sidecar asks the store for much else; what is measured now is not idle."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            self._worked_at = now

    # --- what the probe tells ----------------------------------------------------------------------------------------

    def probe_interval_seconds(self) -> float:
        """When the next probe is due after this one."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            rarely = self._is_idle(now) and self._learnt
            return _IDLE_PROBE_SECONDS if rarely else _BUSY_PROBE_SECONDS

    def observe(self, seconds: float) -> None:
        """A probe took so long, or has taken so long already."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            self._observed_at = now
            idle = self._is_idle(now)
            if idle or self._is_lowest_for_long(now):
                self._idle.add(now, seconds)
            if not idle:
                self._recent.append(seconds)
            self._steer(now, seconds, idle)

    def readings(self) -> LimitReadings:
        """For operators."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            recent = percentile(list(self._recent), 0.99) if self._recent else None
            return LimitReadings(self._level, self._idle.p99_seconds(now), recent)

    # --- steering ----------------------------------------------------------------------------------------------------

    def _is_idle(self, now: float) -> bool:
        return now - self._worked_at >= _QUIET_SECONDS

    def _is_lowest_for_long(self, now: float) -> bool:
        return self._lowest_since is not None and now - self._lowest_since >= _QUIET_SECONDS

    def _steer(self, now: float, seconds: float, idle: bool) -> None:
        idle_p99 = self._idle.p99_seconds(now)
        if idle_p99 is None:
            self._learnt = False
            self._set_level(now, LOWEST_LEVEL)
            return
        if not self._learnt:
            self._learnt = True
            self._set_level(now, _FIRST_LEVEL)
        if idle:
            return
        late = idle_p99 * self._factor
        if seconds <= late:
            fast = now - self._cut_at >= _FAST_AFTER_SECONDS
            self._set_level(now, self._level * (1 + (_FAST_GROWTH if fast else _SLOW_GROWTH)))
        elif now - self._cut_at >= _EVENT_SECONDS:
            # Probes that are late together are late for one reason.
            self._cut_at = now
            self._set_level(now, self._level * min(_SLIGHTEST_CUT, max(_SHARPEST_CUT, late / seconds)))

    def _set_level(self, now: float, level: float) -> None:
        self._level = min(HIGHEST_LEVEL, max(LOWEST_LEVEL, level))
        if self._level > LOWEST_LEVEL:
            self._lowest_since = None
        elif self._lowest_since is None:
            self._lowest_since = now


def _allowance(level: float) -> Allowance:
    if level >= _TWO_MULTIS_FROM:
        return Allowance(int(level / 2), 2)
    if level >= _SMALLEST_MULTI:
        return Allowance(int(level), 1)
    return Allowance(_SMALLEST_MULTI, 1, _REST_SECONDS * (_SMALLEST_MULTI / level - 1))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of ``values`` that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


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
