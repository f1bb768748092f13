"""What is read before a evaluation, in which order, and what stops it."""

from dataclasses import replace

import pytest
from pulsar_sidecar.ledger_deletion.record import Mark, PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_deletion.second_phase.decide import (
    Facts,
    Referenced,
    ReferencesUnknown,
    StoredLedger,
    UndecodableLedger,
    Unreferenced,
)
from pulsar_sidecar.ledger_deletion.second_phase.gather import Gatherer
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import operation_path
from pulsar_sidecar.ledger_ownership.claims import DataClaim, ForeignLedger
from pulsar_sidecar.ledger_ownership.paths import (
    cursor_path,
    instance_id_path,
    ledger_path,
    managed_ledger_path,
    replication_lock_path,
    schema_path,
    under_replication_mark_path,
)
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.metadata import Guard
from pulsar_sidecar.model.names import CursorName, TopicName
from pulsar_sidecar.wire import MLDataFormats_pb2 as ml

from tests.fakes.bookkeeper import (
    bucket_custom_metadata,
    compacted_custom_metadata,
    cursor_bytes,
    cursor_custom_metadata,
    data_custom_metadata,
    schema_custom_metadata,
)
from tests.fakes.world import INSTANCE_ID, TopicPlan, World

NAME = "persistent://public/default/orders"
COMPACTION = CursorName("__compaction")


@pytest.fixture
def topic(world: World) -> TopicName:
    return world.topic(NAME, TopicPlan(schema_versions=1, compacted=True, buckets=1))


def about(
    topic: TopicName, ledger_id: int, component: LedgerComponent = LedgerComponent.MANAGED_LEDGER, **mark: object
):  # type: ignore[no-untyped-def]
    return PendingDeleteLedgerInfo(
        topic,
        component,
        LedgerType.LEDGER,
        LedgerId(ledger_id),
        cursor_name="sub",
        mark=Mark(**mark),  # type: ignore[arg-type]
    )


def gather(world: World, *records: PendingDeleteLedgerInfo) -> list[Facts]:
    gatherer = Gatherer(world.store, world.entries, world.owners, "/ledgers")
    return gatherer.gather([(record, None) for record in records])


def version(world: World, path: str) -> int:
    node = world.store.peek(path)
    assert node is not None
    return node.version


# --- references of every kind ------------------------------------------------------------------------------------


def test_each_kind_is_found_where_it_is_referenced(world: World, topic: TopicName) -> None:
    name = topic.managed_ledger_name
    referenced = {
        LedgerComponent.MANAGED_LEDGER: managed_ledger_path(name),
        LedgerComponent.MANAGED_CURSOR: cursor_path(name, CursorName("sub")),
        LedgerComponent.SCHEMA_STORAGE: schema_path(topic.schema_id),
        LedgerComponent.COMPACTED_LEDGER: cursor_path(name, COMPACTION),
        LedgerComponent.DELAYED_INDEX_BUCKET: cursor_path(name, CursorName("sub")),
    }
    ids = by_kind(world, topic)
    found = gather(world, *(about(topic, ids[component], component) for component in referenced))
    for facts, path in zip(found, referenced.values(), strict=True):
        assert facts.references == Referenced(Guard(path, version(world, path))), path  # type: ignore[arg-type]


def by_kind(world: World, topic: TopicName) -> dict[LedgerComponent, int]:
    cursor = world.cursors(topic)[CursorName("sub")]
    assert cursor.cursor_ledger is not None
    (compacted,) = world.compacted(world.cursors(topic)[COMPACTION])
    schema = next(ledger for ledger, path in world.referenced().items() if path.startswith("/schemas"))
    return {
        LedgerComponent.MANAGED_LEDGER: world.listed(topic)[0],
        LedgerComponent.MANAGED_CURSOR: cursor.cursor_ledger,
        LedgerComponent.SCHEMA_STORAGE: schema,
        LedgerComponent.COMPACTED_LEDGER: compacted,
        LedgerComponent.DELAYED_INDEX_BUCKET: next(iter(cursor.buckets.values())),
    }


