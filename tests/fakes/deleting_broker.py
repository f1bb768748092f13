"""Deletion of a topic, or a part of one, by a 4.0.8 broker, which may die between any two removals.

Invariant: between any two steps nodes and ledgers are in a state that a killed broker can leave behind.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError, OutcomeUnknownError
from pulsar_sidecar.model.names import CursorName, TopicName, encode_cursor, parse_topic_name
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR
from pulsar_sidecar.ownership.paths import (
    cursor_path,
    ledger_path,
    managed_ledger_path,
    partitioned_topic_path,
    schema_path,
)
from pulsar_sidecar.ownership.references import CursorReferences, schema_references

from tests.fakes.bookkeeper import cursor_bytes, newest_schema_ledger
from tests.fakes.brokers import TopicDeletion

if TYPE_CHECKING:
    from tests.fakes.pulsar import FakePulsar


class BrokerDiedError(Exception):
    """Raised when the broker is killed before its next step."""


def delete_topic(fake_pulsar: "FakePulsar", deletion: TopicDeletion) -> None:
    """Delete like a broker, one step at a time; raise `OutcomeUnknownError` if it dies meanwhile."""
    topics = _topics_of(fake_pulsar, deletion)
    busy = [] if deletion.force else [topic for topic in topics if topic in fake_pulsar.admin.connected]
    idle = [topic for topic in topics if topic not in busy]
    # Each partition is its own request: the broker deletes those without clients before it refuses one with clients.
    asked = replace(deletion, partitioned=deletion.partitioned and not busy)
    steps = deletion_steps(fake_pulsar, asked, idle)
    if deletion.schema:
        steps = _schema_steps(fake_pulsar, deletion.topic, force=True)
    elif deletion.subscription is not None:
        steps = itertools.chain(*(_subscription_steps(fake_pulsar, each, deletion.subscription) for each in idle))
    try:
        for step in steps:
            take(fake_pulsar, step)
    except BrokerDiedError:
        fake_pulsar.kill_broker()
        raise OutcomeUnknownError("the broker closed the connection") from None
    if busy:
        raise BrokerRefusedError(412, "Topic has active producers/subscriptions")


def take(fake_pulsar: "FakePulsar", step: Callable[[], None]) -> None:
    """Take a step, unless the broker dies before it."""
    if fake_pulsar.die_at is not None and fake_pulsar.broker_steps >= fake_pulsar.die_at:
        raise BrokerDiedError
    fake_pulsar.broker_steps += 1
    step()


def _topics_of(fake_pulsar: "FakePulsar", deletion: TopicDeletion) -> list[TopicName]:
    if deletion.schema:
        return []
    if not deletion.partitioned:
        if fake_pulsar.store.peek(managed_ledger_path(deletion.topic.managed_ledger_name)) is None:
            raise NotFoundError("Topic not found")
        return [deletion.topic]
    node = fake_pulsar.store.peek(partitioned_topic_path(deletion.topic))
    if node is None:
        raise NotFoundError("Partitioned Topic Metadata not found")
    count = int(node.data.split(b'"partitions":')[1].split(b",")[0])
    return [deletion.topic.partition(index) for index in range(count)]


def deletion_steps(
    fake_pulsar: "FakePulsar", deletion: TopicDeletion, topics: list[TopicName]
) -> Iterator[Callable[[], None]]:
    """Yield a broker's steps lazily, so that each sees the effects of the former ones."""
    for topic in topics:
        if topic.partition_index is None:
            yield from _schema_steps(fake_pulsar, topic)
        for pending_acks in _pending_acks_of(fake_pulsar, topic, fake_pulsar.cursors(topic)):
            yield from _unloaded_steps(fake_pulsar, pending_acks)
        yield from _managed_ledger_steps(fake_pulsar, topic)
    if deletion.partitioned:
        yield from _schema_steps(fake_pulsar, deletion.topic)
        yield lambda: fake_pulsar.remove_node(partitioned_topic_path(deletion.topic))


def _pending_acks_of(fake_pulsar: "FakePulsar", topic: TopicName, cursors: Iterable[CursorName]) -> Iterator[TopicName]:
    # PersistentSubscription deletes the topic of transactions' pending acknowledgements.
    for name in cursors:
        pending = f"{topic}-{name}__transaction_pending_ack"
        if fake_pulsar.store.peek(managed_ledger_path(parse_topic_name(pending).managed_ledger_name)) is not None:
            yield parse_topic_name(pending)


