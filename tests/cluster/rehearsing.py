"""A broker whose death is rehearsed, and its death: clients and the next owner count what really comes again."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import requests
from pulsar_sidecar.features.rehearsal.results import Consequence, Rehearsal
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.server.answers import parse_answer

from tests.cluster.acknowledging import position_of, received
from tests.cluster.choosing import FAST_SESSIONS
from tests.cluster.patience import until
from tests.cluster.running import BROKERS, ClusterUnderTest
from tests.cluster.sidecars import SidecarProcess, Sidecars
from tests.cluster.topics import Workload, unique

MOST_RANGES = 50
_DELAYED = 350
_READING = (Consequence.ACKNOWLEDGED_AGAIN, Consequence.IN_FLIGHT, Consequence.REPLAYED, Consequence.READ_FOR_INDEX)
"""Causes for the next owner to read entries from bookies."""
CONF = {
    **FAST_SESSIONS,
    "statsUpdateFrequencyInSecs": "1",
    "statsUpdateInitialDelayInSecs": "1",
    "managedLedgerMaxUnackedRangesToPersist": str(MOST_RANGES),
    "managedLedgerPersistIndividualAckAsLongArray": "false",
    "brokerDeduplicationSnapshotFrequencyInSeconds": "0",
    "brokerDeduplicationEntriesInterval": "150",
    "managedLedgerMaxEntriesPerLedger": "100",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}


@dataclass(slots=True)
class Served:
    """A topic with a producer and one consumer, which stay connected, and what the consumer received."""

    topic: TopicName
    producer: pulsar.Producer
    consumer: pulsar.Consumer
    messages: list[pulsar.Message] = field(default_factory=list)
    acknowledged: set[Position] = field(default_factory=set)

    def fill(self, count: int) -> None:
        """Produce messages, and receive them."""
        for number in range(count):
            self.producer.send_async(b"%d" % number, lambda result, _: None)
        self.producer.flush()
        self.messages += [self.consumer.receive(30_000) for _ in range(count)]

    def delay(self, count: int) -> None:
        """Produce messages that are due in an hour."""
        for number in range(count):
            self.producer.send_async(b"%d" % number, lambda result, _: None, deliver_after=timedelta(hours=1))
        self.producer.flush()

    def acknowledge(self, messages: Sequence[pulsar.Message]) -> None:
        for message in messages:
            self.consumer.acknowledge(message)
            self.acknowledged.add(position_of(message))

    def again(self) -> set[Position]:
        """Return a broker's redeliveries, once there are some."""
        first = until(lambda: received(self.consumer, 1_000), f"{self.topic} is delivered again")
        found = {position_of(first)}
        while (message := received(self.consumer, 2_000)) is not None:
            found.add(position_of(message))
        return found


@dataclass(frozen=True, slots=True)
class Setup:
    cluster: ClusterUnderTest
    workload: Workload
    sidecar: SidecarProcess
    namespace: str

    def topic(self, name: str, domain: str = "persistent") -> TopicName:
        return parse_topic_name(f"{domain}://{self.namespace}/{name}")

    def served(self, name: str, kind: pulsar.ConsumerType, domain: str = "persistent") -> Served:
        topic, client = self.topic(name, domain), self.workload.client
        consumer = client.subscribe(
            str(topic), "s", consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest
        )
        return Served(topic, client.create_producer(str(topic), batching_enabled=False), consumer)

    def delayed(self, broker: str, topic: TopicName) -> int:
        """Return the number of delayed messages that a broker holds back, 0 while it does not serve the topic."""
        url = f"{self.cluster.addresses.member_urls[broker]}/admin/v2/{self.workload.of_topic(topic, 'stats')}"
        answer = requests.get(url, timeout=30)
        return int(answer.json()["subscriptions"]["s"]["msgDelayed"]) if answer.ok else 0

    def replayed(self, broker: str) -> int:
        """Return the number of entries of the namespace that a broker replayed, by its log."""
        lines = self.cluster.log(broker, 100_000)
        found = re.findall(rf"\[persistent://{self.namespace}/[^]]*\] Replaying (\d+) entries", lines)
        return sum(map(int, found))

    def entries_read(self) -> int:
        """Return the number of entries that brokers have read from bookies."""
        total = 0
        for url in self.cluster.addresses.bookie_http_urls:
            text = requests.get(f"{url}/metrics", timeout=30).text
            total += sum(
                int(float(n))
                for n in re.findall(r'^bookkeeper_server_READ_ENTRY_count\{success="true".*\} (\S+)', text, re.M)
            )
        return total

    def owner(self) -> str:
        """Return the member that owns the namespace's only bundle."""
        stats = self.workload.admin("GET", self.workload.of_topic(self.topic("shared"), "stats"))
        urls = self.cluster.addresses.member_urls
        return next(name for name in BROKERS if urls[name].endswith(stats["ownerBroker"]))

    def rehearsal(self, broker: str) -> Rehearsal:
        return parse_answer(Rehearsal, self.sidecar.call("GET", self.path(broker)))

    def path(self, broker: str) -> str:
        """Return the path of the rehearsal of a member's death."""
        return f"/admin/v2/rehearsal/brokers/{self.cluster.addresses.member_urls[broker].removeprefix('http://')}"

    def settled(self, broker: str, in_flight: int) -> Rehearsal | None:
        """Return a rehearsal once this many messages are in flight, and the broker has stored its cursors."""
        told = self.rehearsal(broker)
        if counts(told)[Consequence.IN_FLIGHT] != in_flight:
            return None
        time.sleep(1.5)  # brokers store a cursor once a second
        return told if counts(self.rehearsal(broker)) == counts(told) else None

    def loaded(self, broker: str) -> set[str]:
        """Return the topics of the namespace that a broker has loaded, by its own list."""
        return set(self._broker_stats(broker, "bookieops"))

    def clients(self, broker: str, at_least: int) -> tuple[int, int] | None:
        """Return the number of producers and of consumers of the namespace's topics, once there are enough of both."""
        bundles = self._broker_stats(broker, "topics")
        topics = [topic for bundle in bundles.values() for domain in bundle.values() for topic in domain.items()]
        found = [stats for name, stats in topics if "__change_events" not in name]
        producers = sum(len(stats["publishers"]) for stats in found)
        consumers = sum(len(one["consumers"]) for stats in found for one in stats["subscriptions"].values())
        return (producers, consumers) if min(producers, consumers) >= at_least else None

    def _broker_stats(self, broker: str, kind: str) -> dict[str, Any]:
        url = self.cluster.addresses.member_urls[broker]
        found: dict[str, dict[str, Any]] = requests.get(f"{url}/admin/v2/broker-stats/{kind}", timeout=30).json()
        return found.get(self.namespace, {})


