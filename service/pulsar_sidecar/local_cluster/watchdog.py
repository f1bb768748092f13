"""Ties a cluster's life to the process that started it, however that process ends.

The starting process holds one end of a pipe, and this module waits at the other as a program of its own; when the
starting process ends, even by a kill, the system closes its end. Invariant: a watchdog acts only on the directory it
was started for, does nothing while the pipe is open, and taking down a cluster that is already down does nothing.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pulsar_sidecar.model.errors import TemporaryError

_RELEASE_TIMEOUT_SECONDS = 30.0
_IMPORT_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class LifeLine:
    """This process's end of the pipe."""

    watchdog: subprocess.Popen[bytes]

    def release(self) -> None:
        """Let the watchdog end; it takes the cluster down if that was not done.

        Raises:
            TemporaryError: it did not end in time.
        """
        assert self.watchdog.stdin is not None
        self.watchdog.stdin.close()
        try:
            self.watchdog.wait(_RELEASE_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise TemporaryError(f"the watchdog {self.watchdog.pid} did not end; look at it") from error


def hold_life_line(directory: Path) -> LifeLine:
    """Start a watchdog for the cluster in ``directory`` and hold its life line."""
    watchdog = subprocess.Popen(  # noqa: S603 - this very program
        [sys.executable, "-m", "pulsar_sidecar.local_cluster.watchdog", str(directory)],
        cwd=_IMPORT_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return LifeLine(watchdog)


def main() -> None:
    """Wait for the end of standard input, then take down the cluster in the directory given as argument."""
    from pulsar_sidecar.local_cluster.cluster import LocalCluster

    sys.stdin.buffer.read()
    LocalCluster(Path(sys.argv[1])).down()


if __name__ == "__main__":
    main()
