"""Cost of receiving every change of ZooKeeper: the listener's processor time, and another client's latency.

One process changes topics' nodes at a steady rate; one listens, reads what changed and counts its ledgers, as the watch
for leaked ledgers does; one is the other client, which reads and writes a node of its own. Rounds with the listener,
with a control that is sent as much and does nothing with it, and with neither take turns on one server.
"""

import argparse
import multiprocessing
import socket
import statistics
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.handlers.threading import AsyncResult
from kazoo.protocol.states import ZnodeStat
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.adapters.zookeeper.zookeeper_changes import ZooKeeperChanges
from pulsar_sidecar.adapters.zookeeper.zookeeper_watches import AddWatch
from pulsar_sidecar.features.ledger_deletion.watch.reference_counts import ReferenceCounts
from pulsar_sidecar.features.ledger_deletion.workflow.watching import NODES_AT_ONCE
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.contract.metadata_store_servers import raw_client
from tests.reporting import Table

NAME = "changes"
_NODES = [f"/managed-ledgers/public/default/persistent/topic-{number:04d}" for number in range(2_000)]
OTHER = "/other"
_LEDGERS = [
    ml.ManagedLedgerInfo.LedgerInfo(ledgerId=number, entries=50_000, size=1 << 24) for number in range(100, 116)
]
_DATA = ml.ManagedLedgerInfo(ledgerInfo=_LEDGERS).SerializeToString()
_WINDOW = 200
_TAKE_SECONDS = 0.2
_TAKES_PER_ECHO = 5
_TAKES_PER_ECHO_AT_REST = 150
_OTHER_PAUSE_SECONDS = 0.005
_AT_REST_SECONDS = 60.0
_MILLISECONDS = 1000.0
_CLOCK = SystemClock()
_SERVER_OPTIONS = ("-XX:TieredStopAtLevel=4", "-Xmx512m")


@dataclass(slots=True)
class _Listened:
    """A listener's report of one round."""

    named: int = 0
    processor_seconds: float = 0.0
    echoes: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Rounds:
    """The other client's latencies in seconds, and how fast changes were made."""

    reads: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)
    seconds: float = 0.0
    changes: int = 0
    listened: list[_Listened] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=int, default=1_000, help="changes a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long a round lasts")
    parser.add_argument("--rounds", type=int, default=5, help="rounds with a listener, and as many without")
    parser.add_argument("--burst", type=int, default=50_000, help="changes made as fast as possible, at the end")


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-benchmark-") as scratch:
        spec = ClusterSpec(
            Path(scratch) / "cluster", brokers=0, bookies=0, java_options=_SERVER_OPTIONS, ends_with_starter=True
        )
        with LocalCluster.up(spec) as cluster, raw_client(cluster.addresses().metadata_store_url) as writer:
            url = cluster.addresses().metadata_store_url
            for path in (*_NODES, OTHER):
                _make(writer, path)
            listen = partial(_listen, _TAKES_PER_ECHO)
            _measure(writer, url, arguments, listen, _Rounds())
            without, control, heard = _Rounds(), _Rounds(), _Rounds()
            for _ in range(arguments.rounds):
                _measure(writer, url, arguments, None, without)
                _measure(writer, url, arguments, partial(_throw_away, arguments.rate), control)
                _measure(writer, url, arguments, listen, heard)
            burst = _burst(writer, url, arguments.burst)
            at_rest = _at_rest(url)
    return [_latency_table(without, control, heard), _listener_table(heard, burst, at_rest)]


def _make(writer: KazooClient, path: str) -> None:
    try:
        writer.create_async(path).get()
    except NodeExistsError:
        return
    except NoNodeError:
        _make(writer, path.rpartition("/")[0])
        _make(writer, path)


def _measure(
    writer: KazooClient,
    url: str,
    arguments: argparse.Namespace,
    beside: Callable[[str, Connection], None] | None,
    rounds: _Rounds,
) -> None:
    with child(other_client, url) as other:
        if beside is None:
            _change(writer, arguments, rounds)
        else:
            with child(beside, url) as client:
                _change(writer, arguments, rounds)
                rounds.listened += [ended(client)]
        reads, writes = ended(other)
    rounds.reads += reads
    rounds.writes += writes


