"""Client of `tests.cluster.failing_sidecar`'s nursery, which starts sidecars and commands quickly.

Imports cost two seconds of processor time, most of a sidecar's start, and one of a command's; the nursery runs them
once.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pulsar_sidecar.local_cluster.processes import ProcessIdentity, identify

from tests.cluster.choosing import PROJECT
from tests.cluster.patience import OPERATION_SECONDS, PATIENCE_SECONDS, NotInTime


class Nursery:
    """A process that forks sidecars and commands; they end with it, and it ends with this process."""

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
        output = {"output": str(log), "error": str(log)}
        return identify(self._ask({"environment": dict(environment), **output, "faults": list(faults)}))

    def run(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        seconds: float = PATIENCE_SECONDS,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program like ``python -m MODULE ARGUMENTS...`` until it ends in any way."""
        program = [module, *arguments]
        with tempfile.TemporaryDirectory() as directory:
            output, error = Path(directory, "output"), Path(directory, "error")
            wish = {"program": program, "output": str(output), "error": str(error)}
            pid = self._ask({**wish, "environment": dict(os.environ if environment is None else environment)})
            is_late = not _ends(pid, seconds)
            if is_late:
                os.kill(pid, signal.SIGKILL)
            ended = subprocess.CompletedProcess(
                program, self._ask({"ended": pid}), output.read_text(), error.read_text()
            )
        if is_late:
            raise NotInTime(f"{' '.join(program)} did not end within {seconds:.0f} s: {ended.stderr}")
        return ended

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


def _ends(pid: int, seconds: float) -> bool:
    """Wait for the end of a process, which need not be this one's child."""
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


@cache
def nursery() -> Nursery:
    """Return this process's nursery, started at the first call."""
    begun = Nursery()
    atexit.register(begun.close)
    return begun
