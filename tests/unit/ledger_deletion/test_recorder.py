"""Everything a topic references is durably recorded under the same sequence ids, whoever goes on and how often."""

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
from tests.fakes.world import INSTANCE_ID, TopicPlan, World
from tests.unit.ledger_deletion.cases import view
from tests.unit.ledger_deletion.sidecars import METRICS, Crash, CrashAt, Sidecar, restarted, told

NAME = "persistent://public/default/orders"
OP = OperationId("op-1")


def held(sidecar: Sidecar, topic: TopicName, *, partitioned: bool = False) -> HeldOperation:
    return sidecar.deleter.begin(OP, topic, partitioned=partitioned, force=False, requested_by="me")


def resumed(world: World) -> HeldOperation:
    node = world.store.peek(operation_path(OP))
    assert node is not None
    return HeldOperation(decode_node(node.data, Operation), node.version)


def ids(world: World) -> list[int]:
    return [record.ledger_id for record in told(world)]


def copies(world: World) -> list[tuple[str, str, int]]:
    """Every stored message by partition, producer and sequence id."""
    messages = world.topics.messages(DeletionTopic.PENDING)
    return [(message.topic, message.producer_name, message.sequence_id) for message in messages]


# --- what is recorded --------------------------------------------------------------------------------------------


def test_everything_that_is_referenced_is_recorded_once() -> None:
    world = World()
    topic = world.topic(NAME, TopicPlan(schema_versions=2, compacted=True, buckets=2, offloaded=(1,)))
    sidecar = Sidecar(world)
    sidecar.recorder.record(held(sidecar, topic))
    everything = world.ledgers() & world.referenced().keys()
    assert sorted(ids(world)) == sorted([*everything, world.listed(topic)[1]])
    assert {record.mark.operation_id for record in told(world)} == {OP}
    assert {record.mark.instance_id for record in told(world)} == {INSTANCE_ID}
    assert len(set(copies(world))) == len(copies(world))


def test_a_partitioned_topic_is_recorded_with_its_partitions_and_one_schema() -> None:
    world = World()
    topic = world.partitioned_topic("persistent://public/default/a-partition-3", 2, TopicPlan(schema_versions=1))
    sidecar = Sidecar(world)
    sidecar.recorder.record(held(sidecar, topic, partitioned=True))
    assert {str(record.topic) for record in told(world)} >= {f"{topic}-partition-0", f"{topic}-partition-1"}
    assert sorted(ids(world)) == sorted(world.ledgers() - schema_of_a_name_that_looks_like_a_partition(world, topic))


def schema_of_a_name_that_looks_like_a_partition(world: World, topic: TopicName) -> set[LedgerId]:
    # Its base is another topic's name, and so is its schema's id: whose schema that is, nobody can tell.
    assert topic.partition_index == 3
    return {ledger for ledger, path in world.referenced().items() if path.startswith("/schemas")}


def test_one_partition_does_not_take_the_schema_of_all_along() -> None:
    world = World()
    topic = world.partitioned_topic(NAME, 2, TopicPlan(schema_versions=1))
    sidecar = Sidecar(world)
    sidecar.recorder.record(held(sidecar, topic.partition(0)))
    assert set(ids(world)) == set(world.listed(topic.partition(0))) | {
        cursor.cursor_ledger for cursor in world.cursors(topic.partition(0)).values()
    }


def test_both_of_two_newest_compacted_ledgers_are_recorded() -> None:
    world = World()
    topic = world.topic(NAME, TopicPlan(compacted=True))
    second = world.compact(topic)
    sidecar = Sidecar(world)
    sidecar.recorder.record(held(sidecar, topic))
    assert {second - 2, second} & set(ids(world)) == {second} | ({second - 2} & set(world.referenced()))
    assert set(world.referenced()) == set(ids(world))


class BrokersKnowing(FakeLiveOwners):
    """Brokers whose newest compacted ledger has not reached the cursor's ledger yet."""

    def __init__(self, topic: TopicName, compacted: LedgerId) -> None:
        super().__init__()
        self.load(topic, view(compacted_ledger=compacted))


