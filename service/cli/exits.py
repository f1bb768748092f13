"""What the exit code of a command means, and the errors that lead there.

Invariant: a command ends in one of these codes; a traceback is a defect.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer

from service.cli import output
from service.model.errors import InvalidInputError, SidecarError, TemporaryError


class ExitCode(IntEnum):
    """Documented in every ``--help``."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_ALL = 4


EXIT_CODES = (
    "Exit codes: 0 done; 1 the service answered with an error, its reason is on standard error; 2 wrong usage or "
    "configuration; 3 no answer came from the service, so look at the state before you repeat it; "
    "4 not everything was done."
)


class UnreachableError(TemporaryError):
    """No answer came back."""


class ServiceRefusedError(SidecarError):
    """The service answered with an error.

    Attributes:
        status: the HTTP status code.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{reason} (HTTP {status})")
        self.status = status


def exit_code_of(error: SidecarError) -> ExitCode:
    """The exit code an error leads to."""
    match error:
        case InvalidInputError():
            return ExitCode.USAGE
        case UnreachableError():
            return ExitCode.UNREACHABLE
        case _:
            return ExitCode.REFUSED


@contextmanager
def exiting() -> Iterator[None]:
    """Say an error of ours on standard error and end with its code."""
    try:
        yield
    except SidecarError as error:
        output.info(output.printable(str(error)))
        raise typer.Exit(exit_code_of(error)) from error
