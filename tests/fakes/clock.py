"""A clock that only a test advances, so that delays pass without waits.

Invariant: wall and monotonic time advance together and never go backwards.
"""

import threading

from pulsar_sidecar.model.clocks import StopSignal

START_MS = 1_700_000_000_000


class FakeClock:
    """`model.clocks.Clock` under a test's control; a wait advances the time at once."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._started_ms = now_ms
        self._now_ms = now_ms
        self._lock = threading.Lock()

    def advance_ms(self, milliseconds: int) -> None:
        if milliseconds < 0:
            raise ValueError("time does not run backwards")
        with self._lock:
            self._now_ms += milliseconds

    def now_ms(self) -> int:
        with self._lock:
            return self._now_ms

    def monotonic_seconds(self) -> float:
        return (self.now_ms() - self._started_ms) / 1000

    def wait_seconds(self, seconds: float, stop: StopSignal | None = None) -> bool:
        if stop is None or not stop.is_set():
            self.advance_ms(max(0, round(seconds * 1000)))
        return stop is not None and stop.is_set()
