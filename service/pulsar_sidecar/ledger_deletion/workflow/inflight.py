"""The backlog as brokers count it, measured ahead of those who ask.

Asking the brokers takes longer than an answer may take. So while anybody asks, a thread measures again and again, and
answers come from memory. Invariant: what is answered was measured at most a second ago, or is measured now.
"""

import threading
from collections.abc import Callable

from pulsar_sidecar.ledger_deletion.ports import Backlog
from pulsar_sidecar.model.clocks import Clock, StopSignal
from pulsar_sidecar.model.errors import SidecarError

MAX_AGE_MS = 1_000
_PERIOD_SECONDS = 0.4
_INTEREST_SECONDS = 3.0
_LOOK_SECONDS = 0.2


class BacklogCache:
    """The last measurement, for any number of threads."""

    def __init__(self, measure: Callable[[], Backlog], clock: Clock) -> None:
        """``measure`` asks the brokers; it may take its time, and raise one of `model.errors`."""
        self._measure = measure
        self._clock = clock
        self._measuring = threading.Lock()
        self._backlog: Backlog | None = None
        self._asked_at: float | None = None

    def cached(self) -> Backlog | None:
        """The last measurement unless it is too old; never waits, and has the thread measure again (`keep_fresh`)."""
        self._asked_at = self._clock.monotonic_seconds()
        return self._young()

    def fresh(self) -> Backlog:
        """The last measurement, or a new one when it is too old.

        Raises:
            TemporaryError: the brokers cannot be asked.
        """
        young = self._young()
        if young is not None:
            return young
        with self._measuring:
            # Another caller may have measured meanwhile.
            return self._young() or self._measured()

    def keep_fresh(self, stop: StopSignal) -> None:
        """Measure again and again while anybody asks for what is remembered; returns when stopped."""
        while not stop.is_set():
            if not self._is_asked():
                self._clock.wait_seconds(_LOOK_SECONDS, stop)
                continue
            began = self._clock.monotonic_seconds()
            self._renew()
            passed = self._clock.monotonic_seconds() - began
            self._clock.wait_seconds(max(0.0, _PERIOD_SECONDS - passed), stop)

    def _is_asked(self) -> bool:
        return self._asked_at is not None and self._clock.monotonic_seconds() - self._asked_at <= _INTEREST_SECONDS

    def _young(self) -> Backlog | None:
        backlog = self._backlog
        if backlog is None or not 0 <= self._clock.now_ms() - backlog.measured_ms <= MAX_AGE_MS:
            return None
        return backlog

    def _renew(self) -> None:
        try:
            with self._measuring:
                self._measured()
        except SidecarError:
            # The next caller of `fresh` measures, and hears what is wrong.
            return

    def _measured(self) -> Backlog:
        self._backlog = self._measure()
        return self._backlog
