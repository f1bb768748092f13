"""Programs of the tests, each run as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.cluster.patience import PATIENCE_SECONDS

_PROJECT = Path(__file__).parents[2]


def run_program(
    module: str, *arguments: str | Path, seconds: float = PATIENCE_SECONDS
) -> subprocess.CompletedProcess[str]:
    """``python -m MODULE ARGUMENTS...`` until it ends, however it does."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=_PROJECT,
        env=os.environ | {"PYTHONPATH": f"{_PROJECT / 'service'}:{_PROJECT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