def test_each_kind_of_orphan_is_found_unreferenced_and_guarded(world: World, topic: TopicName) -> None:
    name = topic.managed_ledger_name
    key = "#pulsar.internal.delayed.bucket_5_5"
    custom = {
        LedgerComponent.MANAGED_LEDGER: data_custom_metadata(name),
        LedgerComponent.MANAGED_CURSOR: cursor_custom_metadata(name, "sub"),
        LedgerComponent.SCHEMA_STORAGE: schema_custom_metadata(topic.schema_id),
        LedgerComponent.COMPACTED_LEDGER: compacted_custom_metadata(NAME),
        LedgerComponent.DELAYED_INDEX_BUCKET: bucket_custom_metadata(NAME, "sub", key),
    }
    found = gather(world, *(about(topic, world.ledger(stamp), component) for component, stamp in custom.items()))
    for facts in found:
        assert isinstance(facts.references, Unreferenced)
        assert len(facts.references.read) == 1
    world.store.remove(managed_ledger_path(name))
    world.store.remove(schema_path(topic.schema_id))
    for facts in gather(world, *(facts.record for facts in found)):
        assert facts.references == Unreferenced(())


def test_both_of_the_newest_two_positions_count(world: World, topic: TopicName) -> None:
    (old,) = world.compacted(world.cursors(topic)[COMPACTION])
    new = world.compact(topic)
    newest = world.compact(topic)
    kind = LedgerComponent.COMPACTED_LEDGER
    found = gather(world, *(about(topic, ledger_id, kind) for ledger_id in (old, new, newest)))
    assert [type(facts.references) for facts in found] == [Unreferenced, Referenced, Referenced]


def test_a_position_without_a_compacted_ledger_references_none(world: World) -> None:
    topic = world.topic("persistent://public/default/plain")
    compacted = world.ledger(compacted_custom_metadata(str(topic)))
    world.cursor(topic, "__compaction")
    (facts,) = gather(world, about(topic, compacted, LedgerComponent.COMPACTED_LEDGER))
    assert isinstance(facts.references, Unreferenced)


def test_a_closed_compaction_cursor_needs_no_bookie(world: World, topic: TopicName) -> None:
    compacted = world.compact(topic, closed=True)
    world.entries.fail(TemporaryError("no bookie answers"))
    (facts,) = gather(world, about(topic, compacted, LedgerComponent.COMPACTED_LEDGER))
    assert isinstance(facts.references, Referenced)


def test_a_bookie_that_does_not_answer_makes_one_unknown_and_no_other(world: World, topic: TopicName) -> None:
    ids = by_kind(world, topic)
    world.entries.fail(TemporaryError("no bookie answers"))
    found = gather(world, *(about(topic, ledger_id, component) for component, ledger_id in ids.items()))
    unknown = [facts.record.component for facts in found if isinstance(facts.references, ReferencesUnknown)]
    assert unknown == [LedgerComponent.COMPACTED_LEDGER]


@pytest.mark.parametrize("lost", ["metadata", "entries"])
def test_a_compaction_cursor_that_cannot_be_read_is_unknown(world: World, topic: TopicName, lost: str) -> None:
    compacted = by_kind(world, topic)[LedgerComponent.COMPACTED_LEDGER]
    cursor_ledger = world.cursors(topic)[COMPACTION].cursor_ledger
    assert cursor_ledger is not None
    if lost == "metadata":
        world.store.remove(ledger_path(cursor_ledger))
    else:
        world.entries.drop(cursor_ledger)
    (facts,) = gather(world, about(topic, compacted, LedgerComponent.COMPACTED_LEDGER))
    assert isinstance(facts.references, ReferencesUnknown)


def test_an_owners_node_that_cannot_be_read_is_unknown(world: World, topic: TopicName) -> None:
    ids = by_kind(world, topic)
    name = topic.managed_ledger_name
    for path in (managed_ledger_path(name), cursor_path(name, CursorName("sub")), schema_path(topic.schema_id)):
        world.store.put(path, b"\xff\xff")
    world.store.put(cursor_path(name, COMPACTION), b"\xff\xff")
    found = gather(world, *(about(topic, ledger_id, component) for component, ledger_id in ids.items()))
    assert all(isinstance(facts.references, ReferencesUnknown) for facts in found)


