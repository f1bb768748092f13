"""Reading the metadata of delayed messages: bookies in bulk, against a broker's get-message-by-id."""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta

import pulsar
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar_wire.delayed_entries import BulkDelayedEntries
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.backlog.ports import EntryFacts
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT

from tests.benchmarks.clusters import add_cluster_argument, benchmark_cluster, wait_until_quiet
from tests.cluster.clients import PatientClient
from tests.cluster.topics import unique
from tests.reporting import Table

NAME = "entries"
_PAYLOAD = b"x" * 100
_BROKER_READS = 500
_SINGLE_READS = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=100_000, help="delayed messages of 100 bytes on one topic")
    parser.add_argument("--rounds", type=int, default=5, help="how often each way is measured")
    add_cluster_argument(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with benchmark_cluster(arguments.cluster) as addresses, _reading(addresses) as (entries, rest):
        topic = parse_topic_name(f"persistent://public/default/entries-{unique()}")
        positions = _publish(addresses, topic, arguments.messages)
        wait_until_quiet(addresses)
        rows = list(_measured(entries, rest, topic, positions, arguments.rounds))
        single = _single_latencies(entries, topic, positions)
    median_ms, p99_ms = single[len(single) // 2], single[-len(single) // 100]
    notes = [f"One at a time: median {median_ms:.1f} ms, 99th percentile {p99_ms:.1f} ms."]
    return [Table("Reading delayed messages' metadata", ("", "entries/s, median", "lowest, highest"), rows, notes)]


@contextmanager
def _reading(addresses: ClusterAddresses) -> Iterator[tuple[BulkDelayedEntries, AdminRest]]:
    with ZooKeeperMetadataStore(addresses.metadata_store_url, SystemClock()) as store:
        rest = AdminRest(addresses.web_service_urls, store=store)
        with closing(BookieEntries(BookieConnections(store))) as bulk:
            yield BulkDelayedEntries(store, bulk, rest, DEFAULT_LEDGERS_ROOT, SystemClock()), rest


def _publish(addresses: ClusterAddresses, topic: TopicName, count: int) -> list[Position]:
    client = PatientClient(addresses)
    client.subscribe(str(topic), "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(str(topic), batching_enabled=False, block_if_queue_full=True)
    positions: list[Position] = []

    def stored(result: pulsar.Result, identity: pulsar.MessageId) -> None:
        assert result == pulsar.Result.Ok
        positions.append(Position(LedgerId(identity.ledger_id()), EntryId(identity.entry_id())))

    for number in range(count):
        due = timedelta(hours=1, seconds=number % 3600)
        producer.send_async(
            _PAYLOAD, stored, deliver_after=due, partition_key=f"key {number % 100}", properties={"order": str(number)}
        )
    producer.flush()
    client.close()
    return positions


def _measured(
    entries: BulkDelayedEntries, rest: AdminRest, topic: TopicName, positions: Sequence[Position], rounds: int
) -> Iterator[Sequence[str]]:
    rng = random.Random(1)
    ways: dict[str, tuple[Sequence[Position], Callable[[Sequence[Position]], None]]] = {
        "bookies, every entry": (positions, lambda wanted: _read(entries, topic, wanted)),
        "bookies, a random half": (
            rng.sample(positions, len(positions) // 2),
            lambda wanted: _read(entries, topic, wanted),
        ),
        "bookies, a random tenth": (
            rng.sample(positions, len(positions) // 10),
            lambda wanted: _read(entries, topic, wanted),
        ),
        "broker, get-message-by-id, one connection": (
            rng.sample(positions, min(_BROKER_READS, len(positions))),
            lambda wanted: _ask(rest, topic, wanted),
        ),
    }
    for name, (wanted, read) in ways.items():
        rates = sorted(len(wanted) / _seconds(lambda read=read, wanted=wanted: read(wanted)) for _ in range(rounds + 1))  # type: ignore[misc]
        yield name, f"{statistics.median(rates):,.0f}", f"{rates[0]:,.0f}, {rates[-1]:,.0f}"


def _read(entries: BulkDelayedEntries, topic: TopicName, wanted: Sequence[Position]) -> None:
    answers = entries.read(topic, wanted)
    assert len(answers) == len(wanted)
    assert all(isinstance(answer, EntryFacts) for answer in answers.values())


def _ask(rest: AdminRest, topic: TopicName, wanted: Sequence[Position]) -> None:
    for position in wanted:
        headers = rest.headers(topic_path(topic, f"/ledger/{position.ledger_id}/entry/{position.entry_id}"))
        assert "X-Pulsar-deliver-at-time" in headers


def _single_latencies(entries: BulkDelayedEntries, topic: TopicName, positions: Sequence[Position]) -> list[float]:
    chosen = random.Random(2).choices(positions, k=_SINGLE_READS)
    return sorted(_seconds(lambda one=one: _read(entries, topic, [one])) * 1000 for one in chosen)  # type: ignore[misc]


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
