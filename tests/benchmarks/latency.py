"""Another client's ZooKeeper latency: alone, and while a backlog drains with and without the adaptive limit.

The other client is a process with a session of its own that reads and writes a node at fixed moments (`open_loop`).
Before each contender it is measured alone, then while the contender deletes; that contender's "times idle" compares the
two. Contenders take turns on one cluster. The members' use of the processors meanwhile is reported for each ledger:
a limit must not make others pay with processor time for what it spares them in waiting.
"""

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.local_cluster.state import ClusterAddresses

from tests.benchmarks.clusters import ProcessorTime, add_drain_arguments, benchmark_cluster, wait_until_quiet
from tests.benchmarks.drain import BROKERS_CLIENT, OWN_CLIENT, Starter, contender_starters
from tests.cluster.open_loop import Latencies, OpenLoopClient, joined, open_loop_client
from tests.cluster.orphans import OrphanMaker
from tests.reporting import Table

NAME = "latency"
_ITSELF = "contender"
_PROMISE = 1.5
_FACTOR = 2
_LEAST_LATE_MS = 10


@dataclass(frozen=True, slots=True)
class Turn:
    """Latency of the other client before and during one contender's turn, and the cost of a ledger then.

    Attributes:
        cluster_ms: processor time of all members, milliseconds a ledger.
        own_ms: the contender's own.
    """

    ledgers_per_second: float
    alone: Latencies
    beside: Latencies
    cluster_ms: float
    own_ms: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ledgers", type=int, default=50_000, help="for each contender and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=100, help="requests a second of the other client")
    parser.add_argument("--alone-seconds", type=float, default=30, help="how long it is measured alone, each time")
    parser.add_argument("--bookkeeper", action="store_true", help="BookKeeper's own client too")
    parser.add_argument("--only", help="only contenders whose name contains this")
    add_drain_arguments(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-latency-")))
        addresses = stack.enter_context(benchmark_cluster(arguments.cluster))
        maker = stack.enter_context(contextlib.closing(OrphanMaker(addresses, arguments.topics)))
        host, port = parse_metadata_store_url(addresses.metadata_store_url).servers[0].rsplit(":", 1)
        client = stack.enter_context(open_loop_client("zookeeper", host, int(port), arguments.rate))
        # `drain` compares BookKeeper's client with its own driver and with Pulsar's.
        left_out = {BROKERS_CLIENT} if arguments.bookkeeper else {BROKERS_CLIENT, OWN_CLIENT}
        starters = contender_starters(addresses, scratch, arguments.only or "", stack, left_out)
        for start in starters.values():
            _turn(start, maker, client, addresses, arguments.ledgers // 2, 1)
        turns: dict[str, list[Turn]] = {name: [] for name in starters}
        for _ in range(arguments.rounds):
            for name, start in starters.items():
                turns[name].append(_turn(start, maker, client, addresses, arguments.ledgers, arguments.alone_seconds))
    return [_table(turns, arguments)]


def _turn(
    start: Starter,
    maker: OrphanMaker,
    client: OpenLoopClient,
    addresses: ClusterAddresses,
    count: int,
    alone_seconds: float,
) -> Turn:
    orphans = maker.make(count)
    with start() as contender:
        contender.prepare(orphans)
        wait_until_quiet(addresses)
        alone = client.over(alone_seconds)
        used = ProcessorTime({**addresses.members, _ITSELF: contender.pid})
        seconds = contender.delete(orphans)
        beside = client.take()
        used_ms = {name: spent * 1000 / count for name, spent in used.used().items()}
    left = maker.remaining(orphans)
    if left:
        raise RuntimeError(f"{contender.name}: {left} ledgers are left; the figures are worthless")
    own_ms = used_ms.pop(_ITSELF)
    return Turn(count / seconds, alone, beside, sum(used_ms.values()), own_ms)


def _table(turns: dict[str, list[Turn]], arguments: argparse.Namespace) -> Table:
    rows = [_row(name, found) for name, found in turns.items()]
    return Table(
        f"Another client at {arguments.rate:.0f} requests/s while {arguments.ledgers:,} ledgers are deleted, "
        f"{arguments.rounds} rounds together",
        (
            *("", "ledgers/s", "processor ms a ledger: cluster", "itself"),
            *("alone: p50, p99, slowest", "meanwhile: p50, p99, slowest"),
            *("on the wire: alone, p99", "meanwhile, p99", "promised"),
        ),
        rows,
    )


def _row(name: str, found: Sequence[Turn]) -> tuple[str, ...]:
    alone, beside = joined([turn.alone for turn in found]), joined([turn.beside for turn in found])
    rate = statistics.median(turn.ledgers_per_second for turn in found)
    cluster_ms, own_ms = (
        statistics.median(each) for each in zip(*((t.cluster_ms, t.own_ms) for t in found), strict=True)
    )
    return (
        name,
        f"{rate:,.0f}",
        f"{cluster_ms:.2f}",
        f"{own_ms:.2f}",
        ", ".join(alone.cells()),
        ", ".join(beside.cells()),
        f"{alone.wire().p(99):.2f} ms",
        f"{beside.wire().p(99):.2f} ms",
        f"{_PROMISE * max(_LEAST_LATE_MS, _FACTOR * alone.wire().p(99)):.1f} ms",
    )
