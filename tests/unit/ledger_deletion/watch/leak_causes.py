"""Topics whose ledgers lose their last reference, by each cause."""

from collections.abc import Callable

from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import TopicName, encode_cursor
from pulsar_sidecar.ownership.paths import cursor_path, managed_ledger_path, schema_path

from tests.fakes.bookkeeper import cursor_bytes, cursor_custom_metadata, managed_ledger_bytes
from tests.fakes.pulsar import FakePulsar, TopicPlan

YOUNG = TopicPlan(subscriptions=("sub",), schema_versions=2, buckets=1, age_ms=0)
"""Every ledger was made just now, and some are OPEN: an audit would wait."""


def path_of(topic: TopicName) -> str:
    return managed_ledger_path(topic.managed_ledger_name)


def sub_of(topic: TopicName, subscription: str = "sub") -> str:
    return cursor_path(topic.managed_ledger_name, encode_cursor(subscription))


def remove_from_list(fake_pulsar: FakePulsar, topic: TopicName, ledger_id: LedgerId) -> None:
    left = [each for each in fake_pulsar.listed(topic) if each != ledger_id]
    fake_pulsar.store.put(path_of(topic), managed_ledger_bytes(left))


def crowd(fake_pulsar: FakePulsar, count: int) -> TopicName:
    return fake_pulsar.topic("persistent://public/default/crowd", TopicPlan(ledgers=count, subscriptions=()))


def trim(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    return set(fake_pulsar.trim(topic, 2, dies_between=True))


def truncate(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    """The OPEN one too."""
    return set(fake_pulsar.trim(topic, 3, dies_between=True))


def switch_cursor(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    (cursor,) = fake_pulsar.cursors(topic).values()
    custom = cursor_custom_metadata(topic.managed_ledger_name, encode_cursor("sub"))
    fresh = fake_pulsar.ledger(custom, state=LedgerState.OPEN, age_ms=0)
    fake_pulsar.store.put(sub_of(topic), cursor_bytes(fresh, buckets=cursor.buckets))
    return {cursor.cursor_ledger}


def close_cursor(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    (cursor,) = fake_pulsar.cursors(topic).values()
    fake_pulsar.store.put(sub_of(topic), cursor_bytes(None, buckets=cursor.buckets))
    return {cursor.cursor_ledger}


def unsubscribe(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    (cursor,) = fake_pulsar.cursors(topic).values()
    fake_pulsar.store.remove(sub_of(topic))
    return {cursor.cursor_ledger, *cursor.buckets.values()}


def use_up_bucket(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    (cursor,) = fake_pulsar.cursors(topic).values()
    fake_pulsar.store.put(sub_of(topic), cursor_bytes(cursor.cursor_ledger))
    return set(cursor.buckets.values())


def delete_schema(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    before = fake_pulsar.referenced()
    fake_pulsar.store.remove(schema_path(topic.schema_id))
    return {each for each, path in before.items() if path == schema_path(topic.schema_id)}


def delete_topic(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    before = fake_pulsar.referenced()
    fake_pulsar.store.remove(path_of(topic))
    return {each for each, path in before.items() if path.startswith(path_of(topic))}


def delete_namespace(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    fake_pulsar.store.remove("/admin/policies/public/default")
    gone = delete_topic(fake_pulsar, topic)
    return gone | delete_schema(fake_pulsar, topic)


def replace_by_offloaded(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    first = fake_pulsar.listed(topic)[0]
    contexts = {first: fake_pulsar.context(first, deleted=True)}
    fake_pulsar.offloaded.put(first, contexts[first], topic.managed_ledger_name)
    fake_pulsar.store.put(path_of(topic), managed_ledger_bytes(fake_pulsar.listed(topic), offloaded=contexts))
    return {first}


Act = Callable[[FakePulsar, TopicName], set[LedgerId]]


CAUSES: list[tuple[Act, LeakCause]] = [
    (trim, LeakCause.TRIM),
    (truncate, LeakCause.TRIM),
    (switch_cursor, LeakCause.CURSOR_SWITCH),
    (close_cursor, LeakCause.CURSOR_SWITCH),
    (unsubscribe, LeakCause.SUBSCRIPTION),
    (use_up_bucket, LeakCause.DELAYED_INDEX),
    (delete_schema, LeakCause.SCHEMA),
    (delete_topic, LeakCause.TOPIC_DELETION),
    (delete_namespace, LeakCause.NAMESPACE_DELETION),
    (replace_by_offloaded, LeakCause.OFFLOAD),
]