# --- offloaded ---------------------------------------------------------------------------------------------------


def test_each_copy_of_an_offloaded_ledger_is_looked_up_for_itself(world: World) -> None:
    topic = world.topic("persistent://public/default/cold", TopicPlan(offloaded=(0,), bookkeeper_deleted=(1,)))
    both, cold, _ = world.listed(topic)
    world.ledger(data_custom_metadata(topic.managed_ledger_name), ledger_id=cold)
    path = managed_ledger_path(topic.managed_ledger_name)
    guard = Guard(path, version(world, path))  # type: ignore[arg-type]
    tiered = replace(about(topic, both), ledger_type=LedgerType.OFFLOAD_LEDGER)
    found = gather(
        world,
        about(topic, both),
        about(topic, cold),
        replace(tiered, offload_context=world.context(both, deleted=False)),
        replace(tiered, offload_context=world.context(99, deleted=False)),
        replace(tiered, offload_context=world.context(99, deleted=False), ledger_id=LedgerId(98)),
    )
    assert [facts.references for facts in found] == [
        Referenced(guard),
        Unreferenced((guard,), other_copy_listed=True),
        Referenced(guard),
        Unreferenced((guard,), other_copy_listed=True),
        Unreferenced((guard,)),
    ]


def test_what_brokers_would_read_from_bookkeeper_is_referenced(world: World) -> None:
    topic = world.topic("persistent://public/default/cold", TopicPlan(bookkeeper_deleted=(1,)))
    path = managed_ledger_path(topic.managed_ledger_name)
    halted = world.listed(topic)[1]
    world.ledger(data_custom_metadata(topic.managed_ledger_name), ledger_id=halted)
    node = world.store.peek(path)
    assert node is not None
    info = ml.ManagedLedgerInfo.FromString(node.data)
    info.ledgerInfo[1].offloadContext.complete = False
    world.store.put(path, info.SerializeToString())
    (facts,) = gather(world, about(topic, halted))
    assert isinstance(facts.references, Referenced)


# --- the ledger itself -------------------------------------------------------------------------------------------


def test_the_ledgers_own_node_is_read_with_its_version_and_birth(world: World, topic: TopicName) -> None:
    ledger_id = world.listed(topic)[0]
    (facts,) = gather(world, about(topic, ledger_id))
    assert isinstance(facts.ledger, StoredLedger)
    node = world.store.peek(ledger_path(ledger_id))
    assert node is not None
    assert (facts.ledger.path, facts.ledger.raw, facts.ledger.version) == (node.path, node.data, node.version)
    assert facts.ledger.created_ms == node.created_ms
    assert facts.ledger.claim == DataClaim(topic.managed_ledger_name)
    assert facts.instance_id == INSTANCE_ID
    assert facts.now_ms == world.clock.now_ms()


def test_a_ledger_of_nobody_and_one_that_cannot_be_read_and_one_that_is_gone(world: World, topic: TopicName) -> None:
    nobodys = world.ledger({})
    broken = world.ledger({})
    world.store.put(ledger_path(broken), b"BookieMetadataFormatVersion\t9\n")
    found = gather(world, *(about(topic, ledger_id) for ledger_id in (nobodys, broken, 99_999)))
    assert isinstance(found[0].ledger, StoredLedger)
    assert found[0].ledger.claim == ForeignLedger()
    assert isinstance(found[1].ledger, UndecodableLedger)
    assert found[2].ledger is None
    assert all(isinstance(facts.references, ReferencesUnknown) for facts in found)


def test_auto_recoverys_lock_and_note_are_seen(world: World, topic: TopicName) -> None:
    ledger_id = world.listed(topic)[0]
    world.store.put(replication_lock_path(ledger_id), b"")
    world.store.put(under_replication_mark_path(LedgerId(99_999)), b"")
    locked, gone = gather(world, about(topic, ledger_id), about(topic, 99_999))
    assert isinstance(locked.ledger, StoredLedger)
    assert locked.ledger.replication_locked
    assert locked.under_replication_mark is None
    assert gone.under_replication_mark == under_replication_mark_path(LedgerId(99_999))


