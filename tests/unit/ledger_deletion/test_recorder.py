"""Everything a topic references is durably recorded under the same sequence ids, by any sidecar and however often."""

import json

import pytest
from pulsar_sidecar.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.ledger_deletion.steps import Steps
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import (
    MAX_NODE_BYTES,
    HeldOperation,
    Operation,
    OperationEndedError,
    decode_node,
    encode_operation,
    operation_path,
)
from pulsar_sidecar.ledger_deletion.topic_deletion.recorder import Recorder
from pulsar_sidecar.ledger_ownership.paths import cursor_path, instance_id_path, ledger_path, managed_ledger_path
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.names import CursorName, TopicName

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
    return recorder.record(held, recorder.look(held.operation), lambda operation: None)[0]


def resumed(fake_pulsar: FakePulsar) -> HeldOperation:
    node = fake_pulsar.store.peek(operation_path(OP))
    assert node is not None
    return HeldOperation(decode_node(node.data, Operation), node.version)


def ids(fake_pulsar: FakePulsar) -> list[int]:
    return [record.ledger_id for record in accepted_records(fake_pulsar)]


def copies(fake_pulsar: FakePulsar) -> list[tuple[str, str, int]]:
    """Every stored message by partition, producer and sequence id."""
    messages = fake_pulsar.topics.messages(DeletionTopic.PENDING)
    return [(message.topic, message.producer_name, message.sequence_id) for message in messages]


# --- what is recorded --------------------------------------------------------------------------------------------


def test_everything_that_is_referenced_is_recorded_once() -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, TopicPlan(schema_versions=2, compacted=True, buckets=2, offloaded=(1,)))
    sidecar = Sidecar(fake_pulsar)
    record(sidecar, held(sidecar, topic))
    everything = fake_pulsar.ledgers() & fake_pulsar.referenced().keys()
    assert sorted(ids(fake_pulsar)) == sorted([*everything, fake_pulsar.listed(topic)[1]])
    assert {record.mark.operation_id for record in accepted_records(fake_pulsar)} == {OP}
    assert {record.mark.instance_id for record in accepted_records(fake_pulsar)} == {INSTANCE_ID}
    assert len(set(copies(fake_pulsar))) == len(copies(fake_pulsar))


def test_a_partitioned_topic_is_recorded_with_its_partitions_and_one_schema() -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.partitioned_topic(
        "persistent://public/local/default/a-partition-3", 2, TopicPlan(schema_versions=1)
    )
    sidecar = Sidecar(fake_pulsar)
    record(sidecar, held(sidecar, topic, partitioned=True))
    assert {str(record.topic) for record in accepted_records(fake_pulsar)} >= {
        f"{topic}-partition-0",
        f"{topic}-partition-1",
    }
    assert sorted(ids(fake_pulsar)) == sorted(
        fake_pulsar.ledgers() - schema_of_a_name_that_looks_like_a_partition(fake_pulsar, topic)
    )


