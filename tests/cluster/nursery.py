"""The near end of `tests.cluster.failing_sidecar`'s nursery: sidecars with faults in them, started in no time."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pulsar_sidecar.local_cluster.processes import ProcessIdentity, identify

from tests.cluster.choosing import PROJECT
from tests.cluster.patience import OPERATION_SECONDS


class Nursery:
    """One process that forks sidecars; they end with it, and it with this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def start(self, environment: Mapping[str, str], log: Path, faults: Sequence[str]) -> ProcessIdentity:
        """Start a sidecar with these faults, written as `failing_sidecar.Fault` is."""
        process = self._process or self._begin()
        assert process.stdin is not None
        assert process.stdout is not None
        log.touch()
        wish = {"environment": dict(environment), "log": str(log), "faults": list(faults)}
        process.stdin.write(json.dumps(wish) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, "the nursery of sidecars has ended"
        return identify(int(answer))

    def close(self) -> None:
        """End it and every sidecar that it has started."""
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait(OPERATION_SECONDS)
            self._process.stdout.close()
            self._process = None

    def _begin(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.failing_sidecar", "--nursery"],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self._process
