"""Everything a topic references is durably recorded under the same sequence ids, by any sidecar and however often."""

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.steps import Steps
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    HeldOperation,
    Operation,
    decode_node,
    operation_path,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.recorder import Recorder
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.names import CursorName, TopicName
from pulsar_sidecar.ownership.paths import cursor_path, instance_id_path, ledger_path

from tests.fakes.bookkeeper import compacted_custom_metadata, cursor_bytes
from tests.fakes.brokers import FakeLiveOwners
from tests.fakes.pulsar import INSTANCE_ID, FakePulsar, TopicPlan
from tests.unit.ledger_deletion.cases import view
from tests.unit.ledger_deletion.orphans import NAME
from tests.unit.ledger_deletion.sidecars import METRICS, Crash, CrashAt, Sidecar, accepted_records, restarted

OP = OperationId("op-1")


def held(sidecar: Sidecar, topic: TopicName, *, partitioned: bool = False) -> HeldOperation:
    return sidecar.deleter.begin(OP, topic, partitioned=partitioned, force=False, requested_by="me")


def record(sidecar: Sidecar, held: HeldOperation) -> HeldOperation:
    return record_by(sidecar.recorder, held)


def record_by(recorder: Recorder, held: HeldOperation) -> HeldOperation:
    return recorder.record(held, recorder.read_nodes(held.operation), lambda operation: None)[0]


def resumed(fake_pulsar: FakePulsar) -> HeldOperation:
    node = fake_pulsar.store.peek(operation_path(OP))
    return HeldOperation(decode_node(node.data, Operation), node.version)


def ids(fake_pulsar: FakePulsar) -> list[int]:
    return [record.ledger_id for record in accepted_records(fake_pulsar)]


def copies(fake_pulsar: FakePulsar) -> list[tuple[str, str, int]]:
    """Every stored message by partition, producer and sequence id."""
    messages = fake_pulsar.topics.messages(DeletionTopic.PENDING)
    return [(message.topic, message.producer_name, message.sequence_id) for message in messages]


# --- what is recorded --------------------------------------------------------------------------------------------


