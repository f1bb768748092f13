"""``python -m tests.kubernetes [COMMAND ...]``: the tests on Kubernetes, or a command of yours where they would run.

With KUBECONFIG set, that cluster is used. This process must reach its pods and services by address and by name, as on a
node or in a pod; and it pulls the project's images from ``PULSAR_SIDECAR_TEST_REGISTRY``, a prefix of their names.
Without KUBECONFIG a node is started for the command and ends with it, which needs root. ``python -m tests.kubernetes
bash`` is a shell beside one, with kubectl and helm.
"""

import os
import subprocess
import sys

from tests.cluster.go_tools import ToolMissingError
from tests.kubernetes.node import is_inside, run_inside, run_on_a_node

_TESTS = (sys.executable, "-m", "pytest", "--tb=short", "-rs", "-m", "kubernetes", "tests/kubernetes", "tests/e2e")


def main() -> int:
    command = sys.argv[1:] or _TESTS
    if is_inside():
        return run_inside(command)
    if os.environ.get("KUBECONFIG"):
        return subprocess.run(command, check=False).returncode
    if os.geteuid():
        return _refused("a node of Kubernetes can only be started by root: choose a cluster by KUBECONFIG, or use sudo")
    try:
        return run_on_a_node(command)
    except ToolMissingError as error:
        return _refused(str(error))


def _refused(reason: str) -> int:
    sys.stderr.write(f"{reason}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
