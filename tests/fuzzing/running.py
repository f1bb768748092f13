"""Runs schemathesis in a process of its own, as a user of the document would."""

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import requests
from pulsar_sidecar.server.rights import Right

_HERE = Path(__file__).parent
_PROJECT = _HERE.parents[1]


def fuzz(
    url: str,
    *,
    seed: int,
    most_examples: int,
    token: str | None = None,
    only: Collection[str] = (),
    without: Collection[str] = (),
    options: tuple[str, ...] = (),
    timeout_seconds: float = 800,
) -> None:
    """Fuzz every operation of the sidecar at ``url``, or those of some paths; nothing may be found.

    The same seed makes the same calls. Every finding comes with the curl command that repeats it.

    Raises:
        AssertionError: something was found, or not all operations were tried; the message is the report.
    """
    header = {"Authorization": f"Bearer {token}"} if token else {}
    paths = requests.get(f"{url}/openapi.json", headers=header, timeout=60).json()["paths"]
    assert set(only) | set(without) <= set(paths)
    # Brokers serve these, and are laxer about parameters than the document.
    passed = {
        path for path, of in paths.items() if all(one["x-takes"] == Right.BROKERS.value.words for one in of.values())
    }
    without = set(without) | (set() if only else passed)
    expected = sum(len(paths[path]) for path in only or set(paths) - set(without))
    command = [
        str(Path(sys.executable).parent / "schemathesis"),
        f"--config-file={_HERE / 'schemathesis.toml'}",
        "run",
        f"{url}/openapi.json",
        f"--seed={seed}",
        f"--max-examples={most_examples}",
        "--continue-on-failure",
        "--no-color",
        "--output-sanitize=false",  # a failing call must be repeatable, and the tokens are the tests' own
        *(f"--header={name}: {value}" for name, value in header.items()),
        *(f"--include-path={path}" for path in only),
        *(f"--exclude-path={path}" for path in without),
        *options,
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.fuzzing.checks", "PYTHONPATH": str(_PROJECT)}
    ended = subprocess.run(
        command, cwd=_PROJECT, env=environment, capture_output=True, text=True, timeout=timeout_seconds, check=False
    )
    report = f"schemathesis with seed {seed}:\n{ended.stdout[-20_000:]}\n{ended.stderr[-5_000:]}"
    assert ended.returncode == 0, report
    assert f"Tested: {expected}" in ended.stdout, report
