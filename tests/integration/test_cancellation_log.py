"""The log of cancellations on real brokers: a follower that was disconnected forgets what compaction removed, too."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_topics.cancellation_topic import PulsarCancellationTopic
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnections, TopicOwners
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation
from pulsar_sidecar.features.delayed_messages.ports import LogRecords
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus
from pulsar_sidecar.features.delayed_messages.workflow.cancellation_store import CancellationStore
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import Workload, unique
from tests.fakes.delayed_messages import TOPIC, at

PLACE = (TOPIC, "s")
CLOCK = SystemClock()


def cancellation(entry: int, status: CancellationStatus = CancellationStatus.ACCEPTED) -> Cancellation:
    return Cancellation(TOPIC, "s", at(entry), CLOCK.now_ms() + 3_600_000, CLOCK.now_ms(), status)


class Follower:
    """A sidecar's store of the log; it follows while a test wants it to, and can be made to lag behind."""

    def __init__(self, log: PulsarCancellationTopic) -> None:
        self.log = log
        self.store = CancellationStore(log)
        self.going = threading.Event()
        self.going.set()
        self.broke_off: list[str] = []

    @contextmanager
    def following(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._follow, args=(stop,))
        thread.start()
        until(lambda: self.store.follows, "the log is read")
        try:
            yield
        finally:
            self.going.set()
            stop.set()
            thread.join(30)

    def _follow(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.store.begin_following()
            try:
                self.log.follow(self._apply, self.store.note_caught_up, stop.is_set)
            except TemporaryError as error:
                self.broke_off.append(str(error))
            self.store.follows = False

    def _apply(self, records: LogRecords) -> None:
        self.going.wait(60)
        self.store.apply(records)

    def open(self) -> set[Position]:
        return {one.position for one in self.store.index.at(PLACE)}


@pytest.fixture
def topic() -> TopicName:
    return parse_topic_name(f"persistent://public/default/cancellation-log-{unique()}")


@pytest.fixture(scope="module")
def workload(cluster: ClusterUnderTest) -> Iterator[Workload]:
    with closing(Workload(cluster)) as opened:
        yield opened


@pytest.fixture
def log(cluster: ClusterUnderTest, topic: TopicName) -> Iterator[PulsarCancellationTopic]:
    addresses = cluster.addresses
    with ExitStack() as stack:
        store = stack.enter_context(ZooKeeperMetadataStore(addresses.metadata_store_url, CLOCK))
        connections = stack.enter_context(closing(BinaryConnections(ClientCredentials(), TlsOptions(), CLOCK)))
        owners = TopicOwners(addresses.broker_service_url, connections)
        admin = BrokerTopicAdmin(AdminRest(addresses.web_service_urls, store=store))
        opened = stack.enter_context(closing(PulsarCancellationTopic(owners, admin, CLOCK, topic)))
        opened.ensure()
        yield opened


def test_a_returning_follower_forgets_compacted_cancellations(
    log: PulsarCancellationTopic, topic: TopicName, workload: Workload
) -> None:
    writer, away = CancellationStore(log), Follower(log)
    kept, ended, persisted = cancellation(1), cancellation(2), cancellation(3)
    writer.record([kept, ended, persisted])
    with away.following():
        until(lambda: away.open() == {at(1), at(2), at(3)}, "the follower knows all")
    writer.finish([ended.at(CancellationStatus.NOT_FOUND)])
    writer.record([persisted.at(CancellationStatus.PERSISTED)])
    workload.compact(topic)
    with away.following():
        assert away.open() == {at(1), at(3)}
        assert {one.position: one.status for one in away.store.index.at(PLACE)}[at(3)] is CancellationStatus.PERSISTED
    writer.finish([one.at(CancellationStatus.NOT_FOUND) for one in (kept, persisted)])
    workload.compact(topic)
    with away.following():
        assert away.open() == set(), "nothing is left of the log"


def test_a_follower_that_compaction_overtakes_reads_the_log_again(
    log: PulsarCancellationTopic, topic: TopicName, workload: Workload
) -> None:
    writer, slow = CancellationStore(log), Follower(log)
    ended, others = cancellation(1), [cancellation(entry) for entry in range(10, 30_010)]
    writer.record([ended])
    with slow.following():
        until(lambda: slow.open() == {at(1)}, "the follower knows it")
        slow.going.clear()
        writer.record(others)
        writer.finish([ended.at(CancellationStatus.NOT_FOUND)])
        workload.compact(topic)
        slow.going.set()
        until(lambda: slow.open() == {one.position for one in others}, "the follower knows what the log holds")
    assert any("before its reader had read it" in why for why in slow.broke_off), slow.broke_off
