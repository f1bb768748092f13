"""The first answer of the index of shadows: how long a sidecar's first deletion waits for the reading of all topics.

The topics are made up, in a real ZooKeeper: each a list of eight ledgers with a cursor, a thousand in a namespace. A
lost connection costs the same reading. The control reads as the index did before: the lists of fifty namespaces,
then five hundred nodes at a time, each request after the answer to the last, and it parses each topic's name.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from kazoo.client import KazooClient
from pulsar_sidecar.adapters.metadata_access import DEFAULT_OPTIONS
from pulsar_sidecar.adapters.metadata_stores import ClusterStore, open_store, open_topic_changes, open_whole_store
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.features.ledger_deletion.topic_deletion.known_shadows import KnownShadows
from pulsar_sidecar.features.ledger_deletion.workflow.shadow_index import ShadowIndex
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.names import parse_topic_name, topic_of_managed_ledger
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT

from tests.benchmarks.changes import OTHER, child, ended, other_client
from tests.benchmarks.leak_watch import MadeTopics
from tests.cluster.orphans import create_nodes
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topics", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-benchmark-")))
        spec = ClusterSpec(
            scratch / "cluster", brokers=0, bookies=0, java_options=_SERVER_OPTIONS, ends_with_starter=True
        )
        url = stack.enter_context(LocalCluster.up(spec)).addresses().metadata_store_url
        _fill(url, arguments.topics)
        store = stack.enter_context(open_store(url, _CLOCK))
        contenders: dict[str, Callable[[], int]] = {
            "control: 500 nodes after 500": lambda: _one_after_the_other(store),
            "index": lambda: _first_answer(url, store),
        }
        contenders["index"]()
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        read: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(arguments.rounds):
            for name, work in contenders.items():
                with child(other_client, url) as other:
                    started, used = time.monotonic(), time.process_time()
                    if work():
                        raise RuntimeError("there is no shadow; the figures are worthless")
                    took[name].append((time.monotonic() - started, time.process_time() - used))
                    read[name] += ended(other)[0]
    rows = []
    for name, pairs in took.items():
        seconds, used_seconds = [each for each, _ in pairs], statistics.median(each for _, each in pairs)
        span = f"{min(seconds):.1f} to {max(seconds):.1f}"
        million = used_seconds * _MILLION / arguments.topics
        p99 = statistics.quantiles(read[name], n=100)[-1] * 1000
        cells = (f"{statistics.median(seconds):.1f}", span, f"{used_seconds:.1f}", f"{million:.1f}", f"{p99:.1f} ms")
        rows.append((name, *cells))
    header = ("", "seconds", "range", "processor s", "for a million", "another client's p99")
    notes = (f"Load of the machine in the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",)
    return [Table(f"The first answer among {arguments.topics:,} topics", header, rows, notes)]


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


def _first_answer(url: str, store: ClusterStore) -> int:
    stop = threading.Event()
    with closing(open_topic_changes(url, _CLOCK, DEFAULT_OPTIONS)) as changes:
        whole = open_whole_store(url, _CLOCK, DEFAULT_LEDGERS_ROOT)
        index = ShadowIndex(store, whole, changes, _CLOCK, stop, patience_seconds=_PATIENCE_SECONDS)
        running = threading.Thread(target=index.run)
        running.start()
        try:
            return len(index.shadows_of({_SOURCE}))
        finally:
            stop.set()
            index.wake()
            running.join()


def _one_after_the_other(store: ClusterStore) -> int:
    known = KnownShadows()
    folders = [f"{_CLUSTER}/{namespace}/persistent" for namespace in store.children(_CLUSTER) or ()]
    for some in _some(folders, 50):
        lists = zip(some, store.children_many(some), strict=True)
        for paths in _some([f"{folder}/{name}" for folder, names in lists for name in names or ()], 500):
            for path, node in zip(paths, store.read_many(paths), strict=True):
                topic_of_managed_ledger(path.removeprefix("/managed-ledgers/"))
                known.note(path, None if node is None else node.data)
    return len(known.of({_SOURCE}))


def _some(paths: Sequence[str], count: int) -> Iterator[Sequence[str]]:
    return (paths[start : start + count] for start in range(0, len(paths), count))
