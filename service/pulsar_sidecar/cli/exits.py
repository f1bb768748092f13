"""What the exit code of a command means, and the errors that lead there.

Invariant: a command ends in one of these codes, or with 2 where an audit tells that it has findings, which is the only
meaning of 2; a traceback is a defect.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer
from typer.exceptions import TyperException

from pulsar_sidecar.cli import output
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
    """The service answered with an error.

    Attributes:
        status: the HTTP status code.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{reason} (HTTP {status})")
        self.status = status


def exit_code_of(error: SidecarError) -> ExitCode:
    """The exit code an error leads to."""
    is_silent = isinstance(error, UnreachableError | OutcomeUnknownError)
    return ExitCode.UNREACHABLE if is_silent else ExitCode.FAILED


@contextmanager
def usage_failing() -> Iterator[None]:
    """Let wrong usage, which typer tells by itself, end like any other error: typer's own code for it is 2."""
    try:
        yield
    except TyperException as error:
        error.exit_code = ExitCode.FAILED
        raise


@contextmanager
def exiting() -> Iterator[None]:
    """Say an error of ours on standard error and end with its code."""
    try:
        yield
    except SidecarError as error:
        output.info(output.printable(str(error)))
        raise typer.Exit(exit_code_of(error)) from error
