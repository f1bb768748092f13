"""Reads before an evaluation, their order, and failures that stop it."""

from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Facts,
    Referenced,
    ReferencesUnknown,
    StoredLedger,
    UndecodableLedger,
    Unreferenced,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import operation_path
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.metadata import Guard
from pulsar_sidecar.model.names import CursorName, TopicName
from pulsar_sidecar.ownership.claims import DataClaim, ForeignLedger
from pulsar_sidecar.ownership.paths import (
    cursor_path,
    instance_id_path,
    layout_path,
    ledger_path,
    managed_ledger_path,
    replication_lock_path,
    schema_path,
    under_replication_mark_path,
)
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.fakes.bookkeeper import (
    bucket_custom_metadata,
    compacted_custom_metadata,
    cursor_custom_metadata,
    data_custom_metadata,
    schema_custom_metadata,
)
from tests.fakes.pulsar import INSTANCE_ID, FakePulsar, TopicPlan
from tests.unit.ledger_deletion.orphans import NAME, about
from tests.unit.ledger_deletion.sidecars import Sidecar

COMPACTION = CursorName("__compaction")


@pytest.fixture
def topic(fake_pulsar: FakePulsar) -> TopicName:
    return fake_pulsar.topic(NAME, TopicPlan(schema_versions=1, compacted=True, buckets=1))


def gather(fake_pulsar: FakePulsar, *records: PendingDeleteLedgerInfo) -> list[Facts]:
    return Sidecar(fake_pulsar).gatherer.gather([(record, None) for record in records])


def version(fake_pulsar: FakePulsar, path: str) -> int:
    return fake_pulsar.store.peek(path).version


# --- references of every kind ------------------------------------------------------------------------------------


