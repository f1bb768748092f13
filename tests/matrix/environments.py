"""Environments for runs of the tests: an interpreter, this project, and dependencies of the lock or of pyproject.toml.

Each is made afresh and removed after its run: with PySpark it takes a gigabyte.
"""

import re
import subprocess
import tempfile
import tomllib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.choosing import PROJECT
from tests.matrix.running import show

_LOCKS = PROJECT / "deploy"
_PROJECT_FILE = PROJECT / "pyproject.toml"
_PLACE = PROJECT / ".venv" / "matrix"
"""Below a folder that `make clean` removes, should a run be killed."""


@contextmanager
def environment(python: Path, *requirements: str) -> Iterator[Path]:
    """Yield a new environment's interpreter, in which pip has installed these texts of requirements in turn."""
    _PLACE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_PLACE) as directory:
        subprocess.run([python, "-m", "venv", directory], check=True)
        inside, file = Path(directory, "bin", "python"), Path(directory, "requirements.txt")
        show("installing its dependencies into an environment of its own (minutes)")
        for text in requirements:
            file.write_text(text)
            _pip_install(inside, "--requirement", str(file))
        _pip_install(inside, "--no-deps", "--no-build-isolation", "--editable", str(PROJECT))
        yield inside


def _pip_install(python: Path, *what: str) -> None:
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", *what], check=True
    )


def locked(name: str = "requirements-dev.lock", without: Collection[str] = ()) -> str:
    """Return the pins of a lock and of those that it includes, less some packages; pip demands their hashes."""
    include, rest = re.match(r"(?:-r (\S+)\n)?(.*)", (_LOCKS / name).read_text(), re.DOTALL).groups()
    packages = re.split(r"^(?=\S)", rest, flags=re.MULTILINE)
    below = locked(include, without) if include else ""
    return below + "".join(package for package in packages if _name(package) not in without)


def newest() -> str:
    """Return the newest versions in pyproject.toml; its extra `spark` wins over `dev`, which locks the oldest."""
    project = tomllib.loads(_PROJECT_FILE.read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *extras["audit"], *extras["spark"]]
    users = [line for line in wanted if _name(line) != project["project"]["name"]]
    names = set(map(_name, users))
    return "\n".join([*users, *(line for line in project["dependency-groups"]["dev"] if _name(line) not in names)])


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    return found[0] if found else ""
