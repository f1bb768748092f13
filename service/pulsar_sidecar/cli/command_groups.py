"""Groups of commands, and the exit codes of their commands.

Invariants: a command ends with one of its group's exit codes: this module writes a `SidecarError` to standard error and
maps it to a code, wrong usage ends with 1 (typer's own code for it is 2), and a traceback is a defect. 2 means only
that an audit or a check has findings.
"""

import re
from dataclasses import replace
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from pulsar_sidecar.cli import output
from pulsar_sidecar.model.errors import OutcomeUnknownError, PermanentError, SidecarError, UnreachableError

_WHOLE_SENTENCE = 10_000
_OLDER_SPELLINGS = ("--output", "--format")


class ExitCode(IntEnum):
    """Exit codes, documented in every ``--help``."""

    DONE = 0
    FAILED = 1
    FINDINGS = 2
    UNREACHABLE = 3
    NOT_ALL = 4
    INTERRUPTED = 130


EXIT_CODES = (
    "Exit codes: 0 done; 1 the service answered with an error, or wrong usage or configuration, the reason is on "
    "standard error; 3 no answer came from the service, ZooKeeper, a bookie or a broker, so look at the state before "
    "you repeat it; 4 not everything was done."
)


class ServiceRefusedError(SidecarError):
    """Raised when the service returns an error; ``status`` is the HTTP status code."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{reason} (HTTP {status})")
        self.status = status


class CommandGroup(TyperGroup):
    """A group that maps its commands' errors to exit codes.

    Its help lists each command with the first part of its first sentence. It accepts ``topic`` for ``topics``, and so
    on.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for command in self.commands.values():
            sentence = command.get_short_help_str(_WHOLE_SENTENCE)  # typer would cut it in the middle
            command.short_help = re.split("[:;] ", sentence.removesuffix("."))[0] + "."
            if type(command) is TyperCommand:
                take_output_format(command)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is None and isinstance(plural := super().get_command(ctx, f"{cmd_name}s"), TyperGroup):
            return plural
        return found

    @staticmethod
    def exit_code(error: SidecarError) -> int:
        is_silent = isinstance(error, UnreachableError | OutcomeUnknownError)
        return ExitCode.UNREACHABLE if is_silent else ExitCode.FAILED

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except TyperException as error:
            error.exit_code = ExitCode.FAILED
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TyperException as error:
            error.exit_code = ExitCode.FAILED
            raise
        except SidecarError as error:
            output.info(output.printable(str(error), kept="\n\t"))
            raise typer.Exit(self.exit_code(error)) from error
        except OSError as error:
            if error.filename is None:
                raise
            output.info(output.printable(f"cannot use {error.filename}: {error.strerror}; name another path"))
            raise typer.Exit(ExitCode.FAILED) from error
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # Commands read responses as the REST reference describes them; anything else is not from a sidecar.
            if not ctx.obj.called:
                raise
            output.info(
                f"the response is not in the form that this command expects ({type(error).__name__}: "
                f"{output.printable(str(error))[:100]}); does --admin-url name a sidecar of this version?"
            )
            raise typer.Exit(ExitCode.FAILED) from error


def take_output_format(command: TyperCommand) -> None:
    """Add ``--output-format`` to a command and, hidden, the older spellings that it does not use otherwise.

    The option overrides the global one in the context's `GlobalOptions`.
    """
    taken = {name for parameter in command.params for name in parameter.opts}
    command.params += _output_format_options(tuple(name for name in _OLDER_SPELLINGS if name not in taken))


@cache
def _output_format_options(older_spellings: tuple[str, ...]) -> tuple[Any, ...]:
    def choose(ctx: typer.Context, chosen: output.Format | None) -> None:
        if chosen is not None and not ctx.resilient_parsing:
            ctx.obj = replace(ctx.obj, format=chosen)

    choice = typer.Option("--output-format", callback=choose, help="Output format; overrides the global option.")
    older = typer.Option(*older_spellings, callback=choose, hidden=True)
    options = typer.Typer(add_completion=False)

    @options.command()
    def _(
        output_format: Annotated[output.Format | None, choice] = None,
        older_spelling: Annotated[output.Format | None, older] = None,
    ) -> None:
        """Declare the options."""

    made = get_command(options).params[: 2 if older_spellings else 1]
    for option in made:
        option.expose_value = False
    return tuple(made)


class LazyCommand(TyperCommand):
    """A command whose module is imported only when it is called, so that ``--help`` stays fast.

    ``place`` is a module and the name of a Typer in it; ``answers`` is True if the command takes --output-format.
    """

    def __init__(self, name: str, short_help: str, place: str, answers: bool = False) -> None:
        super().__init__(name, short_help=short_help, help=short_help)
        self._place = place
        self._answers = answers

    def loaded(self) -> Any:
        """Import and return the command, or the group of commands; `PermanentError` if it is not installed."""
        module, _, name = self._place.partition(":")
        try:
            imported = import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise PermanentError(
                f"{self.name} is not part of this image; on a machine with a JDK, pip install 'pulsar-sidecar[demo]'"
            ) from error
        command = get_command(getattr(imported, name))
        if self._answers and isinstance(command, TyperCommand):
            take_output_format(command)
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.loaded().make_context(info_name, args, parent, **extra)


def new_group(
    name: str, help_text: str, *, cls: type[CommandGroup] = CommandGroup, epilog: str = EXIT_CODES, **more: Any
) -> typer.Typer:
    """Return a group that shows its help if called without a command."""
    return typer.Typer(
        name=name,
        cls=cls,
        help=help_text,
        epilog=epilog,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        **more,
    )