def test_the_compacted_ledger_that_only_its_broker_knows_yet_is_recorded() -> None:
    world = World()
    topic = world.topic(NAME, TopicPlan(compacted=True))
    newest = world.ledger(compacted_custom_metadata(NAME))
    sidecar = Sidecar(world)
    owners = BrokersKnowing(topic, newest)
    recorder = Recorder(world.store, world.entries, owners, world.admin, world.topics, "/ledgers", METRICS, Steps())
    recorder.record(held(sidecar, topic))
    assert set(ids(world)) == {newest, *world.referenced()}


def test_nothing_is_asked_of_the_broker_when_the_owner_cannot_be_asked() -> None:
    world = World()
    topic = world.topic(NAME, TopicPlan(compacted=True))
    sidecar = Sidecar(world)
    operation = held(sidecar, topic)
    world.owners.hooks.fail_next("views", TemporaryError("a broker is down"))
    with pytest.raises(TemporaryError):
        sidecar.recorder.record(operation)
    assert ids(world) == []


def test_a_closed_compaction_cursor_is_read_from_its_node() -> None:
    world = World()
    topic = world.topic(NAME)
    compacted = world.compact(topic, closed=True)
    sidecar = Sidecar(world)
    sidecar.recorder.record(held(sidecar, topic))
    assert compacted in ids(world)


def test_a_topic_that_was_created_again_is_left_alone() -> None:
    world = World()
    topic = world.topic(NAME)
    sidecar = Sidecar(world)
    operation = held(sidecar, topic)
    world.store.remove(managed_ledger_path(topic.managed_ledger_name))
    world.topic(NAME)
    sidecar.recorder.record(operation)
    assert ids(world) == []


def test_a_ledger_without_metadata_is_recorded_without_birth() -> None:
    world = World()
    topic = world.topic(NAME)
    world.remove_ledger(world.listed(topic)[0])
    sidecar = Sidecar(world)
    sidecar.recorder.record(held(sidecar, topic))
    births = {record.ledger_id: record.mark.created_ms for record in told(world)}
    assert births[world.listed(topic)[0]] is None
    assert births[world.listed(topic)[1]] is not None


# --- what stops it -----------------------------------------------------------------------------------------------


def test_a_node_that_cannot_be_read_stops_it() -> None:
    for path in ("ml", "cursor", "schema"):
        world = World()
        topic = world.topic(NAME, TopicPlan(schema_versions=1))
        name = topic.managed_ledger_name
        paths = {
            "ml": managed_ledger_path(name),
            "cursor": cursor_path(name, CursorName("sub")),
            "schema": f"/schemas/{topic.schema_id}",
        }
        sidecar = Sidecar(world)
        operation = held(sidecar, topic)
        world.store.put(paths[path], b"\xff\xff")
        with pytest.raises(UndecodableError):
            sidecar.recorder.record(operation)
        assert ids(world) == []


def test_a_bookie_that_does_not_answer_stops_it() -> None:
    world = World()
    topic = world.topic(NAME, TopicPlan(compacted=True))
    world.entries.fail(TemporaryError("no bookie answers"))
    sidecar = Sidecar(world)
    with pytest.raises(TemporaryError):
        sidecar.recorder.record(held(sidecar, topic))
    assert ids(world) == []


def test_a_compaction_cursor_whose_ledger_is_gone_does_not_stop_it_for_ever() -> None:
    world = World()
    topic = world.topic(NAME, TopicPlan(compacted=True))
    cursor_ledger = world.cursors(topic)[CursorName("__compaction")].cursor_ledger
    assert cursor_ledger is not None
    world.remove_ledger(cursor_ledger)
    sidecar = Sidecar(world)
    sidecar.recorder.record(held(sidecar, topic))
    assert set(world.listed(topic)) <= set(ids(world))


