"""The commands of a page in `docs`, run in order like a reader does."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_SECONDS = 800
_UNTIL_CLOSED = 'bash -euc "$1" & cat; kill -KILL 0'


def commands_of(page: Path) -> list[str]:
    """Return the commands of the page's console blocks."""
    return "\n".join(scripts_of(page.read_text())).splitlines()


def scripts_of(text: str) -> list[str]:
    """Return the commands of each console block as a script."""
    blocks = re.findall(r"^ *```console\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return ["\n".join(line.strip().removeprefix("$ ") for line in block.splitlines()) for block in blocks]


def section_of(page: Path, heading: str) -> str:
    """Return the text of a page below a heading."""
    _, _, after = page.read_text().partition(f"\n## {heading}\n")
    assert after, f"{page.name} has no {heading}"
    return after.partition("\n## ")[0]


def shown(command: str) -> str:
    """Return a script that prints the command before it runs it."""
    return f"echo '$ {command}'\n{command}"


def run(script: str, directory: Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a script until a command fails, with all output in ``stdout``."""
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
    """Run a script until the body, or this process, ends; even a kill closes the script's pipe."""
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
