"""The adaptive limit as several threads use it: the driver's callers, the probe, whoever asks for the status."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from service.ledger_deletion.limiting import AdaptiveLimit, LimitReadings
from service.model.metadata import Allowance


class SharedLimit:
    """`AdaptiveLimit`, one call at a time."""

    def __init__(self, limit: AdaptiveLimit) -> None:
        self._limit = limit
        self._lock = threading.Lock()

    def allowance(self) -> Allowance:
        """See `AdaptiveLimit.allowance`."""
        with self._lock:
            return self._limit.allowance()

    def working(self) -> None:
        """See `AdaptiveLimit.working`."""
        with self._lock:
            self._limit.working()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Around the settling of a batch; see `AdaptiveLimit.batch_begins`."""
        with self._lock:
            self._limit.batch_begins()
        try:
            yield
        finally:
            with self._lock:
                self._limit.batch_ends()

    def probe_interval_seconds(self) -> float:
        """See `AdaptiveLimit.probe_interval_seconds`."""
        with self._lock:
            return self._limit.probe_interval_seconds()

    def observe(self, seconds: float) -> None:
        """See `AdaptiveLimit.observe`."""
        with self._lock:
            self._limit.observe(seconds)

    def overdue(self, seconds: float) -> None:
        """See `AdaptiveLimit.overdue`."""
        with self._lock:
            self._limit.overdue(seconds)

    def readings(self) -> LimitReadings:
        """See `AdaptiveLimit.readings`."""
        with self._lock:
            return self._limit.readings()
