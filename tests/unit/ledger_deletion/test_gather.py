"""Reads before an evaluation, their order, and failures that stop it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Facts,
    Referenced,
    ReferencesUnknown,
    StoredLedger,
    UndecodableLedger,
    Unreferenced,
)
from pulsar_sidecar.features.ledger_deletion.second_phase.gather import OwnerNodes
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import operation_path
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId, NodeVersion, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerState, LedgerType
from pulsar_sidecar.model.metadata import Guard, Node
from pulsar_sidecar.model.names import CursorName, TopicName
from pulsar_sidecar.ownership.claims import DataClaim, ForeignLedger, owner_path
from pulsar_sidecar.ownership.compaction import CompactedLedgers
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
    FakeLedgerEntries,
    bucket_custom_metadata,
    compacted_custom_metadata,
    cursor_bytes,
    cursor_custom_metadata,
    data_custom_metadata,
    ledger_metadata_bytes,
    managed_ledger_bytes,
    position_entry,
    schema_custom_metadata,
    schema_locator_bytes,
)
from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.pulsar import INSTANCE_ID, FakePulsar, TopicPlan
from tests.unit.ledger_deletion.cases import CLAIMS
from tests.unit.ledger_deletion.orphans import NAME, about, about_copy
from tests.unit.ledger_deletion.sidecars import Sidecar

COMPACTION = CursorName("__compaction")
CURSOR_LEDGER = LedgerId(500)


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


# --- one owner's node ------------------------------------------------------------------------------------------------


def references(
    kind: LedgerComponent, data: bytes, ledger_id: int = 7, tail: Sequence[int | None] = ()
) -> Referenced | Unreferenced | ReferencesUnknown:
    """What the node of the kind's owner says; ``tail`` has the positions in the compaction cursor's ledger."""
    store, entries = FakeMetadataStore(), FakeLedgerEntries()
    store.put(ledger_path(CURSOR_LEDGER), ledger_metadata_bytes(LedgerState.OPEN))
    entries.put(CURSOR_LEDGER, *map(position_entry, tail))
    path = owner_path(CLAIMS[kind])
    nodes = OwnerNodes({path: Node(path, data, NodeVersion(4), 0, 0, 1)}, CompactedLedgers(store, entries, "/ledgers"))
    return nodes.references(CLAIMS[kind], LedgerId(ledger_id))


def node_bytes(kind: LedgerComponent, ids: Sequence[int]) -> bytes:
    """A node of that kind that references exactly these ledgers (a cursor's ledger: the first of them)."""
    first = ids[0] if ids else None
    match kind:
        case LedgerComponent.MANAGED_LEDGER:
            return managed_ledger_bytes(ids)
        case LedgerComponent.MANAGED_CURSOR:
            return cursor_bytes(first)
        case LedgerComponent.SCHEMA_STORAGE:
            return schema_locator_bytes(ids or [-1])
        case LedgerComponent.COMPACTED_LEDGER:
            return cursor_bytes(None, compacted_ledger=first)
        case _:
            return cursor_bytes(None, buckets={f"#pulsar.internal.delayed.bucket_{each}_1": each for each in ids})


@given(st.sampled_from(LedgerComponent), st.sets(st.integers(0, 20), max_size=6).map(sorted), st.integers(0, 20))
def test_referenced_exactly_if_the_node_names_it(kind: LedgerComponent, ids: list[int], asked: int) -> None:
    named = ids[:1] if kind in (LedgerComponent.MANAGED_CURSOR, LedgerComponent.COMPACTED_LEDGER) else ids
    guard = Guard(owner_path(CLAIMS[kind]), NodeVersion(4))
    expected = Referenced(guard) if asked in named else Unreferenced((guard,))
    assert references(kind, node_bytes(kind, ids), asked) == expected


@pytest.mark.parametrize("kind", LedgerComponent)
@pytest.mark.parametrize("damaged", [b"\xff", b"\x0a\x05", b"Gx\x00"])
def test_a_damaged_node_proves_nothing(kind: LedgerComponent, damaged: bytes) -> None:
    assert isinstance(references(kind, damaged), ReferencesUnknown)


@pytest.mark.parametrize(
    ("tail", "referenced"),
    [
        ([7], True),
        ([None, 7], True),
        ([7, None], True),
        ([7, 8], True),
        ([7, 8, 9], False),
        ([8], False),
        ([None, None], False),
    ],
)
@pytest.mark.parametrize("stale", [None, 7])
def test_the_last_two_positions_of_an_open_compaction_cursor_count_and_not_its_nodes(
    tail: list[int | None], referenced: bool, stale: int | None
) -> None:
    data = cursor_bytes(CURSOR_LEDGER, compacted_ledger=stale)
    found = references(LedgerComponent.COMPACTED_LEDGER, data, tail=tail)
    assert isinstance(found, Referenced if referenced else Unreferenced)


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


def test_a_damaged_list_proves_nothing_about_a_copy(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.store.put(managed_ledger_path(topic.managed_ledger_name), b"\xff")
    (facts,) = gather(fake_pulsar, about_copy(fake_pulsar, topic, 77))
    assert isinstance(facts.references, ReferencesUnknown)


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
