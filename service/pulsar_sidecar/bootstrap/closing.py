"""Closing what a process opened, in the opposite order, whatever goes wrong on the way."""

import os
import threading
from contextlib import ExitStack
from typing import Protocol

import structlog

from pulsar_sidecar.adapters.pulsar.errors import translated
from pulsar_sidecar.model.errors import SidecarError

_log = structlog.get_logger("pulsar-sidecar")


class Closable(Protocol):
    """Anything that is closed."""

    def close(self) -> object: ...


class ClosingDeadline:
    """Ends the process when closing takes too long: a cluster that hangs must not keep it."""

    def __init__(self, stack: ExitStack) -> None:
        """Nothing is ended once ``stack`` has closed what is put into it from now on."""
        self._timer: threading.Timer | None = None
        stack.callback(self._cancel)

    def begin(self, seconds: float) -> None:
        """From now on closing may take so long."""
        self._timer = threading.Timer(seconds, _end_anyway, [seconds])
        self._timer.daemon = True
        self._timer.start()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _end_anyway(seconds: float) -> None:
    _log.error(
        "not everything could be closed; the process ends, and what it had in hand is taken up later", seconds=seconds
    )
    os._exit(1)


def close_at_the_end(stack: ExitStack, resource: Closable, name: str | None = None) -> None:
    """Let ``stack`` close it; a failure of that is a warning with its name, so that the rest is closed too."""

    def close() -> None:
        try:
            with translated(f"closing {name or type(resource).__name__}"):
                resource.close()
        except SidecarError as error:
            _log.warning("something did not close in order", error=str(error))

    stack.callback(close)
