"""Environment of benchmarks: a cluster of this machine, and the processor time that all its processes used.

The members' JVMs are set to compile as servers do: the local cluster's own options make members start quickly, which
is the opposite of what a measurement wants.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.local_cluster.state import ClusterAddresses

from tests.cluster.choosing import named_cluster
from tests.cluster.sidecars import Sidecars

SERVER_OPTIONS = ("-XX:TieredStopAtLevel=4", "-Xmx512m")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_QUIET_LOOK_SECONDS = 0.4
_QUIET_SHARE = 0.25
_QUIET_PATIENCE_SECONDS = 20.0


def add_cluster_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", type=Path, help="a file with what `local-cluster up --json` printed")


def add_control_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--control", type=Path, help="a directory with another version's package, measured first")


def versions(control: Path | None) -> dict[str, dict[str, str]]:
    """The environment of each version's sidecar, by its name."""
    return {**({} if control is None else {"before": {"PYTHONPATH": str(control)}}), "now": {}}


def add_drain_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a drain's cluster, common to all its benchmarks."""
    parser.add_argument("--topics", type=int, default=20, help="the topics that they belong to, all of them loaded")
    add_cluster_argument(parser)


@contextmanager
def benchmark_cluster(named: Path | None, **broker_conf: str) -> Iterator[ClusterAddresses]:
    """ZooKeeper, two bookies, two brokers with these settings.

    ``named`` is a file with what ``local-cluster up --json`` printed; that cluster keeps its settings.
    """
    if named is not None:
        yield named_cluster(str(named))
        return
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-benchmark-") as scratch:
        spec = ClusterSpec(
            Path(scratch) / "cluster", broker_conf=broker_conf, java_options=SERVER_OPTIONS, ends_with_starter=True
        )
        with LocalCluster.up(spec) as cluster:
            yield cluster.addresses()


@contextmanager
def benchmark_sidecars(named: Path | None, **broker_conf: str) -> Iterator[tuple[ClusterAddresses, Sidecars]]:
    """A `benchmark_cluster`, and sidecars beside it that end with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="pulsar-sidecar-benchmark-") as scratch,
        benchmark_cluster(named, **broker_conf) as addresses,
    ):
        sidecars = Sidecars(addresses, Path(scratch))
        try:
            yield addresses, sidecars
        finally:
            sidecars.close()


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far (``/proc/<pid>/stat``)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def resident_mb(pid: int, field: str = "VmRSS") -> float:
    """Memory of a process that is in use now, or was at the highest (``VmHWM``), in MiB."""
    fields = Path(f"/proc/{pid}/status").read_text().split(f"{field}:")[1].split()
    return int(fields[0]) / 1024


class ProcessorTime:
    """Processor time of several processes since its creation, by name."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._before = {name: processor_seconds(pid) for name, pid in pids.items()}

    def used(self) -> dict[str, float]:
        """Seconds by name."""
        return {name: processor_seconds(pid) - self._before[name] for name, pid in self._pids.items()}


def wait_until_quiet(addresses: ClusterAddresses) -> None:
    """Let the members finish earlier requests: watches receive every node's event, long after its change."""
    give_up = time.monotonic() + _QUIET_PATIENCE_SECONDS
    while time.monotonic() < give_up:
        used = ProcessorTime(addresses.members)
        time.sleep(_QUIET_LOOK_SECONDS)
        if sum(used.used().values()) < _QUIET_SHARE * _QUIET_LOOK_SECONDS:
            return