def test_everything_that_is_referenced_is_recorded_once(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.topic(NAME, TopicPlan(schema_versions=2, compacted=True, buckets=2, offloaded=(1,)))
    record(sidecar, held(sidecar, topic))
    everything = fake_pulsar.ledgers() & fake_pulsar.referenced().keys()
    assert sorted(ids(fake_pulsar)) == sorted([*everything, fake_pulsar.listed(topic)[1]])
    assert {record.mark.operation_id for record in accepted_records(fake_pulsar)} == {OP}
    assert {record.mark.instance_id for record in accepted_records(fake_pulsar)} == {INSTANCE_ID}
    assert len(set(copies(fake_pulsar))) == len(copies(fake_pulsar))


def test_a_partitioned_topic_is_recorded_with_its_partitions_and_one_schema(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.partitioned_topic(
        "persistent://public/local/default/a-partition-3", 2, TopicPlan(schema_versions=1)
    )
    sidecar = Sidecar(fake_pulsar)
    record(sidecar, held(sidecar, topic, partitioned=True))
    assert {str(record.topic) for record in accepted_records(fake_pulsar)} >= {
        f"{topic}-partition-0",
        f"{topic}-partition-1",
    }
    # The name looks like a partition's: its base is another topic's name, and so is its schema's id.
    schemas = {ledger for ledger, path in fake_pulsar.referenced().items() if path.startswith("/schemas")}
    assert sorted(ids(fake_pulsar)) == sorted(fake_pulsar.ledgers() - schemas)


def test_single_partition_does_not_record_the_shared_schema(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2, TopicPlan(schema_versions=1))
    record(sidecar, held(sidecar, topic.partition(0)))
    assert set(ids(fake_pulsar)) == set(fake_pulsar.listed(topic.partition(0))) | {
        cursor.cursor_ledger for cursor in fake_pulsar.cursors(topic.partition(0)).values()
    }


def test_both_of_two_newest_compacted_ledgers_are_recorded(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    second = fake_pulsar.compact(topic)
    record(sidecar, held(sidecar, topic))
    assert second in fake_pulsar.referenced()
    assert set(fake_pulsar.referenced()) == set(ids(fake_pulsar))


class BrokersKnowing(FakeLiveOwners):
    """Brokers whose newest compacted ledger has not reached the cursor's ledger yet."""

    def __init__(self, topic: TopicName, compacted: LedgerId) -> None:
        super().__init__()
        self.load(topic, view(compacted_ledger=compacted))


def test_the_compacted_ledger_that_only_its_broker_knows_yet_is_recorded(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    newest = fake_pulsar.ledger(compacted_custom_metadata(NAME))
    sidecar = Sidecar(fake_pulsar)
    owners = BrokersKnowing(topic, newest)
    recorder = Recorder(
        fake_pulsar.store,
        fake_pulsar.entries,
        owners,
        fake_pulsar.admin,
        sidecar.recorder.records,
        "/ledgers",
        METRICS,
        Steps(),
    )
    record_by(recorder, held(sidecar, topic))
    assert set(ids(fake_pulsar)) == {newest, *fake_pulsar.referenced()}


@pytest.mark.parametrize("policies", [b'{"deleted":true}', b'{"deleted":false}', b"{}", b"damaged"])
def test_brokers_that_delete_the_namespace_need_not_report_on_its_topics(policies: bytes) -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    fake_pulsar.store.put(f"/admin/policies/{topic.namespace}", policies)
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    fake_pulsar.owners.hooks.fail_next("views", TemporaryError("Namespace is deleted"), times=-1)
    if policies == b'{"deleted":true}':
        record(sidecar, operation)
        assert set(ids(fake_pulsar)) == set(fake_pulsar.referenced())
    else:
        with pytest.raises(TemporaryError):
            record(sidecar, operation)
        assert ids(fake_pulsar) == []


def test_a_closed_compaction_cursor_is_read_from_its_node(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    compacted = fake_pulsar.compact(topic, closed=True)
    sidecar = Sidecar(fake_pulsar)
    record(sidecar, held(sidecar, topic))
    assert compacted in ids(fake_pulsar)


def test_a_ledger_without_metadata_is_recorded_without_birth(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.remove_ledger(fake_pulsar.listed(topic)[0])
    sidecar = Sidecar(fake_pulsar)
    record(sidecar, held(sidecar, topic))
    births = {record.ledger_id: record.mark.created_ms for record in accepted_records(fake_pulsar)}
    assert births[fake_pulsar.listed(topic)[0]] is None
    assert births[fake_pulsar.listed(topic)[1]] is not None


# --- what stops it -----------------------------------------------------------------------------------------------


def test_a_bookie_that_does_not_answer_stops_it(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    fake_pulsar.entries.fail(TemporaryError("no bookie answers"))
    with pytest.raises(TemporaryError):
        record(sidecar, held(sidecar, topic))
    assert ids(fake_pulsar) == []


def test_a_compaction_cursor_whose_ledger_is_gone_does_not_stop_it_for_ever(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    cursor_ledger = fake_pulsar.cursors(topic)[CursorName("__compaction")].cursor_ledger
    fake_pulsar.remove_ledger(cursor_ledger)
    sidecar = Sidecar(fake_pulsar)
    record(sidecar, held(sidecar, topic))
    assert set(fake_pulsar.listed(topic)) <= set(ids(fake_pulsar))


def test_missing_instance_id_suggests_a_wrong_root(fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar) -> None:
    operation = held(sidecar, topic)
    fake_pulsar.store.remove(instance_id_path())
    with pytest.raises(TemporaryError, match="ledgersRootPath"):
        record(sidecar, operation)


@pytest.mark.parametrize("stored", [True, False])
def test_a_receipt_that_is_missing_counts_as_not_sent(fake_pulsar: FakePulsar, topic: TopicName, stored: bool) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    fake_pulsar.topics.lose_receipts_next(stored=stored)
    with pytest.raises(TemporaryError, match=r"no receipt.*as writable: 1 of 1"):
        record(sidecar, operation)
    record(sidecar, resumed(fake_pulsar))
    assert set(ids(fake_pulsar)) == fake_pulsar.ledgers()
    assert len(ids(fake_pulsar)) == (8 if stored else 4)


# --- going on ----------------------------------------------------------------------------------------------------


def test_a_ledger_that_appears_while_sending_is_recorded_too(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    fake_pulsar.topics.hooks.before("publish", lambda: fake_pulsar.rollover(topic) and None)
    record(sidecar, operation)
    assert set(fake_pulsar.listed(topic)) <= set(ids(fake_pulsar))
    assert len(ids(fake_pulsar)) == 5


def test_a_topic_that_grows_all_the_time_is_too_busy(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    fake_pulsar.topics.hooks.before("publish", lambda: fake_pulsar.rollover(topic) and None, times=-1)
    with pytest.raises(TemporaryError, match="faster"):
        record(sidecar, operation)


@pytest.mark.parametrize("step", range(4, 10))
def test_a_crash_at_any_step_leaves_nothing_unrecorded(fake_pulsar: FakePulsar, topic: TopicName, step: int) -> None:
    sidecar = Sidecar(fake_pulsar, steps=CrashAt(step))
    operation = held(sidecar, topic)
    try:
        record(sidecar, operation)
    except Crash:
        sidecar = restarted(fake_pulsar)
        record(sidecar, resumed(fake_pulsar))
    assert set(ids(fake_pulsar)) == fake_pulsar.ledgers()
    assert len(ids(fake_pulsar)) in (4, 8)


def test_a_cursor_that_is_rewritten_between_the_rounds_keeps_its_number(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar
) -> None:
    operation = record(sidecar, held(sidecar, topic))
    fake_pulsar.store.put(cursor_path(topic.managed_ledger_name, CursorName("sub")), cursor_bytes(None))
    record(sidecar, operation)
    assert len(copies(fake_pulsar)) == 4


# --- the operation's node ----------------------------------------------------------------------------------------


def test_a_ledgers_length_travels_with_its_record(fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar) -> None:
    record(sidecar, held(sidecar, topic))
    lengths = {record.ledger_id: record.mark.length_bytes for record in accepted_records(fake_pulsar)}
    assert [lengths[ledger_id] for ledger_id in fake_pulsar.listed(topic)] == [1000, 1000, 0]
    assert fake_pulsar.store.peek(ledger_path(fake_pulsar.listed(topic)[0])) is not None
