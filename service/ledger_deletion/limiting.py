"""How fast ledgers may be deleted for others' sake.

A deletion occupies the metadata store for longer than others' requests do, since it also notifies every broker and
bookie. Whoever asks meanwhile waits for what is on its way, so the number of deletions on their way, not their rate, is
what decides about another client's slowest requests.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.model.clocks import Clock
from service.model.metadata import Allowance

_QUIET_SECONDS: Final = 0.5
_SAMPLES_TO_KNOW: Final = 100
_IDLE_SAMPLES: Final = 400
_IDLE_SAMPLES_AGE_SECONDS: Final = 600.0
_RECENT_SAMPLES: Final = 400
_BLIND_SECONDS: Final = 15.0
_IDLE_PROBE_SECONDS: Final = 0.05
_BUSY_PROBE_SECONDS: Final = 0.005

LOWEST_LEVEL: Final = 0.05
"""Deletions on their way at the least: one, with rests of 95 ms."""
HIGHEST_LEVEL: Final = 200.0
_GENTLE_LEVEL: Final = 0.2
"""Up to here there is mostly rest (50 deletions a second at most)."""
_ALONE_SECONDS: Final = 0.002
_GRACE_SECONDS: Final = 0.0005
"""So much longer than its idle p99 is never late, however quick the store is."""
_FIRST_LEVEL: Final = 1.0
"""What a store bears shows only while it is worked on; where it bears more, the level is at tens within seconds."""
_BLIND_LEVEL: Final = 25.0
_TWO_MULTIS_FROM: Final = 40
_REST_SECONDS: Final = 0.005

_SLOW_GROWTH: Final = 0.00125
"""By so much the level grows with each probe in time. A late one takes a fifth to a half, so that in balance about one
probe in 200 is late: others' p99 then stays below what counts as late."""
_FAST_GROWTH_PER_SECOND: Final = 2.0
_FAST_AFTER_SECONDS: Final = 1.0
_FAST_AFTER_PROBES: Final = 200
_LONGEST_STEP_SECONDS: Final = 0.1
_EVENT_SECONDS: Final = 0.05
_SHARPEST_CUT: Final = 0.5
_SLIGHTEST_CUT: Final = 0.8


@dataclass(frozen=True, slots=True)
class LimitReadings:
    """What the adaptive limit knows; None is what it does not know (yet).

    Attributes:
        level: deletions that may be on their way to the metadata store at a time; below 1 there are rests between.
        idle_p99_ms: milliseconds a probe of the store takes while this sidecar lets it alone, 99th percentile.
        recent_p99_ms: the same of the last probes while this sidecar worked.
    """

    level: float
    idle_p99_ms: float | None
    recent_p99_ms: float | None