def test_no_instance_id_means_a_wrong_root() -> None:
    world = World()
    topic = world.topic(NAME)
    sidecar = Sidecar(world)
    operation = held(sidecar, topic)
    world.store.remove(instance_id_path())
    with pytest.raises(TemporaryError, match="ledgersRootPath"):
        sidecar.recorder.record(operation)


@pytest.mark.parametrize("stored", [True, False])
def test_a_receipt_that_is_missing_counts_as_not_sent(stored: bool) -> None:
    world = World()
    topic = world.topic(NAME)
    sidecar = Sidecar(world)
    operation = held(sidecar, topic)
    world.topics.lose_receipts_next(stored=stored)
    with pytest.raises(TemporaryError, match="no receipt"):
        sidecar.recorder.record(operation)
    sidecar.recorder.record(resumed(world))
    assert len(ids(world)) == len(set(ids(world))) == 4


def test_an_operation_that_ended_meanwhile_is_said_to_have_ended() -> None:
    world = World()
    topic = world.topic(NAME)
    sidecar = Sidecar(world)
    operation = held(sidecar, topic)
    sidecar.deleter.end(operation.operation)
    with pytest.raises(OperationEndedError):
        sidecar.recorder.record(operation)
    assert ids(world) == []


# --- going on ----------------------------------------------------------------------------------------------------


def test_a_ledger_that_appears_while_sending_is_recorded_too() -> None:
    world = World()
    topic = world.topic(NAME)
    sidecar = Sidecar(world)
    operation = held(sidecar, topic)
    world.topics.hooks.before("publish", lambda: world.rollover(topic) and None)
    sidecar.recorder.record(operation)
    assert set(world.listed(topic)) <= set(ids(world))
    numbers = sorted(message.sequence_id for message in world.topics.messages(DeletionTopic.PENDING))
    assert numbers == list(range(5))


def test_a_topic_that_grows_all_the_time_is_too_busy() -> None:
    world = World()
    topic = world.topic(NAME)
    sidecar = Sidecar(world)
    operation = held(sidecar, topic)
    world.topics.hooks.before("publish", lambda: world.rollover(topic) and None, times=-1)
    with pytest.raises(TemporaryError, match="faster"):
        sidecar.recorder.record(operation)


@pytest.mark.parametrize("step", range(4, 16))
def test_a_crash_at_any_step_records_nothing_twice_and_nothing_never(step: int) -> None:
    world = World()
    topic = world.topic(NAME)
    sidecar = Sidecar(world, steps=CrashAt(step))
    operation = held(sidecar, topic)
    try:
        sidecar.recorder.record(operation)
    except Crash:
        sidecar = restarted(world)
        sidecar.recorder.record(resumed(world))
    assert sorted(ids(world)) == sorted(world.ledgers())
    assert len(set(copies(world))) == len(copies(world)) == 4


def test_lower_ids_that_turn_up_later_go_to_the_end_even_after_a_crash() -> None:
    world = World(next_ledger_id=100)
    topic = world.topic(NAME, TopicPlan(ledgers=2))
    sidecar = Sidecar(world)
    sidecar.recorder.record(held(sidecar, topic))
    before = copies(world)
    lower = world.ledger({}, ledger_id=1)
    path = managed_ledger_path(topic.managed_ledger_name)
    world.store.put(path, managed_ledger_bytes([lower, *world.listed(topic)]))
    # Its number is persisted, and it is not sent.
    with pytest.raises(Crash):
        restarted(world, steps=CrashAt(3)).recorder.record(resumed(world))
    assert resumed(world).operation.recorded[-1] == "1"
    restarted(world).recorder.record(resumed(world))
    assert set(before) < set(copies(world))
    assert told_numbers(world)[1] == len(before)


def told_numbers(world: World) -> dict[int, int]:
    """Sequence ids by ledger."""
    return {
        json.loads(message.payload)["ledgerId"]: message.sequence_id
        for message in world.topics.messages(DeletionTopic.PENDING)
    }


