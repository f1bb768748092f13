"""Topics of ledger deletion on real brokers: the brokers' own rules, and their failures."""

import threading
import time
import uuid
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pulsar
import pytest
from pulsar_sidecar.adapters.pulsar_client.clients import open_client
from pulsar_sidecar.adapters.pulsar_client.publisher import PublisherSettings, TopicPublisher
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_topics.deletion_topics import PulsarDeletionTopics, topic_name
from pulsar_sidecar.adapters.pulsar_topics.pending_consumer import ConsumerSettings, SharedPendingDeletions
from pulsar_sidecar.adapters.pulsar_topics.topics_setup import TopicsSettings, TopicsSetup
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, OutgoingMessage, PublishResult
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import DELAY_TIME, SUBSCRIPTION
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import ConflictError
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.cluster.patience import PATIENCE_SECONDS, until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique

STORED, ALREADY_STORED, UNKNOWN = PublishResult.STORED, PublishResult.ALREADY_STORED, PublishResult.UNKNOWN
SHORT = PublisherSettings(batching=True, deadline_seconds=3.0)
CLOCK = SystemClock()


@dataclass(slots=True)
class Connected:
    """A sidecar's connections to the cluster."""

    client: pulsar.Client
    rest: AdminRest
    topics: PulsarDeletionTopics

    @property
    def admin(self) -> BrokerTopicAdmin:
        return BrokerTopicAdmin(self.rest)

    def skip_everything(self) -> None:
        for topic in (DeletionTopic.PENDING, DeletionTopic.RETRY):
            path = topic_path(topic_name(topic), f"/subscription/{SUBSCRIPTION}/skip_all")
            self.rest.change("POST", path)


@contextmanager
def connect(addresses: ClusterAddresses) -> Iterator[Connected]:
    with ZooKeeperMetadataStore(addresses.metadata_store_url, CLOCK) as store:
        client = open_client(addresses.broker_service_url)
        rest = AdminRest(addresses.web_service_urls, store=store)
        try:
            yield Connected(client, rest, PulsarDeletionTopics(client, rest, CLOCK, publisher=SHORT))
        finally:
            client.close()


@pytest.fixture
def connected(cluster: ClusterUnderTest) -> Iterator[Connected]:
    with connect(cluster.addresses) as opened:
        opened.topics.ensure()
        opened.skip_everything()
        yield opened


def keyed(key: str, first: int, count: int, *, ids: bool = False) -> list[OutgoingMessage]:
    return [
        OutgoingMessage(b"%d" % number, key=key, sequence_id=number if ids else None)
        for number in range(first, first + count)
    ]


def numbers(count: int) -> set[bytes]:
    return {b"%d" % number for number in range(count)}


def receive_all(
    consumer: SharedPendingDeletions, expected: Collection[bytes], *, quiet_seconds: float = 2.0
) -> set[bytes]:
    """Acknowledge and return waiting records until all expected ones and a quiet period have passed, or a minute."""
    found: set[bytes] = set()
    give_up = time.monotonic() + 60
    quiet_since = time.monotonic()
    while time.monotonic() < (quiet_since + quiet_seconds if found >= set(expected) else give_up):
        deliveries = consumer.receive()
        if deliveries:
            consumer.acknowledge(deliveries)
            found.update(delivery.payload for delivery in deliveries)
            quiet_since = time.monotonic()
    consumer.close()
    return found


# Rules of brokers ------------------------------------------------------------------------------------------------


def deduplication_status(connected: Connected, topic: TopicName) -> object:
    stats = connected.rest.get(topic_path(topic, "/stats"))
    assert isinstance(stats, dict)
    return stats["deduplicationStatus"]


def test_brokers_do_not_deduplicate_in_the_system_namespace(connected: Connected) -> None:
    # The reason why explicit sequence ids are read back; a Pulsar that changes this makes the reading unnecessary.
    topic = topic_name(DeletionTopic.PENDING)
    assert connected.admin.policy(topic, "deduplicationEnabled") is True
    assert deduplication_status(connected, topic.partition(0)) == "Disabled"