class IdleLatency:
    """The store's latency while this sidecar lets it alone: the last probes, none of them old."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        self._ascending: list[float] = []

    def add(self, now: float, seconds: float) -> None:
        """Take note of one probe."""
        self._samples.append((now, seconds))
        insort(self._ascending, seconds)
        while len(self._samples) > _IDLE_SAMPLES or now - self._samples[0][0] > _IDLE_SAMPLES_AGE_SECONDS:
            _, oldest = self._samples.popleft()
            del self._ascending[bisect_left(self._ascending, oldest)]

    def p99_seconds(self, now: float) -> float | None:
        """The 99th percentile; None before there are enough probes, and after all of them are old."""
        if self._samples and now - self._samples[-1][0] > _IDLE_SAMPLES_AGE_SECONDS:
            self._samples.clear()
            self._ascending.clear()
        return _percentile(self._ascending, 0.99) if len(self._ascending) >= _SAMPLES_TO_KNOW else None


class AdaptiveLimit:
    """Lets so many deletions be on their way that others' p99 stays below a multiple of what it is without them.

    Small probes measure the store's latency all the time (`observe`), rarely while this sidecar does nothing and often
    while it deletes. A probe that takes longer than ``factor`` times the idle p99 cuts the level, each other one raises
    it a little. At the lowest levels there are long rests, and what is measured in them counts as idle
    too: a store that has become slow for other reasons does not hold deletions up for ever. The level never leaves
    `LOWEST_LEVEL` to `HIGHEST_LEVEL`. For one thread at a time (see `workflow.shared_limit`); it leaves waiting to its
    callers.
    """

    def __init__(self, clock: Clock, factor: float) -> None:
        """``factor``: how many times its idle p99 another client's p99 may be."""
        self._clock = clock
        self._factor = factor
        self._idle = IdleLatency()
        self._recent: deque[float] = deque(maxlen=_RECENT_SAMPLES)
        self._level = LOWEST_LEVEL
        self._learnt = False
        self._batches = 0
        started = clock.monotonic_seconds()
        self._worked_at = started - _QUIET_SECONDS
        self._observed_at = started
        self._cut_at = started
        self._in_time_since_cut = 0
        self._gentle_since: float | None = started - _QUIET_SECONDS

    # --- what the metadata store's driver asks -----------------------------------------------------------------------

    def allowance(self) -> Allowance:
        """What may be on its way now; to be asked before each transaction."""
        now = self._clock.monotonic_seconds()
        self._worked_at = now
        blind = now - self._observed_at > _BLIND_SECONDS
        return _allowance(_BLIND_LEVEL if blind else self._level)

    def working(self) -> None:
        """The store is busy with this sidecar's requests just now; what is measured now is not idle."""
        now = self._clock.monotonic_seconds()
        self._worked_at = now

    # --- what the worker tells ---------------------------------------------------------------------------------------

    def batch_begins(self) -> None:
        """A batch is in hand: what is measured until its end is not idle, although the store may be let alone.

        It asks brokers and bookies too, and they share the store's machines and ask it themselves.
        """
        self._batches += 1

    def batch_ends(self) -> None:
        """It is in hand no more."""
        self._batches -= 1
        self.working()

    # --- what the probe tells ----------------------------------------------------------------------------------------

    def probe_interval_seconds(self) -> float:
        """When the next probe is due after this one."""
        now = self._clock.monotonic_seconds()
        rarely = self._is_quiet(now) and self._learnt
        return _IDLE_PROBE_SECONDS if rarely else _BUSY_PROBE_SECONDS

    def observe(self, seconds: float) -> None:
        """A probe took so long."""
        now = self._clock.monotonic_seconds()
        passed = min(_LONGEST_STEP_SECONDS, now - self._observed_at)
        self._observed_at = now
        quiet = self._is_quiet(now)
        if (quiet and not self._batches) or self._was_alone(now, seconds):
            self._idle.add(now, seconds)
        if not quiet:
            self._recent.append(seconds)
        if self._has_learnt(now) and not quiet:
            self._steer(now, seconds, passed)

    def overdue(self, seconds: float) -> None:
        """A probe has taken so long already and has no answer yet; its end is still to be told (`observe`)."""
        now = self._clock.monotonic_seconds()
        self._observed_at = now
        if self._has_learnt(now) and not self._is_quiet(now) and seconds > self._in_time_seconds(now):
            self._steer(now, seconds, 0.0)

    def readings(self) -> LimitReadings:
        """For operators."""
        now = self._clock.monotonic_seconds()
        idle_p99 = self._idle.p99_seconds(now)
        recent_p99 = percentile(list(self._recent), 0.99) if self._recent else None
        return LimitReadings(round(self._level, 2), _milliseconds(idle_p99), _milliseconds(recent_p99))

    # --- steering ----------------------------------------------------------------------------------------------------

    def _is_quiet(self, now: float) -> bool:
        """Whether the store has been let alone for a while."""
        return now - self._worked_at >= _QUIET_SECONDS

    def _was_alone(self, now: float, seconds: float) -> bool:
        """Whether a probe that has just ended fell into a rest, after a while of long rests."""
        gentle = self._gentle_since is not None and now - self._gentle_since >= _QUIET_SECONDS
        return gentle and now - seconds - self._worked_at >= _ALONE_SECONDS

    def _in_time_seconds(self, now: float) -> float:
        """What a probe may take; a client's own scheduling varies by the grace anyway."""
        idle_p99 = self._idle.p99_seconds(now) or 0.0
        return max(self._factor * idle_p99, idle_p99 + _GRACE_SECONDS)

    def _has_learnt(self, now: float) -> bool:
        """Whether it is known what is late; the level goes to its lowest until then, and up from a middling one."""
        known = self._idle.p99_seconds(now) is not None
        if known != self._learnt:
            self._learnt = known
            self._set_level(now, _FIRST_LEVEL if known else LOWEST_LEVEL)
        return known

    def _steer(self, now: float, seconds: float, passed: float) -> None:
        in_time = self._in_time_seconds(now)
        if seconds > in_time:
            # Probes that are late together are late for one reason.
            if now - self._cut_at >= _EVENT_SECONDS:
                self._cut_at = now
                self._in_time_since_cut = 0
                self._set_level(now, self._level * min(_SLIGHTEST_CUT, max(_SHARPEST_CUT, in_time / seconds)))
            return
        self._in_time_since_cut += 1
        fast = now - self._cut_at >= _FAST_AFTER_SECONDS and self._in_time_since_cut >= _FAST_AFTER_PROBES
        self._set_level(now, self._level * (1 + (_FAST_GROWTH_PER_SECOND * passed if fast else _SLOW_GROWTH)))

    def _set_level(self, now: float, level: float) -> None:
        self._level = min(HIGHEST_LEVEL, max(LOWEST_LEVEL, level))
        if self._level > _GENTLE_LEVEL:
            self._gentle_since = None
        elif self._gentle_since is None:
            self._gentle_since = now


def _allowance(level: float) -> Allowance:
    if level >= _TWO_MULTIS_FROM:
        return Allowance(int(level / 2), 2)
    if level >= 1:
        return Allowance(int(level), 1)
    return Allowance(1, 1, _REST_SECONDS * (1 / level - 1))


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of ``values`` that so large a share of them does not exceed."""
    return _percentile(sorted(values), share)


def _percentile(ascending: Sequence[float], share: float) -> float:
    return ascending[max(0, -int(-share * len(ascending) // 1) - 1)]
