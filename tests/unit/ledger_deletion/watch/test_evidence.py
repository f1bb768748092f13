"""Evidence of a leak: its cause by the remaining nodes, and a record that the second phase accepts for the ledger."""

import pytest
from pulsar_sidecar.features.ledger_deletion.record import Mark, PendingDeleteLedgerInfo, encode_record, parse_record
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import matches
from pulsar_sidecar.features.ledger_deletion.watch.evidence import REQUESTED_BY, cause_of, record_of
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerState, LedgerType
from pulsar_sidecar.model.names import (
    CursorName,
    ManagedLedgerName,
    SchemaId,
    TopicName,
    encode_cursor,
    parse_topic_name,
)
from pulsar_sidecar.ownership.claims import BucketClaim, Claim, CompactedClaim, CursorClaim, DataClaim, SchemaClaim

from tests.unit.ledger_deletion.cases import BUCKET_KEY, CLAIMS, CREATED_MS, stored

DATA, CURSOR, SCHEMA, COMPACTED, BUCKET = (CLAIMS[component] for component in LedgerComponent)
TRIM, SWITCH, SUBSCRIPTION = LeakCause.TRIM, LeakCause.CURSOR_SWITCH, LeakCause.SUBSCRIPTION
TOPIC, NAMESPACE = LeakCause.TOPIC_DELETION, LeakCause.NAMESPACE_DELETION

# owner, topic, namespace -> the cause for data, cursor, schema, compacted, bucket
CAUSES = {
    (True, True, True): (TRIM, SWITCH, LeakCause.SCHEMA, LeakCause.COMPACTION, LeakCause.DELAYED_INDEX),
    (True, True, False): (TRIM, SWITCH, NAMESPACE, LeakCause.COMPACTION, LeakCause.DELAYED_INDEX),
    (True, False, True): (TRIM, SWITCH, LeakCause.SCHEMA, TOPIC, LeakCause.DELAYED_INDEX),
    (True, False, False): (TRIM, SWITCH, NAMESPACE, NAMESPACE, LeakCause.DELAYED_INDEX),
    (False, True, True): (TOPIC, SUBSCRIPTION, LeakCause.SCHEMA, LeakCause.COMPACTION, SUBSCRIPTION),
    (False, True, False): (NAMESPACE, SUBSCRIPTION, NAMESPACE, LeakCause.COMPACTION, SUBSCRIPTION),
    (False, False, True): (TOPIC, TOPIC, LeakCause.SCHEMA, TOPIC, TOPIC),
    (False, False, False): (NAMESPACE, NAMESPACE, NAMESPACE, NAMESPACE, NAMESPACE),
}


@pytest.mark.parametrize("around", CAUSES)
def test_the_cause_follows_from_what_is_still_there(around: tuple[bool, bool, bool]) -> None:
    owner, topic, namespace = around
    for replaced, data in ((False, CAUSES[around][0]), (True, LeakCause.OFFLOAD)):
        found = [
            cause_of(component, owner=owner, topic=topic, namespace=namespace, replaced=replaced)
            for component in LedgerComponent
        ]
        assert found == [data, *CAUSES[around][1:]]


# --- records ---------------------------------------------------------------------------------------------------------

ORDERS = parse_topic_name("persistent://public/default/orders")
NAMES = {
    "plain": "persistent://public/default/orders",
    "a partition": "persistent://public/default/orders-partition-12",
    "V1": "persistent://t/c/n/orders",
    "encoded": "persistent://public/default/ä b+%2F",
    "of the system": "persistent://pulsar/system/x",
}
SUBSCRIPTIONS = ["sub", "a/b", "ä b", "%", "a%2Fb", "+"]


def made(claim: Claim, dereferenced_ms: int | None = 5) -> PendingDeleteLedgerInfo | None:
    return record_of(LedgerId(2**40), stored(claim), claim, "here", dereferenced_ms)