def schema_of_a_name_that_looks_like_a_partition(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    # Its base is another topic's name, and so is its schema's id: whose schema that is, cannot be known.
    assert topic.partition_index == 3
    return {ledger for ledger, path in fake_pulsar.referenced().items() if path.startswith("/schemas")}


def test_one_partition_does_not_take_the_schema_of_all_along() -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.partitioned_topic(NAME, 2, TopicPlan(schema_versions=1))
    sidecar = Sidecar(fake_pulsar)
    record(sidecar, held(sidecar, topic.partition(0)))
    assert set(ids(fake_pulsar)) == set(fake_pulsar.listed(topic.partition(0))) | {
        cursor.cursor_ledger for cursor in fake_pulsar.cursors(topic.partition(0)).values()
    }


def test_both_of_two_newest_compacted_ledgers_are_recorded() -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    second = fake_pulsar.compact(topic)
    sidecar = Sidecar(fake_pulsar)
    record(sidecar, held(sidecar, topic))
    assert {second - 2, second} & set(ids(fake_pulsar)) == {second} | ({second - 2} & set(fake_pulsar.referenced()))
    assert set(fake_pulsar.referenced()) == set(ids(fake_pulsar))


class BrokersKnowing(FakeLiveOwners):
    """Brokers whose newest compacted ledger has not reached the cursor's ledger yet."""

    def __init__(self, topic: TopicName, compacted: LedgerId) -> None:
        super().__init__()
        self.load(topic, view(compacted_ledger=compacted))


def test_the_compacted_ledger_that_only_its_broker_knows_yet_is_recorded() -> None:
    fake_pulsar = FakePulsar()
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


def test_nothing_is_asked_of_the_broker_when_the_owner_cannot_be_asked() -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    fake_pulsar.owners.hooks.fail_next("views", TemporaryError("a broker is down"))
    with pytest.raises(TemporaryError):
        record(sidecar, operation)
    assert ids(fake_pulsar) == []


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


def test_a_topic_that_was_created_again_is_left_alone(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    fake_pulsar.store.remove(managed_ledger_path(topic.managed_ledger_name))
    fake_pulsar.topic(NAME)
    record(sidecar, operation)
    assert ids(fake_pulsar) == []


def test_a_ledger_without_metadata_is_recorded_without_birth(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.remove_ledger(fake_pulsar.listed(topic)[0])
    sidecar = Sidecar(fake_pulsar)
    record(sidecar, held(sidecar, topic))
    births = {record.ledger_id: record.mark.created_ms for record in accepted_records(fake_pulsar)}
    assert births[fake_pulsar.listed(topic)[0]] is None
    assert births[fake_pulsar.listed(topic)[1]] is not None


# --- what stops it -----------------------------------------------------------------------------------------------


def test_a_node_that_cannot_be_read_stops_it() -> None:
    for path in ("ml", "cursor", "schema"):
        fake_pulsar = FakePulsar()
        topic = fake_pulsar.topic(NAME, TopicPlan(schema_versions=1))
        name = topic.managed_ledger_name
        paths = {
            "ml": managed_ledger_path(name),
            "cursor": cursor_path(name, CursorName("sub")),
            "schema": f"/schemas/{topic.schema_id}",
        }
        sidecar = Sidecar(fake_pulsar)
        operation = held(sidecar, topic)
        fake_pulsar.store.put(paths[path], b"\xff\xff")
        with pytest.raises(UndecodableError):
            record(sidecar, operation)
        assert ids(fake_pulsar) == []


def test_a_bookie_that_does_not_answer_stops_it() -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    fake_pulsar.entries.fail(TemporaryError("no bookie answers"))
    sidecar = Sidecar(fake_pulsar)
    with pytest.raises(TemporaryError):
        record(sidecar, held(sidecar, topic))
    assert ids(fake_pulsar) == []


def test_a_compaction_cursor_whose_ledger_is_gone_does_not_stop_it_for_ever() -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    cursor_ledger = fake_pulsar.cursors(topic)[CursorName("__compaction")].cursor_ledger
    assert cursor_ledger is not None
    fake_pulsar.remove_ledger(cursor_ledger)
    sidecar = Sidecar(fake_pulsar)
    record(sidecar, held(sidecar, topic))
    assert set(fake_pulsar.listed(topic)) <= set(ids(fake_pulsar))


def test_no_instance_id_means_a_wrong_root(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
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


def test_an_operation_that_ended_meanwhile_is_reported_as_ended(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    sidecar.deleter.end(operation.operation)
    with pytest.raises(OperationEndedError):
        record(sidecar, operation)


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
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = record(sidecar, held(sidecar, topic))
    fake_pulsar.store.put(cursor_path(topic.managed_ledger_name, CursorName("sub")), cursor_bytes(None))
    record(sidecar, operation)
    assert len(copies(fake_pulsar)) == 4


# --- the operation's node ----------------------------------------------------------------------------------------


def operation(**changes: object) -> Operation:
    fields: dict[str, object] = {
        "operation_id": OP,
        "topic_name": NAME,
        "partitions": None,
        "force": True,
        "requested_by": None,
        "requested_ms": 5,
        "incarnations": {"/managed-ledgers/x": 9},
        "recorded": ("1", "2o7.8"),
        "attempts": 3,
        "last_reason": "why",
        "not_before_ms": 8,
    }
    return Operation(**(fields | changes))  # type: ignore[arg-type]


def test_what_does_not_fit_into_the_node_is_not_kept_there() -> None:
    long_ids = tuple(str(2**62 + number) for number in range(90_000))
    kept = decode_node(encode_operation(operation(recorded=long_ids)), Operation)
    assert kept == operation(recorded=())


@pytest.mark.parametrize("changes", [{}, {"partitions": 3}, {"requested_by": "me", "last_reason": None}])
def test_an_operation_is_read_back(changes: dict[str, object]) -> None:
    assert decode_node(encode_operation(operation(**changes)), Operation) == operation(**changes)


def test_as_many_ledgers_as_there_may_be_fit_into_a_node() -> None:
    long_ids = tuple(str(2**62 + number) for number in range(60_000))
    assert len(encode_operation(operation(recorded=long_ids))) <= MAX_NODE_BYTES


@pytest.mark.parametrize(
    "changes",
    [
        {"operationId": 7},
        {"topicName": "a/b"},
        {"topicName": None},
        {"partitions": "3"},
        {"partitions": True},
        {"force": 1},
        {"requestedMs": "5"},
        {"incarnations": []},
        {"incarnations": {"/x": "9"}},
        {"recorded": "12"},
        {"recorded": [1]},
        {"recorded": None},
        {"attempts": None},
        {"notBeforeMs": "x"},
    ],
    ids=str,
)
def test_a_node_of_another_version_is_left_alone(changes: dict[str, object]) -> None:
    document = json.loads(encode_operation(operation())) | changes
    with pytest.raises(UndecodableError):
        decode_node(json.dumps(document).encode(), Operation)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"7", b"\xff", b"[" * 100_000])
def test_what_is_no_operation_is_left_alone(data: bytes) -> None:
    with pytest.raises(UndecodableError):
        decode_node(data, Operation)


def test_a_ledgers_length_travels_with_its_record(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    record(sidecar, held(sidecar, topic))
    lengths = {record.ledger_id: record.mark.length_bytes for record in accepted_records(fake_pulsar)}
    assert [lengths[ledger_id] for ledger_id in fake_pulsar.listed(topic)] == [1000, 1000, 0]
    assert fake_pulsar.store.peek(ledger_path(fake_pulsar.listed(topic)[0])) is not None
