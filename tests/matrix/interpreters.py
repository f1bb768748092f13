"""Interpreters as a user has them: on PATH, among pyenv's versions or uv's, or anywhere by their path."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_QUESTION = "import ensurepip, platform, venv; print(platform.python_version())"
_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that can make environments."""

    path: Path
    version: str
    """Such as ``3.12.1``."""


def find(asked: str, variables: Mapping[str, str] = os.environ) -> Interpreter | None:
    """Return the first working interpreter of a version such as ``3.12`` or ``3.12.1``, or the one at a path."""
    for path in [Path(asked)] if os.sep in asked else _places(asked, variables):
        version = _version(path)
        if version is not None and (os.sep in asked or f"{version}.".startswith(f"{asked}.")):
            return Interpreter(path, version)
    return None


def _places(version: str, variables: Mapping[str, str]) -> Iterator[Path]:
    """Yield likely paths, pyenv's own too: on PATH its programs fail for versions that are not switched on."""
    program = f"python{'.'.join(version.split('.')[:2])}"
    for directory in variables.get("PATH", "").split(os.pathsep):
        yield Path(directory, program)
    home = Path(variables.get("HOME", "/"))
    pyenv = Path(variables.get("PYENV_ROOT", home / ".pyenv"), "versions")
    uv = Path(variables.get("UV_PYTHON_INSTALL_DIR", home / ".local/share/uv/python"))
    for directory, pattern in ((pyenv, f"{version}*"), (uv, f"cpython-{version}*")):
        yield from sorted(directory.glob(f"{pattern}/bin/{program}"))


def _version(path: Path) -> str | None:
    try:
        asked = subprocess.run([path, "-c", _QUESTION], capture_output=True, text=True, check=False, timeout=_SECONDS)
    except OSError:
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None