def test_two_drivers_record_nothing_twice() -> None:
    world = World()
    topic = world.topic(NAME)
    first, second = Sidecar(world), Sidecar(world, name="sidecar-2", store=world.store.other_session())
    operation = held(first, topic)
    second.recorder.record(resumed(world))
    with pytest.raises(ConflictError):
        first.recorder.record(operation)
    first.recorder.record(resumed(world))
    assert len(copies(world)) == len(set(ids(world))) == 4


def test_two_drivers_at_the_same_moment_keep_apart_by_the_producers_name() -> None:
    world = World()
    topic = world.topic(NAME)
    first = Sidecar(world)
    operation = held(first, topic)
    world.topics.publisher(DeletionTopic.PENDING, operation.operation.producer_name)
    with pytest.raises(ConflictError):
        first.recorder.record(operation)
    assert ids(world) == []


def test_a_cursor_that_is_rewritten_between_the_rounds_keeps_its_number() -> None:
    world = World()
    topic = world.topic(NAME)
    sidecar = Sidecar(world)
    operation = sidecar.recorder.record(held(sidecar, topic))
    world.store.put(cursor_path(topic.managed_ledger_name, CursorName("sub")), cursor_bytes(None))
    sidecar.recorder.record(operation)
    assert len(copies(world)) == 4


# --- the operation's node ----------------------------------------------------------------------------------------


def test_what_does_not_fit_into_the_node_is_recorded_again_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_node, "MAX_NODE_BYTES", 500)
    world = World()
    topic = world.topic(NAME, TopicPlan(ledgers=60))
    sidecar = Sidecar(world)
    operation = held(sidecar, topic)
    world.topics.lose_receipts_next(stored=True)
    with pytest.raises(TemporaryError):
        sidecar.recorder.record(operation)
    node = world.store.peek(operation_path(OP))
    assert node is not None
    assert len(node.data) <= 500
    again = resumed(world)
    assert again.operation.recorded == ()
    assert again.operation.generation == 1
    sidecar.recorder.record(again)
    assert len({name for _, name, _ in copies(world)}) == 2
    assert set(ids(world)) == world.ledgers()
    assert resumed(world).operation.generation == 2


def test_a_generation_is_never_used_for_two_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_node, "MAX_NODE_BYTES", 500)
    world = World()
    topic = world.topic(NAME, TopicPlan(ledgers=60))
    for _ in range(3):
        sidecar = restarted(world)
        operation = resumed(world) if world.store.peek(operation_path(OP)) else held(sidecar, topic)
        sidecar.recorder.record(operation)
        world.rollover(topic)
    contents: dict[tuple[str, int], set[bytes]] = {}
    for message in world.topics.messages(DeletionTopic.PENDING):
        contents.setdefault((message.producer_name, message.sequence_id), set()).add(message.payload)
    assert all(len(payloads) == 1 for payloads in contents.values())
    assert set(world.listed(topic)[:-1]) <= set(ids(world))


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


def test_a_lost_answer_to_the_operations_node_is_unknown() -> None:
    world = World()
    topic = world.topic(NAME)
    sidecar = Sidecar(world)
    begun = held(sidecar, topic)
    world.store.lose_answer_next("write", applied=True)
    with pytest.raises(OutcomeUnknownError):
        sidecar.recorder.record(begun)
    assert ids(world) == []
    sidecar.recorder.record(resumed(world))
    assert sorted(ids(world)) == sorted(world.ledgers())


def test_a_ledgers_length_travels_with_its_record() -> None:
    world = World()
    topic = world.topic(NAME)
    sidecar = Sidecar(world)
    sidecar.recorder.record(held(sidecar, topic))
    lengths = {record.ledger_id: record.mark.length_bytes for record in told(world)}
    assert [lengths[ledger_id] for ledger_id in world.listed(topic)] == [1000, 1000, 0]
    assert world.store.peek(ledger_path(world.listed(topic)[0])) is not None