def _change(writer: KazooClient, arguments: argparse.Namespace, rounds: _Rounds) -> None:
    started = time.monotonic()
    rounds.changes += _steadily(writer, arguments.rate, arguments.seconds)
    rounds.seconds += time.monotonic() - started


def _steadily(writer: KazooClient, rate: int, seconds: float) -> int:
    started = time.monotonic()
    count = 0
    in_flight: deque[AsyncResult[ZnodeStat]] = deque()
    while (elapsed := time.monotonic() - started) < seconds:
        while count < elapsed * rate:
            in_flight.append(writer.set_async(_NODES[count % len(_NODES)], _DATA))
            count += 1
        while len(in_flight) > _WINDOW:
            in_flight.popleft().get()
        time.sleep(0.002)
    for answer in in_flight:
        answer.get()
    return count


def _burst(writer: KazooClient, url: str, count: int) -> tuple[_Listened, float, int]:
    with child(partial(_listen, _TAKES_PER_ECHO), url) as listener:
        started = time.monotonic()
        _at_once(writer, count)
        listened = ended(listener)
        return listened, time.monotonic() - started, count


def _at_once(writer: KazooClient, count: int) -> None:
    in_flight: deque[AsyncResult[ZnodeStat]] = deque()
    for number in range(count):
        in_flight.append(writer.set_async(_NODES[number % len(_NODES)], _DATA))
        if len(in_flight) > _WINDOW:
            in_flight.popleft().get()
    for answer in in_flight:
        answer.get()


def _at_rest(url: str) -> _Listened:
    with child(partial(_listen, _TAKES_PER_ECHO_AT_REST), url) as listener:
        time.sleep(_AT_REST_SECONDS)
        listened: _Listened = ended(listener)
        return listened


# In processes of their own ---------------------------------------------------------------------------------------


def _listen(takes_per_echo: int, url: str, pipe: Connection) -> None:
    """Receive changes until asked to end; an echo precedes every n-th take, and the last."""
    listened = _Listened()
    balance = ReferenceCounts()
    with closing(ZooKeeperChanges(url, _CLOCK)) as changes, closing(ZooKeeperMetadataStore(url, _CLOCK)) as store:

        def hear() -> None:
            named = list(changes.take(0).nodes)
            listened.named += len(named)
            for start in range(0, len(named), NODES_AT_ONCE):
                paths = named[start : start + NODES_AT_ONCE]
                for path, node in zip(paths, store.read_many(paths), strict=True):
                    balance.read(path, None if node is None else node.data)

        changes.arm()
        changes.echo_seconds()
        changes.take(0)
        pipe.send("ready")
        started = time.process_time()
        takes = 0
        while not pipe.poll():
            time.sleep(_TAKE_SECONDS)
            if takes % takes_per_echo == 0:
                listened.echoes.append(changes.echo_seconds())
            hear()
            takes += 1
        changes.echo_seconds()
        hear()
        listened.processor_seconds = time.process_time() - started
    pipe.send(listened)


def _throw_away(rate: int, url: str, pipe: Connection) -> None:
    """The control: every change is sent here, as many nodes as change are read, and nothing is done with either."""
    listened = _Listened()
    with closing(ZooKeeperMetadataStore(url, _CLOCK)) as store, closing(_deaf_listener(url)) as events:
        pipe.send("ready")
        began, started = time.monotonic(), time.process_time()
        while not pipe.poll():
            time.sleep(_TAKE_SECONDS)
            with suppress(BlockingIOError):
                while events.recv(1 << 20):
                    pass
            while listened.named < (time.monotonic() - began) * rate:
                first = listened.named % len(_NODES)
                listened.named += len(store.read_many(_NODES[first : first + NODES_AT_ONCE]))
        listened.processor_seconds = time.process_time() - started
    pipe.send(listened)


