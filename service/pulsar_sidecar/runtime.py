"""Loops that run as long as a sidecar does, each in a thread of its own.

Each survives every error of ours: it notes it, waits and starts afresh, because topics and the metadata store hold the
work, never this process.
"""

import threading
from collections.abc import Callable, Mapping

import structlog

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError

_FIRST_BACKOFF_SECONDS = 0.5


class SupervisedLoops:
    """The threads of one room."""

    def __init__(
        self,
        room: str,
        clock: Clock,
        stop: threading.Event,
        note_failure: Callable[[str], None],
        longest_backoff_seconds: float,
    ) -> None:
        self._room, self._clock, self._stop = room, clock, stop
        self._note_failure = note_failure
        self._longest_backoff_seconds = longest_backoff_seconds
        self._threads: list[threading.Thread] = []

    def start(self, loops: Mapping[str, Callable[[], None]]) -> None:
        """Start them under these names; returns at once."""
        for name, loop in loops.items():
            thread = threading.Thread(target=self._keep_running, args=(name, loop), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        """Wait until each has finished what it had in hand."""
        for thread in self._threads:
            thread.join()

    def _keep_running(self, name: str, loop: Callable[[], None]) -> None:
        log = structlog.get_logger(self._room)
        backoff_seconds = _FIRST_BACKOFF_SECONDS
        while not self._stop.is_set():
            started = self._clock.monotonic_seconds()
            try:
                loop()
            except SidecarError as error:
                self._note_failure(f"{name}: {error}")
                log.warning("loop starts afresh", loop=name, error=str(error), backoff_seconds=backoff_seconds)
            except Exception:
                # A defect of ours must not silence the loop for good; nothing is lost with the process's state.
                self._note_failure(f"{name}: unexpected failure, see the log")
                log.exception("loop failed unexpectedly and starts afresh", loop=name)
            if self._clock.monotonic_seconds() - started > self._longest_backoff_seconds:
                backoff_seconds = _FIRST_BACKOFF_SECONDS
            self._clock.wait_seconds(backoff_seconds, self._stop)
            backoff_seconds = min(backoff_seconds * 2, self._longest_backoff_seconds)
