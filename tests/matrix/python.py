"""``make matrix-python``: the tests on several versions of Python, and README's table of how it went.

Each is run with the locked dependencies and with the newest that pyproject.toml allows, in an environment of its own.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tests.cluster.choosing import PROJECT
from tests.matrix.environments import environment, locked, newest
from tests.matrix.interpreters import Interpreter, find
from tests.matrix.running import fill, reports, show
from tests.matrix.table import Table

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
DEPENDENCIES: Mapping[str, Callable[[], str]] = {"locked": locked, "newest": newest}
TABLE = Table(PROJECT / "README.md", "make matrix-python", "Python")
TESTS = (
    ("-n", "auto", "--dist", "worksteal", "tests/model", "tests/unit"),
    ("tests/contract",),
    ("tests/spark",),
)


def main(arguments: Sequence[str]) -> int:
    """Run the tests on each version; 0 if all of them passed everywhere."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.python", description=__doc__)
    parser.add_argument("pythons", nargs="*", help="versions such as 3.12, or paths of interpreters")
    parser.add_argument("--dependencies", action="append", choices=tuple(DEPENDENCIES), help="both without it")
    asked = parser.parse_args(arguments)
    found = {name: find(name) for name in asked.pythons or VERSIONS}
    missing = [name for name, interpreter in found.items() if interpreter is None]
    if missing:
        show(f"no interpreter found for {', '.join(missing)}, on PATH, in pyenv or in uv: name its path in PYTHONS")
    if asked.pythons and missing:
        return 1
    status = fill(TABLE, runs([one for one in found.values() if one], asked.dependencies or tuple(DEPENDENCIES)))
    if missing:
        show(f"not tried: {', '.join(missing)}")
    return status


def runs(pythons: Sequence[Interpreter], dependencies: Sequence[str]) -> dict[str, Callable[[], list[str]]]:
    """Return the run of each row: first every version with one kind of dependencies."""
    return {f"{python.version}, {kind}": partial(run, python, kind) for kind in dependencies for python in pythons}


def run(python: Interpreter, dependencies: str) -> list[str]:
    """Return the reports of a row."""
    with environment(python.path, DEPENDENCIES[dependencies]()) as inside:
        return reports(inside, *TESTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
