"""Ledgers' own claims, in every kind that a 4.0.8 broker writes, and rejected claims."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.model.names import CursorName, ManagedLedgerName, SchemaId, parse_topic_name
from pulsar_sidecar.ownership.claims import (
    BucketClaim,
    Claim,
    CompactedClaim,
    CursorClaim,
    DataClaim,
    ForeignLedger,
    SchemaClaim,
    UnknownClaim,
    read_claim,
)
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata

from tests.fakes.bookkeeper import (
    bucket_custom_metadata,
    compacted_custom_metadata,
    cursor_custom_metadata,
    data_custom_metadata,
    schema_custom_metadata,
)
from tests.unit.ownership import golden

BUCKET_KEY = "#pulsar.internal.delayed.bucket_3_7"
TOPIC = parse_topic_name("persistent://t/n/a/b c")


@pytest.mark.parametrize(
    ("node", "claim"),
    [
        (
            golden.LEDGER_OF_A_CURSOR_OPEN,
            CursorClaim(
                ManagedLedgerName("public/default/persistent/entries-19111925b2954bbea30890db4061e8b9"),
                CursorName("a+b%2Fc"),
            ),
        ),
        (
            golden.LEDGER_OF_A_COMPACTION,
            CompactedClaim(parse_topic_name("entries-2f41734031104baa8a6d8d7bb98dc382")),
        ),
        (
            golden.LEDGER_OF_A_BUCKET,
            BucketClaim(
                parse_topic_name("entries-cdf0fc00be4f455791b975d3a52fe0d5"),
                "a b/ü",
                "#pulsar.internal.delayed.bucket_7_7",
            ),
        ),
        (
            golden.LEDGER_WITH_PASSWORD,
            DataClaim(ManagedLedgerName("public/default/persistent/entries-cdf0fc00be4f455791b975d3a52fe0d5")),
        ),
    ],
)
def test_ledgers_of_a_broker(node: bytes, claim: Claim) -> None:
    assert read_claim(decode_ledger_metadata(node).custom_metadata) == claim


def test_every_kind() -> None:
    managed_ledger = ManagedLedgerName("t/n/persistent/a%2Fb+c")
    assert read_claim(data_custom_metadata(managed_ledger)) == DataClaim(managed_ledger)
    assert read_claim(cursor_custom_metadata(managed_ledger, "sub%2Fa")) == CursorClaim(
        managed_ledger, CursorName("sub%2Fa")
    )
    assert read_claim(schema_custom_metadata("t/n/s")) == SchemaClaim(SchemaId("t/n/s"))
    assert read_claim(compacted_custom_metadata(str(TOPIC))) == CompactedClaim(TOPIC)
    assert read_claim(bucket_custom_metadata(str(TOPIC), "sub/a", BUCKET_KEY)) == BucketClaim(
        TOPIC, "sub/a", BUCKET_KEY
    )


def test_managed_ledger_without_topic_is_a_claim() -> None:
    assert read_claim(data_custom_metadata("my-ledger")) == DataClaim(ManagedLedgerName("my-ledger"))


def test_placement_policy_is_ignored_in_claims() -> None:
    stamp = schema_custom_metadata("t/n/s") | {"EnsemblePlacementPolicyConfig": b"{}"}
    assert read_claim(stamp) == SchemaClaim(SchemaId("t/n/s"))


@pytest.mark.parametrize(
    "custom_metadata",
    [
        {},
        {"component": b"managed-ledger", "pulsar/managed-ledger": b"t/n/persistent/a"},
        data_custom_metadata("t/n/persistent/a") | {"application": b"pulsar "},
        data_custom_metadata("t/n/persistent/a") | {"application": b"Pulsar"},
        data_custom_metadata("t/n/persistent/a") | {"application": b""},
    ],
)
def test_without_pulsars_stamp(custom_metadata: dict[str, bytes]) -> None:
    assert read_claim(custom_metadata) == ForeignLedger()


DATA = data_custom_metadata("t/n/persistent/a")
CURSOR = cursor_custom_metadata("t/n/persistent/a", "sub")
SCHEMA = schema_custom_metadata("t/n/s")
COMPACTED = compacted_custom_metadata("persistent://t/n/a")
BUCKET = bucket_custom_metadata("persistent://t/n/a", "sub", BUCKET_KEY)


@pytest.mark.parametrize(
    "custom_metadata",
    [
        DATA | {"component": b""},
        DATA | {"component": b"schema"},
        DATA | {"pulsar/schemaId": b"t/n/s"},
        DATA | {"pulsar/future": b"x"},
        DATA | {"pulsar/managed-ledger": b"t/n/persistent/../../admin"},
        DATA | {"pulsar/managed-ledger": b"/t/n/persistent/a"},
        DATA | {"pulsar/managed-ledger": b"t//n"},
        DATA | {"pulsar/managed-ledger": b"t/./n"},
        DATA | {"pulsar/managed-ledger": b"t/n/persistent/a\x00"},
        DATA | {"pulsar/managed-ledger": b"t/n/persistent/a\n"},
        CURSOR | {"pulsar/cursor": b""},
        CURSOR | {"pulsar/cursor": b".."},
        CURSOR | {"pulsar/cursor": b"\xc3"},
        SCHEMA | {"pulsar/schemaId": b"t/n/s/"},
        {key: value for key, value in COMPACTED.items() if key != "pulsar/compactedTo"},
        COMPACTED | {"pulsar/compactedTopic": b"persistent://t/n"},
        BUCKET | {"pulsar/delayedIndexCursor": b""},
        BUCKET | {"pulsar/delayedIndexTopic": b"a"},
    ],
)
def test_odd_stamps_are_not_believed(custom_metadata: dict[str, bytes]) -> None:
    reading = read_claim(custom_metadata)
    assert isinstance(reading, UnknownClaim)
    assert reading.reason


@pytest.mark.parametrize(
    ("custom_metadata", "reason"),
    [
        (DATA | {"component": b"functions"}, "component b'functions' is not known"),
        ({"application": b"pulsar"}, "component None is not known"),
        (
            DATA | {"pulsar/schemaId": b"t/n/s", "pulsar/future": b"x"},
            "custom metadata of this component has other keys than expected: pulsar/future, pulsar/schemaId",
        ),
        (
            {key: value for key, value in BUCKET.items() if key != "pulsar/delayedIndexCursor"},
            "custom metadata of this component has other keys than expected: pulsar/delayedIndexCursor",
        ),
        (DATA | {"pulsar/managed-ledger": b"\xff"}, "pulsar/managed-ledger is not UTF-8"),
        (DATA | {"pulsar/managed-ledger": b""}, "pulsar/managed-ledger is empty"),
        (
            DATA | {"pulsar/managed-ledger": b"t/../n"},
            "pulsar/managed-ledger 't/../n' cannot name a node of the metadata store",
        ),
        (CURSOR | {"pulsar/cursor": b"a/b"}, "pulsar/cursor 'a/b' is not encoded as a cursor's name"),
        (SCHEMA | {"pulsar/schemaId": b"/"}, "pulsar/schemaId '/' cannot name a node of the metadata store"),
        (COMPACTED | {"pulsar/compactedTopic": b"t/n/a"}, "pulsar/compactedTopic 't/n/a' is not a full topic name"),
        (
            COMPACTED | {"pulsar/compactedTopic": b"kafka://t/n/a"},
            "pulsar/compactedTopic: topic domain 'kafka' is neither 'persistent' nor 'non-persistent'",
        ),
        (
            BUCKET | {"pulsar/delayedIndexBucketKey": b"bucket"},
            "pulsar/delayedIndexBucketKey 'bucket' is not a key of a delayed index",
        ),
    ],
)
def test_why_a_stamp_is_not_believed(custom_metadata: dict[str, bytes], reason: str) -> None:
    assert read_claim(custom_metadata) == UnknownClaim(reason)


@given(
    st.sampled_from(
        [b"managed-ledger", b"schema", b"compacted-ledger", b"delayed-index-bucket", b"something", b"\xff"]
    ),
    st.dictionaries(st.sampled_from(sorted({*CURSOR, *SCHEMA, *COMPACTED, *BUCKET})), st.binary(max_size=12)),
)
def test_reading_is_total(component: bytes, stamp: dict[str, bytes]) -> None:
    reading = read_claim({**stamp, "application": b"pulsar", "component": component})
    assert not isinstance(reading, ForeignLedger)