def claims_of(topic: TopicName) -> list[tuple[LedgerComponent, Claim]]:
    name = topic.managed_ledger_name
    found: list[tuple[LedgerComponent, Claim]] = [
        (LedgerComponent.MANAGED_LEDGER, DataClaim(name)),
        (LedgerComponent.SCHEMA_STORAGE, SchemaClaim(topic.schema_id)),
        (LedgerComponent.COMPACTED_LEDGER, CompactedClaim(topic)),
    ]
    for subscription in SUBSCRIPTIONS:
        found += [
            (LedgerComponent.MANAGED_CURSOR, CursorClaim(name, encode_cursor(subscription))),
            (LedgerComponent.DELAYED_INDEX_BUCKET, BucketClaim(topic, subscription, BUCKET_KEY)),
        ]
    return found


@pytest.mark.parametrize("kind", NAMES)
def test_the_record_of_any_claim_survives_the_topic_and_matches_the_ledger(kind: str) -> None:
    for component, claim in claims_of(parse_topic_name(NAMES[kind])):
        record = made(claim)
        if record is None:  # no topic has such a schema
            assert isinstance(claim, SchemaClaim)
            assert kind == "V1"
            continue
        assert record.component is component
        again = parse_record(encode_record(record))
        assert again == record
        assert matches(again, claim), claim


@pytest.mark.parametrize(
    ("spelled", "subscription"),
    [("sub", "sub"), ("a%2Fb", "a/b"), ("%C3", "%C3"), ("%", "%"), ("a b", "a b"), ("a/b", "a/b")],
)
def test_a_cursors_record_has_the_subscriptions_name_and_matches(spelled: str, subscription: str) -> None:
    claim = CursorClaim(ORDERS.managed_ledger_name, CursorName(spelled))
    record = made(claim)
    assert record.cursor_name == subscription
    assert matches(parse_record(encode_record(record)), claim)


@pytest.mark.parametrize("dereferenced_ms", [77, None])
def test_fields_of_a_record_of_evidence(dereferenced_ms: int | None) -> None:
    """A ledger that was never seen referenced has no time of that."""
    record = made(DATA, dereferenced_ms)
    mark = Mark(
        unreferenced=True,
        instance_id="here",
        created_ms=CREATED_MS,
        length_bytes=100,
        requested_by=REQUESTED_BY,
        dereferenced_ms=dereferenced_ms,
    )
    assert record == PendingDeleteLedgerInfo(
        ORDERS, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, LedgerId(2**40), mark=mark
    )
    assert REQUESTED_BY == "ledger-deletion watch"


def test_a_record_names_what_its_kind_needs_and_no_more() -> None:
    def shown(component: LedgerComponent) -> tuple[TopicName, str | None, str | int | None]:
        record = made(CLAIMS[component])
        return record.topic, record.cursor_name, record.schema_id

    assert shown(LedgerComponent.MANAGED_LEDGER) == (ORDERS, None, None)
    assert shown(LedgerComponent.MANAGED_CURSOR) == (ORDERS, "a/b", None)
    assert shown(LedgerComponent.SCHEMA_STORAGE) == (ORDERS, None, "public/default/orders")
    assert shown(LedgerComponent.COMPACTED_LEDGER) == (ORDERS, None, None)
    assert shown(LedgerComponent.DELAYED_INDEX_BUCKET) == (ORDERS, "a/b", None)


def test_an_open_ledger_has_no_length() -> None:
    record = record_of(LedgerId(7), stored(DATA, state=LedgerState.OPEN), DATA, "here", 1)
    assert record.mark.length_bytes is None


@pytest.mark.parametrize(
    "claim",
    [
        DataClaim(ManagedLedgerName("just-a-name")),
        CursorClaim(ManagedLedgerName("just-a-name"), CursorName("sub")),
        SchemaClaim(SchemaId("public/default")),
        SchemaClaim(SchemaId("a/b/c/d")),
    ],
)
def test_owner_without_topic_has_no_record(claim: Claim) -> None:
    assert made(claim) is None