def _subscription_steps(fake_pulsar: "FakePulsar", topic: TopicName, subscription: str) -> Iterator[Callable[[], None]]:
    # PersistentTopic.unsubscribe: pending acknowledgements, each bucket's ledger and then its pointer, the cursor.
    name = encode_cursor(subscription)
    cursor = fake_pulsar.cursors(topic).get(name)
    if cursor is None:
        raise NotFoundError(f"Subscription {subscription} not found for topic {topic}")
    for pending_acks in _pending_acks_of(fake_pulsar, topic, {name}):
        yield from _unloaded_steps(fake_pulsar, pending_acks)
    path = cursor_path(topic.managed_ledger_name, name)
    yield from _bucket_steps(fake_pulsar, path, cursor)
    gone = fake_pulsar.compacted(cursor) if name == COMPACTION_CURSOR else frozenset()
    yield lambda: fake_pulsar.remove_node(path)
    for ledger_id in sorted(gone | ({cursor.cursor_ledger} - {None})):
        yield lambda ledger_id=ledger_id: fake_pulsar.remove_ledger(ledger_id)


def _bucket_steps(fake_pulsar: "FakePulsar", path: str, cursor: CursorReferences) -> Iterator[Callable[[], None]]:
    # ImmutableBucket.asyncDeleteBucketSnapshot; BookKeeper answers -25, which Pulsar does not treat as success.
    buckets = dict(cursor.buckets)
    for key, ledger_id in cursor.buckets.items():
        if fake_pulsar.store.peek(ledger_path(ledger_id)) is None:
            raise OutcomeUnknownError("500: No such ledger exists on Metadata Server")
        del buckets[key]
        left = cursor_bytes(cursor.cursor_ledger, buckets=buckets)
        yield lambda ledger_id=ledger_id: fake_pulsar.remove_ledger(ledger_id)
        yield lambda left=left: fake_pulsar.store.put(path, left)


def _schema_steps(fake_pulsar: "FakePulsar", topic: TopicName, *, force: bool = False) -> Iterator[Callable[[], None]]:
    # BookkeeperSchemaStorage.deleteSchema: it reads the newest version first, and does nothing without its ledger.
    path = schema_path(topic.schema_id)
    node = fake_pulsar.store.peek(path)
    if node is None:
        return
    if force or fake_pulsar.store.peek(ledger_path(newest_schema_ledger(node.data))) is not None:
        for ledger_id in sorted(schema_references(node.data)):
            yield lambda ledger_id=ledger_id: fake_pulsar.remove_ledger(ledger_id)
        yield lambda: fake_pulsar.remove_node(path)


def _managed_ledger_steps(fake_pulsar: "FakePulsar", topic: TopicName) -> Iterator[Callable[[], None]]:
    if topic in fake_pulsar.loaded:
        yield from _loaded_steps(fake_pulsar, topic)
    else:
        yield from _unloaded_steps(fake_pulsar, topic)


def _unloaded_steps(fake_pulsar: "FakePulsar", topic: TopicName) -> Iterator[Callable[[], None]]:
    # ManagedLedgerFactoryImpl: ledgers first, then nodes; it knows neither compacted ledgers nor buckets.
    path = managed_ledger_path(topic.managed_ledger_name)
    cursors = fake_pulsar.cursors(topic)
    for ledger_id in fake_pulsar.listed_at(path):
        yield lambda ledger_id=ledger_id: fake_pulsar.remove_ledger(ledger_id)
    for cursor in cursors.values():
        if cursor.cursor_ledger is not None:
            yield lambda ledger_id=cursor.cursor_ledger: fake_pulsar.remove_ledger(ledger_id)
    for name in cursors:
        yield lambda name=name: fake_pulsar.remove_node(cursor_path(topic.managed_ledger_name, name))
    yield lambda: fake_pulsar.remove_node(path)


def _loaded_steps(fake_pulsar: "FakePulsar", topic: TopicName) -> Iterator[Callable[[], None]]:
    # PersistentTopic: subscriptions (buckets, node, cursor ledger), then the topic's ledgers, then its node.
    path = managed_ledger_path(topic.managed_ledger_name)
    for name, cursor in fake_pulsar.cursors(topic).items():
        yield from _bucket_steps(fake_pulsar, cursor_path(topic.managed_ledger_name, name), cursor)
        for ledger_id in fake_pulsar.compacted(cursor) if name == COMPACTION_CURSOR else ():
            yield lambda ledger_id=ledger_id: fake_pulsar.remove_ledger(ledger_id)
        yield lambda name=name: fake_pulsar.remove_node(cursor_path(topic.managed_ledger_name, name))
        if cursor.cursor_ledger is not None:
            yield lambda ledger_id=cursor.cursor_ledger: fake_pulsar.remove_ledger(ledger_id)
    for ledger_id in fake_pulsar.listed_at(path):
        yield lambda ledger_id=ledger_id: fake_pulsar.remove_ledger(ledger_id)
    yield lambda: fake_pulsar.remove_node(path)
    yield lambda: fake_pulsar.loaded.discard(topic)
