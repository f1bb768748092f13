"""Subscriptions and schemas: recorded before a broker's call, and finished where it does not respond."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.features.ledger_deletion.topic_deletion.following import follow, running_deletion_of
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    Operation,
    PartOperation,
    decode_node,
    decode_operation,
    encode_operation,
    operation_path,
)
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    NotFoundError,
    OutcomeUnknownError,
    TemporaryError,
    UndecodableError,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import CursorName, TopicName
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR
from pulsar_sidecar.ownership.paths import cursor_path, managed_ledger_path, partitioned_topic_path, schema_path

from tests.fakes.bookkeeper import cursor_bytes
from tests.fakes.brokers import ConnectedClients, TopicDeletion
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.driving import OP, asked, running
from tests.unit.ledger_deletion.orphans import NAME
from tests.unit.ledger_deletion.sidecars import Crash, CrashAt, Sidecar, accepted_records, endings, restarted

SUB = "billing/a b"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a topic, with its ledgers."""

    fake_pulsar: FakePulsar
    topic: TopicName
    subscription: str | None
    remaining: frozenset[LedgerId]

    def delete(self, sidecar: Sidecar, *, force: bool = False) -> OperationState | PartOperation:
        return sidecar.delete_part(self.topic, self.subscription, force=force)

    @property
    def is_partitioned(self) -> bool:
        return self.fake_pulsar.store.peek(partitioned_topic_path(self.topic)) is not None

    @property
    def gone(self) -> frozenset[LedgerId]:
        return frozenset(self.fake_pulsar.ledgers()) - self.remaining


def subscription(name: str = NAME, *, partitions: int = 0) -> Part:
    fake_pulsar = FakePulsar()
    plan = TopicPlan(subscriptions=("other",), schema_versions=1)
    topic = fake_pulsar.partitioned_topic(name, partitions, plan) if partitions else fake_pulsar.topic(name, plan)
    remaining = frozenset(fake_pulsar.ledgers())
    for each in [topic.partition(index) for index in range(partitions)] or [topic]:
        fake_pulsar.cursor(each, SUB, TopicPlan(buckets=2))
    return Part(fake_pulsar, topic, SUB, remaining)


def in_transactions() -> Part:
    part = subscription()
    fake_pulsar, topic = part.fake_pulsar, part.topic
    fake_pulsar.topic(
        f"{topic}-billing%2Fa+b__transaction_pending_ack", TopicPlan(subscriptions=("__pending_ack_state",))
    )
    return part


def compaction() -> Part:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME)
    remaining = frozenset(fake_pulsar.ledgers())
    fake_pulsar.compact(topic)
    return Part(fake_pulsar, topic, COMPACTION_CURSOR, remaining)


def schema() -> Part:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME)
    remaining = frozenset(fake_pulsar.ledgers())
    fake_pulsar.schema(topic, 3)
    return Part(fake_pulsar, topic, None, remaining)


BUILDS: dict[str, Callable[[], Part]] = {
    "subscription": subscription,
    "in-transactions": in_transactions,
    "partitioned": lambda: subscription(partitions=2),
    "v1": lambda: subscription("persistent://public/local/default/orders"),
    "compaction": compaction,
    "schema": schema,
}


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest) -> Callable[[], Part]:
    return BUILDS[request.param]


# --- records -----------------------------------------------------------------------------------------------------


def test_ledgers_are_recorded_before_a_broker_is_called(build: Callable[[], Part]) -> None:
    part = build()
    gone, before = part.gone, list[int]()
    part.fake_pulsar.admin.hooks.before(
        "delete_topic", lambda: before.extend(each.ledger_id for each in accepted_records(part.fake_pulsar))
    )
    if part.is_partitioned:
        part.fake_pulsar.admin.on_delete = _of_each_partition(part)
    part.delete(Sidecar(part.fake_pulsar))
    assert sorted(before) == sorted(gone)
    assert not part.gone
    assert running(part.fake_pulsar) == []


def _of_each_partition(part: Part) -> Callable[[TopicDeletion], None]:
    """A broker asks the owner of each partition in turn."""

    def delete(deletion: TopicDeletion) -> None:
        for index in range(2):
            topic = part.topic.partition(index)
            part.fake_pulsar.delete_by_broker(
                TopicDeletion(topic, partitioned=False, force=deletion.force, subscription=deletion.subscription)
            )

    return delete


