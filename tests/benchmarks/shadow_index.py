"""The first response of the index of shadows: how long a sidecar's first deletion waits for the reading of all topics.

The topics are made up, in a real ZooKeeper: each a list of eight ledgers with a cursor, a thousand in a namespace. A
lost connection costs the same reading. The control knows all topics' paths, asks for as many nodes at a time and
decodes none: so fast can this ZooKeeper answer one client. Each reader is a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.handlers.threading import AsyncResult
from pulsar_sidecar.adapters.metadata_access import DEFAULT_OPTIONS
from pulsar_sidecar.adapters.metadata_stores import open_store, open_topic_changes, open_whole_store
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.adapters.zookeeper.multiread import GET_DATA, ask
from pulsar_sidecar.features.ledger_deletion.workflow.shadow_index import ShadowIndex
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT

from tests.benchmarks.changes import OTHER, child, ended, other_client
from tests.benchmarks.clusters import add_control_argument, processor_seconds, versions
from tests.benchmarks.leak_watch import MadeTopics
from tests.cluster.orphans import create_nodes
from tests.contract.metadata_store_servers import raw_client
from tests.reporting import Table

NAME = "shadow_index"
_CLUSTER = "/managed-ledgers/orders-eu"
_TOPICS_OF_A_NAMESPACE = 1_000
_MILLION = 1_000_000
_SERVER_OPTIONS = ("-XX:TieredStopAtLevel=4", "-Xmn256m", "-Xmx4g", "-Dzookeeper.forceSync=no")
_SESSION_SECONDS = 40.0
_PATIENCE_SECONDS = 600.0
_SOURCE = parse_topic_name("persistent://orders-eu/checkout-0000/orders")
_CLOCK = SystemClock()
_NODES_AT_ONCE = 200
_REQUESTS_IN_FLIGHT = 8
_COSTS = ("seconds", "used", "of_server")


@dataclass(frozen=True, slots=True)
class _Round:
    """Seconds until the response, the reader's and the server's processor seconds, and another client's latencies."""

    seconds: float
    used: float
    of_server: float
    reads: Sequence[float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topics", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    add_control_argument(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-benchmark-")))
        spec = ClusterSpec(
            scratch / "cluster", brokers=0, bookies=0, java_options=_SERVER_OPTIONS, ends_with_starter=True
        )
        addresses = stack.enter_context(LocalCluster.up(spec)).addresses()
        url, server = addresses.metadata_store_url, next(iter(addresses.members.values()))
        _fill(url, arguments.topics)
        readers = {f"index, {version}": ("index", path) for version, path in versions(arguments.control).items()}
        readers["control: no decoding"] = ("control", {})
        _read(url, "index", {})
        rounds: dict[str, list[_Round]] = {name: [] for name in readers}
        for _ in range(arguments.rounds):
            for name, (reader, environment) in readers.items():
                with child(other_client, url) as other:
                    before = processor_seconds(server)
                    seconds, used = _read(url, reader, environment)
                    of_server = processor_seconds(server) - before
                    rounds[name].append(_Round(seconds, used, of_server, ended(other)[0]))
    rows = []
    for name, some in rounds.items():
        seconds, used, of_server = ([getattr(each, cost) for each in some] for cost in _COSTS)
        million = statistics.median(used) * _MILLION / arguments.topics
        p99 = statistics.quantiles([read for each in some for read in each.reads], n=100)[-1] * 1000
        span = f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
        rows.append(
            (name, span, *(f"{each:.1f}" for each in (*map(statistics.median, (used, of_server)), million, p99)))
        )
    header = ("", "seconds", "processor s", "ZooKeeper's", "for a million", "another client's p99, ms")
    notes = (f"Load of the machine in the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",)
    return [Table(f"The first answer among {arguments.topics:,} topics", header, rows, notes)]


def _read(url: str, reader: str, environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the seconds, and the processor's, that a reader in a process of its own takes."""
    command = [sys.executable, "-m", __name__, url, reader]
    answer = subprocess.run(command, env={**os.environ, **environment}, check=True, stdout=subprocess.PIPE).stdout
    # The index logs to the same place.
    seconds, used = json.loads(answer.splitlines()[-1])
    return seconds, used


def _fill(url: str, topics: int) -> None:
    kazoo = KazooClient(parse_metadata_store_url(url).hosts, timeout=_SESSION_SECONDS)
    kazoo.start()
    try:
        for path in (OTHER, "/admin/partitioned-topics"):
            kazoo.ensure_path(path)
        number = 0
        for piece in MadeTopics(topics).nodes():
            nodes: list[tuple[str, bytes]] = []
            for made, cursor in zip(piece[::3], piece[1::3], strict=True):
                folder = f"{_CLUSTER}/checkout-{number // _TOPICS_OF_A_NAMESPACE:04d}/persistent"
                if number % _TOPICS_OF_A_NAMESPACE == 0:
                    kazoo.ensure_path(folder)
                path = f"{folder}/{made.path.rpartition('/')[2]}"
                nodes += [(path, made.data), (f"{path}/fulfilment-worker", cursor.data)]
                number += 1
            create_nodes(kazoo, nodes)
    finally:
        kazoo.stop()
        kazoo.close()


def _first_answer(url: str) -> Sequence[object]:
    stop = threading.Event()
    with (
        open_store(url, _CLOCK) as store,
        closing(open_topic_changes(url, _CLOCK, DEFAULT_OPTIONS)) as changes,
    ):
        whole = open_whole_store(url, _CLOCK, DEFAULT_LEDGERS_ROOT)
        index = ShadowIndex(store, whole, changes, _CLOCK, stop, patience_seconds=_PATIENCE_SECONDS)
        running = threading.Thread(target=index.run)
        running.start()
        try:
            return index.shadows_of({_SOURCE})
        finally:
            stop.set()
            index.wake()
            running.join()


def _answers(client: KazooClient, paths: Sequence[str]) -> None:
    in_flight: deque[AsyncResult[object]] = deque()
    for start in range(0, len(paths), _NODES_AT_ONCE):
        in_flight.append(ask(client, paths[start : start + _NODES_AT_ONCE], GET_DATA))
        if len(in_flight) == _REQUESTS_IN_FLIGHT:
            in_flight.popleft().get()
    for answer in in_flight:
        answer.get()


def _main(url: str, reader: str) -> None:
    with raw_client(url) as client:
        folders = [f"{_CLUSTER}/{each}/persistent" for each in client.get_children(_CLUSTER)]
        paths = [f"{folder}/{name}" for folder in folders for name in client.get_children(folder)]
        started, used = time.monotonic(), time.process_time()
        if reader == "control":
            _answers(client, paths)
        elif _first_answer(url):
            raise RuntimeError("there is a shadow; the figures are worthless")
        sys.stdout.write(f"\n{json.dumps([time.monotonic() - started, time.process_time() - used])}\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
