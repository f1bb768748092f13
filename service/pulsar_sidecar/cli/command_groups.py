"""How groups of commands are made, and how their commands end.

Invariant: a command ends with one of its group's exit codes: an error of ours is written to standard error and becomes
a code here, wrong usage ends with 1 (typer's own code for it is 2), and a traceback is a defect.
"""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.exits import EXIT_CODES, ExitCode, exit_code_of
from pulsar_sidecar.model.errors import SidecarError

_ORDER = ("serve", "local-cluster", "demo", "ledger-deletion", "topics", "broker-stats", "metadata", "ledgers", "audit")


class CommandGroup(TyperGroup):
    """A group whose commands raise errors and leave the exit code to it."""

    @staticmethod
    def exit_code(error: SidecarError) -> int:
        return exit_code_of(error)

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


class RootGroup(CommandGroup):
    """The whole command line; its commands stand in the order in which a newcomer needs them."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))


class LazyCommand(TyperCommand):
    """A command's name and short help; the command itself is imported when it is called, so ``--help`` stays quick."""

    def __init__(self, name: str, short_help: str, load: Callable[[], Any]) -> None:
        super().__init__(name, short_help=short_help, help=short_help)
        self.loaded = load

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.loaded().make_context(info_name, args, parent, **extra)


def new_group(
    name: str, help_text: str, *, cls: type[CommandGroup] = CommandGroup, epilog: str = EXIT_CODES
) -> typer.Typer:
    """A group that shows its help when it is called without a command."""
    return typer.Typer(
        name=name,
        cls=cls,
        help=help_text,
        epilog=epilog,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
