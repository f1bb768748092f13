"""Stacks of a member's busy threads for reports of failed tests, which reveal a deadlocked broker.

The recovery of a delayed index's buckets can block a broker for minutes (`tests.cluster.buckets`), and the recovery of
a ledger whose bookies fail can deadlock BookKeeper's client (BookKeeper #4457): both look like silent bookies.
"""

import re
import subprocess

from pulsar_sidecar.local_cluster.software import find_java
from pulsar_sidecar.local_cluster.spec import MissingPrerequisiteError

from tests.cluster.patience import OPERATION_SECONDS

_OURS = re.compile(r"\bat org\.apache\.(pulsar\.|bookkeeper\.(client|mledger|proto)\.)")
_DEADLOCK = re.compile(r"Found (one|\d+) Java-level deadlock")
_MOST_LINES = 150


def busy_threads(pid: int) -> str:
    """Return the stacks of threads in Pulsar or BookKeeper; empty if the process or ``jstack`` is missing."""
    try:
        jstack = find_java().executable.resolve().with_name("jstack")
        answer = subprocess.run(
            [jstack, str(pid)], capture_output=True, text=True, check=False, timeout=OPERATION_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired, MissingPrerequisiteError):
        return ""
    return inside_pulsar(answer.stdout)


def inside_pulsar(dump: str) -> str:
    """Return a thread dump's deadlocks, then its stacks with a frame of Pulsar or of BookKeeper's client."""
    deadlock = _DEADLOCK.search(dump)
    stacks, deadlocks = (dump[: deadlock.start()], dump[deadlock.start() :]) if deadlock else (dump, "")
    busy = [block for block in stacks.split("\n\n") if _OURS.search(block)]
    return "\n".join("\n".join(filter(None, [deadlocks, *busy])).splitlines()[:_MOST_LINES])
