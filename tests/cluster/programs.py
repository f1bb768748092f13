"""Programs of the tests, each run in its own process."""

import os
import subprocess
import sys
from pathlib import Path

from tests.cluster.patience import PATIENCE_SECONDS

_PROJECT = Path(__file__).parents[2]


def run_program(
    module: str, *arguments: str | Path, seconds: float = PATIENCE_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m MODULE ARGUMENTS...`` until it ends in any way."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=_PROJECT,
        env=os.environ | {"PYTHONPATH": f"{_PROJECT / 'service'}:{_PROJECT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
