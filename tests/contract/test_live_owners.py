"""Brokers' responses about the topics that they own, in memory and on a cluster; a query must change nothing."""

import json
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import pulsar
import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar_rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName, encode_cursor, parse_topic_name
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR, Cursor, TopicInternalStats

from tests.cluster.clients import PatientClient
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique
from tests.fakes.deletion_topics import FakeLiveOwners

_Answer = TypeVar("_Answer")
SUBSCRIPTION = "a subscription/ü"


NAMED = "a subscription/ü"


class FakeSubject:
    def __init__(self) -> None:
        self.owners = FakeLiveOwners()
        self._next_ledger = 1

    def loaded_topic(self, local_name: str = "topic") -> TopicName:
        topic = new_topic(local_name)
        ledger, self._next_ledger = LedgerId(self._next_ledger), self._next_ledger + 2
        at_start = Position(ledger, EntryId(0))
        cursor = Cursor(PositionRanges(at_start), 0, at_start, LedgerId(ledger + 1), EntryId(0))
        view = TopicInternalStats(
            broker="broker",
            cursors={NAMED: cursor},
            ledgers={ledger: 1},
            last_confirmed=at_start,
            cursor_ledgers=frozenset({LedgerId(ledger + 1)}),
            schema_ledgers=frozenset(),
            compacted_ledger=None,
            ledgers_being_read=frozenset({ledger}),
        )
        self.owners.load(topic, view)
        self.owners.own(topic, "http://broker:8080")
        return topic

    def unload(self, topic: TopicName) -> None:
        self.owners.unload(topic)
        self.owners.own(topic, None)

    def break_the_owner(self, topic: TopicName) -> None:
        assert self.owners.owner_url(topic)
        self.owners.hooks.fail_next("views", TemporaryError("a broker does not respond"))


@dataclass(slots=True)
class ClusterSubject:
    cluster: ClusterUnderTest
    owners: BrokerLiveOwners
    rest: AdminRest
    client: pulsar.Client
    broken: str | None = None

    def loaded_topic(self, local_name: str = "topic") -> TopicName:
        topic = new_topic(local_name)
        consumer = self.client.subscribe(str(topic), SUBSCRIPTION)
        producer = self.client.create_producer(str(topic))
        for _ in range(2):
            producer.send(b"x")
        producer.close()
        # The first acknowledgement gives the cursor its ledger.
        consumer.acknowledge(consumer.receive(10_000).message_id())
        consumer.close()
        path = topic_path(topic, "/internal-info")
        eventually(lambda: self.rest.get(path), lambda info: '"cursorsLedgerId": -1' not in json.dumps(info))
        return topic

    def unload(self, topic: TopicName) -> None:
        BrokerTopicAdmin(self.rest).unload(topic)

    def break_the_owner(self, topic: TopicName) -> None:
        self.broken = self.owner(topic)
        self.cluster.stop(self.broken)

    def owner(self, topic: TopicName) -> str:
        """Return the name of the member that owns the topic's bundle."""
        url = self.owners.owner_url(topic)
        return next(name for name, at in self.cluster.addresses.member_urls.items() if at == url)

    def close(self) -> None:
        if self.broken is not None:
            self.cluster.cont(self.broken)
        self.client.close()

    def loaded_names(self) -> Set[str]:
        """Return the topics loaded on each broker, without the code under test."""
        names: set[str] = set()
        for url in self.cluster.addresses.web_service_urls:
            document = self.rest.get_exactly(url, "/admin/v2/broker-stats/bookieops")
            assert isinstance(document, dict)
            names.update(name for topics in document.values() for name in topics)
        return names


Subject = FakeSubject | ClusterSubject


def new_topic(local_name: str) -> TopicName:
    return parse_topic_name(f"persistent://public/default/{local_name}-{unique()}")


@contextmanager
def cluster_subject(cluster: ClusterUnderTest) -> Iterator[ClusterSubject]:
    addresses = cluster.addresses
    with ZooKeeperMetadataStore(addresses.metadata_store_url, SystemClock()) as store:
        rest = AdminRest(addresses.web_service_urls, store=store, connect_seconds=2, read_seconds=5)
        client = PatientClient(addresses)
        opened = ClusterSubject(cluster, BrokerLiveOwners(rest, store), rest, client)
        try:
            yield opened
        finally:
            opened.close()


