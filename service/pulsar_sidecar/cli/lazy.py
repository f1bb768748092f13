"""Commands that are imported when they are used, so that ``--help`` answers at once.

Invariant: what the list of commands says about such a command stands here; everything else is the command's own.
"""

from collections.abc import Callable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from pulsar_sidecar.cli.exits import usage_failing


class LazyCommand(TyperCommand):
    """A command's name and short help, until somebody calls it."""

    def __init__(self, name: str, short_help: str, load: Callable[[], Any]) -> None:
        super().__init__(name, short_help=short_help, help=short_help)
        self._load = load

    def loaded(self) -> Any:
        """The real command."""
        return self._load()

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.loaded().make_context(info_name, args, parent, **extra)


class LazyGroup(TyperGroup):
    """The root: its commands in the order in which a newcomer needs them; wrong usage of any of them ends with 1."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._order = (
            "serve",
            "local-cluster",
            "demo",
            "ledger-deletion",
            "topics",
            "broker-stats",
            "metadata",
            "ledgers",
            "audit",
        )

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with usage_failing():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with usage_failing():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: self._order.index(name) if name in self._order else len(self._order))
