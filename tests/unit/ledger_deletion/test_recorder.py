"""Everything a topic references is durably recorded under the same sequence ids, by any sidecar and however often."""

import json

import pytest
from pulsar_sidecar.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.ledger_deletion.steps import Steps
from pulsar_sidecar.ledger_deletion.topic_deletion import operation as operation_node
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
from pulsar_sidecar.model.errors import ConflictError, OutcomeUnknownError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.names import CursorName, TopicName

from tests.fakes.bookkeeper import compacted_custom_metadata, cursor_bytes, managed_ledger_bytes
from tests.fakes.brokers import FakeLiveOwners
from tests.fakes.pulsar import INSTANCE_ID, FakePulsar, TopicPlan
from tests.unit.ledger_deletion.cases import view
from tests.unit.ledger_deletion.orphans import NAME
from tests.unit.ledger_deletion.sidecars import METRICS, Crash, CrashAt, Sidecar, accepted_records, restarted

OP = OperationId("op-1")


def held(sidecar: Sidecar, topic: TopicName, *, partitioned: bool = False) -> HeldOperation:
    return sidecar.deleter.begin(OP, topic, partitioned=partitioned, force=False, requested_by="me")


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
    sidecar.recorder.record(held(sidecar, topic))
    everything = fake_pulsar.ledgers() & fake_pulsar.referenced().keys()
    assert sorted(ids(fake_pulsar)) == sorted([*everything, fake_pulsar.listed(topic)[1]])
    assert {record.mark.operation_id for record in accepted_records(fake_pulsar)} == {OP}
    assert {record.mark.instance_id for record in accepted_records(fake_pulsar)} == {INSTANCE_ID}
    assert len(set(copies(fake_pulsar))) == len(copies(fake_pulsar))


def test_a_partitioned_topic_is_recorded_with_its_partitions_and_one_schema() -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.partitioned_topic("persistent://public/default/a-partition-3", 2, TopicPlan(schema_versions=1))
    sidecar = Sidecar(fake_pulsar)
    sidecar.recorder.record(held(sidecar, topic, partitioned=True))
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
    sidecar.recorder.record(held(sidecar, topic.partition(0)))
    assert set(ids(fake_pulsar)) == set(fake_pulsar.listed(topic.partition(0))) | {
        cursor.cursor_ledger for cursor in fake_pulsar.cursors(topic.partition(0)).values()
    }


def test_both_of_two_newest_compacted_ledgers_are_recorded() -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    second = fake_pulsar.compact(topic)
    sidecar = Sidecar(fake_pulsar)
    sidecar.recorder.record(held(sidecar, topic))
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
        fake_pulsar.topics,
        "/ledgers",
        METRICS,
        Steps(),
    )
    recorder.record(held(sidecar, topic))
    assert set(ids(fake_pulsar)) == {newest, *fake_pulsar.referenced()}


def test_nothing_is_asked_of_the_broker_when_the_owner_cannot_be_asked() -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    fake_pulsar.owners.hooks.fail_next("views", TemporaryError("a broker is down"))
    with pytest.raises(TemporaryError):
        sidecar.recorder.record(operation)
    assert ids(fake_pulsar) == []


