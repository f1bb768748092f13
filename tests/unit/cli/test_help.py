"""Help is whole at 80 columns, and shells complete from the same commands."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.bootstrap.commands import command_line
from pulsar_sidecar.cli.command_groups import LazyCommand
from pulsar_sidecar.settings.fields import GROUPS, title
from typer.core import TyperGroup

from tests.unit.cli.running import Terminal

LONGEST_SHORT_HELP = 72
PATH_WITH_THE_PROGRAM = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
COMPLETED = {
    "bash": "source <(pulsar-sidecar completion bash); COMP_WORDS=(pulsar-sidecar topics dele); COMP_CWORD=2; "
    '_pulsar_sidecar_completion pulsar-sidecar; printf "%s\\n" "${COMPREPLY[@]}"',
    "fish": "pulsar-sidecar completion fish | source; complete -C 'pulsar-sidecar topics dele'",
}


def every_command(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands and groups with the words that call them; a lazy one with its own short help."""
    loaded = command.loaded() if isinstance(command, LazyCommand) else command
    loaded.short_help = command.short_help
    yield path, loaded
    for name, child in getattr(loaded, "commands", {}).items():
        yield from every_command(child, (*path, name))


COMMANDS = list(every_command(command_line()))[1:]


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_short_help_is_a_short_sentence(path: tuple[str, ...], command: Any) -> None:
    del path
    assert command.short_help.endswith(".")
    assert not command.short_help.endswith("..")
    assert len(command.short_help) <= LONGEST_SHORT_HELP, command.short_help


def test_every_command_has_an_example_and_takes_an_output_format_and_its_older_spellings(terminal: Terminal) -> None:
    for path, command in COMMANDS:
        if isinstance(command, TyperGroup) or path[0] in ("serve", "completion", "demo"):
            continue
        names = [name for option in command.params for name in option.opts]
        assert {"--output-format", "--output", "--format"} <= set(names), path
        assert len(names) == len(set(names)), path
        shown = terminal.run(*path, "--help").out
        assert "--output-format" in shown
        assert path[0] == "local-cluster" or "Example" in shown, path
    for spelling in ("--output-format", "--output", "--format"):
        ran = terminal.run("--output-format", "json", "audit", "prune", ".", spelling, "xml")
        assert (ran.code, ran.out) == (1, "")
        assert f"'{spelling}'" in ran.err


def test_h_is_help_and_v_is_the_version(terminal: Terminal) -> None:
    assert terminal.run("-v").out == terminal.run("--version").out == f"{version('pulsar-sidecar')}\n"
    for arguments in ((), ("topics",), ("topics", "delete"), ("local-cluster", "up"), ("serve",), ("publish",)):
        shown = terminal.run(*arguments, "-h")
        assert (shown.code, shown.out) == (0, terminal.run(*arguments, "--help").out)
        assert "-h, --help" in shown.out


def test_settings_stand_below_their_groups_with_their_defaults(terminal: Terminal) -> None:
    shown = " ".join(terminal.run("serve", "--help").out.split())
    assert "[default: 127.0.0.1:8750]" in shown
    assert "[default: 30000]" in shown
    assert "[default: false]" in shown
    assert "--metadata-store-url TEXT" in shown
    assert "[required]" in shown
    assert "--log-level DEBUG|INFO|WARNING|ERROR" in shown
    places = [shown.index(f"{title(group)}: --") for group in GROUPS]
    assert places == sorted(places)


def test_a_group_answers_to_its_singular(terminal: Terminal) -> None:
    for plural in ("topics", "namespaces", "subscriptions", "ledgers"):
        singular = plural.removesuffix("s")
        assert terminal.run(singular, "-h").out == terminal.run(plural, "-h").out.replace(plural, singular, 1)
    assert terminal.run("ledger-deletion", "statu").code == 1


@pytest.mark.parametrize("shell", COMPLETED)
def test_a_shell_completes(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    ran = subprocess.run(
        [shell, "-c", COMPLETED[shell]], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PATH": PATH_WITH_THE_PROGRAM},
    )  # fmt: skip
    assert [line.split("\t")[0] for line in ran.stdout.splitlines()] == ["delete", "delete-ledger", "delete-shadow"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_accepts(shell: str, terminal: Terminal, tmp_path: Path) -> None:
    script = terminal.run("completion", shell).out
    assert "_PULSAR_SIDECAR_COMPLETE" in script
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", str(tmp_path / "script")], timeout=60, check=True)
