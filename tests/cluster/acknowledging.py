"""Subscriptions with many holes on a real cluster, and their deliveries.

Invariant: acknowledgements and deliveries are those that this client made and saw, never answers of the code under
test.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from urllib.request import urlopen

import pulsar
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.stored_cursors import BookieStoredCursors
from pulsar_sidecar.adapters.pulsar_rest.ack_states import BrokerAckStates
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import endangered_source
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.features.acknowledgements.results import AckState
from pulsar_sidecar.features.acknowledgements.states import DetailOptions
from pulsar_sidecar.features.acknowledgements.workflow import AckStateService, Ports
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.entry_sizes import STOCK_JUTE_MAX_BUFFER
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT

from tests.cluster.clients import PatientClient
from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique

EVERYTHING = DetailOptions(ranges=100_000)
SUBSCRIPTION = "with holes"
_PATIENCE_MS = 4_000


def position_of(message: pulsar.Message) -> Position:
    identity = message.message_id()
    return Position(LedgerId(identity.ledger_id()), EntryId(identity.entry_id()))


def positions_in(ranges: Iterable[str]) -> set[Position]:
    """Return the positions of ranges such as ``6:43`` and ``6:45-47``."""
    found = set()
    for each in ranges:
        ledger, _, entries = each.partition(":")
        first, _, last = entries.partition("-")
        found |= {Position(LedgerId(int(ledger)), EntryId(e)) for e in range(int(first), int(last or first) + 1)}
    return found


@dataclass(slots=True)
class Holes:
    """A Shared subscription of a topic without batches; ``queue`` is its consumers' receiver queue size."""

    client: pulsar.Client
    topic: TopicName
    queue: int = 1_000
    sent: set[Position] = field(default_factory=set)
    acknowledged: set[Position] = field(default_factory=set)

    def produce(self, count: int) -> None:
        """Produce ``count`` small entries."""
        producer = self.client.create_producer(
            str(self.topic), batching_enabled=False, block_if_queue_full=True, max_pending_messages=5_000
        )

        def stored(result: pulsar.Result, identity: pulsar.MessageId) -> None:
            assert result == pulsar.Result.Ok
            self.sent.add(Position(LedgerId(identity.ledger_id()), EntryId(identity.entry_id())))

        for number in range(count):
            producer.send_async(b"%d" % number, stored)
        producer.flush()
        producer.close()

    @contextmanager
    def consumer(self) -> Iterator[pulsar.Consumer]:
        # After a crash the topic has no owner until the dead broker's session in the metadata store expires.
        consumer = self.client.subscribe(
            str(self.topic),
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=self.queue,
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def acknowledge(
        self, consumer: pulsar.Consumer, wanted: Callable[[Position], bool], patience_ms: int = _PATIENCE_MS
    ) -> list[pulsar.Message]:
        """Receive all messages, acknowledge the wanted ones, and return the others."""
        left = []
        while (message := received(consumer, patience_ms)) is not None:
            if wanted(position_of(message)):
                self.give_back(consumer, [message])
            else:
                left.append(message)
        return left

    def give_back(self, consumer: pulsar.Consumer, messages: Iterable[pulsar.Message]) -> None:
        for message in messages:
            consumer.acknowledge(message)
            self.acknowledged.add(position_of(message))

    def delivered(self) -> set[Position]:
        """Return the positions that a new consumer receives, without acknowledgements."""
        with self.consumer() as consumer:
            found = set()
            while (message := received(consumer, _PATIENCE_MS)) is not None:
                found.add(position_of(message))
        return found


def received(consumer: pulsar.Consumer, patience_ms: int) -> pulsar.Message | None:
    try:
        return consumer.receive(patience_ms)
    except pulsar.Timeout:
        return None


def every_other(position: Position) -> bool:
    """Return True for every second entry, so that each is a separate hole."""
    return position.entry_id % 2 == 1


@dataclass(frozen=True, slots=True)
class AckStateSetup:
    """The feature on a real cluster, and topics for it."""

    cluster: ClusterUnderTest
    client: pulsar.Client
    store: MetadataStore
    rest: AdminRest
    brokers: BrokerAckStates
    stored: BookieStoredCursors
    states: AckStateService

    def holes(self, name: str = "holes", namespace: str = "public/default") -> Holes:
        return Holes(self.client, parse_topic_name(f"persistent://{namespace}/{name}-{unique()}"))

    def broker_stats(self, topic: TopicName) -> bytes:
        """Return a broker's own response to ``stats``."""
        path = str(topic).replace("://", "/")
        with urlopen(f"{self.cluster.addresses.web_service_urls[0]}/admin/v2/{path}/stats") as answer:
            return bytes(answer.read())

    def state(self, topic: TopicName) -> AckState:
        (state,) = self.states.ack_states(topic, SUBSCRIPTION, EVERYTHING)
        return state


def dug(setup: AckStateSetup, count: int, namespace: str = "public/default") -> Holes:
    """Create a subscription with ``count`` separate holes and no consumer."""
    holes = setup.holes(namespace=namespace)
    with holes.consumer() as consumer:
        holes.produce(2 * count)
        holes.acknowledge(consumer, every_other)
    assert len(holes.acknowledged) == count
    return holes


@contextmanager
def ack_state_setup(cluster: ClusterUnderTest, jute_max_buffer: int = STOCK_JUTE_MAX_BUFFER) -> Iterator[AckStateSetup]:
    clock, addresses = SystemClock(), cluster.addresses
    store = ZooKeeperMetadataStore(addresses.metadata_store_url, clock)
    rest = AdminRest(addresses.web_service_urls, store=store)
    entries = BookieEntries(BookieConnections(store))
    brokers = BrokerAckStates(rest, store, clock, jute_max_buffer)
    stored = BookieStoredCursors(store, entries, DEFAULT_LEDGERS_ROOT)
    states = AckStateService(Ports(brokers, stored, brokers, partial(endangered_source, rest, store)), clock)
    client = PatientClient(addresses)
    try:
        yield AckStateSetup(cluster, client, store, rest, brokers, stored, states)
    finally:
        client.close()
        states.close()
        entries.close()
        store.close()