def _deaf_listener(url: str) -> socket.socket:
    """A bare connection with a persistent recursive watch on managed ledgers, to be emptied now and then."""
    host, _, port = parse_metadata_store_url(url).hosts.partition(":")
    connection = socket.create_connection((host, int(port)))
    timeout_ms = 60_000
    for packet in (
        struct.pack("!iqiqi16s", 0, 0, timeout_ms, 0, 16, b""),
        struct.pack("!ii", 1, AddWatch.type) + AddWatch(MANAGED_LEDGERS.encode()).serialize(),
    ):
        connection.sendall(struct.pack("!i", len(packet)) + packet)
        assert connection.recv(1 << 16)
    connection.setblocking(False)
    return connection


def other_client(url: str, pipe: Connection) -> None:
    """Read and write the node `OTHER` until asked to end, and report the seconds of each."""
    reads: list[float] = []
    writes: list[float] = []
    with raw_client(url) as client:
        pipe.send("ready")
        while not pipe.poll():
            time.sleep(_OTHER_PAUSE_SECONDS)
            reads.append(_timed(lambda: client.get_async(OTHER)))
            writes.append(_timed(lambda: client.set_async(OTHER, _DATA)))
    pipe.send((reads, writes))


def _timed(call: "Callable[[], AsyncResult[Any]]") -> float:
    started = time.perf_counter()
    call().get()
    return time.perf_counter() - started


@contextmanager
def child(work: Callable[[str, Connection], None], url: str) -> Iterator[Connection]:
    """Run ``work`` in a process of its own, from its being ready on; `ended` ends it."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(url, there))
    process.start()
    assert here.recv() == "ready"
    yield here
    process.join()


def ended(pipe: Connection) -> Any:
    """Ask a child to end; return its report."""
    pipe.send("end")
    return pipe.recv()


# Reporting -------------------------------------------------------------------------------------------------------


def _latency_table(without: _Rounds, control: _Rounds, heard: _Rounds) -> Table:
    rows = []
    for name, rounds in (
        ("no other client", without),
        ("control: the same is sent, and thrown away", control),
        ("all changes are heard, their nodes read and counted", heard),
    ):
        cells = [_milliseconds(times, share) for times in (rounds.reads, rounds.writes) for share in (0.5, 0.99)]
        rows.append([name, f"{rounds.changes / rounds.seconds:,.0f}", *cells, f"{len(rounds.reads):,}"])
    return Table(
        "Another client of ZooKeeper while changes are heard",
        ("", "changes/s", "read p50", "p99", "write p50", "p99", "of each"),
        rows,
        ("The three kinds of rounds took turns.",),
    )


def _listener_table(heard: _Rounds, burst: tuple[_Listened, float, int], at_rest: _Listened) -> Table:
    steady = _Listened(
        sum(each.named for each in heard.listened),
        sum(each.processor_seconds for each in heard.listened),
        [echo for each in heard.listened for echo in each.echoes],
    )
    rows = [
        _listener_row("steady", heard.changes, steady, heard.seconds),
        _listener_row("as fast as one client writes", burst[2], burst[0], burst[1]),
        _listener_row("at rest", 0, at_rest, _AT_REST_SECONDS),
    ]
    note = (
        f"{1 / _TAKE_SECONDS:.0f} takes a second, an echo each second and at rest twice a minute; a node that changed "
        "more than once between two takes is named once."
    )
    return Table(
        "What the listener takes", ("", "changes/s", "named/s", "of a core", "echo p50", "longest"), rows, (note,)
    )


def _listener_row(name: str, changes: int, listened: _Listened, seconds: float) -> list[str]:
    echoes = [f"{found(listened.echoes) * _MILLISECONDS:.1f} ms" for found in (statistics.median, max)]
    share = listened.processor_seconds / seconds
    return [name, f"{changes / seconds:,.0f}", f"{listened.named / seconds:,.0f}", f"{share:.1%}", *echoes]


def _milliseconds(times: Sequence[float], share: float) -> str:
    return f"{statistics.quantiles(times, n=100)[round(share * 100) - 1] * _MILLISECONDS:.1f} ms"
