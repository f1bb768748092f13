"""A namespace of deduplicated topics, publishers on it, and the messages in its topics afterwards."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

import pulsar
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_wire.sequenced_producers import BrokerSequencedProducers
from pulsar_sidecar.bootstrap.exactly_once import sequenced_producers
from pulsar_sidecar.features.publishing.messages import Batch, BatchLimits
from pulsar_sidecar.features.publishing.ports import Receipt, SequencedProducer, SequencedProducers
from pulsar_sidecar.features.publishing.publisher import ExactlyOncePublisher
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.topic_stats import DeduplicationStatus

from tests.cluster.clients import PatientClient
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique

CLOCK = SystemClock()
_READ_MS = 60_000


@dataclass
class Setup:
    """Setup on a cluster; ``producers`` are the real ones, for direct use or for wrappers."""

    cluster: ClusterUnderTest
    namespace: str
    admin: BrokerTopicAdmin
    rest: AdminRest
    client: PatientClient
    producers: BrokerSequencedProducers

    def topic(self, partitions: int = 0) -> TopicName:
        topic = parse_topic_name(f"persistent://{self.namespace}/records-{unique()}")
        self.admin.create(topic, partitions)
        for index in range(max(1, partitions)):
            one = topic.partition(index) if partitions else topic
            until(lambda one=one: self.producers.deduplication_status(one) == "Enabled", "brokers deduplicate")
        return topic

    def publisher(
        self, topic: TopicName, name: str = "loader", messages: int = 100, producers: SequencedProducers | None = None
    ) -> ExactlyOncePublisher:
        limits = BatchLimits(messages=messages)
        return ExactlyOncePublisher(producers or self.producers, CLOCK, topic, producer_name=name, limits=limits)

    def owner(self, topic: TopicName) -> str:
        """Return the member that serves the topic."""
        path = f"/lookup/v2/topic/persistent/{topic.namespace}/{topic.local_name}"
        found = until(lambda: self._answered(lambda: self.rest.get(path)), f"brokers answer who serves {topic}")
        assert isinstance(found, dict)
        urls = self.cluster.addresses.member_urls
        return next(name for name, url in urls.items() if name.startswith("broker-") and url in found.values())

    def unload(self, topic: TopicName) -> None:
        self._have_done(lambda: self.admin.unload(topic), f"{topic} is unloaded")

    def unload_namespace(self) -> None:
        path = f"/admin/v2/namespaces/{self.namespace}/unload"
        self._have_done(lambda: self.rest.change("PUT", path), f"{self.namespace} is unloaded")

    def _have_done(self, ask: Callable[[], object], what: str) -> None:
        """Retry a request until brokers succeed, since they may refuse or not respond while bundles move."""
        until(lambda: self._answered(lambda: ask() or True), what)

    def _answered(self, ask: Callable[[], object]) -> object:
        try:
            return ask()
        except SidecarError:
            return None

    def switch(self, topic: TopicName, partitions: Sequence[TopicName], *, on: bool) -> None:
        """Switch deduplication like an administrator; off and on makes brokers forget all names."""
        self.admin.set_policy(topic, "deduplicationEnabled", on)
        status = "Enabled" if on else "Disabled"
        for one in partitions:
            until(lambda one=one: self.producers.deduplication_status(one) == status, status)

    def trim_and_forget(self, topic: TopicName, partitions: Sequence[TopicName]) -> None:
        """Make brokers delete all messages of these partitions, and forget their producers' names."""
        self.switch(topic, partitions, on=False)  # Its cursor would keep the ledgers.
        self.admin.set_policy(topic, "retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
        for one in partitions:
            self.unload(one)
            until(lambda one=one: self._is_trimmed(one), f"{one} is trimmed")
        self.switch(topic, partitions, on=True)

    def _is_trimmed(self, topic: TopicName) -> bool:
        path = f"/admin/v2/persistent/{topic.namespace}/{topic.local_name}/trim"
        with suppress(SidecarError):  # for example while bundles move; the caller retries
            self.rest.change("POST", path)
        return not self.holds_entries(topic)

    def holds_entries(self, topic: TopicName) -> bool:
        return any(self.admin.internal_stats(topic).ledgers.values())

    def stored(self, topic: TopicName) -> list[pulsar.Message]:
        """Return all messages of a topic, or of a partition, as a reader gets them."""
        found = []
        with closing(self.client.create_reader(str(topic), pulsar.MessageId.earliest)) as reader:
            while reader.has_message_available():
                found.append(reader.read_next(_READ_MS))
        return found


@contextmanager
def exactly_once_setup(cluster: ClusterUnderTest) -> Iterator[Setup]:
    addresses = cluster.addresses
    rest = AdminRest(addresses.web_service_urls)
    admin = BrokerTopicAdmin(rest)
    namespace = f"public/exactly-once-{unique()}"
    admin.ensure_namespace(*namespace.split("/"))
    admin.set_namespace_policy(namespace, "deduplication", True)
    forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    admin.set_namespace_policy(namespace, "retention", forever)
    identity = ClientCredentials(), TlsOptions()
    with (
        closing(PatientClient(addresses)) as client,
        sequenced_producers(addresses.broker_service_url, addresses.web_service_urls, *identity, CLOCK) as producers,
    ):
        yield Setup(cluster, namespace, admin, rest, client, producers)


@dataclass
class LosingAnswers:
    """`SequencedProducers` that lose every n-th receipt with its connection.

    Attributes:
        lie: True to claim that the topic is deduplicated, and that the broker remembers confirmed ids.
    """

    real: SequencedProducers
    every: int
    lie: bool = False
    received: int = 0
    lost: int = 0
    confirmed: int = -1

    def open(self, topic: TopicName, name: str | None) -> SequencedProducer:
        return _LosingProducer(self.real.open(topic, name), self)

    def partitions(self, topic: TopicName) -> int:
        return self.real.partitions(topic)

    def deduplication_status(self, topic: TopicName) -> str:
        return DeduplicationStatus.ENABLED if self.lie else self.real.deduplication_status(topic)


@dataclass
class _LosingProducer:
    real: SequencedProducer
    network: LosingAnswers
    name: str = field(init=False)
    last_sequence_id: int = field(init=False)

    def __post_init__(self) -> None:
        self.name, self.last_sequence_id = self.real.name, self.real.last_sequence_id
        self.sent: deque[Batch] = deque()
        if self.network.lie:
            self.last_sequence_id = self.network.confirmed

    def send(self, batch: Batch, pushed: int) -> None:
        self.sent.append(batch)
        self.real.send(batch, pushed)

    def receive(self, wait_seconds: float) -> Receipt | None:
        receipt = self.real.receive(wait_seconds)
        if receipt is None:
            return None
        self.network.received += 1
        batch = self.sent.popleft()
        if self.network.received % self.network.every:
            self.network.confirmed = batch.last_sequence_id
            return receipt
        self.network.lost += 1
        self.close()
        raise TemporaryError("the answer got lost")

    def close(self) -> None:
        self.real.close()
