"""The commands of an installation's page in `docs`, run in their order as its reader runs them."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SECONDS = 800


def commands_of(page: Path) -> list[str]:
    """What stands behind the prompts of the page's console blocks."""
    blocks = re.findall(r"^ *```console\n(.*?)^ *```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]


def shown(command: str) -> str:
    """The command as a script that shows it first."""
    return f"echo '$ {command}'\n{command}"


def run(script: str, directory: Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a script of commands until one fails, with all that they print in ``stdout``."""
    return subprocess.run(
        ["bash", "-euc", script],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
