"""The program at the other end of a life line: takes a cluster down when the line closes.

Invariant: it does nothing while the line is open, and taking down a cluster that is already down does nothing.
"""

import sys
from pathlib import Path

from pulsar_sidecar.local_cluster.cluster import LocalCluster


def main() -> None:
    """Wait for the end of standard input, then take down the cluster in the directory given as argument."""
    sys.stdin.buffer.read()
    LocalCluster(Path(sys.argv[1])).down()


if __name__ == "__main__":
    main()
