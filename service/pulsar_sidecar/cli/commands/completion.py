"""``pulsar-sidecar completion``: script by which a shell completes commands and options."""

from enum import Enum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # typer writes no other

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, CommandGroup

_PROGRAM = "pulsar-sidecar"

app = typer.Typer(cls=CommandGroup, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Shell(Enum):
    """A shell that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command(epilog=EXIT_CODES)
def completion(shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> None:
    """Print a script by which a shell completes commands and options.

    bash, in ~/.bashrc: source <(pulsar-sidecar completion bash)

    zsh, in ~/.zshrc after compinit: source <(pulsar-sidecar completion zsh)

    fish: pulsar-sidecar completion fish > ~/.config/fish/completions/pulsar-sidecar.fish
    """
    variable = f"_{_PROGRAM.replace('-', '_').upper()}_COMPLETE"
    output.result(get_completion_script(prog_name=_PROGRAM, complete_var=variable, shell=shell.value))