@contextmanager
def set_up(cluster: ClusterUnderTest, directory: Path) -> Iterator[Setup]:
    namespace = f"public/rehearsed-{unique()}"
    with ExitStack() as stack:
        workload = Workload(cluster)
        stack.callback(workload.close)
        sidecars = Sidecars(cluster.addresses, directory)
        stack.callback(sidecars.close)
        workload.admin("PUT", f"namespaces/{namespace}", {"bundles": {"numBundles": 1}})
        workload.admin("POST", f"namespaces/{namespace}/deduplication", True)
        yield Setup(cluster, workload, sidecars.start(), namespace)


def counts(rehearsal: Rehearsal) -> dict[Consequence, int | None]:
    return {total.consequence: total.count for total in rehearsal.totals}


def rehearsed_and_counted(setup: Setup) -> tuple[Rehearsal, Mapping[Consequence, int]]:
    """Rehearse the death of the broker that owns the namespace's topics, kill it, and count."""
    shared = setup.served("shared", pulsar.ConsumerType.Shared)
    exclusive = setup.served("exclusive", pulsar.ConsumerType.Exclusive)
    delayed = setup.served("delayed", pulsar.ConsumerType.Shared)
    lossy = setup.served("lossy", pulsar.ConsumerType.Exclusive, "non-persistent")
    delayed.delay(_DELAYED)
    for served in (shared, exclusive):
        served.fill(400)
    shared.acknowledge(shared.messages[20:320:2])  # holes, more than are stored when the next acknowledgement is
    time.sleep(1)
    shared.acknowledge(shared.messages[:10])
    exclusive.acknowledge(exclusive.messages[:50])
    owner = setup.owner()
    survivor = next(name for name in BROKERS if name != owner)
    until(lambda: setup.delayed(owner, delayed.topic) == _DELAYED, "all delayed messages are held back")
    told = until(lambda: setup.settled(owner, 240 + 350), "the broker has all acknowledgements")
    loaded = setup.loaded(owner)
    read = setup.entries_read()
    setup.cluster.kill(owner)
    again = [(served, served.again()) for served in (shared, exclusive)]
    producers, consumers = until(lambda: setup.clients(survivor, 4), "all clients reconnect")
    until(lambda: setup.delayed(survivor, delayed.topic) >= _DELAYED * 9 / 10, "delayed messages are held back again")
    assert loaded <= setup.loaded(survivor)
    del lossy
    counted = {
        Consequence.PRODUCERS: producers,
        Consequence.CONSUMERS: consumers,
        Consequence.ACKNOWLEDGED_AGAIN: sum(len(found & served.acknowledged) for served, found in again),
        Consequence.IN_FLIGHT: sum(len(found - served.acknowledged) for served, found in again),
        Consequence.REPLAYED: setup.replayed(survivor),
        Consequence.DELAYED: setup.delayed(survivor, delayed.topic),
    }
    # Bookies do not report the purpose of reads: for all of it, and a few entries that hold cursors and buckets.
    told_reads = sum(counts(told)[each] or 0 for each in _READING)
    assert within_a_tenth(told_reads, setup.entries_read() - read), (told, setup.entries_read() - read)
    return told, counted


def within_a_tenth(told: int | None, counted: int) -> bool:
    return told is not None and abs(told - counted) <= counted / 10
