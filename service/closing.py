"""Closing what a process opened, in the opposite order, whatever goes wrong on the way."""

from contextlib import ExitStack
from typing import Protocol

import structlog

from service.adapters.pulsar.errors import translated
from service.model.errors import SidecarError

_log = structlog.get_logger("pulsar-sidecar")


class Closable(Protocol):
    """Anything that is closed."""

    def close(self) -> object: ...


def close_at_the_end(stack: ExitStack, resource: Closable) -> None:
    """Let ``stack`` close it; a failure of that is a warning, so that the rest is closed too."""

    def close() -> None:
        try:
            with translated(f"closing {type(resource).__name__}"):
                resource.close()
        except SidecarError as error:
            _log.warning("something did not close in order", error=str(error))

    stack.callback(close)
