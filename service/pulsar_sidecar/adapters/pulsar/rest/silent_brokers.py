"""Brokers that answer nothing: stopped processes, machines without memory, hosts that drop packets.

Their machine may still take connections, so only time tells. A broker that somebody has waited for in vain is asked for
its version; if it does not answer that either, it counts as silent until it does. Invariant: one thread asks each such
broker, however many wait for it.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from urllib.parse import urljoin

import structlog

from pulsar_sidecar.model.clocks import Clock

_BETWEEN_QUESTIONS_SECONDS = 1.0
_LONGEST_SECONDS = 600.0
"""A broker that was taken away for good is no longer asked after that."""
_log = structlog.get_logger(__name__)


class SilentBrokers:
    """For any number of threads, and event loops."""

    def __init__(
        self, is_silent: Callable[[str], bool], clock: Clock, between_seconds: float = _BETWEEN_QUESTIONS_SECONDS
    ) -> None:
        """``is_silent`` asks the broker at this address; it takes seconds at most."""
        self._ask, self._clock, self._between_seconds = is_silent, clock, between_seconds
        self._lock = threading.Lock()
        self._suspected: dict[str, Future[bool]] = {}

    def __contains__(self, url: str) -> bool:
        """Whether the broker is known to be silent; asks nothing."""
        verdict = self._suspected.get(urljoin(url, "/"))
        return verdict is not None and verdict.done() and verdict.result()

    def suspect(self, url: str) -> "Future[bool]":
        """Have a broker asked that somebody waits for; whether it is silent. Callers at the same time share that."""
        base = urljoin(url, "/")
        with self._lock:
            verdict = self._suspected.get(base)
            if verdict is None:
                verdict = self._suspected[base] = Future()
                verdict.set_running_or_notify_cancel()  # nobody who ceases to wait takes it from the others
                watch = threading.Thread(target=self._watch, args=(base, verdict), name=f"silent {base}", daemon=True)
                watch.start()
        return verdict

    def _watch(self, base: str, verdict: "Future[bool]") -> None:
        gives_up = self._clock.monotonic_seconds() + _LONGEST_SECONDS
        try:
            while self._ask(base) and self._clock.monotonic_seconds() < gives_up:
                if not verdict.done():
                    _log.warning("a broker does not answer; until it does it is sent nothing", broker=base)
                    verdict.set_result(True)
                self._clock.wait_seconds(self._between_seconds)
        finally:
            with self._lock:
                del self._suspected[base]
            if verdict.done():
                _log.info("a broker answers again, or is gone", broker=base)
            else:
                verdict.set_result(False)
