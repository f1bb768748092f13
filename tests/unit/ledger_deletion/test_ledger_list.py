"""The first phase's list: one record for every ledger and storage that a topic references, and no more."""

from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.record import Mark, encode_record, parse_record, record_key
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import matches
from pulsar_sidecar.features.ledger_deletion.topic_deletion.recorder import (
    LedgerDetails,
    TopicReferences,
    marked_record,
    records_of,
    schema_records,
)
from pulsar_sidecar.model.ids import EntryId, LedgerId, OperationId, Position
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType, OffloadContext
from pulsar_sidecar.model.metadata import Birth
from pulsar_sidecar.model.names import CursorName, encode_cursor, parse_topic_name
from pulsar_sidecar.ownership.claims import BucketClaim, CompactedClaim, CursorClaim, DataClaim, SchemaClaim
from pulsar_sidecar.ownership.references import CursorReferences, LedgerReference, ManagedLedgerReferences

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


def test_every_version_of_a_schema_has_its_record() -> None:
    found = schema_records(TOPIC, {LedgerId(5), LedgerId(4)})
    assert [(each.ledger_id, each.component, each.schema_id) for each in found] == [
        (4, LedgerComponent.SCHEMA_STORAGE, "public/default/orders"),
        (5, LedgerComponent.SCHEMA_STORAGE, "public/default/orders"),
    ]


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