def test_compaction_removes_acknowledged_records(connected: Connected) -> None:
    publisher = connected.topics.publisher(DeletionTopic.PENDING, f"test-{uuid.uuid4()}")
    publisher.publish(keyed("persistent://t/n/a", 0, 20))
    publisher.close()
    topic = topic_name(DeletionTopic.PENDING)
    assert connected.admin.policy(topic, "compactionThreshold") == 64 * 1024 * 1024
    for index in range(4):
        connected.rest.change("PUT", topic_path(topic.partition(index), "/compaction"))
    for index in range(4):
        path = topic_path(topic.partition(index), "/compaction")
        until(lambda path=path: "SUCCESS" in str(connected.rest.get(path)), f"{path} is compacted")
        internal_stats = connected.rest.get(topic_path(topic.partition(index), "/internalStats"))
        assert isinstance(internal_stats, dict)
        assert internal_stats["compactedLedger"]["entries"] <= 0
    expected = numbers(20)
    assert receive_all(connected.topics.pending(), expected) == expected


def test_outcomes_survive_without_a_subscription(connected: Connected) -> None:
    since_ms = CLOCK.now_ms()
    publisher = connected.topics.publisher(DeletionTopic.OUTCOME, f"test-{uuid.uuid4()}")
    publisher.publish([OutgoingMessage(b"kept")])
    publisher.close()
    topic = topic_name(DeletionTopic.OUTCOME)
    connected.admin.unload(topic)
    connected.rest.change("POST", topic_path(topic, "/trim"))
    assert list(connected.topics.outcomes_since(since_ms)) == [b"kept"]


def test_the_backlog_is_right_just_after_a_topic_load(connected: Connected) -> None:
    topic = topic_name(DeletionTopic.PENDING)
    for index in range(4):
        connected.admin.unload(topic.partition(index))
    publisher = connected.topics.publisher(DeletionTopic.PENDING, f"test-{uuid.uuid4()}")
    assert publisher.publish(keyed("persistent://t/n/a", 0, 400)) == [STORED] * 400
    publisher.close()
    assert connected.topics.backlog().total == 400
    for index in range(4):
        connected.admin.unload(topic.partition(index))
    fresh = PulsarDeletionTopics(connected.client, connected.rest, CLOCK)
    assert 400 / 5 <= fresh.backlog().total <= 400 * 5
    expected = numbers(400)
    assert receive_all(connected.topics.pending(), expected) == expected
    assert fresh.backlog().total == 0


def test_partitions_are_added_and_never_removed(connected: Connected) -> None:
    name = unique()

    def named(kind: DeletionTopic) -> TopicName:
        return parse_topic_name(f"persistent://pulsar/system/{name}{kind.value}")

    topic = named(DeletionTopic.PENDING)
    for parallelism, expected in ((2, 2), (3, 3), (1, 3)):
        TopicsSetup(connected.admin, named, TopicsSettings(parallelism=parallelism), CLOCK).run()
        assert connected.admin.partitions(topic) == expected
    for index in range(3):
        subscriptions = connected.rest.get(topic_path(topic.partition(index), "/subscriptions"))
        assert isinstance(subscriptions, list)
        assert SUBSCRIPTION in subscriptions


def test_an_unpartitioned_topic_of_the_name_is_a_conflict(connected: Connected) -> None:
    name = unique()

    def named(kind: DeletionTopic) -> TopicName:
        return parse_topic_name(f"persistent://pulsar/system/{name}{kind.value}")

    connected.admin.create(named(DeletionTopic.PENDING))
    with pytest.raises(ConflictError, match="without partitions"):
        TopicsSetup(connected.admin, named, TopicsSettings(), CLOCK).run()


# A namespace where brokers deduplicate ---------------------------------------------------------------------------


@pytest.fixture
def deduplicated(connected: Connected) -> TopicName:
    topic = parse_topic_name(f"persistent://public/default/deduplicated-{unique()}")
    connected.admin.create(topic)
    connected.admin.set_policy(topic, "deduplicationEnabled", True)
    until(lambda: "Enabled" in str(deduplication_status(connected, topic)), "deduplication is on")
    return topic


def publisher_on(connected: Connected, topic: TopicName, name: str) -> TopicPublisher:
    # Without a look back, so that the broker's own deduplication decides.
    settings = PublisherSettings(batching=True, resend_window_ms=-60_000)
    return TopicPublisher(connected.client, str(topic), name, settings, CLOCK)


def stored_messages(connected: Connected, topic: TopicName) -> list[bytes]:
    reader = connected.client.create_reader(str(topic), pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(5000).data())
    reader.close()
    return found