def test_ids_of_the_long_layout_are_found(world: World, topic: TopicName) -> None:
    ledger_id = world.ledger(data_custom_metadata(topic.managed_ledger_name), ledger_id=2**40)
    (facts,) = gather(world, about(topic, ledger_id))
    assert isinstance(facts.ledger, StoredLedger)


def test_whether_its_operation_runs_is_read(world: World, topic: TopicName) -> None:
    operation_id = OperationId("op")
    ledger_id = world.listed(topic)[0]
    (before,) = gather(world, about(topic, ledger_id, operation_id=operation_id))
    world.store.put(operation_path(operation_id), b"x")
    during, plain = gather(world, about(topic, ledger_id, operation_id=operation_id), about(topic, ledger_id))
    assert (before.operation_running, during.operation_running, plain.operation_running) == (False, True, False)


# --- the owner ---------------------------------------------------------------------------------------------------


def test_the_owner_of_whom_the_ledger_says_it_is_gets_asked(world: World, topic: TopicName) -> None:
    world.load(topic)
    other = world.topic("persistent://public/default/others")
    found = gather(world, about(topic, world.listed(topic)[0]), about(topic, world.listed(other)[0]))
    assert found[0].owner == world.view(topic)
    assert found[1].owner is None
    assert world.owners.asked == [frozenset({topic, other})]


def test_nobody_is_asked_about_ledgers_that_are_gone_or_strange(world: World, topic: TopicName) -> None:
    gather(world, about(topic, 99_999), about(topic, world.ledger({})))
    assert world.owners.asked == [frozenset()]


def test_a_managed_ledger_that_is_no_topic_has_no_owner_to_ask(world: World, topic: TopicName) -> None:
    ledger_id = world.ledger(data_custom_metadata("stray/managed-ledger"))
    (facts,) = gather(world, about(topic, ledger_id))
    assert facts.owner is None
    assert isinstance(facts.references, Unreferenced)


# --- order and failures ------------------------------------------------------------------------------------------


def test_the_ledger_is_read_first_then_the_clock_then_the_owner_then_its_nodes(world: World, topic: TopicName) -> None:
    order: list[str] = []
    ledger_id = world.listed(topic)[0]
    world.store.before("read_many", lambda: order.append("ledger"), path=ledger_path(ledger_id))
    world.store.before("now_ms", lambda: order.append("clock"))
    world.owners.hooks.before("views", lambda: order.append("owner"))
    path = managed_ledger_path(topic.managed_ledger_name)
    world.store.before("read_many", lambda: order.append("nodes"), path=path)
    gather(world, about(topic, ledger_id))
    assert order == ["ledger", "clock", "owner", "nodes"]


def test_a_batch_is_read_in_two_calls_and_each_node_once(world: World, topic: TopicName) -> None:
    gather(world, *[about(topic, ledger_id) for ledger_id in world.listed(topic)] * 3)
    reads = [call.paths for call in world.store.journal if call.method == "read_many"]
    assert len(reads) == 2
    assert all(len(paths) == len(set(paths)) for paths in reads)


def test_without_an_instance_id_nothing_is_known(world: World, topic: TopicName) -> None:
    world.store.remove(instance_id_path())
    with pytest.raises(TemporaryError, match="ledgersRootPath"):
        gather(world, about(topic, world.listed(topic)[0]))


def test_a_broker_that_does_not_answer_makes_everything_unknown(world: World, topic: TopicName) -> None:
    world.owners.hooks.fail_next("views", TemporaryError("broker-2 does not answer"))
    with pytest.raises(TemporaryError):
        gather(world, about(topic, world.listed(topic)[0]))


def test_nothing_to_ask_is_no_error(world: World) -> None:
    assert gather(world) == []


def test_a_cursors_node_is_decoded_once_for_a_whole_batch(world: World, topic: TopicName) -> None:
    kind = LedgerComponent.COMPACTED_LEDGER
    ids = [world.ledger(compacted_custom_metadata(NAME)) for _ in range(5)]
    gather(world, *(about(topic, ledger_id, kind) for ledger_id in ids))
    assert len(world.entries.reads) == 1
    world.store.put(cursor_path(topic.managed_ledger_name, COMPACTION), cursor_bytes(None))
