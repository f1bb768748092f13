"""Client of `tests.cluster.failing_sidecar`'s nursery, which starts sidecars with or without faults quickly.

Imports cost two seconds of processor time, most of a sidecar's start; the nursery runs them once.
"""

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pulsar_sidecar.local_cluster.processes import ProcessIdentity, identify

from tests.cluster.choosing import PROJECT
from tests.cluster.patience import OPERATION_SECONDS


class Nursery:
    """A process that forks sidecars; they end with it, and it ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.failing_sidecar", "--nursery"],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, environment: Mapping[str, str], log: Path, faults: Sequence[str] = ()) -> ProcessIdentity:
        """Start a sidecar with these faults, in the form of `failing_sidecar.Fault`."""
        log.touch()
        return identify(self._ask({"environment": dict(environment), "log": str(log), "faults": list(faults)}))

    def exit_code(self, process: ProcessIdentity) -> int:
        """Return the exit code of an ended sidecar, negative after a signal."""
        return self._ask({"ended": process.pid})

    def close(self) -> None:
        """End the nursery and all its sidecars."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(OPERATION_SECONDS)
        self._process.stdout.close()

    def _ask(self, wish: Mapping[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(wish) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, "the nursery of sidecars has ended"
        return int(answer)


@cache
def nursery() -> Nursery:
    """Return this process's nursery, started at the first call."""
    begun = Nursery()
    atexit.register(begun.close)
    return begun
