"""Pins where there are very many topics: what a reader waits for, and what the sidecar pays for the response.

Topics' lists, a cursor of each and their ledgers' metadata are made in a real ZooKeeper, on bookies that are not
there; a broker has loaded none of them. A look at ``/livez`` every 20 ms shows how long the process is unresponsive.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import requests
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import ledger_path

from tests.benchmarks.clusters import add_control_argument, processor_seconds, resident_mb, versions
from tests.benchmarks.made_nodes import make_nodes, requests_to
from tests.cluster.sidecars import SidecarProcess, Sidecars
from tests.fakes.bookkeeper import cursor_bytes, data_custom_metadata, ledger_metadata_bytes, managed_ledger_bytes
from tests.reporting import Table

NAME = "pins"
_FIRST_LEDGER = 10_000_000
_COPIES = 2
_LOOK_SECONDS = 0.02
_ASKED = {
    "`pins namespace`": "/admin/v2/pins/namespaces/public/many",
    "its next page": "/admin/v2/pins/namespaces/public/many?offset=20",
    "`pins bookies`": "/admin/v2/pins/bookies",
    "`pins bookie`": "/admin/v2/pins/bookies/10.0.0.7%3A3181",
    "`pins bookie --by-topic`": "/admin/v2/pins/bookies/10.0.0.7%3A3181?byTopic=true",
    "the page of bookies": "/ui/pins",
}
_HEADER = ("", "s", "s of a core", "KiB", "requests to ZooKeeper", "resident MiB (peak)", "longest stall, ms")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topics", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--ledgers", type=int, default=4, help="of each topic")
    parser.add_argument("--bookies", type=int, default=50)
    add_control_argument(parser)


def run(arguments: argparse.Namespace) -> Iterator[Table]:
    for topics in arguments.topics:
        yield from _of(topics, arguments.ledgers, arguments.bookies, versions(arguments.control))


def _of(topics: int, ledgers: int, bookies: int, tried: Mapping[str, Mapping[str, str]]) -> Iterator[Table]:
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-pins-") as scratch:
        options = ("-XX:TieredStopAtLevel=4", "-Xmx3g")
        spec = ClusterSpec(
            Path(scratch) / "cluster", brokers=1, bookies=1, java_options=options, ends_with_starter=True
        )
        with LocalCluster.up(spec) as cluster, closing(Sidecars(cluster.addresses(), Path(scratch))) as sidecars:
            store = cluster.addresses().metadata_store_url
            make_nodes(store, _nodes(topics, ledgers, bookies))
            for version, environment in tried.items():
                sidecar = sidecars.start_with_defaults_in(environment)
                rows = [(name, *_row(sidecar, store, path)) for name, path in _ASKED.items()]
                yield Table(f"{topics:,} topics of {ledgers} ledgers on {bookies} bookies, {version}", _HEADER, rows)
                sidecars.end_all()


def _nodes(topics: int, ledgers: int, bookies: int) -> Iterator[tuple[str, bytes]]:
    for number in range(topics):
        name = f"public/many/persistent/orders-of-the-shop-{number}"
        first = _FIRST_LEDGER + number * ledgers
        yield f"/managed-ledgers/{name}", managed_ledger_bytes(range(first, first + ledgers))
        yield f"/managed-ledgers/{name}/workers", cursor_bytes(mark_delete=(first, -1))
        stamp = data_custom_metadata(name)
        for ledger in range(first, first + ledgers):
            ensemble = [f"10.0.0.{(ledger + copy) % bookies}:3181" for copy in range(_COPIES)]
            yield ledger_path(LedgerId(ledger)), ledger_metadata_bytes(custom_metadata=stamp, ensemble=ensemble)


def _answer(url: str) -> requests.Response:
    """Return the response, after those with only the progress of reading all ledgers."""
    while (answer := requests.get(url, timeout=600)).status_code == requests.codes.unavailable:
        time.sleep(_LOOK_SECONDS)
    return answer


def _row(sidecar: SidecarProcess, store: str, path: str) -> Sequence[str]:
    before, used, began = requests_to(store), processor_seconds(sidecar.pid), time.monotonic()
    with _watching(sidecar) as watched:
        answer = _answer(f"{sidecar.url}{path}")
    took = time.monotonic() - began
    answer.raise_for_status()
    return (
        f"{took:.2f}",
        f"{processor_seconds(sidecar.pid) - used:.2f}",
        f"{len(answer.content) / 1024:,.0f}",
        f"{requests_to(store) - before:,}",
        f"{resident_mb(sidecar.pid):,.0f} ({max(watched.resident):,.0f})",
        f"{1000 * max(watched.waits):,.0f} (median {1000 * statistics.median(watched.waits):,.0f})",
    )


@dataclass
class _Watched:
    resident: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)


@contextmanager
def _watching(sidecar: SidecarProcess) -> Iterator[_Watched]:
    watched, ended = _Watched(), threading.Event()

    def look() -> None:
        with requests.Session() as session:
            while True:
                began = time.monotonic()
                session.get(f"{sidecar.url}/livez", timeout=600)
                watched.waits.append(time.monotonic() - began)
                watched.resident.append(resident_mb(sidecar.pid))
                if ended.wait(_LOOK_SECONDS):
                    return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watched
    finally:
        ended.set()
        thread.join()
