"""Interpreters are found where a user has them, and only those that run and are of the version that was asked for."""

from pathlib import Path

import pytest

from tests.matrix.interpreters import Interpreter, find


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_interpreter_on_the_path_comes_first(tmp_path: Path) -> None:
    first = program(tmp_path / "bin" / "python3.12", "echo 3.12.9")
    program(tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin" / "python3.12", "echo 3.12.1")
    variables = {"PATH": f"{tmp_path / 'none'}:{first.parent}", "HOME": str(tmp_path)}
    assert find("3.12", variables) == Interpreter(first, "3.12.9")


@pytest.mark.parametrize(
    "place", [".pyenv/versions/3.13.0/bin/python3.13", ".local/share/uv/python/cpython-3.13.0-linux/bin/python3.13"]
)
@pytest.mark.parametrize("asked", ["3.13", "3.13.0"])
def test_interpreter_that_does_not_run_is_skipped(tmp_path: Path, place: str, asked: str) -> None:
    shim = program(tmp_path / "shims" / "python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    working = program(tmp_path / place, "echo 3.13.0")
    variables = {"PATH": str(shim.parent), "HOME": str(tmp_path)}
    assert find(asked, variables) == Interpreter(working, "3.13.0")


def test_other_python_versions_are_not_found(tmp_path: Path) -> None:
    program(tmp_path / "python3.12", "echo 3.12.1")
    variables = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    assert (find("3.12.2", variables), find("3.1", variables), find("3.11", variables)) == (None, None, None)


def test_a_path_is_taken_whatever_its_version(tmp_path: Path) -> None:
    mine = program(tmp_path / "mine", "echo 3.15.0")
    assert find(str(mine), {}) == Interpreter(mine, "3.15.0")
    assert find(str(tmp_path / "none"), {}) is None
