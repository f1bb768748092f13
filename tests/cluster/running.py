"""A cluster that tests use and, if they started it themselves, break on purpose.

Invariant: a test that breaks a member never touches a cluster of others; it is skipped with a reason.
"""

import signal
from typing import Protocol

import pytest
from pulsar_sidecar.local_cluster.cluster import LocalCluster, last_lines
from pulsar_sidecar.local_cluster.state import ClusterAddresses

from tests.cluster.compose import Compose
from tests.cluster.freezing import wait_until_frozen

BROKERS = ("broker-1", "broker-2")
"""Brokers of most clusters of tests."""


class ClusterUnderTest(Protocol):
    """A cluster's addresses, and ways to break it; members are named ``zookeeper``, ``bookie-1``, ``broker-2``."""

    @property
    def addresses(self) -> ClusterAddresses:
        """Addresses; process ids change with a restart, addresses do not."""
        ...

    def kill(self, name: str) -> None:
        """Kill a member (SIGKILL) and wait until it has ended."""
        ...

    def stop(self, name: str) -> None:
        """Freeze a member."""
        ...

    def cont(self, name: str) -> None:
        """Resume a frozen member."""
        ...

    def restart(self, name: str) -> None:
        """Restart a member and wait until it is ready."""
        ...

    def is_running(self, name: str) -> bool:
        """Return True if a member's process exists."""
        ...

    def log(self, name: str, lines: int = 40) -> str:
        """Return the last lines of a member's log."""
        ...


class LocalClusterUnderTest:
    """A cluster of processes on this machine."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    @property
    def addresses(self) -> ClusterAddresses:
        return self._cluster.addresses()

    def kill(self, name: str) -> None:
        self._cluster.kill(name)

    def stop(self, name: str) -> None:
        self._cluster.kill(name, signal.SIGSTOP)
        wait_until_frozen(self.addresses.members[name])

    def cont(self, name: str) -> None:
        self._cluster.kill(name, signal.SIGCONT)

    def restart(self, name: str) -> None:
        self._cluster.restart(name)

    def is_running(self, name: str) -> bool:
        return self._cluster.is_running(name)

    def log(self, name: str, lines: int = 40) -> str:
        return last_lines(self._cluster.log_path(name), lines)


class ComposeClusterUnderTest:
    """The services of ``docker-compose.yml``, named like their members."""

    def __init__(self, addresses: ClusterAddresses, compose: Compose) -> None:
        self._addresses = addresses
        self._compose = compose

    @property
    def addresses(self) -> ClusterAddresses:
        return self._addresses

    def kill(self, name: str) -> None:
        self._compose.run("kill", "--signal", "SIGKILL", name)

    def stop(self, name: str) -> None:
        self._compose.run("pause", name)

    def cont(self, name: str) -> None:
        self._compose.run("unpause", name)

    def restart(self, name: str) -> None:
        self._compose.run("stop", "--timeout", "15", name)
        self._compose.run("up", "--detach", "--no-deps", "--wait", name)

    def is_running(self, name: str) -> bool:
        return bool(self._compose.run("ps", "--quiet", "--status", "running", name).strip())

    def log(self, name: str, lines: int = 40) -> str:
        return self._compose.run("logs", "--no-color", "--tail", str(lines), name)


class ExternalClusterUnderTest:
    """A cluster that others started, which tests use and never break."""

    def __init__(self, addresses: ClusterAddresses) -> None:
        self._addresses = addresses

    @property
    def addresses(self) -> ClusterAddresses:
        return self._addresses

    def kill(self, name: str) -> None:
        _refuse("kill", name)

    def stop(self, name: str) -> None:
        _refuse("freeze", name)

    def cont(self, name: str) -> None:
        _refuse("continue", name)

    def restart(self, name: str) -> None:
        _refuse("restart", name)

    def is_running(self, name: str) -> bool:
        return name in self._addresses.members

    def log(self, name: str, lines: int = 40) -> str:
        return "(the log of a cluster that somebody else started is not read)"


def _refuse(verb: str, name: str) -> None:
    pytest.skip(
        f"this test would {verb} {name}, and the cluster of PULSAR_SIDECAR_TEST_CLUSTER is not the tests' own; "
        "unset the variable to run it on a cluster that the tests start"
    )
