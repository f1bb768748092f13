"""Backlog of the system topics, as the brokers last reported it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pulsar_sidecar.features.ledger_deletion.ports import Backlog
from pulsar_sidecar.model.clocks import Clock, StopSignal
from pulsar_sidecar.model.errors import SidecarError

MAX_AGE_MS = 1_000
_PERIOD_SECONDS = 0.4
_INTEREST_SECONDS = 3.0
_LOOK_SECONDS = 0.2
_SOON_LOOK_SECONDS = 0.02


@dataclass(slots=True)
class BacklogCache:
    """Cache of the brokers' backlog, measured ahead of the calls that need it; thread-safe.

    Calling the brokers takes longer than a caller may wait. So while calls arrive, a thread keeps measuring, and
    responses come from memory. Invariant: a response was measured at most a second ago, or is measured now; only `last`
    may be older, while brokers hang.
    """

    measure: Callable[[], Backlog]
    """Request to the brokers; it may be slow, and raise one of `model.errors`."""
    clock: Clock
    _measuring: threading.Lock = field(default_factory=threading.Lock)
    _backlog: Backlog | None = None
    _asked_at: float | None = None
    _measuring_since: float | None = None
    _failures: int = 0

    def cached(self) -> Backlog | None:
        """Return the last measurement unless it is too old; never waits, and makes `keep_fresh` measure again."""
        self._asked_at = self.clock.monotonic_seconds()
        return self._young()

    def within(self, seconds: float, stop: StopSignal) -> Backlog | None:
        """Wait at most ``seconds`` for `cached`; stop when a measurement fails, or hangs for that long."""
        since, failures = self._measuring_since, self._failures
        give_up = (self.clock.monotonic_seconds() if since is None else since) + seconds
        while (backlog := self.cached()) is None and self.clock.monotonic_seconds() < give_up and not stop.is_set():
            if self._failures != failures:
                break
            self.clock.wait_seconds(_SOON_LOOK_SECONDS, stop)
        return backlog

    def last(self) -> Backlog | None:
        """Return the last measurement of any age; None before the first one."""
        return self._backlog

    def fresh(self) -> Backlog:
        """Return the last measurement, or a new one if it is too old.

        Raises:
            TemporaryError: the brokers cannot be reached.
        """
        if (young := self._young()) is not None:
            return young
        with self._measuring:
            # Another caller may have measured meanwhile.
            return self._young() or self._measured()

    def keep_fresh(self, stop: StopSignal) -> None:
        """Keep measuring while calls read the cached measurement; return when stopped."""
        while not stop.is_set():
            began = self.clock.monotonic_seconds()
            if self._asked_at is None or began - self._asked_at > _INTEREST_SECONDS:
                self.clock.wait_seconds(_LOOK_SECONDS, stop)
                continue
            try:
                with self._measuring:
                    self._measured()
            except SidecarError:
                pass  # the next caller of `fresh` measures, and gets the error
            passed = self.clock.monotonic_seconds() - began
            self.clock.wait_seconds(max(0.0, _PERIOD_SECONDS - passed), stop)

    def _young(self) -> Backlog | None:
        backlog = self._backlog
        if backlog is None or not 0 <= self.clock.now_ms() - backlog.measured_ms <= MAX_AGE_MS:
            return None
        return backlog

    def _measured(self) -> Backlog:
        self._measuring_since = self.clock.monotonic_seconds()
        try:
            self._backlog = self.measure()
        except SidecarError:
            self._failures += 1
            raise
        finally:
            self._measuring_since = None
        return self._backlog
