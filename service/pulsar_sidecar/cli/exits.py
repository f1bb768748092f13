"""What the exit code of a command means, and the errors that lead there.

Invariant: 2 means that an audit has findings, and nothing else.
"""

from enum import IntEnum

from pulsar_sidecar.model.errors import OutcomeUnknownError, SidecarError, UnreachableError


class ExitCode(IntEnum):
    """Documented in every ``--help``."""

    DONE = 0
    FAILED = 1
    UNREACHABLE = 3
    NOT_ALL = 4


EXIT_CODES = (
    "Exit codes: 0 done; 1 the service answered with an error, or wrong usage or configuration, the reason is on "
    "standard error; 3 no answer came from the service, ZooKeeper, a bookie or a broker, so look at the state before "
    "you repeat it; 4 not everything was done."
)


class ServiceRefusedError(SidecarError):
    """The service answered with an error; ``status`` is the HTTP status code."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{reason} (HTTP {status})")
        self.status = status


def exit_code_of(error: SidecarError) -> ExitCode:
    """The exit code an error leads to."""
    is_silent = isinstance(error, UnreachableError | OutcomeUnknownError)
    return ExitCode.UNREACHABLE if is_silent else ExitCode.FAILED
