"""Steps of setting topics up, each repeated until brokers confirm it; brokers that just started confirm little."""

from collections.abc import Callable
from typing import Final, TypeVar

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import BrokerRefusedError, OutcomeUnknownError, TemporaryError

_Answer = TypeVar("_Answer")

_ATTEMPTS: Final = 20
_PAUSE_SECONDS: Final = 0.5
_NOT_READY: Final = (405, 409, 412)
"""Statuses of policy calls while ``__change_events`` of the namespace is being created."""


class ConfirmedSteps:
    """Repeats steps that can be repeated."""

    def __init__(self, clock: Clock, what: str) -> None:
        """``what`` is set up, in words for the error."""
        self._clock = clock
        self._what = what

    def run(self, step: Callable[[], _Answer]) -> _Answer:
        """The step's answer once it is confirmed.

        Raises:
            TemporaryError: the brokers did not confirm it, although it was repeated.
        """
        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                return step()
            except (TemporaryError, OutcomeUnknownError) as error:
                failure = error
            except BrokerRefusedError as error:
                if error.status not in _NOT_READY:
                    raise
                failure = error
            self._clock.wait_seconds(_PAUSE_SECONDS)
        raise TemporaryError(f"{self._what} not ready: {failure}; try again") from failure
