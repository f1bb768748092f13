"""Dumps: nodes read a second from a living ZooKeeper and from a snapshot's file, and written as Parquet.

Beside the walk of a living ZooKeeper runs kazoo's ``get_async`` over the same nodes, whose paths it is given: a walk
finds them itself. The snapshot is written here in ZooKeeper's format; figures for it are per second of processor time
of this one process, which is what a core does.
"""

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from kazoo.client import KazooClient

from service.adapters.metadata.live_nodes import LiveZooKeeper
from service.adapters.metadata.url import parse_metadata_store_url
from service.adapters.metadata.zookeeper_snapshot import SnapshotReader
from service.adapters.metadata.zookeeper_walk import WalkOrder, ZooKeeperWalk
from service.audit.requests import DumpRequest
from service.audit_bootstrap import make_dump
from service.ledger_ownership.paths import ledger_path
from service.local_cluster.cluster import LocalCluster
from service.local_cluster.spec import ClusterSpec, Lifetime
from service.model.clocks import SystemClock
from service.model.ids import LedgerId
from tests.benchmarks.reporting import Table
from tests.fakes.zookeeper_snapshots import SnapshotNode, SnapshotWriter

NAME = "dumps"
_METADATA = bytes(range(220))
_WINDOW = 1000
_CREATES = 500
_CLOCK = SystemClock()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=60_000, help="in the living ZooKeeper")
    parser.add_argument("--snapshot-nodes", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-dumps-") as scratch:
        return [_snapshots(arguments, Path(scratch)), _living(arguments, Path(scratch))]


def _snapshots(arguments: argparse.Namespace, scratch: Path) -> Table:
    count = arguments.snapshot_nodes
    path = scratch / "snapshot.1"
    path.write_bytes(SnapshotWriter().snapshot(_cluster(count)))
    contenders: dict[str, Callable[[int], int]] = {
        "read": lambda _: _read(path, ()),
        "read, ledgers skipped": lambda _: _read(path, (b"/ledgers/0", b"/ledgers/1")),
        "whole dump, Parquet written": lambda number: _dump(f"zk-snapshot:{path}", scratch / f"dump-{number}"),
    }
    rows = []
    for name, work in contenders.items():
        rates = []
        for number in range(arguments.rounds):
            started = time.process_time()
            if work(number) < count:
                raise RuntimeError("nodes are missing; the figures are worthless")
            rates.append(count / (time.process_time() - started))
        rows.append((name, f"{statistics.median(rates):,.0f}", f"{min(rates):,.0f} to {max(rates):,.0f}"))
    size_mb = path.stat().st_size / 1e6
    title = f"A snapshot's file, {count:,} ledgers of {len(_METADATA)} bytes, {size_mb:,.0f} MB"
    return Table(title, ("", "nodes per second of processor time", "range"), rows)


def _cluster(count: int) -> list[SnapshotNode]:
    others = [
        SnapshotNode("/ledgers"),
        SnapshotNode("/ledgers/INSTANCEID", b"x"),
        SnapshotNode("/managed-ledgers"),
        SnapshotNode("/ledgers/00"),
    ]
    return [*others, *(SnapshotNode(ledger_path(LedgerId(n)), _METADATA, czxid=n, mzxid=n) for n in range(count))]


def _read(path: Path, skip: tuple[bytes, ...]) -> int:
    with path.open("rb") as stream:
        reader = SnapshotReader(stream, skip)
        for _ in reader.batches():
            pass
        return reader.nodes


def _dump(source: str, output: Path) -> int:
    return sum(rows.rows for rows in make_dump(DumpRequest(source, output), lambda text: None).counts.values())


def _living(arguments: argparse.Namespace, scratch: Path) -> Table:
    spec = ClusterSpec(scratch / "cluster", brokers=0, bookies=1, lifetime=Lifetime.STARTING_PROCESS)
    with LocalCluster.up(spec) as cluster:
        url = cluster.addresses().metadata_store_url
        kazoo = KazooClient(parse_metadata_store_url(url).hosts)
        kazoo.start()
        paths = [ledger_path(LedgerId(number)) for number in range(1, arguments.nodes + 1)]
        try:
            _fill(kazoo, paths)
            walked = [_rate(len(paths), lambda: _walk(url)) for _ in range(arguments.rounds)]
            asked = [_rate(len(paths), lambda: _get_async(kazoo, paths)) for _ in range(arguments.rounds)]
        finally:
            kazoo.stop()
            kazoo.close()
    rows = [
        ("walk, children's lists compared with their counts", f"{statistics.median(walked):,.0f}", _range(walked)),
        (f"kazoo `get_async`, window {_WINDOW}, paths given", f"{statistics.median(asked):,.0f}", _range(asked)),
        ("ratio", f"{statistics.median(walked) / statistics.median(asked):.1f}", ""),
    ]
    return Table(f"A living ZooKeeper, {len(paths):,} ledgers", ("", "nodes/s", "range"), rows)


def _range(rates: Sequence[float]) -> str:
    return f"{min(rates):,.0f} to {max(rates):,.0f}"


def _fill(kazoo: KazooClient, paths: Sequence[str]) -> None:
    for directory in sorted({path.rpartition("/")[0] for path in paths}):
        kazoo.ensure_path(directory)
    for start in range(0, len(paths), _CREATES):
        transaction = kazoo.transaction()
        for path in paths[start : start + _CREATES]:
            transaction.create(path, _METADATA)
        transaction.commit()


def _walk(url: str) -> int:
    with closing(LiveZooKeeper(url).session(_CLOCK)) as session:
        return sum(batch.num_rows for batch in ZooKeeperWalk(session, _CLOCK, WalkOrder("/ledgers")).batches())


def _get_async(kazoo: KazooClient, paths: Sequence[str]) -> int:
    in_flight: deque[object] = deque()
    done = 0
    for path in paths:
        if len(in_flight) >= _WINDOW:
            in_flight.popleft().get()  # type: ignore[attr-defined]
            done += 1
        in_flight.append(kazoo.get_async(path))
    for result in in_flight:
        result.get()  # type: ignore[attr-defined]
    return done + len(in_flight)


def _rate(count: int, work: Callable[[], int]) -> float:
    started = _CLOCK.monotonic_seconds()
    if work() < count:
        raise RuntimeError("nodes are missing; the figures are worthless")
    return count / (_CLOCK.monotonic_seconds() - started)
