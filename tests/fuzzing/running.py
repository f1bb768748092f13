"""Runs schemathesis in a process of its own, as a user of the document would."""

import os
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_PROJECT = _HERE.parents[1]


def fuzz(
    url: str,
    *,
    seed: int,
    most_examples: int,
    token: str | None = None,
    options: tuple[str, ...] = (),
    timeout_seconds: float = 300,
) -> str:
    """Fuzz every operation of the sidecar at ``url``; the report, which must be without a finding.

    The same seed makes the same calls. Every finding comes with the curl command that repeats it.

    Raises:
        AssertionError: something was found; the message is the report.
    """
    credentials = ("--header", f"Authorization: Bearer {token}") if token else ()
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
        *credentials,
        *options,
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.fuzzing.checks", "PYTHONPATH": str(_PROJECT)}
    ended = subprocess.run(
        command, cwd=_PROJECT, env=environment, capture_output=True, text=True, timeout=timeout_seconds, check=False
    )
    assert ended.returncode == 0, f"schemathesis with seed {seed}:\n{ended.stdout[-20_000:]}\n{ended.stderr[-5_000:]}"
    return ended.stdout
