"""Bulk reads of entries' metadata, in memory and from a cluster's bookies, brokers having written it."""

from collections.abc import Iterator
from datetime import timedelta

import pulsar
import pytest
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_wire.delayed_entries import BulkDelayedEntries
from pulsar_sidecar.adapters.pulsar_wire.encoding import entry_facts_in_headers
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.backlog.ports import DelayedEntries, EntryFacts
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.lookups import Absent
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT

from tests.cluster.clients import PatientClient
from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique
from tests.fakes.delayed_messages import TOPIC, FakeCluster

NEVER_WRITTEN = LedgerId(2**40)
DELAY_MS = 3_600_000


class FakeSubject:
    topic = TOPIC

    def __init__(self) -> None:
        self._cluster = FakeCluster()
        self.entries: DelayedEntries = self._cluster

    def publish(self, count: int, key: str, properties: dict[str, str]) -> list[Position]:
        return self._cluster.publish(count, DELAY_MS, key=key, properties=properties)

    def close_ledger(self) -> None:
        self._cluster.unload()

    def remove(self) -> None:
        self._cluster.topic_exists = False


class Cluster:
    """State that all topics of the cluster share."""

    def __init__(self, cluster: ClusterUnderTest) -> None:
        self.addresses = cluster.addresses
        self.store: ZooKeeperMetadataStore = ZooKeeperMetadataStore(self.addresses.metadata_store_url, SystemClock())
        self.rest = AdminRest(self.addresses.web_service_urls, store=self.store)
        self.bulk = BookieEntries(BookieConnections(self.store))
        self.client = PatientClient(self.addresses)

    def close(self) -> None:
        self.client.close()
        self.bulk.close()
        self.store.close()


class ClusterSubject:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topic = parse_topic_name(f"persistent://public/default/waiting-{unique()}")
        self.entries = BulkDelayedEntries(
            cluster.store, cluster.bulk, cluster.rest, DEFAULT_LEDGERS_ROOT, SystemClock()
        )
        cluster.client.subscribe(str(self.topic), "s").close()

    def publish(self, count: int, key: str, properties: dict[str, str]) -> list[Position]:
        found: list[Position] = []

        def stored(result: pulsar.Result, identity: pulsar.MessageId) -> None:
            assert result == pulsar.Result.Ok
            found.append(Position(LedgerId(identity.ledger_id()), EntryId(identity.entry_id())))

        producer = self.producer()
        delay = timedelta(milliseconds=DELAY_MS)
        for _ in range(count):
            producer.send_async(b"x", stored, partition_key=key, properties=properties, deliver_after=delay)
        producer.flush()
        producer.close()
        assert len(found) == count
        return found

    def producer(self, **options: bool) -> pulsar.Producer:
        settings = {"batching_enabled": False, "block_if_queue_full": True, **options}
        return self.cluster.client.create_producer(str(self.topic), **settings)

    def close_ledger(self) -> None:
        BrokerTopicAdmin(self.cluster.rest).unload(self.topic)

    def remove(self) -> None:
        BrokerTopicAdmin(self.cluster.rest).delete_topic(self.topic, partitioned=False, force=True)


Subject = FakeSubject | ClusterSubject


@pytest.fixture(scope="module")
def real_cluster(cluster: ClusterUnderTest) -> Iterator[Cluster]:
    found = Cluster(cluster)
    yield found
    found.close()


@pytest.fixture
def real(real_cluster: Cluster) -> ClusterSubject:
    return ClusterSubject(real_cluster)


@pytest.fixture(params=["fake", "cluster"])
def subject(request: pytest.FixtureRequest) -> Subject:
    return FakeSubject() if request.param == "fake" else request.getfixturevalue("real")