def test_a_broker_s_deduplication_is_recognised_message_by_message(
    connected: Connected, deduplicated: TopicName
) -> None:
    first = publisher_on(connected, deduplicated, "name")
    assert first.publish(keyed("k", 0, 3, ids=True)) == [STORED] * 3
    first.close()
    second = publisher_on(connected, deduplicated, "name")
    assert second.publish(keyed("k", 1, 4, ids=True)) == [ALREADY_STORED] * 2 + [STORED] * 2
    second.close()
    assert stored_messages(connected, deduplicated) == [b"0", b"1", b"2", b"3", b"4"]


def test_automatic_sequence_ids_are_never_taken_for_duplicates(connected: Connected, deduplicated: TopicName) -> None:
    for round_number in range(3):
        publisher = publisher_on(connected, deduplicated, "name")
        assert publisher.publish(keyed("k", round_number * 50, 50)) == [STORED] * 50
        publisher.close()
    assert len(stored_messages(connected, deduplicated)) == 150


# Failures --------------------------------------------------------------------------------------------------------


def brokers_of(cluster: ClusterUnderTest) -> list[str]:
    return sorted(name for name in cluster.addresses.members if name.startswith("broker"))


def test_confirmed_records_survive_a_broker_kill(cluster: ClusterUnderTest, connected: Connected) -> None:
    victim = brokers_of(cluster)[0]
    consumer = connected.topics.pending()
    publisher = connected.topics.publisher(DeletionTopic.PENDING, f"test-{uuid.uuid4()}")
    stop = threading.Event()
    stored: list[bytes] = []

    def publish() -> None:
        number = 0
        while not stop.is_set():
            batch = [OutgoingMessage(b"%d" % (number + part), key=f"persistent://t/n/{part}") for part in range(40)]
            results = publisher.publish(batch)
            stored.extend(message.payload for message, result in zip(batch, results, strict=True) if result.stored)
            number += 40

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish)
        try:
            time.sleep(0.5)
            before = len(stored)
            cluster.kill(victim)
            time.sleep(6)
        finally:
            stop.set()
            publishing.result(timeout=PATIENCE_SECONDS)
            cluster.restart(victim)
    publisher.close()
    assert 0 < before < len(stored)
    missing = set(stored) - receive_all(consumer, stored)
    assert not missing


def test_brokers_that_do_not_answer_leave_the_outcome_unknown_and_the_publisher_usable(
    cluster: ClusterUnderTest, connected: Connected
) -> None:
    publisher = connected.topics.publisher(DeletionTopic.PENDING, f"test-{uuid.uuid4()}")
    assert publisher.publish(keyed("k", 0, 5)) == [STORED] * 5
    frozen = brokers_of(cluster)
    try:
        for name in frozen:
            cluster.stop(name)
        started = time.monotonic()
        assert publisher.publish(keyed("k", 5, 5)) == [UNKNOWN] * 5
        assert time.monotonic() - started < 10
    finally:
        for name in frozen:
            cluster.cont(name)
    until(lambda: all(each.stored for each in publisher.publish(keyed("k", 10, 5))), "brokers store records again", 60)
    publisher.close()
    expected = {b"%d" % number for number in (*range(5), *range(10, 15))}
    assert receive_all(connected.topics.pending(), expected) >= expected


def retries(first: int, count: int, delay_ms: int) -> list[OutgoingMessage]:
    return [
        OutgoingMessage(b"%d" % number, properties={DELAY_TIME: str(delay_ms)}, deliver_after_ms=delay_ms)
        for number in range(first, first + count)
    ]


def test_a_look_for_overdue_retries_reads_some_and_the_next_one_reads_on(connected: Connected) -> None:
    publisher = connected.topics.publisher(DeletionTopic.RETRY, unique())
    waiting = [*retries(0, 1, 100), *retries(1, 8, 3_600_000), *retries(9, 1, 100)]
    assert publisher.publish(waiting) == [STORED] * 10
    publisher.close()
    time.sleep(1.5)
    settings = ConsumerSettings(most_read=4)
    topics = PulsarDeletionTopics(connected.client, connected.rest, CLOCK, publisher=SHORT, consumer=settings)
    consumer = topics.pending()
    looks = [[delivery.payload for delivery in consumer.overdue(500, 10)] for _ in range(6)]
    assert looks == [[b"0"], [], [b"9"], [], [], []]
    consumer.close()
    connected.skip_everything()
