"""Topics deleted at the brokers, through the sidecar, and by a bare program with the same steps, in one run.

The bare program is the control: what a process in Python needs for the steps of one deletion, without sharing anything
between deletions and without the checks. Contenders take turns, each with topics of its own: one message each, no
subscription, loaded.
"""

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pulsar
import requests
from kazoo.client import KazooClient
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.local_cluster.state import ClusterAddresses

from tests.benchmarks.clusters import (
    ProcessorTime,
    add_cluster_argument,
    benchmark_sidecars,
    resident_mb,
    wait_until_quiet,
)
from tests.cluster.clients import PatientClient
from tests.cluster.sidecars import SidecarProcess
from tests.cluster.topics import unique
from tests.reporting import Table

NAME = "topic-deletion"
_TENANT = "public"
_MAKERS = 8
_AT_ONCE = (1, 10, 50)
_TIMED_ALONE = 25
_REQUEST_SECONDS = 300
_BROKERS, _SIDECAR, _BARE = "brokers", "the sidecar", "bare program"
_PROCESSES = (_SIDECAR, _BARE, "zookeeper", "bookie", "broker")
"""Beginnings of processes' names."""

Delete = Callable[[str], float]
"""Deletes a topic by its path below ``/admin/v2/persistent`` and returns the time that it took, in seconds."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One contender's deletions: how many a second, how long each took, and their processor time, in milliseconds."""

    per_second: float
    took_ms: Sequence[float]
    processor_ms: Mapping[str, float]
    """For each deletion, by process."""

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.took_ms)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deletions", type=int, default=150, help="for each contender, round and number at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--grow", default="100,20000", help="sizes of namespaces to delete one topic at a time in")
    parser.add_argument("--partitions", type=int, default=100, help="of a partitioned topic")
    parser.add_argument("--whole", type=int, default=2_000, help="topics of a namespace that is deleted as a whole")
    add_cluster_argument(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with ExitStack() as stack:
        addresses, sidecars = stack.enter_context(
            benchmark_sidecars(arguments.cluster, forceDeleteNamespaceAllowed="true")
        )
        cluster = stack.enter_context(closing(_Cluster(addresses, sidecars.start_with_defaults())))
        for delete in cluster.contenders.values():
            cluster.turn(delete, 30, 4)
        tables = _pace(cluster, arguments.deletions, arguments.rounds)
        sizes = [int(size) for size in arguments.grow.split(",") if size]
        if sizes:
            tables.append(_growth(cluster, sizes))
        if arguments.partitions:
            tables.append(_partitioned(cluster, arguments.partitions, arguments.rounds))
        if arguments.whole:
            tables.append(_whole(cluster, arguments.whole))
        return tables


class _Cluster:
    """Makes topics, and deletes them by each contender."""

    def __init__(self, addresses: ClusterAddresses, sidecar: SidecarProcess) -> None:
        self.addresses = addresses
        self.sidecar = sidecar
        self._web = addresses.web_service_urls[0]
        self._client = PatientClient(addresses)
        self._bare = _BareProgram(addresses, self._client)
        self.contenders: dict[str, Delete] = {
            _BROKERS: _asking(self._web),
            _SIDECAR: _asking(sidecar.url),
            _BARE: self._bare.delete,
        }

    def close(self) -> None:
        self._bare.close()
        self._client.close()

    def namespace(self, topics: int = 0) -> str:
        """A new namespace with this many topics, none of them loaded."""
        name = f"{_TENANT}/{unique()}"
        requests.put(f"{self._web}/admin/v2/namespaces/{name}", json={}, timeout=_REQUEST_SECONDS).raise_for_status()
        paths = [f"{name}/filling-{number}" for number in range(topics)]
        with ThreadPoolExecutor(_MAKERS) as pool:
            list(pool.map(self._create, paths))
        return name

    def loaded(self, namespace: str, count: int) -> list[str]:
        """Topics with one message each."""
        paths = [f"{namespace}/{unique()}" for _ in range(count)]
        with ThreadPoolExecutor(_MAKERS) as pool:
            list(pool.map(self._fill, paths))
        return paths

    def partitioned(self, namespace: str, partitions: int) -> str:
        path = f"{namespace}/{unique()}"
        self._create(f"{path}/partitions", partitions)
        for index in range(partitions):
            self._fill(f"{path}-partition-{index}")
        return f"{path}/partitions"

    def turn(self, delete: Delete, count: int, at_once: int) -> Turn:
        paths = self.loaded(self.namespace(), count)
        wait_until_quiet(self.addresses)
        pids = {**self.addresses.members, _SIDECAR: self.sidecar.pid, _BARE: os.getpid()}
        used, began = ProcessorTime(pids), time.monotonic()
        with ThreadPoolExecutor(at_once) as pool:
            took = list(pool.map(delete, paths))
        per_second = count / (time.monotonic() - began)
        shares = {name: 1000 * seconds / count for name, seconds in used.used().items()}
        return Turn(per_second, [1000 * each for each in took], shares)

    def _create(self, path: str, partitions: int | None = None) -> None:
        url = f"{self._web}/admin/v2/persistent/{path}"
        requests.put(url, json=partitions, timeout=_REQUEST_SECONDS).raise_for_status()

    def _fill(self, path: str) -> None:
        producer = self._client.create_producer(f"persistent://{path}")
        producer.send(b"x")
        producer.close()


def _asking(url: str) -> Delete:
    local = threading.local()

    def delete(path: str) -> float:
        session = local.__dict__.setdefault("session", requests.Session())
        began = time.monotonic()
        answer = session.delete(f"{url}/admin/v2/persistent/{path}", timeout=_REQUEST_SECONDS)
        took = time.monotonic() - began
        if answer.status_code != requests.codes.no_content:
            raise RuntimeError(f"{url} did not delete {path}: {answer.status_code} {answer.text}")
        return took

    return delete


class _BareProgram:
    """The steps of one deletion and nothing else.

    Node, children, schema and partitions are read together, a node is written, the topic is loaded and its shadows are
    asked for, its node is read again, two records go out by a shared producer, the broker is asked, a look, a note.
    """

    def __init__(self, addresses: ClusterAddresses, client: pulsar.Client) -> None:
        self._zookeeper = KazooClient(parse_metadata_store_url(addresses.metadata_store_url).hosts)
        self._zookeeper.start()
        self._zookeeper.ensure_path("/bare-program")
        self._web = addresses.web_service_urls[0]
        self._producer = client.create_producer(
            f"persistent://{_TENANT}/default/bare-program-{unique()}",
            batching_enabled=True,
            batching_max_publish_delay_ms=2,
        )
        self._ask = _asking(self._web)
        self._local = threading.local()

    def close(self) -> None:
        self._producer.close()
        self._zookeeper.stop()
        self._zookeeper.close()

    def delete(self, path: str) -> float:
        namespace, _, name = path.rpartition("/")
        node = f"/managed-ledgers/{namespace}/persistent/{name}"
        began, zookeeper = time.monotonic(), self._zookeeper
        reads = [zookeeper.get_async(node), zookeeper.get_children_async(node)]
        reads += [
            zookeeper.exists_async(each)
            for each in (f"/schemas/{path}", f"/admin/partitioned-topics/{namespace}/persistent/{name}")
        ]
        for read in reads:
            read.get()
        promise = f"/bare-program/{name}"
        zookeeper.create(promise, b"x" * 400)
        session = self._local.__dict__.setdefault("session", requests.Session())
        for asked in ("stats", "shadowTopics"):
            session.get(f"{self._web}/admin/v2/persistent/{path}/{asked}", timeout=_REQUEST_SECONDS)
        for read in (zookeeper.get_async(node), zookeeper.get_children_async(node)):
            read.get()
        for stored in [self._publish(b"r" * 300) for _ in range(2)]:
            stored.wait()
        self._ask(path)
        zookeeper.exists(node)
        zookeeper.delete(promise)
        self._publish(b"note" * 50)
        return time.monotonic() - began

    def _publish(self, data: bytes) -> threading.Event:
        stored = threading.Event()
        self._producer.send_async(data, lambda result, message_id: stored.set())
        return stored


def _pace(cluster: _Cluster, count: int, rounds: int) -> list[Table]:
    rows, shares = [], []
    for at_once in _AT_ONCE:
        turns: dict[str, list[Turn]] = {name: [] for name in cluster.contenders}
        for _ in range(rounds):
            for name, delete in cluster.contenders.items():
                turns[name].append(cluster.turn(delete, count, at_once))
        rates = {name: statistics.median(turn.per_second for turn in found) for name, found in turns.items()}
        waits = {name: statistics.median(turn.p50_ms for turn in found) for name, found in turns.items()}
        cells = [f"{rates[name]:.1f}/s, {waits[name]:.0f} ms" for name in cluster.contenders]
        ratios = [f"{rates[name] / rates[_BROKERS]:.2f}" for name in (_SIDECAR, _BARE)]
        rows.append((str(at_once), *cells, *ratios))
        shares += [(str(at_once), name, *_processor_cells(found)) for name, found in turns.items()]
    return [
        Table(
            f"{count} topics deleted, medians of {rounds} rounds",
            ("at once", *cluster.contenders, f"{_SIDECAR} to {_BROKERS}", f"{_BARE} to {_BROKERS}"),
            rows,
        ),
        Table(
            "Processor time of a deletion, ms",
            ("at once", "", *_PROCESSES, "all", "of the machine"),
            shares,
            [f"{_BARE} is this process, which also sends the others' requests."],
        ),
    ]


def _processor_cells(turns: Sequence[Turn]) -> list[str]:
    by_process = [
        statistics.median(
            sum(ms for name, ms in turn.processor_ms.items() if name.startswith(process)) for turn in turns
        )
        for process in _PROCESSES
    ]
    busy = sum(by_process) / 1000 * statistics.median(turn.per_second for turn in turns) / (os.cpu_count() or 1)
    return [*(f"{ms:.1f}" for ms in by_process), f"{sum(by_process):.1f}", f"{busy:.0%}"]


def _growth(cluster: _Cluster, sizes: Sequence[int]) -> Table:
    rows = []
    for size in sizes:
        namespace = cluster.namespace(size)
        waits = []
        for name in (_BROKERS, _SIDECAR):
            paths = cluster.loaded(namespace, _TIMED_ALONE)
            wait_until_quiet(cluster.addresses)
            waits.append(1000 * statistics.median(map(cluster.contenders[name], paths)))
        rows.append((f"{size:,}", *(f"{wait:.0f} ms" for wait in waits)))
    return Table("One topic deleted at a time, p50", ("topics in the namespace", _BROKERS, _SIDECAR), rows)


def _partitioned(cluster: _Cluster, partitions: int, rounds: int) -> Table:
    waits: dict[str, list[float]] = {_BROKERS: [], _SIDECAR: []}
    for _ in range(rounds):
        for name, found in waits.items():
            path = cluster.partitioned(cluster.namespace(), partitions)
            wait_until_quiet(cluster.addresses)
            found.append(cluster.contenders[name](path))
    row = [f"{statistics.median(found):.2f} s" for found in waits.values()]
    return Table(f"A topic with {partitions} partitions, median of {rounds}", list(waits), [row])


def _whole(cluster: _Cluster, count: int) -> Table:
    """Unloaded topics of two namespaces: one is deleted as a whole, the topics of the other one by one."""
    waits, memory = {}, {}
    for how, delete in ((f"its topics one by one, {_AT_ONCE[-1]} at once", _one_by_one), ("as a whole", _as_a_whole)):
        namespace = cluster.namespace(count)
        wait_until_quiet(cluster.addresses)
        began = time.monotonic()
        delete(cluster, namespace, count)
        waits[how] = time.monotonic() - began
        memory[how] = resident_mb(cluster.sidecar.pid)
    rows = [(how, f"{wait:.1f} s", f"{count / wait:.0f}/s", f"{memory[how]:.0f} MB") for how, wait in waits.items()]
    header = ("", "took", "topics", "the sidecar's memory after it")
    return Table(f"A namespace of {count:,} topics deleted by the sidecar", header, rows)


def _one_by_one(cluster: _Cluster, namespace: str, count: int) -> None:
    paths = [f"{namespace}/filling-{number}" for number in range(count)]
    with ThreadPoolExecutor(_AT_ONCE[-1]) as pool:
        list(pool.map(cluster.contenders[_SIDECAR], paths))


def _as_a_whole(cluster: _Cluster, namespace: str, _: int) -> None:
    url = f"{cluster.sidecar.url}/admin/v2/namespaces/{namespace}"
    while True:
        answer = requests.delete(url, params={"force": "true"}, timeout=_REQUEST_SECONDS)
        if answer.status_code == requests.codes.no_content:
            return
        if answer.status_code != requests.codes.accepted:
            raise RuntimeError(f"{url}: {answer.status_code} {answer.text}")