def test_every_entry_names_its_due_time_and_its_kind(subject: Subject) -> None:
    positions = subject.publish(5, "k", {"order": "7", "ü": "é"})
    answers = subject.entries.read(subject.topic, positions)
    assert list(answers) == positions
    for facts in answers.values():
        assert isinstance(facts, EntryFacts)
        assert facts.deliver_at_ms is not None
        assert abs(facts.deliver_at_ms - facts.publish_time_ms - DELAY_MS) < 60_000
        assert (facts.key, facts.properties) == ("k", {"order": "7", "ü": "é"})
        assert (facts.messages_in_batch, facts.chunk, facts.marker, facts.transaction) == (None, None, False, False)


def test_what_is_not_there_is_absent(subject: Subject) -> None:
    positions = subject.publish(2, "k", {})
    beyond = Position(positions[-1].ledger_id, EntryId(positions[-1].entry_id + 1))
    absent = [beyond, Position(NEVER_WRITTEN, EntryId(0)), Position(positions[0].ledger_id, EntryId(10**6))]
    assert subject.entries.read(subject.topic, absent) == dict.fromkeys(absent, Absent())
    subject.close_ledger()
    answers = subject.entries.read(subject.topic, [*positions, *absent])
    assert [isinstance(answers[position], EntryFacts) for position in positions] == [True, True]
    assert all(answers[position] == Absent() for position in absent)


def test_a_topic_that_does_not_exist(subject: Subject) -> None:
    positions = subject.publish(1, "k", {})
    subject.remove()
    with pytest.raises(NotFoundError):
        subject.entries.read(subject.topic, positions)


def test_nothing_asked_is_nothing_answered(subject: Subject) -> None:
    subject.publish(1, "k", {})
    assert subject.entries.read(subject.topic, []) == {}


def test_another_topics_entries_are_absent(real: ClusterSubject, real_cluster: Cluster) -> None:
    positions = real.publish(1, "k", {})
    other = ClusterSubject(real_cluster)
    other.publish(1, "k", {})
    assert other.entries.read(other.topic, positions) == dict.fromkeys(positions, Absent())


def test_thousands_come_at_once(real: ClusterSubject) -> None:
    positions = real.publish(3_000, "k", {})
    answers = real.entries.read(real.topic, positions[::3])
    assert [facts.sequence_id for facts in answers.values() if isinstance(facts, EntryFacts)] == list(
        range(0, 3_000, 3)
    )


def test_a_broker_answers_the_same(real: ClusterSubject) -> None:
    (position,) = real.publish(1, "k", {"order": "7"})
    (facts,) = real.entries.read(real.topic, [position]).values()
    assert isinstance(facts, EntryFacts)
    path = topic_path(real.topic, f"/ledger/{position.ledger_id}/entry/{position.entry_id}")
    shown = entry_facts_in_headers(real.cluster.rest.headers(path))
    assert shown.size_bytes is None, "the payload's length is in no header"
    for name in ("deliver_at_ms", "publish_time_ms", "messages_in_batch", "chunk", "key", "properties", "producer_name",
                 "sequence_id", "event_time_ms", "marker", "transaction"):  # fmt: skip
        assert getattr(shown, name) == getattr(facts, name), name


def test_batches_and_chunks_are_recognised(real: ClusterSubject) -> None:
    batching = real.cluster.client.create_producer(str(real.topic), batching_enabled=True)
    for number in range(3):
        batching.send_async(b"%d" % number, lambda *_: None)
    batching.flush()
    batching.close()
    chunking = real.producer(chunking_enabled=True)
    identity = chunking.send(bytes(11_000_000), deliver_after=timedelta(hours=1))
    chunking.close()
    last = Position(LedgerId(identity.ledger_id()), EntryId(identity.entry_id()))
    everything = [Position(last.ledger_id, EntryId(entry)) for entry in range(last.entry_id + 1)]
    found = [facts for facts in real.entries.read(real.topic, everything).values() if isinstance(facts, EntryFacts)]
    assert len(found) == len(everything)
    assert [facts.messages_in_batch for facts in found if facts.chunk is None] == [3]
    chunks = [facts.chunk for facts in found if facts.chunk is not None]
    assert [chunk.chunk_id for chunk in chunks] == list(range(chunks[0].total))
    assert len({chunk.uuid for chunk in chunks}) == 1
