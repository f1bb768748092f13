"""Dumps: nodes read a second from a living ZooKeeper and from a snapshot's file, and written as Parquet.

Beside the walk of a living ZooKeeper runs kazoo's ``get_async`` over the same nodes, whose paths it is given: a walk
finds them itself. As whole commands, from an empty process to its end, ``ledgers list`` and BookKeeper's own shell read
the metadata of the same ledgers. The snapshot is written here in ZooKeeper's format; figures for it are per second of
processor time of this one process, which is what a core does.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from kazoo.client import KazooClient
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.adapters.zookeeper.snapshot_format import SnapshotReader, decompressed
from pulsar_sidecar.adapters.zookeeper.zookeeper_walk import ZooKeeperWalk
from pulsar_sidecar.bootstrap.audit_sources import take_dump
from pulsar_sidecar.features.audit.requests import DumpRequest
from pulsar_sidecar.features.audit.results.tables import Table as AuditTable
from pulsar_sidecar.features.audit.sources.manifests import parse_manifest
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.software import class_path, find_software
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.reports.documents import MANIFEST_NAME

from tests.benchmarks.made_nodes import make_nodes
from tests.cluster.choosing import PROJECT
from tests.fakes.bookkeeper import ledger_metadata_bytes
from tests.fakes.zookeeper_snapshots import SnapshotNode, SnapshotWriter
from tests.reporting import Table

NAME = "dumps"
_METADATA = ledger_metadata_bytes(
    custom_metadata={
        "application": b"pulsar",
        "component": b"managed-ledger",
        "pulsar/managed-ledger": b"public/default/persistent/a-topic-partition-0",
    }
)
_WINDOW = 1000
_CLOCK = SystemClock()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=60_000, help="in the living ZooKeeper")
    parser.add_argument("--snapshot-nodes", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-dumps-") as scratch:
        return [_snapshots(arguments, Path(scratch)), *_living(arguments, Path(scratch))]


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
        reader = SnapshotReader(decompressed(stream), skip)
        for _ in reader.batches():
            pass
        return reader.nodes


def _dump(source: str, output: Path) -> int:
    return sum(rows.rows for rows in take_dump(DumpRequest(source, output), lambda text: None).counts.values())


def _living(arguments: argparse.Namespace, scratch: Path) -> list[Table]:
    # ZooKeeper's usual heap here ends before a hundred thousand ledgers do.
    heap = ("-Xmx512m",)
    spec = ClusterSpec(scratch / "cluster", brokers=0, bookies=1, java_options=heap, ends_with_starter=True)
    with LocalCluster.up(spec) as cluster:
        url = cluster.addresses().metadata_store_url
        kazoo = KazooClient(parse_metadata_store_url(url).hosts)
        kazoo.start()
        paths = [ledger_path(LedgerId(number)) for number in range(1, arguments.nodes + 1)]
        try:
            make_nodes(url, ((path, _METADATA) for path in paths))
            walked = [_rate(len(paths), lambda: _walk(url)) for _ in range(arguments.rounds)]
            asked = [_rate(len(paths), lambda: _get_async(kazoo, paths)) for _ in range(arguments.rounds)]
            commands = _commands(url, scratch, len(paths), arguments.rounds)
        finally:
            kazoo.stop()
            kazoo.close()
    rows = [
        ("walk, children's lists compared with their counts", f"{statistics.median(walked):,.0f}", _range(walked)),
        (f"kazoo `get_async`, window {_WINDOW}, paths given", f"{statistics.median(asked):,.0f}", _range(asked)),
        ("ratio", f"{statistics.median(walked) / statistics.median(asked):.1f}", ""),
    ]
    return [Table(f"A living ZooKeeper, {len(paths):,} ledgers", ("", "nodes/s", "range"), rows), commands]


def _commands(url: str, scratch: Path, count: int, rounds: int) -> Table:
    """Both commands take turns; what they print and write is counted."""
    contenders: dict[str, Callable[[int], int]] = {
        "`pulsar-sidecar ledgers list --with-metadata --rate 0`, Parquet written": lambda n: _list(
            url, scratch / f"listing-{n}"
        ),
        "`bookkeeper shell listledgers -meta`, printed to a file": lambda n: _shell(url, scratch / f"shell-{n}"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, work in contenders.items():
            started = _CLOCK.monotonic_seconds()
            if (found := work(number)) != count:
                raise RuntimeError(f"{name} found {found} of {count} ledgers; the figures are worthless")
            seconds[name].append(_CLOCK.monotonic_seconds() - started)
    rows = [
        (name, f"{statistics.median(took):.2f}", f"{min(took):.2f} to {max(took):.2f}")
        for name, took in seconds.items()
    ]
    return Table(f"Whole commands, metadata of {count:,} ledgers", ("", "seconds", "range"), rows)


def _list(url: str, output: Path) -> int:
    command = [
        sys.executable,
        "-m",
        "pulsar_sidecar",
        "ledgers",
        "list",
        "--source",
        "metadata",
        "--metadata-store-url",
        url,
    ]
    options = ["--with-metadata", "--rate", "0", "--output", str(output)]
    subprocess.run([*command, *options], check=True, capture_output=True, cwd=PROJECT)
    manifest = parse_manifest(json.loads((output / MANIFEST_NAME).read_text()))
    return manifest.counts[AuditTable.LEDGERS.value].rows


def _shell(url: str, directory: Path) -> int:
    """Run it like ``bin/bookkeeper shell``, with the driver of ``zk+hierarchical``."""
    directory.mkdir()
    conf = directory / "bookkeeper.conf"
    conf.write_text(f"metadataServiceUri=zk+hierarchical://{';'.join(parse_metadata_store_url(url).servers)}/ledgers\n")
    software = find_software(ClusterSpec(directory))
    logging = {
        "log4j2.configurationFile": software.distribution / "conf" / "log4j2.yaml",
        "pulsar.log.appender": "Console",
        "bk.log.appender": "Console",
        "bk.log.level": "error",
        "pulsar.log.dir": directory,
    }
    command = [
        str(software.java.executable), *(f"-D{name}={value}" for name, value in logging.items()),
        "-cp", class_path(software.distribution), "org.apache.bookkeeper.bookie.BookieShell", "-conf", str(conf),
        "listledgers", "-meta",
    ]  # fmt: skip
    with (directory / "answer").open("wb") as answer:
        subprocess.run(command, check=True, stdout=answer, stderr=subprocess.STDOUT, cwd=directory)
    return (directory / "answer").read_bytes().count(b"LedgerMetadata{")


def _range(rates: Sequence[float]) -> str:
    return f"{min(rates):,.0f} to {max(rates):,.0f}"


def _walk(url: str) -> int:
    walk = ZooKeeperWalk(url, _CLOCK, root="/ledgers")
    return sum(batch.num_rows for batch in walk.batches())


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