def test_a_closed_compaction_cursor_is_read_from_its_node(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    compacted = fake_pulsar.compact(topic, closed=True)
    sidecar = Sidecar(fake_pulsar)
    sidecar.recorder.record(held(sidecar, topic))
    assert compacted in ids(fake_pulsar)


def test_a_topic_that_was_created_again_is_left_alone(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    fake_pulsar.store.remove(managed_ledger_path(topic.managed_ledger_name))
    fake_pulsar.topic(NAME)
    sidecar.recorder.record(operation)
    assert ids(fake_pulsar) == []


def test_a_ledger_without_metadata_is_recorded_without_birth(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.remove_ledger(fake_pulsar.listed(topic)[0])
    sidecar = Sidecar(fake_pulsar)
    sidecar.recorder.record(held(sidecar, topic))
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
            sidecar.recorder.record(operation)
        assert ids(fake_pulsar) == []


def test_a_bookie_that_does_not_answer_stops_it() -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    fake_pulsar.entries.fail(TemporaryError("no bookie answers"))
    sidecar = Sidecar(fake_pulsar)
    with pytest.raises(TemporaryError):
        sidecar.recorder.record(held(sidecar, topic))
    assert ids(fake_pulsar) == []


def test_a_compaction_cursor_whose_ledger_is_gone_does_not_stop_it_for_ever() -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    cursor_ledger = fake_pulsar.cursors(topic)[CursorName("__compaction")].cursor_ledger
    assert cursor_ledger is not None
    fake_pulsar.remove_ledger(cursor_ledger)
    sidecar = Sidecar(fake_pulsar)
    sidecar.recorder.record(held(sidecar, topic))
    assert set(fake_pulsar.listed(topic)) <= set(ids(fake_pulsar))


def test_no_instance_id_means_a_wrong_root(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    fake_pulsar.store.remove(instance_id_path())
    with pytest.raises(TemporaryError, match="ledgersRootPath"):
        sidecar.recorder.record(operation)


@pytest.mark.parametrize("stored", [True, False])
def test_a_receipt_that_is_missing_counts_as_not_sent(fake_pulsar: FakePulsar, topic: TopicName, stored: bool) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    fake_pulsar.topics.lose_receipts_next(stored=stored)
    with pytest.raises(TemporaryError, match="no receipt"):
        sidecar.recorder.record(operation)
    sidecar.recorder.record(resumed(fake_pulsar))
    assert len(ids(fake_pulsar)) == len(set(ids(fake_pulsar))) == 4


def test_an_operation_that_ended_meanwhile_is_reported_as_ended(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    sidecar.deleter.end(operation.operation)
    with pytest.raises(OperationEndedError):
        sidecar.recorder.record(operation)
    assert ids(fake_pulsar) == []


# --- going on ----------------------------------------------------------------------------------------------------


def test_a_ledger_that_appears_while_sending_is_recorded_too(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    fake_pulsar.topics.hooks.before("publish", lambda: fake_pulsar.rollover(topic) and None)
    sidecar.recorder.record(operation)
    assert set(fake_pulsar.listed(topic)) <= set(ids(fake_pulsar))
    numbers = sorted(message.sequence_id for message in fake_pulsar.topics.messages(DeletionTopic.PENDING))
    assert numbers == list(range(5))


def test_a_topic_that_grows_all_the_time_is_too_busy(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    fake_pulsar.topics.hooks.before("publish", lambda: fake_pulsar.rollover(topic) and None, times=-1)
    with pytest.raises(TemporaryError, match="faster"):
        sidecar.recorder.record(operation)


@pytest.mark.parametrize("step", range(4, 16))
def test_a_crash_at_any_step_records_nothing_twice_and_nothing_never(
    fake_pulsar: FakePulsar, topic: TopicName, step: int
) -> None:
    sidecar = Sidecar(fake_pulsar, steps=CrashAt(step))
    operation = held(sidecar, topic)
    try:
        sidecar.recorder.record(operation)
    except Crash:
        sidecar = restarted(fake_pulsar)
        sidecar.recorder.record(resumed(fake_pulsar))
    assert sorted(ids(fake_pulsar)) == sorted(fake_pulsar.ledgers())
    assert len(set(copies(fake_pulsar))) == len(copies(fake_pulsar)) == 4


def test_lower_ids_that_turn_up_later_go_to_the_end_even_after_a_crash() -> None:
    fake_pulsar = FakePulsar(next_ledger_id=100)
    topic = fake_pulsar.topic(NAME, TopicPlan(ledgers=2))
    sidecar = Sidecar(fake_pulsar)
    sidecar.recorder.record(held(sidecar, topic))
    before = copies(fake_pulsar)
    lower = fake_pulsar.ledger({}, ledger_id=1)
    path = managed_ledger_path(topic.managed_ledger_name)
    fake_pulsar.store.put(path, managed_ledger_bytes([lower, *fake_pulsar.listed(topic)]))
    # Its number is persisted, and it is not sent.
    with pytest.raises(Crash):
        restarted(fake_pulsar, steps=CrashAt(3)).recorder.record(resumed(fake_pulsar))
    assert resumed(fake_pulsar).operation.recorded[-1] == "1"
    restarted(fake_pulsar).recorder.record(resumed(fake_pulsar))
    assert set(before) < set(copies(fake_pulsar))
    assert accepted_numbers(fake_pulsar)[1] == len(before)


def accepted_numbers(fake_pulsar: FakePulsar) -> dict[int, int]:
    """Sequence ids by ledger."""
    return {
        json.loads(message.payload)["ledgerId"]: message.sequence_id
        for message in fake_pulsar.topics.messages(DeletionTopic.PENDING)
    }


def test_two_drivers_record_nothing_twice(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    first, second = (
        Sidecar(fake_pulsar),
        Sidecar(fake_pulsar, name="sidecar-2", store=fake_pulsar.store.other_session()),
    )
    operation = held(first, topic)
    second.recorder.record(resumed(fake_pulsar))
    with pytest.raises(ConflictError):
        first.recorder.record(operation)
    first.recorder.record(resumed(fake_pulsar))
    assert len(copies(fake_pulsar)) == len(set(ids(fake_pulsar))) == 4


def test_two_drivers_at_the_same_moment_keep_apart_by_the_producers_name(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    first = Sidecar(fake_pulsar)
    operation = held(first, topic)
    fake_pulsar.topics.publisher(DeletionTopic.PENDING, operation.operation.producer_name)
    with pytest.raises(ConflictError):
        first.recorder.record(operation)
    assert ids(fake_pulsar) == []


def test_a_cursor_that_is_rewritten_between_the_rounds_keeps_its_number(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = sidecar.recorder.record(held(sidecar, topic))
    fake_pulsar.store.put(cursor_path(topic.managed_ledger_name, CursorName("sub")), cursor_bytes(None))
    sidecar.recorder.record(operation)
    assert len(copies(fake_pulsar)) == 4


# --- the operation's node ----------------------------------------------------------------------------------------


def test_what_does_not_fit_into_the_node_is_recorded_again_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_node, "MAX_NODE_BYTES", 500)
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, TopicPlan(ledgers=60))
    sidecar = Sidecar(fake_pulsar)
    operation = held(sidecar, topic)
    fake_pulsar.topics.lose_receipts_next(stored=True)
    with pytest.raises(TemporaryError):
        sidecar.recorder.record(operation)
    node = fake_pulsar.store.peek(operation_path(OP))
    assert node is not None
    assert len(node.data) <= 500
    again = resumed(fake_pulsar)
    assert again.operation.recorded == ()
    assert again.operation.generation == 1
    sidecar.recorder.record(again)
    assert len({name for _, name, _ in copies(fake_pulsar)}) == 2
    assert set(ids(fake_pulsar)) == fake_pulsar.ledgers()
    assert resumed(fake_pulsar).operation.generation == 2


def test_a_generation_is_never_used_for_two_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_node, "MAX_NODE_BYTES", 500)
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, TopicPlan(ledgers=60))
    for _ in range(3):
        sidecar = restarted(fake_pulsar)
        operation = resumed(fake_pulsar) if fake_pulsar.store.peek(operation_path(OP)) else held(sidecar, topic)
        sidecar.recorder.record(operation)
        fake_pulsar.rollover(topic)
    contents: dict[tuple[str, int], set[bytes]] = {}
    for message in fake_pulsar.topics.messages(DeletionTopic.PENDING):
        contents.setdefault((message.producer_name, message.sequence_id), set()).add(message.payload)
    assert all(len(payloads) == 1 for payloads in contents.values())
    assert set(fake_pulsar.listed(topic)[:-1]) <= set(ids(fake_pulsar))


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
        "generation": 2,
        "attempts": 3,
        "last_reason": "why",
        "not_before_ms": 8,
    }
    return Operation(**(fields | changes))  # type: ignore[arg-type]


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
        {"generation": 1.0},
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


def test_a_lost_answer_to_the_operations_node_is_unknown(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    begun = held(sidecar, topic)
    fake_pulsar.store.lose_answer_next("write", applied=True)
    with pytest.raises(OutcomeUnknownError):
        sidecar.recorder.record(begun)
    assert ids(fake_pulsar) == []
    sidecar.recorder.record(resumed(fake_pulsar))
    assert sorted(ids(fake_pulsar)) == sorted(fake_pulsar.ledgers())


def test_a_ledgers_length_travels_with_its_record(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    sidecar.recorder.record(held(sidecar, topic))
    lengths = {record.ledger_id: record.mark.length_bytes for record in accepted_records(fake_pulsar)}
    assert [lengths[ledger_id] for ledger_id in fake_pulsar.listed(topic)] == [1000, 1000, 0]
    assert fake_pulsar.store.peek(ledger_path(fake_pulsar.listed(topic)[0])) is not None
