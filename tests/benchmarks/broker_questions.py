"""Cost of finding a batch's loaded topics in a large cluster: bytes from brokers, and time.

A real broker's response about one topic is recorded and multiplied; brokers of that many topics answer it from another
process, on sockets. The metadata store is in memory: in a cluster it adds four reads. The control is what the sidecar
asks where nobody owns a topic's bundle: all brokers.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

import requests
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import BROKERS_PATH, AdminRest
from pulsar_sidecar.adapters.pulsar_rest.bundles import ownership_path
from pulsar_sidecar.adapters.pulsar_rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import LOCAL_POLICIES

from tests.benchmarks.clusters import benchmark_cluster
from tests.cluster.patience import until
from tests.fakes.metadata import FakeMetadataStore
from tests.reporting import Table

NAME = "broker-questions"
_NAMESPACES = 100
_BUNDLES = 64
_BATCHES = (1, 10, 100, 5_000)
_HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--brokers", type=int, default=50)
    parser.add_argument("--topics", type=int, default=20_000, help="loaded topics of each broker")
    parser.add_argument("--rounds", type=int, default=5)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with benchmark_cluster(None) as addresses:
        recorded = _recorded_entry(addresses)
    body = json.dumps({f"t/n{arguments.topics}": {_name(0, number): recorded for number in range(arguments.topics)}})
    rows = []
    with _brokers(arguments.brokers, body.encode()) as urls:
        for size in _BATCHES:
            topics = [parse_topic_name(_name(random.randrange(_NAMESPACES), 10**6 + each)) for each in range(size)]
            found = [_median(urls, topics, arguments.rounds, owned=owned) for owned in (False, True)]
            rows.append((f"{size:,}", *(_cell(asked, len(body), seconds) for asked, seconds in found)))
    title = f"{arguments.brokers} brokers of {arguments.topics:,} topics, {len(body) / 2**20:.1f} MiB each"
    return [Table(title, ("topics in the batch", "all brokers are asked", "owners are asked"), rows)]


def _cell(asked: int, size_bytes: int, seconds: float) -> str:
    return f"{asked} listings, {asked * size_bytes / 2**20:,.0f} MiB, {seconds * 1000:,.0f} ms"


def _name(namespace: int, number: int) -> str:
    return f"persistent://t/n{namespace}/orders-of-the-shop-{number}"


def _recorded_entry(addresses: ClusterAddresses) -> object:
    url, topic = addresses.web_service_urls[0], parse_topic_name("persistent://public/default/recorded")
    requests.put(f"{url}/admin/v2/persistent/public/default/recorded", timeout=30).raise_for_status()

    def entry() -> object:
        for each in addresses.web_service_urls:
            listed = requests.get(f"{each}/admin/v2/broker-stats/bookieops", timeout=30).json()
            for topics in listed.values():
                if str(topic) in topics:
                    return topics[str(topic)]
        return None

    return until(entry, "a broker lists the topic")


def _median(urls: Sequence[str], topics: Sequence[TopicName], rounds: int, *, owned: bool) -> tuple[int, float]:
    """Return the number of listings and the median seconds; bundles have owners in turn, or none."""
    store = FakeMetadataStore()
    for number, url in enumerate(urls):
        store.put(f"{BROKERS_PATH}/broker-{number}:8080", json.dumps({"webServiceUrl": url}).encode())
    step = 2**32 // _BUNDLES
    boundaries = tuple(f"0x{min(number * step, 2**32 - 1):08x}" for number in range(_BUNDLES + 1))
    for namespace in {topic.namespace for topic in topics}:
        store.put(f"{LOCAL_POLICIES}/{namespace}", json.dumps({"bundles": {"boundaries": boundaries}}).encode())
    if owned:
        for path in {ownership_path(topic, boundaries) for topic in topics}:
            store.put(path, json.dumps({"httpUrl": random.choice(urls)}).encode())
    owners = BrokerLiveOwners(AdminRest(urls[:1], store=store), store)
    try:
        before = _asked(urls)
        took = []
        for _ in range(rounds):
            began = time.perf_counter()
            assert owners.views(topics) == {}
            took.append(time.perf_counter() - began)
        return (_asked(urls) - before) // rounds, statistics.median(took)
    finally:
        owners.close()


def _asked(urls: Sequence[str]) -> int:
    return int(requests.get(f"{urls[0]}/asked", timeout=30).text)


@contextmanager
def _brokers(count: int, body: bytes) -> Iterator[Sequence[str]]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(count, body, there), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


def _serve(count: int, body: bytes, ready: Connection) -> None:
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1]
                asked += path.endswith(b"bookieops")
                found = {b"/asked": str(asked).encode(), b"/admin/v2/brokers": b"[]"}.get(path, body)
                writer.write(_HEAD.format(len(found)).encode() + found)
                await writer.drain()

    async def serve() -> None:
        servers = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(count)]
        ready.send([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers])
        await asyncio.Event().wait()

    asyncio.run(serve())