def test_records_name_the_subscription_and_the_schema() -> None:
    part = subscription()
    part.delete(Sidecar(part.fake_pulsar))
    found = {(each.component, each.cursor_name, str(each.topic)) for each in accepted_records(part.fake_pulsar)}
    assert found == {
        (LedgerComponent.MANAGED_CURSOR, SUB, NAME),
        (LedgerComponent.DELAYED_INDEX_BUCKET, SUB, NAME),
    }
    part = schema()
    part.delete(Sidecar(part.fake_pulsar))
    assert {each.schema_id for each in accepted_records(part.fake_pulsar)} == {part.topic.schema_id}


def test_a_cursor_without_ledgers_costs_one_look_and_no_record(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.topic(NAME, TopicPlan(closed_cursors=True))
    operation = Sidecar(fake_pulsar).delete_part(topic, "sub")
    assert isinstance(operation, PartOperation)
    assert operation.recorded == ()
    assert [each.method for each in fake_pulsar.store.journal if each.method != "now_ms"] == ["read_many"]
    assert accepted_records(fake_pulsar) == []


def test_a_ledger_that_comes_while_others_are_recorded_is_recorded_too() -> None:
    part = subscription()
    path = cursor_path(part.topic.managed_ledger_name, CursorName("billing%2Fa+b"))
    fresh = part.fake_pulsar.ledger({})
    sidecar = Sidecar(part.fake_pulsar)
    part.fake_pulsar.topics.hooks.before("publish", lambda: part.fake_pulsar.store.put(path, cursor_bytes(fresh)))
    sidecar.deleter.record_part(OP, part.topic, SUB, force=False, requested_by=None)
    assert fresh in {each.ledger_id for each in accepted_records(part.fake_pulsar)}


def test_missing_subscription_or_schema_is_not_recorded() -> None:
    part = subscription()
    with pytest.raises(NotFoundError):
        Sidecar(part.fake_pulsar).delete_part(part.topic, "no-such")
    assert accepted_records(part.fake_pulsar) == []


def test_brokers_are_not_asked_until_records_are_stored() -> None:
    part = subscription()
    part.fake_pulsar.topics.hooks.fail_next("publish", TemporaryError("no bookies"), times=5)
    with pytest.raises(TemporaryError):
        part.delete(Sidecar(part.fake_pulsar))
    assert asked(part.fake_pulsar) == []


# --- a refusal ---------------------------------------------------------------------------------------------------


def test_records_of_a_refused_subscription_end_as_in_use() -> None:
    part = subscription()
    part.fake_pulsar.admin.connected[part.topic] = ConnectedClients(consumers=1)
    sidecar, ledgers = Sidecar(part.fake_pulsar), part.fake_pulsar.ledgers()
    with pytest.raises(BrokerRefusedError):
        part.delete(sidecar)
    sidecar.work_and_check()
    assert part.fake_pulsar.ledgers() == ledgers
    assert {reason for ended in endings(part.fake_pulsar).values() for _, reason in ended} == {"ledger-still-in-use"}


def test_a_broker_that_refuses_later_ends_the_promise() -> None:
    part = subscription()
    part.fake_pulsar.admin.lose_answer_next(applied=False)
    sidecar = Sidecar(part.fake_pulsar)
    part.fake_pulsar.admin.connected[part.topic] = ConnectedClients(consumers=1)
    with pytest.raises(BrokerRefusedError):
        part.delete(sidecar)
    assert running(part.fake_pulsar) == []
    sidecar.work_and_check()
    assert part.gone


# --- brokers and sidecars that die -------------------------------------------------------------------------------


def dying(build: Callable[[], Part]) -> Iterator[Part]:
    """The part, with a broker that dies before each of its steps in turn."""
    for die_at in range(100):
        part = build()
        part.fake_pulsar.die_at = die_at
        yield part
        if part.fake_pulsar.die_at is not None:
            assert die_at > 2
            return
    raise AssertionError("the broker needs more steps than expected")


def test_a_broker_that_dies_before_any_of_its_steps(build: Callable[[], Part]) -> None:
    for part in dying(build):
        sidecar = Sidecar(part.fake_pulsar)
        if part.is_partitioned:
            part.fake_pulsar.admin.on_delete = _first_of_all_partitions(part)
        part.delete(sidecar)
        sidecar.work_and_check()
        assert not part.gone


def _first_of_all_partitions(part: Part) -> Callable[[TopicDeletion], None]:
    def delete(deletion: TopicDeletion) -> None:
        part.fake_pulsar.admin.on_delete = part.fake_pulsar.delete_by_broker
        _of_each_partition(part)(deletion)

    return delete


def test_a_sidecar_that_dies_around_any_step_after_the_broker(build: Callable[[], Part]) -> None:
    promised = 0
    for number in range(100):
        part, steps = build(), CrashAt(number)
        part.fake_pulsar.admin.lose_answer_next(applied=False, times=1)
        try:
            part.delete(Sidecar(part.fake_pulsar, steps=steps))
        except Crash:
            pass
        else:
            break
        restarted(part.fake_pulsar).work_and_check()
        promised += not part.gone
    assert promised > 2
    assert number > promised


def test_part_left_by_a_dead_broker_is_deleted_without_a_promise() -> None:
    """Requests of a caller for whom the sidecar does not continue, and of one who left."""
    for part in dying(subscription):
        sidecar = Sidecar(part.fake_pulsar)
        sidecar.deleter.record_part(OP, part.topic, SUB, force=False, requested_by="me")
        with suppress(OutcomeUnknownError):
            part.fake_pulsar.admin.delete_subscription(part.topic, SUB, force=False)
        sidecar.work_and_check()
        referenced = set(part.fake_pulsar.referenced())
        assert part.fake_pulsar.ledgers() <= referenced


def test_a_subscription_that_was_made_again_stays() -> None:
    part = subscription()
    path = cursor_path(part.topic.managed_ledger_name, CursorName("billing%2Fa+b"))
    part.fake_pulsar.admin.lose_answer_next(applied=True)
    sidecar = Sidecar(part.fake_pulsar)
    part.fake_pulsar.admin.hooks.before("load_topics", lambda: part.fake_pulsar.cursor(part.topic, SUB))
    operation = sidecar.deleter.record_part(OP, part.topic, SUB, force=True, requested_by="me")
    part.fake_pulsar.store.remove(path)
    part.fake_pulsar.cursor(part.topic, SUB)
    assert sidecar.deleter.attempt(sidecar.deleter.persist(operation)).state is OperationState.DONE
    assert asked(part.fake_pulsar) == []
    assert part.fake_pulsar.store.peek(path) is not None


def test_topic_deletion_ends_deletions_of_its_parts() -> None:
    for part in (subscription(), schema()):
        sidecar = Sidecar(part.fake_pulsar, operation_ids=("op-2",))
        operation = sidecar.deleter.record_part(OP, part.topic, part.subscription, force=False, requested_by="me")
        held = sidecar.deleter.persist(operation)
        sidecar.deleter.operations.release(held.operation.operation_id)
        sidecar.delete_topic(part.topic, force=True)
        sidecar.work_and_check()
        assert running(part.fake_pulsar) == []
        assert part.fake_pulsar.store.peek(managed_ledger_path(part.topic.managed_ledger_name)) is None
        assert part.fake_pulsar.store.peek(schema_path(part.topic.schema_id)) is None


# --- the promise -------------------------------------------------------------------------------------------------


def promised(part: Part) -> Sidecar:
    sidecar = Sidecar(part.fake_pulsar)
    operation = sidecar.deleter.record_part(OP, part.topic, part.subscription, force=True, requested_by="me")
    sidecar.deleter.persist(operation)
    return sidecar


def test_a_version_that_deletes_topics_only_leaves_it_alone(build: Callable[[], Part]) -> None:
    part = build()
    promised(part)
    node = part.fake_pulsar.store.peek(operation_path(OP))
    with pytest.raises(UndecodableError):
        decode_node(node.data, Operation)
    decoded = decode_operation(node.data)
    assert isinstance(decoded, PartOperation)
    assert (decoded.topic, decoded.subscription) == (part.topic, part.subscription)
    assert encode_operation(decoded) == node.data


def test_a_topics_own_operation_is_read_as_before() -> None:
    part = subscription()
    sidecar = Sidecar(part.fake_pulsar)
    sidecar.deleter.begin(OP, part.topic, partitioned=False, force=False, requested_by=None)
    node = part.fake_pulsar.store.peek(operation_path(OP))
    assert type(decode_operation(node.data)) is Operation
    with pytest.raises(UndecodableError):
        decode_operation(node.data.replace(b'"topicName"', b'"name"'))


def test_part_deletion_is_distinct_from_topic_deletion() -> None:
    part = subscription()
    sidecar = promised(part)
    (status,) = sidecar.deleter.running()
    assert status.part == f"its subscription {SUB}"
    assert status.subject == f"its subscription {SUB} on {NAME}"
    followed = follow(part.fake_pulsar.store, OP, "/ledgers")
    assert followed.left_nodes == (cursor_path(part.topic.managed_ledger_name, CursorName("billing%2Fa+b")),)
    assert followed.left_ledgers == 3
    assert running_deletion_of(part.fake_pulsar.store, part.topic, partitioned=False, force=True) is None
