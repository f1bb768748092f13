"""The commands of a page in `docs`, run in their order as its reader runs them."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_SECONDS = 800
_UNTIL_CLOSED = 'bash -euc "$1" & cat; kill -KILL 0'


def commands_of(page: Path) -> list[str]:
    """What stands behind the prompts of the page's console blocks."""
    return "\n".join(scripts_of(page.read_text())).splitlines()


def scripts_of(text: str) -> list[str]:
    """What stands behind the prompts of each console block."""
    blocks = re.findall(r"^ *```console\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return ["\n".join(line.strip().removeprefix("$ ") for line in block.splitlines()) for block in blocks]


def section_of(page: Path, heading: str) -> str:
    """The text of a page below one of its headings."""
    _, _, after = page.read_text().partition(f"\n## {heading}\n")
    assert after, f"{page.name} has no {heading}"
    return after.partition("\n## ")[0]


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


@contextmanager
def running(script: str, directory: Path, environment: Mapping[str, str], log: Path) -> Iterator[None]:
    """Run a script until the body ends, and at the latest until this process does, even by a kill: its pipe closes."""
    with (
        log.open("ab") as output,
        subprocess.Popen(
            ["bash", "-c", _UNTIL_CLOSED, "bash", script],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ),
    ):
        yield
