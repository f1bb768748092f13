"""Needs of a whole sidecar beside this many topics: memory, and seconds until it is ready, has deleted and watches.

The nodes are real, in a real ZooKeeper beside one bookie and one broker: for each topic a list, a cursor, a schema and
ten ledgers. Brokers have loaded none of them, but one more topic, which is deleted as soon as the sidecar is ready.
The sidecar has its defaults, with everything switched on.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import requests
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec

from tests.benchmarks.clusters import add_control_argument, processor_seconds, resident_mb, versions
from tests.benchmarks.leak_watch import MadeTopics, fill_zookeeper
from tests.cluster.patience import until
from tests.cluster.sidecars import BASE, SidecarProcess, Sidecars
from tests.reporting import Table

NAME = "capacity"
_SETTINGS = {"ledger_deletion_watch": "append", "delayed_message_cancelling_enabled": "true"}
_HEAP_BYTES_OF_A_TOPIC = 16_000
"""ZooKeeper's, for 13 nodes."""
_FILLED_AT_ONCE = ("-Xmn256m", "-Dzookeeper.snapCount=100000000", "-Dzookeeper.forceSync=no")
"""A ZooKeeper that grows its heap and writes everything again after each 100,000 nodes loses its sessions meanwhile."""
_PATIENCE_SECONDS = 1_200
_FIRST_DELETED = "/admin/v2/persistent/public/default/deleted-first"
_GONE = 404
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Needs:
    """One sidecar: seconds until ready, from then to the deletion, and until watching; processor seconds and MiB."""

    version: str
    topics: int
    ready: float
    deleted: float
    watching: float
    used: float
    resident: float
    rested: float
    peak: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topics", type=int, nargs="+", default=[0, 10_000, 100_000])
    parser.add_argument("--rest-seconds", type=float, default=60.0)
    add_control_argument(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    tried = versions(arguments.control)
    found = [each for topics in arguments.topics for each in _needs(topics, tried, arguments.rest_seconds)]
    rows = [
        (
            each.version,
            f"{each.topics:,}",
            f"{each.ready:.1f}",
            f"{each.deleted:.1f}",
            f"{each.watching:.1f}",
            f"{each.used:.1f}",
            f"{each.resident:.0f} MB",
            f"{each.rested:.0f} MB",
            f"{each.peak:.0f} MB",
        )
        for each in found
    ]
    rest = f"{arguments.rest_seconds:.0f} s later"
    header = (
        "version",
        "topics",
        "ready after s",
        "deletion s",
        "watching after s",
        "processor s",
        "memory then",
        rest,
        "peak",
    )
    notes = (f"Load of the machine in the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",)
    return [Table("A sidecar beside so many topics", header, rows, notes)]


def _needs(topics: int, tried: Mapping[str, dict[str, str]], rest_seconds: float) -> Iterator[_Needs]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-capacity-")))
        megabytes = max(1_000, topics * _HEAP_BYTES_OF_A_TOPIC // 1_000_000)
        options = (f"-Xms{megabytes}m", f"-Xmx{megabytes}m", *_FILLED_AT_ONCE)
        spec = ClusterSpec(scratch / "cluster", brokers=1, bookies=1, java_options=options, ends_with_starter=True)
        addresses = stack.enter_context(LocalCluster.up(spec)).addresses()
        fill_zookeeper(addresses.metadata_store_url, MadeTopics(topics))
        sidecars = Sidecars(addresses, scratch)
        stack.callback(sidecars.end_all)
        for version, environment in tried.items():
            requests.put(addresses.web_service_urls[0] + _FIRST_DELETED, timeout=_SECONDS).raise_for_status()
            yield _need(version, topics, sidecars, environment, rest_seconds)
            sidecars.end_all()


def _need(version: str, topics: int, sidecars: Sidecars, environment: Mapping[str, str], rest_seconds: float) -> _Needs:
    started = time.monotonic()
    sidecar = sidecars.start_with_defaults_in(environment, **_SETTINGS)
    ready = time.monotonic()
    until(lambda: sidecar.request("DELETE", _FIRST_DELETED).status_code == _GONE, "the topic is gone")
    deleted = time.monotonic()
    until(lambda: _watches(sidecar), "the sidecar watches", _PATIENCE_SECONDS)
    watching, used = time.monotonic() - started, processor_seconds(sidecar.pid)
    resident = resident_mb(sidecar.pid)
    time.sleep(rest_seconds)
    peak = int(Path(f"/proc/{sidecar.pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    rested = resident_mb(sidecar.pid)
    return _Needs(version, topics, ready - started, deleted - ready, watching, used, resident, rested, peak)


def _watches(sidecar: SidecarProcess) -> bool:
    return bool(sidecar.call("GET", f"{BASE}/watch")["state"] == "watching")
