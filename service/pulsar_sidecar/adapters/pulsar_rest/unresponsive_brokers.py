"""Unresponsive brokers: stopped processes, machines without memory, hosts that drop packets.

Their machine may still accept connections, so only a timeout shows it. After a timeout the sidecar requests the
broker's version; if that times out too, the broker counts as unresponsive until it responds. Invariant: one thread
probes each such broker, however many callers wait for it.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from urllib.parse import urljoin

import structlog

from pulsar_sidecar.model.clocks import Clock

_BETWEEN_QUESTIONS_SECONDS = 1.0
_LONGEST_SECONDS = 600.0
"""Time after which an unresponsive broker, perhaps removed permanently, is no longer probed."""
_log = structlog.get_logger(__name__)


class UnresponsiveBrokers:
    """Unresponsive brokers by address; safe for use by threads and event loops."""

    def __init__(
        self, is_unresponsive: Callable[[str], bool], clock: Clock, between_seconds: float = _BETWEEN_QUESTIONS_SECONDS
    ) -> None:
        """Use ``is_unresponsive`` to probe the broker at an address; it takes seconds at most."""
        self._ask, self._clock, self._between_seconds = is_unresponsive, clock, between_seconds
        self._lock = threading.Lock()
        self._suspected: dict[str, Future[bool]] = {}

    def __contains__(self, url: str) -> bool:
        """Return True if the broker is known to be unresponsive; sends no request."""
        verdict = self._suspected.get(urljoin(url, "/"))
        return verdict is not None and verdict.done() and verdict.result()

    def suspect(self, url: str) -> "Future[bool]":
        """Check a broker that timed out: the future is True if it is unresponsive. Concurrent callers share a check."""
        base = urljoin(url, "/")
        with self._lock:
            verdict = self._suspected.get(base)
            if verdict is None:
                verdict = self._suspected[base] = Future()
                verdict.set_running_or_notify_cancel()  # a caller that stops waiting cannot cancel it for others
                watch = threading.Thread(
                    target=self._watch, args=(base, verdict), name=f"unresponsive {base}", daemon=True
                )
                watch.start()
        return verdict

    def _watch(self, base: str, verdict: "Future[bool]") -> None:
        gives_up = self._clock.monotonic_seconds() + _LONGEST_SECONDS
        answers = False
        try:
            while not (answers := not self._ask(base)) and self._clock.monotonic_seconds() < gives_up:
                if not verdict.done():
                    _log.warning("broker unresponsive, suspending requests", broker=base)
                    verdict.set_result(True)
                self._clock.wait_seconds(self._between_seconds)
        finally:
            with self._lock:
                del self._suspected[base]
            if not verdict.done():
                verdict.set_result(False)
            elif answers:
                _log.info("broker responsive again, resuming requests", broker=base)
            else:
                _log.warning("broker unresponsive for too long, ending its checks", broker=base)
