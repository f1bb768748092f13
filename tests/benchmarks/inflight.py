"""The estimate of what waits: latency of 500 requests a second, idle and while a backlog drains.

The generator is a process of its own that counts each latency from the moment at which the request was due
(`open_loop`). Its own share is measured against a server that answers the same bytes and does nothing else.
"""

import argparse
import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from service.adapters.metadata.zookeeper import open_metadata_store
from service.local_cluster.ports import LOOPBACK
from service.model.clocks import SystemClock
from tests.benchmarks.drain import SidecarUnderLoad, backlog_gauge
from tests.benchmarks.open_loop import Latencies, open_loop_client
from tests.benchmarks.orphans import OrphanMaker
from tests.benchmarks.reporting import Table
from tests.benchmarks.stage import add_cluster_arguments, benchmark_cluster, wait_until_quiet
from tests.cluster.sidecars import Sidecars

NAME = "inflight"
PATH = "/admin/v2/broker-stats/estimatedInflightDeletionLedgerCount"
_CLOCK = SystemClock()
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ledgers", type=int, default=50_000, help="for each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=500, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10, help="how long each of the two others is measured")
    add_cluster_arguments(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-inflight-")))
        addresses = stack.enter_context(benchmark_cluster(arguments.cluster))
        maker = stack.enter_context(contextlib.closing(OrphanMaker(addresses, arguments.topics)))
        store = stack.enter_context(open_metadata_store(addresses.metadata_store_url, _CLOCK))
        sidecars = Sidecars(addresses, scratch)
        stack.callback(sidecars.end_all)
        sidecar = sidecars.start_with_defaults()
        drained = SidecarUnderLoad(sidecar, store, backlog_gauge(addresses))
        url = urlsplit(sidecar.url)
        with _server_that_does_nothing() as port:
            wait_until_quiet(addresses)
            with open_loop_client("http", LOOPBACK, port, arguments.rate, PATH) as client:
                floor = client.over(arguments.seconds)
        with open_loop_client("http", str(url.hostname), int(url.port or 0), arguments.rate, PATH) as client:
            client.over(2)
            idle = client.over(arguments.seconds)
            rates, draining = [], []
            for number in range(arguments.rounds + 1):
                orphans = maker.make(arguments.ledgers)
                drained.record(orphans)
                wait_until_quiet(addresses)
                client.take()
                seconds = drained.drain(orphans)
                if number:  # the first turn only warms up
                    rates.append(arguments.ledgers / seconds)
                    draining += client.take().milliseconds
    rows = [
        ("a server that does nothing (the generator's own share)", "", *floor.cells()),
        ("sidecar, idle", "", *idle.cells()),
        ("sidecar, draining", f"{sum(rates) / len(rates):,.0f}", *Latencies(draining).cells()),
    ]
    return [Table(f"{PATH} at {arguments.rate:.0f} requests/s", ("", "ledgers/s", "p50", "p99", "slowest"), rows)]


@contextmanager
def _server_that_does_nothing() -> Iterator[int]:
    with socket.create_server((LOOPBACK, 0)) as listening:
        threading.Thread(target=_accept, args=(listening,), daemon=True).start()
        yield listening.getsockname()[1]
        # Closing a socket wakes nobody who waits in accept().
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
