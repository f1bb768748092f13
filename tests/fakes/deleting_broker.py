"""How a 4.0.8 broker deletes a topic: in which order it removes nodes and ledgers, and where it may die.

Invariant: between any two steps the world is one that a killed broker can leave behind.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pulsar_sidecar.ledger_ownership.paths import cursor_path, managed_ledger_path, partitioned_topic_path, schema_path
from pulsar_sidecar.ledger_ownership.references import schema_references
from pulsar_sidecar.model.errors import NotFoundError, OutcomeUnknownError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR

from tests.fakes.brokers import TopicDeletion

if TYPE_CHECKING:
    from tests.fakes.world import World


class BrokerDiedError(Exception):
    """The broker is killed before its next step."""


def delete_topic(world: "World", deletion: TopicDeletion) -> None:
    """What a broker does when it is asked, one step at a time; `OutcomeUnknownError` when it dies on the way."""
    topics = _topics_of(world, deletion)
    try:
        for step in _deletion_steps(world, deletion, topics):
            _take(world, step)
    except BrokerDiedError:
        world.kill_broker()
        raise OutcomeUnknownError("the broker closed the connection") from None


def _take(world: "World", step: Callable[[], None]) -> None:
    if world.die_at is not None and world.broker_steps >= world.die_at:
        raise BrokerDiedError
    world.broker_steps += 1
    step()


def _topics_of(world: "World", deletion: TopicDeletion) -> list[TopicName]:
    if not deletion.partitioned:
        if world.store.peek(managed_ledger_path(deletion.topic.managed_ledger_name)) is None:
            raise NotFoundError("Topic not found")
        return [deletion.topic]
    node = world.store.peek(partitioned_topic_path(deletion.topic))
    if node is None:
        raise NotFoundError("Partitioned Topic Metadata not found")
    count = int(node.data.split(b'"partitions":')[1].split(b",")[0])
    return [deletion.topic.partition(index) for index in range(count)]


def _deletion_steps(world: "World", deletion: TopicDeletion, topics: list[TopicName]) -> Iterator[Callable[[], None]]:
    for topic in topics:
        if topic.partition_index is None:
            yield from _schema_steps(world, topic)
        yield from _managed_ledger_steps(world, topic)
    if deletion.partitioned:
        yield from _schema_steps(world, deletion.topic)
        yield lambda: world.remove_node(partitioned_topic_path(deletion.topic))


def _schema_steps(world: "World", topic: TopicName) -> Iterator[Callable[[], None]]:
    path = schema_path(topic.schema_id)
    node = world.store.peek(path)
    if node is not None:
        for ledger_id in sorted(schema_references(node.data)):
            yield lambda ledger_id=ledger_id: world.remove_ledger(ledger_id)
        yield lambda: world.remove_node(path)


def _managed_ledger_steps(world: "World", topic: TopicName) -> Iterator[Callable[[], None]]:
    if topic in world.loaded:
        yield from _loaded_steps(world, topic)
    else:
        yield from _unloaded_steps(world, topic)


def _unloaded_steps(world: "World", topic: TopicName) -> Iterator[Callable[[], None]]:
    # ManagedLedgerFactoryImpl: ledgers first, then nodes; it knows neither compacted ledgers nor buckets.
    path = managed_ledger_path(topic.managed_ledger_name)
    cursors = world.cursors(topic)
    for ledger_id in world.listed_at(path):
        yield lambda ledger_id=ledger_id: world.remove_ledger(ledger_id)
    for cursor in cursors.values():
        if cursor.cursor_ledger is not None:
            yield lambda ledger_id=cursor.cursor_ledger: world.remove_ledger(ledger_id)
    for name in cursors:
        yield lambda name=name: world.remove_node(cursor_path(topic.managed_ledger_name, name))
    yield lambda: world.remove_node(path)


def _loaded_steps(world: "World", topic: TopicName) -> Iterator[Callable[[], None]]:
    # PersistentTopic: subscriptions (buckets, node, cursor ledger), then the topic's ledgers, then its node.
    path = managed_ledger_path(topic.managed_ledger_name)
    for name, cursor in world.cursors(topic).items():
        gone = [*cursor.buckets.values(), *(world.compacted(cursor) if name == COMPACTION_CURSOR else ())]
        for ledger_id in gone:
            yield lambda ledger_id=ledger_id: world.remove_ledger(ledger_id)
        yield lambda name=name: world.remove_node(cursor_path(topic.managed_ledger_name, name))
        if cursor.cursor_ledger is not None:
            yield lambda ledger_id=cursor.cursor_ledger: world.remove_ledger(ledger_id)
    for ledger_id in world.listed_at(path):
        yield lambda ledger_id=ledger_id: world.remove_ledger(ledger_id)
    yield lambda: world.remove_node(path)
    yield lambda: world.loaded.discard(topic)