@pytest.fixture(params=["fake", "cluster"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "fake":
        yield FakeSubject()
        return
    with cluster_subject(request.getfixturevalue("cluster")) as opened:
        yield opened


@pytest.fixture
def real(cluster: ClusterUnderTest) -> Iterator[ClusterSubject]:
    with cluster_subject(cluster) as opened:
        yield opened


# In memory and on a cluster ------------------------------------------------------------------------------------------


def test_no_topic_no_view(subject: Subject) -> None:
    assert subject.owners.views([]) == {}
    assert subject.owners.views([new_topic("unknown")]) == {}


def test_a_loaded_topic_has_a_view_and_the_others_of_the_batch_have_none(subject: Subject) -> None:
    loaded, other = subject.loaded_topic(), subject.loaded_topic()
    views = subject.owners.views([loaded, new_topic("unknown"), other, loaded])
    assert views.keys() == {loaded, other}
    view = views[loaded]
    assert set(view.cursors) == {NAMED}
    assert len(view.ledgers) == 1
    assert len(view.cursor_ledgers) == 1
    assert view.ledgers_being_read <= view.ledgers.keys()
    assert (view.schema_ledgers, view.compacted_ledger) == (frozenset(), None)
    assert not view.ledgers.keys() & views[other].ledgers.keys()


def test_an_unloaded_topic_has_no_view(subject: Subject) -> None:
    topic = subject.loaded_topic()
    assert subject.owners.views([topic])
    subject.unload(topic)
    assert subject.owners.views([topic]) == {}
    assert subject.owners.views([topic]) == {}


def test_nothing_is_concluded_when_a_broker_cannot_be_asked(subject: Subject) -> None:
    topic = subject.loaded_topic()
    subject.break_the_owner(topic)
    with pytest.raises(TemporaryError):
        subject.owners.views([topic])


def test_the_owner_of_a_loaded_topic_is_known(subject: Subject) -> None:
    url = subject.owners.owner_url(subject.loaded_topic())
    assert url is not None
    assert url.startswith("http://")


# On a cluster only -----------------------------------------------------------------------------------------------


def test_asking_never_loads_a_topic(real: ClusterSubject) -> None:
    topics = [real.loaded_topic() for _ in range(3)]
    real.unload(topics[1])
    before = real.loaded_names()
    assert {str(topics[0]), str(topics[2])} <= before
    assert str(topics[1]) not in before
    for _ in range(3):
        assert real.owners.views([*topics, new_topic("unknown")]).keys() == {topics[0], topics[2]}
        real.owners.owner_url(topics[1])
    assert real.loaded_names() == before


@pytest.mark.parametrize("local_name", ["a b", "a%b", "a+b", "a%2Fb", "ü€", "a#b?c", "x;y", "a~*"])
def test_names_with_every_kind_of_character(real: ClusterSubject, local_name: str) -> None:
    topic = real.loaded_topic(local_name)
    assert real.owners.views([topic]).keys() == {topic}


def test_a_view_names_what_the_metadata_names(real: ClusterSubject) -> None:
    topic = real.loaded_topic()
    info = real.rest.get(topic_path(topic, "/internal-info"))
    assert isinstance(info, dict)
    view = real.owners.views([topic])[topic]
    assert view.ledgers.keys() == {ledger["ledgerId"] for ledger in info["ledgers"]}
    assert view.cursor_ledgers == {cursor["cursorsLedgerId"] for cursor in info["cursors"].values()}
    assert {encode_cursor(name) for name in view.cursors} == set(info["cursors"])


def test_system_topics_are_listed(real: ClusterSubject) -> None:
    real.loaded_topic()
    events = parse_topic_name("persistent://public/default/__change_events")
    assert real.owners.views([events]).keys() == {events}


def test_schema_and_compacted_ledgers_are_in_the_view(real: ClusterSubject) -> None:
    topic = real.loaded_topic()
    schema = {"type": "STRING", "schema": "", "properties": {}}
    path = f"/admin/v2/schemas/{topic.namespace}/{topic.local_name}"
    real.rest.change("POST", f"{path}/schema", schema)
    producer = real.client.create_producer(str(topic))
    for _ in range(3):
        producer.send(b"x", partition_key="k")
    producer.close()
    real.rest.change("PUT", topic_path(topic, "/compaction"))
    view = eventually(lambda: real.owners.views([topic])[topic], lambda found: found.compacted_ledger is not None)
    metadata = real.rest.get(f"{path}/metadata")
    assert isinstance(metadata, dict)
    assert view.schema_ledgers == {metadata["info"]["ledgerId"]}
    assert view.compacted_ledger not in view.ledgers.keys() | view.cursor_ledgers | view.schema_ledgers
    assert COMPACTION_CURSOR in view.cursors


def test_a_reader_without_a_subscription_counts_as_reading(real: ClusterSubject) -> None:
    topic = real.loaded_topic()
    before = real.owners.views([topic])[topic]
    reader = real.client.create_reader(str(topic), pulsar.MessageId.earliest)
    during = real.owners.views([topic])[topic]
    assert len(during.cursors) == len(before.cursors) + 1
    assert during.ledgers_being_read == before.ledgers.keys()
    assert during == replace(during, cursor_ledgers=before.cursor_ledgers)
    reader.close()


def test_owners_are_those_that_brokers_name(real: ClusterSubject) -> None:
    for _ in range(8):
        topic = real.loaded_topic()
        lookup = real.rest.get(f"/lookup/v2/topic/persistent/{topic.namespace}/{topic.local_name}")
        assert isinstance(lookup, dict)
        assert real.owners.owner_url(topic) == lookup["httpUrl"]


def test_a_namespace_that_is_not_there_has_no_owner(real: ClusterSubject) -> None:
    assert real.owners.owner_url(parse_topic_name("persistent://public/nowhere/topic")) is None


def test_a_dead_broker_is_temporary_until_its_registration_ends(real: ClusterSubject) -> None:
    topic = real.loaded_topic()
    name = real.owner(topic)
    real.cluster.kill(name)
    try:
        with pytest.raises(TemporaryError):
            real.owners.views([topic])
    finally:
        real.cluster.restart(name)


def eventually(read: Callable[[], _Answer], holds: Callable[[_Answer], bool]) -> _Answer:
    """Read until the condition holds; return the reading."""
    found: list[_Answer] = []

    def look() -> bool:
        found[:] = [read()]
        return holds(found[0])

    until(look, "the answer is as expected")
    return found[0]
