"""Opens the rooms while the server answers already; whoever ends the process need not wait for a cluster that is away.

Invariant: after `end` nothing is opened any more, and what was opened stands in the stack of whoever opened it.
"""

import threading
from collections.abc import Callable

import structlog

from pulsar_sidecar.model.clocks import StopSignal
from pulsar_sidecar.model.errors import PermanentError, SidecarError

log = structlog.get_logger("pulsar-sidecar")

Wait = Callable[[StopSignal, Callable[[str], None]], str | None]
"""Blocks until the brokers have said which cluster they are, noting what it waits for; None when it was stopped."""


class Opening:
    """One thread that waits for the cluster's name and opens the rooms with it."""

    def __init__(self, wait: Wait, open_rooms: Callable[[str], None], give_up: Callable[[], None]) -> None:
        """``give_up`` is called when trying again changes nothing; `end` then raises why."""
        self.waits_for = "its rooms are being opened"
        self._wait = wait
        self._open_rooms = open_rooms
        self._give_up = give_up
        self._ended = threading.Event()
        self._working = threading.Lock()
        self._failure: SidecarError | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        threading.Thread(target=self._run, name="opening", daemon=True).start()

    def end(self) -> None:
        """Open nothing more.

        Raises:
            SidecarError: what made it give up.
        """
        self._ended.set()
        with self._working:
            if self._failure is not None:
                raise self._failure

    def _run(self) -> None:
        try:
            name = self._wait(self._ended, self._note)
            with self._working:
                if name is not None and not self._ended.is_set():
                    self._open_rooms(name)
        except SidecarError as error:
            self._failure = error
            self._give_up()
        except Exception:
            log.exception("the rooms could not be opened")
            self._failure = PermanentError("the rooms could not be opened; the log has the details")
            self._give_up()

    def _note(self, reason: str) -> None:
        self.waits_for = reason