def test_each_kind_is_found_where_it_is_referenced(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    name = topic.managed_ledger_name
    referenced = {
        LedgerComponent.MANAGED_LEDGER: managed_ledger_path(name),
        LedgerComponent.MANAGED_CURSOR: cursor_path(name, CursorName("sub")),
        LedgerComponent.SCHEMA_STORAGE: schema_path(topic.schema_id),
        LedgerComponent.COMPACTED_LEDGER: cursor_path(name, COMPACTION),
        LedgerComponent.DELAYED_INDEX_BUCKET: cursor_path(name, CursorName("sub")),
    }
    ids = by_kind(fake_pulsar, topic)
    found = gather(fake_pulsar, *(about(topic, ids[component], component) for component in referenced))
    for facts, path in zip(found, referenced.values(), strict=True):
        assert facts.references == Referenced(Guard(path, version(fake_pulsar, path))), path


def by_kind(fake_pulsar: FakePulsar, topic: TopicName) -> dict[LedgerComponent, int]:
    cursor = fake_pulsar.cursors(topic)[CursorName("sub")]
    (compacted,) = fake_pulsar.compacted(fake_pulsar.cursors(topic)[COMPACTION])
    schema = next(ledger for ledger, path in fake_pulsar.referenced().items() if path.startswith("/schemas"))
    return {
        LedgerComponent.MANAGED_LEDGER: fake_pulsar.listed(topic)[0],
        LedgerComponent.MANAGED_CURSOR: cursor.cursor_ledger,
        LedgerComponent.SCHEMA_STORAGE: schema,
        LedgerComponent.COMPACTED_LEDGER: compacted,
        LedgerComponent.DELAYED_INDEX_BUCKET: next(iter(cursor.buckets.values())),
    }


def test_each_kind_of_orphan_is_found_unreferenced_and_guarded(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    name = topic.managed_ledger_name
    key = "#pulsar.internal.delayed.bucket_5_5"
    custom = {
        LedgerComponent.MANAGED_LEDGER: data_custom_metadata(name),
        LedgerComponent.MANAGED_CURSOR: cursor_custom_metadata(name, "sub"),
        LedgerComponent.SCHEMA_STORAGE: schema_custom_metadata(topic.schema_id),
        LedgerComponent.COMPACTED_LEDGER: compacted_custom_metadata(NAME),
        LedgerComponent.DELAYED_INDEX_BUCKET: bucket_custom_metadata(NAME, "sub", key),
    }
    found = gather(
        fake_pulsar, *(about(topic, fake_pulsar.ledger(stamp), component) for component, stamp in custom.items())
    )
    for facts in found:
        assert isinstance(facts.references, Unreferenced)
        assert len(facts.references.read) == 1
    fake_pulsar.store.remove(managed_ledger_path(name))
    fake_pulsar.store.remove(schema_path(topic.schema_id))
    for facts in gather(fake_pulsar, *(facts.record for facts in found)):
        assert facts.references == Unreferenced(())


def test_a_closed_compaction_cursor_needs_no_bookie(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    compacted = fake_pulsar.compact(topic, closed=True)
    fake_pulsar.entries.fail(TemporaryError("no bookie answers"))
    (facts,) = gather(fake_pulsar, about(topic, compacted, LedgerComponent.COMPACTED_LEDGER))
    assert isinstance(facts.references, Referenced)


def test_a_bookie_that_does_not_answer_makes_one_unknown_and_no_other(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    ids = by_kind(fake_pulsar, topic)
    fake_pulsar.entries.fail(TemporaryError("no bookie answers"))
    found = gather(fake_pulsar, *(about(topic, ledger_id, component) for component, ledger_id in ids.items()))
    unknown = [facts.record.component for facts in found if isinstance(facts.references, ReferencesUnknown)]
    assert unknown == [LedgerComponent.COMPACTED_LEDGER]


@pytest.mark.parametrize("lost", ["metadata", "entries"])
def test_a_compaction_cursor_that_cannot_be_read_is_unknown(
    fake_pulsar: FakePulsar, topic: TopicName, lost: str
) -> None:
    compacted = by_kind(fake_pulsar, topic)[LedgerComponent.COMPACTED_LEDGER]
    cursor_ledger = fake_pulsar.cursors(topic)[COMPACTION].cursor_ledger
    if lost == "metadata":
        fake_pulsar.store.remove(ledger_path(cursor_ledger))
    else:
        fake_pulsar.entries.drop(cursor_ledger)
    (facts,) = gather(fake_pulsar, about(topic, compacted, LedgerComponent.COMPACTED_LEDGER))
    assert isinstance(facts.references, ReferencesUnknown)


# --- offloaded ---------------------------------------------------------------------------------------------------


def test_each_copy_of_an_offloaded_ledger_is_looked_up_for_itself(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.topic("persistent://public/default/cold", TopicPlan(offloaded=(0,), bookkeeper_deleted=(1,)))
    both, cold, _ = fake_pulsar.listed(topic)
    fake_pulsar.ledger(data_custom_metadata(topic.managed_ledger_name), ledger_id=cold)
    path = managed_ledger_path(topic.managed_ledger_name)
    guard = Guard(path, version(fake_pulsar, path))
    tiered = replace(about(topic, both), ledger_type=LedgerType.OFFLOAD_LEDGER)
    found = gather(
        fake_pulsar,
        about(topic, both),
        about(topic, cold),
        replace(tiered, offload_context=fake_pulsar.context(both, deleted=False)),
        replace(tiered, offload_context=fake_pulsar.context(99, deleted=False)),
        replace(tiered, offload_context=fake_pulsar.context(99, deleted=False), ledger_id=cold),
        replace(tiered, offload_context=fake_pulsar.context(99, deleted=False), ledger_id=LedgerId(98)),
    )
    assert [facts.references for facts in found] == [
        Referenced(guard),
        Unreferenced((guard,), other_copy_listed=True, only_copy=fake_pulsar.context(cold, deleted=True)),
        Referenced(guard),
        Unreferenced((guard,), other_copy_listed=True),
        Unreferenced((guard,), other_copy_listed=True, only_copy=fake_pulsar.context(cold, deleted=True)),
        Unreferenced((guard,)),
    ]
    assert [facts.only_copy_whole for facts in found] == [None, True, None, None, True, None]


def test_ledger_that_brokers_would_read_is_referenced(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.topic("persistent://public/default/cold", TopicPlan(bookkeeper_deleted=(1,)))
    path = managed_ledger_path(topic.managed_ledger_name)
    halted = fake_pulsar.listed(topic)[1]
    fake_pulsar.ledger(data_custom_metadata(topic.managed_ledger_name), ledger_id=halted)
    node = fake_pulsar.store.peek(path)
    info = ml.ManagedLedgerInfo.FromString(node.data)
    info.ledgerInfo[1].offloadContext.complete = False
    fake_pulsar.store.put(path, info.SerializeToString())
    (facts,) = gather(fake_pulsar, about(topic, halted))
    assert isinstance(facts.references, Referenced)


# --- the ledger itself -------------------------------------------------------------------------------------------


def test_the_ledgers_own_node_is_read_with_its_version_and_birth(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = fake_pulsar.listed(topic)[0]
    (facts,) = gather(fake_pulsar, about(topic, ledger_id))
    assert isinstance(facts.ledger, StoredLedger)
    node = fake_pulsar.store.peek(ledger_path(ledger_id))
    assert (facts.ledger.path, facts.ledger.raw, facts.ledger.version) == (node.path, node.data, node.version)
    assert facts.ledger.created_ms == node.created_ms
    assert facts.ledger.claim == DataClaim(topic.managed_ledger_name)
    assert facts.instance_id == INSTANCE_ID
    assert facts.now_ms == fake_pulsar.clock.now_ms()


def test_a_ledger_without_an_owner_and_one_that_cannot_be_read_and_one_that_is_gone(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    nobodys = fake_pulsar.ledger({})
    broken = fake_pulsar.ledger({})
    fake_pulsar.store.put(ledger_path(broken), b"BookieMetadataFormatVersion\t9\n")
    found = gather(fake_pulsar, *(about(topic, ledger_id) for ledger_id in (nobodys, broken, 99_999)))
    assert isinstance(found[0].ledger, StoredLedger)
    assert found[0].ledger.claim == ForeignLedger()
    assert isinstance(found[1].ledger, UndecodableLedger)
    assert found[2].ledger is None
    assert all(isinstance(facts.references, ReferencesUnknown) for facts in found)


def test_auto_recoverys_lock_and_note_are_seen(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = fake_pulsar.listed(topic)[0]
    fake_pulsar.store.put(replication_lock_path(ledger_id), b"")
    fake_pulsar.store.put(under_replication_mark_path(LedgerId(99_999)), b"")
    locked, gone = gather(fake_pulsar, about(topic, ledger_id), about(topic, 99_999))
    assert isinstance(locked.ledger, StoredLedger)
    assert locked.ledger.replication_locked
    assert locked.under_replication_mark is None
    assert gone.under_replication_mark == under_replication_mark_path(LedgerId(99_999))


def test_whether_its_operation_runs_is_read(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    operation_id = OperationId("op")
    ledger_id = fake_pulsar.listed(topic)[0]
    (before,) = gather(fake_pulsar, about(topic, ledger_id, operation_id=operation_id))
    fake_pulsar.store.put(operation_path(operation_id), b"x")
    during, plain = gather(fake_pulsar, about(topic, ledger_id, operation_id=operation_id), about(topic, ledger_id))
    assert (before.operation_running, during.operation_running, plain.operation_running) == (False, True, False)


# --- the owner ---------------------------------------------------------------------------------------------------


def test_the_owner_that_the_ledger_names_gets_asked(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.load(topic)
    other = fake_pulsar.topic("persistent://public/default/others")
    found = gather(fake_pulsar, about(topic, fake_pulsar.listed(topic)[0]), about(topic, fake_pulsar.listed(other)[0]))
    assert found[0].owner == fake_pulsar.view(topic)
    assert found[1].owner is None
    assert fake_pulsar.owners.asked == [frozenset({topic, other})]


def test_brokers_are_not_queried_about_missing_or_unknown_ledgers(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    gather(fake_pulsar, about(topic, 99_999), about(topic, fake_pulsar.ledger({})))
    assert fake_pulsar.owners.asked == [frozenset()]


def test_managed_ledger_without_topic_has_no_owner(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = fake_pulsar.ledger(data_custom_metadata("stray/managed-ledger"))
    (facts,) = gather(fake_pulsar, about(topic, ledger_id))
    assert facts.owner is None
    assert isinstance(facts.references, Unreferenced)


# --- order and failures ------------------------------------------------------------------------------------------


def test_the_ledger_is_read_first_then_the_clock_then_the_owner_then_its_nodes(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    order: list[str] = []
    ledger_id = fake_pulsar.listed(topic)[0]
    fake_pulsar.store.before("read_many", lambda: order.append("ledger"), path=ledger_path(ledger_id))
    fake_pulsar.store.before("now_ms", lambda: order.append("clock"))
    fake_pulsar.owners.hooks.before("views", lambda: order.append("owner"))
    path = managed_ledger_path(topic.managed_ledger_name)
    fake_pulsar.store.before("read_many", lambda: order.append("nodes"), path=path)
    gather(fake_pulsar, about(topic, ledger_id))
    assert order == ["ledger", "clock", "owner", "nodes"]


def test_a_batch_is_read_in_two_calls_and_each_node_once(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    gather(fake_pulsar, *[about(topic, ledger_id) for ledger_id in fake_pulsar.listed(topic)] * 3)
    reads = [call.paths for call in fake_pulsar.store.journal if call.method == "read_many"]
    assert len(reads) == 2
    assert all(len(paths) == len(set(paths)) for paths in reads)


def test_a_storage_without_an_instance_id_is_told_by_its_layout(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.store.remove(instance_id_path())
    fake_pulsar.store.put(layout_path(), b"2")
    layout = fake_pulsar.store.peek(layout_path())
    (facts,) = gather(fake_pulsar, about(topic, fake_pulsar.listed(topic)[0]))
    assert facts.instance_id == f"layout-{layout.created_order}-{layout.created_ms}"


def test_without_an_instance_id_nothing_is_known(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.store.remove(instance_id_path())
    with pytest.raises(TemporaryError, match="ledgersRootPath"):
        gather(fake_pulsar, about(topic, fake_pulsar.listed(topic)[0]))


def test_empty_batch_yields_no_facts(fake_pulsar: FakePulsar) -> None:
    assert gather(fake_pulsar) == []


def test_a_cursors_node_is_decoded_once_for_a_whole_batch(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    kind = LedgerComponent.COMPACTED_LEDGER
    ids = [fake_pulsar.ledger(compacted_custom_metadata(NAME)) for _ in range(5)]
    gather(fake_pulsar, *(about(topic, ledger_id, kind) for ledger_id in ids))
    assert len(fake_pulsar.entries.reads) == 1
