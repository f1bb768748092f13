"""Limits of a process, in processes of their own, because a hard limit cannot be raised again."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import resource, sys
from pulsar_sidecar.bootstrap.process import connections_for_callers
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(connections_for_callers(1000), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "files"),
    [(256, 1000, 500, 1000), (256, 4000, 1000, 4000), (64, 64, 32, 64), (1000, 1000, 500, 1000)],
)
def test_callers_get_half_of_what_the_process_may_open(soft: int, hard: int, connections: int, files: int) -> None:
    program = PROGRAM.format(soft=soft, hard=hard)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT
    )
    assert ran.stdout.split() == [str(connections), str(files)]
