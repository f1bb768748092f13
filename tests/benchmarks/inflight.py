"""The estimate of what waits: latency of 500 requests a second, idle and while a backlog drains.

The generator is a process of its own that counts each latency from the moment at which the request was due
(`open_loop`). What is the machine's is measured against a server that answers the same bytes and does nothing else.
"""

import argparse
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.local_cluster.processes import LOOPBACK
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import SystemClock

from tests.benchmarks.clusters import add_drain_arguments, benchmark_sidecars, wait_until_quiet
from tests.benchmarks.drain import SidecarUnderLoad, backlog_gauge
from tests.cluster.open_loop import Latencies, joined, open_loop_client
from tests.cluster.orphans import OrphanMaker
from tests.reporting import Table

NAME = "inflight"
PATH = "/admin/v2/broker-stats/estimatedInflightDeletionLedgerCount"
_CLOCK = SystemClock()
_HEAD = ("", "ledgers/s", "p50", "p99", "slowest", "on the wire: p50", "p99")
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ledgers", type=int, default=50_000, help="for each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=500, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10, help="how long each is measured idle")
    add_drain_arguments(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with ExitStack() as stack:
        addresses, sidecars = stack.enter_context(benchmark_sidecars(arguments.cluster))
        maker = stack.enter_context(contextlib.closing(OrphanMaker(addresses, arguments.topics)))
        store = stack.enter_context(ZooKeeperMetadataStore(addresses.metadata_store_url, _CLOCK))
        sidecar = sidecars.start_with_defaults()
        in_front = sidecars.start_with_defaults(two_phase_deletion_consumer_enabled=False)
        drained = SidecarUnderLoad(sidecar, store, backlog_gauge(addresses))
        setup = _Setup(arguments, addresses, maker, drained)
        setup.drain()  # only warms up
        rows = []
        with _server_that_does_nothing() as port:
            rows += setup.idle_and_draining("a server that does nothing", LOOPBACK, port)
        for who, asked in (("the sidecar", sidecar), ("a sidecar without a consumer", in_front)):
            url = urlsplit(asked.url)
            rows += setup.idle_and_draining(who, str(url.hostname), int(url.port or 0))
    return [Table(f"{PATH} at {arguments.rate:.0f} requests/s", _HEAD, rows)]


@dataclass(frozen=True, slots=True)
class _Setup:
    """The cluster with the sidecar that drains."""

    arguments: argparse.Namespace
    addresses: ClusterAddresses
    maker: OrphanMaker
    drained: SidecarUnderLoad

    def idle_and_draining(self, who: str, host: str, port: int) -> list[tuple[str, ...]]:
        """Measure response times while nothing is deleted, and while the sidecar drains a backlog."""
        wait_until_quiet(self.addresses)
        with open_loop_client("http", host, port, self.arguments.rate, PATH) as client:
            client.over(2)
            idle = client.over(self.arguments.seconds)
            rates, taken = [], []
            for _ in range(self.arguments.rounds):
                rates.append(self.drain(client.take))
                taken.append(client.take())
        rate = f"{sum(rates) / len(rates):,.0f}"
        return [(f"{who}, idle", "", *_cells(idle)), (f"{who}, during the drain", rate, *_cells(joined(taken)))]

    def drain(self, begins: Callable[[], object] = lambda: None) -> float:
        """Ledgers a second; ``begins`` is called when all is prepared."""
        orphans = self.maker.make(self.arguments.ledgers)
        self.drained.record(orphans)
        wait_until_quiet(self.addresses)
        begins()
        return len(orphans) / self.drained.drain(orphans)


def _cells(latencies: Latencies) -> tuple[str, ...]:
    return *latencies.cells(), f"{latencies.wire().p(50):.2f} ms", f"{latencies.wire().p(99):.2f} ms"


@contextmanager
def _server_that_does_nothing() -> Iterator[int]:
    with socket.create_server((LOOPBACK, 0)) as listening:
        threading.Thread(target=_accept, args=(listening,), daemon=True).start()
        yield listening.getsockname()[1]
        # Closing a socket wakes no thread that waits in accept().
        listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(65_536):
            connection.sendall(_ANSWER * data.count(b"\r\n\r\n"))
