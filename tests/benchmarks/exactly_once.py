"""Publishing exactly once, against the plain client with the same batching."""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_wire.sequenced_producers import BrokerSequencedProducers
from pulsar_sidecar.bootstrap.exactly_once import sequenced_producers
from pulsar_sidecar.features.publishing.messages import BatchLimits, OutgoingMessage
from pulsar_sidecar.features.publishing.publisher import ExactlyOncePublisher
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.benchmarks.clusters import add_cluster_argument, benchmark_cluster, wait_until_quiet
from tests.cluster.clients import PatientClient
from tests.cluster.topics import unique
from tests.reporting import Table

NAME = "exactly-once"
_BATCHES = (100, 1000)
_BATCH_BYTES = 1024 * 1024
_PAYLOAD = b"x" * 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=300_000, help="messages of 100 bytes, in each round")
    parser.add_argument("--rounds", type=int, default=5, help="how often each way is measured, in turns")
    add_cluster_argument(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with benchmark_cluster(arguments.cluster) as addresses:
        identity = ClientCredentials(), TlsOptions()
        clock = SystemClock()
        admin = BrokerTopicAdmin(AdminRest(addresses.web_service_urls))
        namespace = f"public/exactly-once-{unique()}"
        admin.ensure_namespace(*namespace.split("/"))
        admin.set_namespace_policy(namespace, "deduplication", True)
        urls = addresses.broker_service_url, addresses.web_service_urls
        with closing(PatientClient(addresses)) as client, sequenced_producers(*urls, *identity, clock) as producers:
            wait_until_quiet(addresses)
            rows = [
                row
                for batch in _BATCHES
                for row in _measured(admin, client, producers, namespace, batch, arguments.messages, arguments.rounds)
            ]
    header = (
        "",
        "messages in a batch",
        "messages/s, median",
        "lowest, highest",
        "of the client's",
        "our µs of CPU each",
    )
    note = "Both name a sequence id on every message, wait for every receipt, and publish to a deduplicated topic."
    return [Table("Publishing exactly once", header, rows, [note])]


def _measured(
    admin: BrokerTopicAdmin,
    client: PatientClient,
    producers: BrokerSequencedProducers,
    namespace: str,
    batch: int,
    messages: int,
    rounds: int,
) -> Iterator[Sequence[str]]:
    ways: dict[str, Callable[[TopicName], None]] = {
        "plain client": lambda topic: _by_client(client, topic, batch, messages),
        "plain client, with a callback for each message": lambda topic: _by_client(
            client, topic, batch, messages, lambda result, identity: None
        ),
        "exactly once": lambda topic: _exactly_once(producers, topic, batch, messages),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, publish in ways.items():
            topic = parse_topic_name(f"{namespace}/speed-{unique()}")
            admin.create(topic)
            producers.open(topic, None).close()
            began, used = time.perf_counter(), time.process_time()
            publish(topic)
            rates[name].append(messages / (time.perf_counter() - began))
            cpu[name].append((time.process_time() - used) / messages * 1e6)
    plain = statistics.median(rates["plain client"][1:])
    for name in ways:
        # The first round warms brokers up.
        measured = sorted(rates[name][1:])
        median = statistics.median(measured)
        yield (
            name,
            f"{batch:,}",
            f"{median:,.0f}",
            f"{measured[0]:,.0f}, {measured[-1]:,.0f}",
            f"{median / plain:.0%}",
            f"{statistics.median(cpu[name][1:]):.1f}",
        )


def _by_client(
    client: PatientClient,
    topic: TopicName,
    batch: int,
    messages: int,
    callback: Callable[[object, object], None] | None = None,
) -> None:
    producer = client.create_producer(
        str(topic),
        "loader",
        batching_enabled=True,
        batching_max_messages=batch,
        batching_max_allowed_size_in_bytes=_BATCH_BYTES,
        batching_max_publish_delay_ms=10,
        max_pending_messages=64 * batch,
        block_if_queue_full=True,
    )
    for number in range(messages):
        producer.send_async(_PAYLOAD, callback, sequence_id=number)  # type: ignore[attr-defined]
    producer.flush()  # type: ignore[attr-defined]
    producer.close()


def _exactly_once(producers: BrokerSequencedProducers, topic: TopicName, batch: int, messages: int) -> None:
    limits = BatchLimits(messages=batch, size_bytes=_BATCH_BYTES)
    with ExactlyOncePublisher(producers, SystemClock(), topic, producer_name="loader", limits=limits) as publisher:
        for number in range(messages):
            publisher.publish(OutgoingMessage(_PAYLOAD, number))
