"""Everything a topic references is durably recorded under the same sequence ids, by any sidecar and however often."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.record import Mark, encode_record, parse_record, record_key
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import matches
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    HeldOperation,
    Operation,
    decode_node,
    operation_path,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.recorder import (
    LedgerDetails,
    Recorder,
    TopicReferences,
    marked_record,
    records_of,
    schema_records,
)
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, OperationId, Position
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType, OffloadContext
from pulsar_sidecar.model.metadata import Birth
from pulsar_sidecar.model.names import CursorName, TopicName, encode_cursor, parse_topic_name
from pulsar_sidecar.ownership.claims import BucketClaim, CompactedClaim, CursorClaim, DataClaim, SchemaClaim
from pulsar_sidecar.ownership.paths import cursor_path, instance_id_path, ledger_path
from pulsar_sidecar.ownership.references import CursorReferences, LedgerReference, ManagedLedgerReferences

from tests.fakes.bookkeeper import compacted_custom_metadata, cursor_bytes
from tests.fakes.brokers import FakeLiveOwners
from tests.fakes.pulsar import INSTANCE_ID, FakePulsar, TopicPlan
from tests.unit.ledger_deletion.cases import view
from tests.unit.ledger_deletion.driving import OP, begin
from tests.unit.ledger_deletion.orphans import NAME
from tests.unit.ledger_deletion.sidecars import Sidecar, accepted_records


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


# --- records -----------------------------------------------------------------------------------------------------


def test_everything_that_is_referenced_is_recorded_once(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.topic(NAME, TopicPlan(schema_versions=2, compacted=True, buckets=2, offloaded=(1,)))
    record(sidecar, begin(sidecar, topic))
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
    record(sidecar, begin(sidecar, topic, partitioned=True))
    assert {str(record.topic) for record in accepted_records(fake_pulsar)} >= {
        f"{topic}-partition-0",
        f"{topic}-partition-1",
    }
    # Its name looks like a partition's, whose base is another topic's name: whose schema that is, cannot be known.
    schema = {ledger for ledger, path in fake_pulsar.referenced().items() if path.startswith("/schemas")}
    assert sorted(ids(fake_pulsar)) == sorted(fake_pulsar.ledgers() - schema)


def test_single_partition_does_not_record_the_shared_schema(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2, TopicPlan(schema_versions=1))
    record(sidecar, begin(sidecar, topic.partition(0)))
    assert set(ids(fake_pulsar)) == set(fake_pulsar.listed(topic.partition(0))) | {
        cursor.cursor_ledger for cursor in fake_pulsar.cursors(topic.partition(0)).values()
    }


def test_both_of_two_newest_compacted_ledgers_are_recorded(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    second = fake_pulsar.compact(topic)
    record(sidecar, begin(sidecar, topic))
    assert second in fake_pulsar.referenced()
    assert set(fake_pulsar.referenced()) == set(ids(fake_pulsar))


def test_the_compacted_ledger_that_only_its_broker_knows_yet_is_recorded(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    newest = fake_pulsar.ledger(compacted_custom_metadata(NAME))
    sidecar = Sidecar(fake_pulsar)
    owners = FakeLiveOwners()
    owners.load(topic, view(compacted_ledger=newest))
    record_by(replace(sidecar.recorder, owners=owners), begin(sidecar, topic))
    assert set(ids(fake_pulsar)) == {newest, *fake_pulsar.referenced()}


@pytest.mark.parametrize("policies", [b'{"deleted":true}', b'{"deleted":false}', b"{}", b"damaged"])
def test_brokers_that_delete_the_namespace_need_not_report_on_its_topics(policies: bytes) -> None:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    fake_pulsar.store.put(f"/admin/policies/{topic.namespace}", policies)
    sidecar = Sidecar(fake_pulsar)
    operation = begin(sidecar, topic)
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
    record(sidecar, begin(sidecar, topic))
    assert compacted in ids(fake_pulsar)


def test_a_ledger_without_metadata_is_recorded_without_birth(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.remove_ledger(fake_pulsar.listed(topic)[0])
    sidecar = Sidecar(fake_pulsar)
    record(sidecar, begin(sidecar, topic))
    births = {record.ledger_id: record.mark.created_ms for record in accepted_records(fake_pulsar)}
    assert births[fake_pulsar.listed(topic)[0]] is None
    assert births[fake_pulsar.listed(topic)[1]] is not None


# --- obstacles ---------------------------------------------------------------------------------------------------


def test_a_bookie_that_does_not_answer_stops_it(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    fake_pulsar.entries.fail(TemporaryError("no bookie answers"))
    with pytest.raises(TemporaryError):
        record(sidecar, begin(sidecar, topic))
    assert ids(fake_pulsar) == []


def test_a_compaction_cursor_whose_ledger_is_gone_does_not_stop_it_for_ever(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.topic(NAME, TopicPlan(compacted=True))
    cursor_ledger = fake_pulsar.cursors(topic)[CursorName("__compaction")].cursor_ledger
    fake_pulsar.remove_ledger(cursor_ledger)
    sidecar = Sidecar(fake_pulsar)
    record(sidecar, begin(sidecar, topic))
    assert set(fake_pulsar.listed(topic)) <= set(ids(fake_pulsar))


def test_missing_instance_id_suggests_a_wrong_root(fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar) -> None:
    operation = begin(sidecar, topic)
    fake_pulsar.store.remove(instance_id_path())
    with pytest.raises(TemporaryError, match="ledgersRootPath"):
        record(sidecar, operation)


@pytest.mark.parametrize("stored", [True, False])
def test_a_receipt_that_is_missing_counts_as_not_sent(fake_pulsar: FakePulsar, topic: TopicName, stored: bool) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = begin(sidecar, topic)
    fake_pulsar.topics.lose_receipts_next(stored=stored)
    with pytest.raises(TemporaryError, match=r"no receipt.*as writable: 1 of 1"):
        record(sidecar, operation)
    record(sidecar, resumed(fake_pulsar))
    assert set(ids(fake_pulsar)) == fake_pulsar.ledgers()
    assert len(ids(fake_pulsar)) == (8 if stored else 4)


# --- going on ----------------------------------------------------------------------------------------------------


def test_a_ledger_that_appears_while_sending_is_recorded_too(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = begin(sidecar, topic)
    fake_pulsar.topics.hooks.before("publish", lambda: fake_pulsar.rollover(topic) and None)
    record(sidecar, operation)
    assert set(fake_pulsar.listed(topic)) <= set(ids(fake_pulsar))
    assert len(ids(fake_pulsar)) == 5


def test_a_topic_that_grows_all_the_time_is_too_busy(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    operation = begin(sidecar, topic)
    fake_pulsar.topics.hooks.before("publish", lambda: fake_pulsar.rollover(topic) and None, times=-1)
    with pytest.raises(TemporaryError, match="faster"):
        record(sidecar, operation)


def test_a_cursor_that_is_rewritten_between_the_rounds_keeps_its_number(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar
) -> None:
    operation = record(sidecar, begin(sidecar, topic))
    fake_pulsar.store.put(cursor_path(topic.managed_ledger_name, CursorName("sub")), cursor_bytes(None))
    record(sidecar, operation)
    assert len(copies(fake_pulsar)) == 4


# --- the operation's node ----------------------------------------------------------------------------------------


def test_a_ledgers_length_travels_with_its_record(fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar) -> None:
    record(sidecar, begin(sidecar, topic))
    lengths = {record.ledger_id: record.mark.length_bytes for record in accepted_records(fake_pulsar)}
    assert [lengths[ledger_id] for ledger_id in fake_pulsar.listed(topic)] == [1000, 1000, 0]
    assert fake_pulsar.store.peek(ledger_path(fake_pulsar.listed(topic)[0])) is not None


# --- one record for every ledger and storage, and no more ------------------------------------------------------------


TOPIC = parse_topic_name("persistent://public/default/orders")
MARK = Mark(operation_id=OperationId("op"), instance_id="here", requested_by="me")
NOWHERE = Position(LedgerId(0), EntryId(-1))
KEY = "#pulsar.internal.delayed.bucket_1_2"


def context(uid: int, *, bookkeeper_deleted: bool = False) -> OffloadContext:
    return OffloadContext(uid, -uid, "aws-s3", {"bucket": "b"}, bookkeeper_deleted=bookkeeper_deleted)


def cursor(ledger: int | None, **buckets: int) -> CursorReferences:
    ids = {f"{KEY}{name}": LedgerId(value) for name, value in buckets.items()}
    return CursorReferences(None if ledger is None else LedgerId(ledger), NOWHERE, None, ids)


def references(
    ledgers: dict[int, LedgerReference],
    cursors: dict[str, CursorReferences] | None = None,
    compacted: tuple[int, ...] = (),
) -> TopicReferences:
    return TopicReferences(
        TOPIC,
        ManagedLedgerReferences({LedgerId(ledger_id): entry for ledger_id, entry in ledgers.items()}),
        {CursorName(name): value for name, value in (cursors or {}).items()},
        frozenset(LedgerId(ledger_id) for ledger_id in compacted),
    )


def summary(found: TopicReferences) -> list[tuple[int, str, str, str | None]]:
    return [
        (each.ledger_id, each.component.value, each.ledger_type.value, each.cursor_name) for each in records_of(found)
    ]


def test_every_kind_has_its_record() -> None:
    found = references(
        {11: LedgerReference(), 10: LedgerReference()},
        {"sub": cursor(13, x=12), "a%2Fb": cursor(None), "__compaction": cursor(15)},
        compacted=(14,),
    )
    assert summary(found) == [
        (10, "MANAGED_LEDGER", "LEDGER", None),
        (11, "MANAGED_LEDGER", "LEDGER", None),
        (12, "DELAYED_INDEX_BUCKET", "LEDGER", "sub"),
        (13, "MANAGED_CURSOR", "LEDGER", "sub"),
        (14, "COMPACTED_LEDGER", "LEDGER", None),
        (15, "MANAGED_CURSOR", "LEDGER", "__compaction"),
    ]


def test_a_ledger_in_both_storages_has_two_records() -> None:
    found = references({10: LedgerReference(offload=context(7))})
    both = records_of(found)
    assert [each.ledger_type for each in both] == [LedgerType.LEDGER, LedgerType.OFFLOAD_LEDGER]
    assert both[1].offload_context == context(7)
    assert len({record_key(each) for each in both}) == 2


def test_a_ledger_in_tiered_storage_only_has_one() -> None:
    found = references({10: LedgerReference(offload=context(7, bookkeeper_deleted=True))})
    assert [each.ledger_type for each in records_of(found)] == [LedgerType.OFFLOAD_LEDGER]


def test_another_offload_attempt_is_another_record() -> None:
    keys = {
        record_key(each)
        for uid in (7, 8)
        for each in records_of(references({10: LedgerReference(offload=context(uid))}))
    }
    assert len(keys) == 3


def test_a_birth_distinguishes_a_ledger_from_a_later_one() -> None:
    found = references({10: LedgerReference(offload=context(7)), 11: LedgerReference()})
    details = {LedgerId(10): LedgerDetails(Birth(123, None), 456)}
    born, copy, unborn = (marked_record(each, details, MARK) for each in records_of(found))
    assert (born.mark.created_ms, born.mark.length_bytes) == (123, 456)
    assert born.mark.operation_id == "op"
    assert born.mark.instance_id == "here"
    assert born.mark.requested_by == "me"
    assert copy.mark == unborn.mark == MARK


def test_a_cursors_record_matches_its_ledger_however_the_node_is_spelled() -> None:
    for encoded in ("sub", "a%2Fb", "a+b", "a%20b", "%ff", "a%2fb", "x%252Fy", "%E2%82%AC", "*~"):
        (found,) = [
            each
            for each in records_of(references({}, {encoded: cursor(13)}))
            if each.component is LedgerComponent.MANAGED_CURSOR
        ]
        claim = CursorClaim(TOPIC.managed_ledger_name, CursorName(encoded))
        assert matches(parse_record(encode_record(found)), claim), encoded


names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=10)


@given(
    ledgers=st.dictionaries(st.integers(0, 30), st.none() | st.booleans(), max_size=5),
    cursors=st.dictionaries(names, st.none() | st.integers(100, 130), max_size=4),
    compacted=st.frozensets(st.integers(300, 303)),
    schemas=st.frozensets(st.integers(400, 403)),
)
def test_every_reference_has_a_record_that_matches_and_can_be_read(
    ledgers: dict[int, bool | None],
    cursors: dict[str, int | None],
    compacted: frozenset[int],
    schemas: frozenset[int],
) -> None:
    entries = {
        ledger_id: LedgerReference(
            offload=None if deleted is None else context(ledger_id + 1, bookkeeper_deleted=deleted)
        )
        for ledger_id, deleted in ledgers.items()
    }
    nodes = {
        str(encode_cursor(name)): cursor(ledger, **({"": 200 + number} if number % 2 else {}))
        for number, (name, ledger) in enumerate(cursors.items())
    }
    found = references(entries, nodes, tuple(compacted))
    records = records_of(found) + schema_records(TOPIC, map(LedgerId, schemas))
    cursor_ledgers = {ledger for ledger in cursors.values() if ledger is not None}
    buckets = {200 + number for number in range(1, len(cursors), 2)}
    assert {each.ledger_id for each in records} == {*ledgers, *cursor_ledgers, *buckets, *compacted, *schemas}
    keys = [record_key(each) for each in records]
    twice = [ledger for ledger in cursors.values() if list(cursors.values()).count(ledger) > 1]
    assert len(keys) == len(set(keys)) or twice
    for each in records:
        read = parse_record(encode_record(each))
        assert read.ledger_id == each.ledger_id
        claims = {
            LedgerComponent.MANAGED_LEDGER: DataClaim(TOPIC.managed_ledger_name),
            LedgerComponent.MANAGED_CURSOR: CursorClaim(
                TOPIC.managed_ledger_name, encode_cursor(each.cursor_name or "")
            ),
            LedgerComponent.SCHEMA_STORAGE: SchemaClaim(TOPIC.schema_id),
            LedgerComponent.COMPACTED_LEDGER: CompactedClaim(TOPIC),
            LedgerComponent.DELAYED_INDEX_BUCKET: BucketClaim(TOPIC, each.cursor_name or "", KEY),
        }
        assert matches(read, claims[each.component])
