"""Writes to a shadow's nodes, the state of its deletion, and the known shadows."""

import json

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pulsar_sidecar.features.ledger_deletion.results import ShadowDeletionStage, ShadowDeletionStatus
from pulsar_sidecar.features.ledger_deletion.topic_deletion.known_shadows import KnownShadows
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    ShadowDeletion,
    decode_node,
    encode_node,
    shadow_deletion_path,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.shadow_deleter import (
    detached,
    detached_partitioned_topic,
    is_detached,
)
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.references import managed_ledger_references
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE, partitioned_topic_shadow_source, source_topic

from tests.fakes.bookkeeper import compressed, managed_ledger_bytes

TOPIC = parse_topic_name("persistent://public/default/orders-shadow")
SOURCE = parse_topic_name("persistent://public/default/orders")
NO_SOURCE = "persistent://public/default/no-source"
SHADOW = managed_ledger_bytes([1, 2], properties={SHADOW_SOURCE: str(SOURCE), "mine": "kept"}, terminated=True)
DELETION = ShadowDeletion(
    operation_id=OperationId("op-1"),
    topic_name=str(TOPIC),
    partitions=2,
    source=str(SOURCE),
    source_names=(str(SOURCE.partition(0)), str(SOURCE.partition(1))),
    incarnations={"/a": 1, "/b": 2**40},
    requested_by="ops",
    requested_ms=1_700_000_000_000,
    checked_ledgers=7,
    missing_ledgers=(LedgerId(3), LedgerId(2**62)),
    missing_sources=(str(SOURCE.partition(1)),),
    missing_before=(LedgerId(3),),
    stage=ShadowDeletionStage.REMOVING,
)


@pytest.mark.parametrize("compressing", [False, True])
def test_a_detached_node_leads_to_no_ledger_of_the_source(compressing: bool) -> None:
    data = compressed("ZSTD", SHADOW, bytes(cramjam.zstd.compress(SHADOW))) if compressing else SHADOW
    assert not is_detached(data, NO_SOURCE, spells_source=True)
    changed = detached(data, NO_SOURCE, spells_source=True)
    assert is_detached(changed, NO_SOURCE, spells_source=True)
    read = managed_ledger_references(changed)
    assert (read.ledgers, read.terminated) == ({}, False)
    assert read.properties == {SHADOW_SOURCE: NO_SOURCE, "mine": "kept"}
    assert detached(changed, NO_SOURCE, spells_source=True) == changed


@pytest.mark.parametrize(
    ("properties", "spells_source", "is_one"),
    [
        ({SHADOW_SOURCE: NO_SOURCE}, True, True),
        ({SHADOW_SOURCE: NO_SOURCE}, False, True),
        ({SHADOW_SOURCE: str(SOURCE)}, True, False),
        ({SHADOW_SOURCE: str(SOURCE)}, False, False),
        ({}, True, False),  # an ordinary topic: the next load would own the listed ledgers
        ({}, False, True),
    ],
)
def test_an_empty_list_is_not_enough(properties: dict[str, str], spells_source: bool, is_one: bool) -> None:
    data = managed_ledger_bytes([], properties=properties)
    assert is_detached(data, NO_SOURCE, spells_source=spells_source) is is_one
    changed = detached(data, NO_SOURCE, spells_source=spells_source)
    assert is_detached(changed, NO_SOURCE, spells_source=spells_source)


def test_a_partition_gets_no_property_that_it_had_not() -> None:
    changed = detached(managed_ledger_bytes([1, 2]), NO_SOURCE, spells_source=False)
    assert managed_ledger_references(changed).properties == {}


def test_a_node_that_holds_something_unknown_is_not_written() -> None:
    with pytest.raises(UndecodableError):
        detached(SHADOW + b"\xfa\x3f\x01x", NO_SOURCE, spells_source=True)


def test_a_partitioned_topics_other_fields_stay() -> None:
    node = json.dumps({"partitions": 3, "deleted": False, "properties": {SHADOW_SOURCE: "s", "a": "b"}}).encode()
    assert partitioned_topic_shadow_source(node) != NO_SOURCE
    changed = detached_partitioned_topic(node, NO_SOURCE)
    assert partitioned_topic_shadow_source(changed) == NO_SOURCE
    properties = {SHADOW_SOURCE: NO_SOURCE, "a": "b"}
    assert json.loads(changed) == {"partitions": 3, "deleted": False, "properties": properties}
    bare = detached_partitioned_topic(b'{"partitions":3,"deleted":false,"properties":null}', NO_SOURCE)
    assert partitioned_topic_shadow_source(bare) == NO_SOURCE


@pytest.mark.parametrize(
    "deletion", [DELETION, replace(DELETION, partitions=None, requested_by=None, source_names=(), missing_before=())]
)
def test_a_deletion_is_read_back_as_it_was_written(deletion: ShadowDeletion) -> None:
    assert decode_node(encode_node(deletion), ShadowDeletion) == deletion


def test_the_node_is_what_other_versions_read() -> None:
    """The form is fixed: a sidecar of another version continues with it."""
    document = {
        "operationId": "op-1",
        "topicName": str(TOPIC),
        "partitions": 2,
        "source": str(SOURCE),
        "sources": [str(SOURCE.partition(0)), str(SOURCE.partition(1))],
        "incarnations": {"/a": 1, "/b": 2**40},
        "requestedBy": "ops",
        "requestedMs": 1_700_000_000_000,
        "checkedLedgers": 7,
        "missingLedgers": [3, 2**62],
        "missingSources": [str(SOURCE.partition(1))],
        "missingBefore": [3],
        "stage": "removing",
    }
    assert encode_node(DELETION) == json.dumps(document, separators=(",", ":")).encode()


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(encode_node(DELETION)), **fields}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        changed(stage="later"),
        changed(partitions="2"),
        changed(partitions=True),
        changed(sources=[1]),
        changed(sources=["a/b"]),
        changed(missingSources=["a/b"]),
        changed(topicName="a/b"),
        changed(incarnations={"/a": "1"}),
        changed(incarnations=[]),
        changed(missingBefore=[1.5]),
        changed(operationId=None),
    ],
)
def test_node_of_another_version_is_undecodable(data: bytes) -> None:
    with pytest.raises(UndecodableError, match="pulsar-sidecar that began it"):
        decode_node(data, ShadowDeletion)


def test_every_name_has_one_node() -> None:
    names = ["persistent://a/b/c", "persistent://a/b/c%2Fd", "persistent://a/b/ä b", "persistent://p/c/n/a/b"]
    paths = {shadow_deletion_path(parse_topic_name(name)) for name in names}
    assert len(paths) == len(names)
    assert {path.count("/") for path in paths} == {4}


def test_partitions_that_were_added_bring_their_sources() -> None:
    assert DELETION.with_partitions(2) == DELETION
    assert DELETION.with_partitions(1) == DELETION
    assert replace(DELETION, partitions=None).with_partitions(4) == replace(DELETION, partitions=None)
    sources = tuple(str(SOURCE.partition(index)) for index in range(4))
    assert DELETION.with_partitions(4) == replace(DELETION, partitions=4, source_names=sources)
    # No broker could load the topic that its property names, so there is nothing to add.
    of_none = replace(DELETION, source="no://topic", source_names=(sources[3],))
    assert of_none.with_partitions(3) == replace(of_none, partitions=3)


def test_an_operator_sees_what_the_node_holds() -> None:
    seen = DELETION.at(ShadowDeletionStage.DETACHING).status("brokers")
    assert seen == ShadowDeletionStatus(
        operation_id=OperationId("op-1"),
        topic=str(TOPIC),
        source=str(SOURCE),
        stage=ShadowDeletionStage.DETACHING,
        requested_ms=1_700_000_000_000,
        waits_for="brokers",
        source_ledgers=7,
        missing_ledgers=(LedgerId(2**62),),
        missing_before=(LedgerId(3),),
        missing_sources=(str(SOURCE.partition(1)),),
    )
    assert (DELETION.status().waits_for, DELETION.status().stage) == (None, ShadowDeletionStage.REMOVING)


# --- which shadows are known for a source, and whose deletion an unreadable node holds up ----------------------------


SOURCES = [parse_topic_name(name) for name in ("persistent://a/b/orders", "persistent://a/b/invoices")]
PATHS = [managed_ledger_path(parse_topic_name(f"persistent://c/d/{name}").managed_ledger_name) for name in "xyz"]
DATA = [
    None,
    b"",
    managed_ledger_bytes([1]),
    managed_ledger_bytes([], properties={SHADOW_SOURCE: "a/b/orders"}),
    managed_ledger_bytes([], properties={SHADOW_SOURCE: "persistent://a/b/invoices"}),
    managed_ledger_bytes([], properties={SHADOW_SOURCE: "no://topic"}),
    b"\x47\x78\x00",
]


@given(st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(DATA))))
def test_only_the_last_reading_counts(readings: list[tuple[str, bytes | None]]) -> None:
    known, expected = KnownShadows(), KnownShadows()
    for path, data in readings:
        known.note(path, data)
    for path, data in dict(readings).items():
        expected.note(path, data)
    assert known == expected
    for source in SOURCES:
        shadows = [each for each in known.shadows.values() if source_topic(each.source) == source]
        assert sorted(known.of({source}), key=str) == sorted(shadows, key=str)


DAMAGED = b"\x47\x78\x00"
NEWER = managed_ledger_bytes([], properties={SHADOW_SOURCE: "persistent://a/b/orders"}) + b"\xfa\x3f\x01x"
WRAPPED_BY_NEWER = b"\x47\x78\x00\x00\x00\x06\x08\x00\x10\x00\x18\x01"
TRUNCATED = json.dumps({"properties": {SHADOW_SOURCE: "persistent://a/b/bestellungen-ä"}}).encode()[:-1]
ORDERS, INVOICES, OF_D = "persistent://a/b/orders", "persistent://a/b/invoices", "persistent://c/d/other"
UMLAUT = "persistent://a/b/bestellungen-ä"


@pytest.mark.parametrize(
    ("data", "held_up", "not_held_up"),
    [
        (DAMAGED, [OF_D], [ORDERS, INVOICES]),
        (NEWER, [ORDERS, f"{ORDERS}-partition-3", OF_D], [INVOICES]),
        (WRAPPED_BY_NEWER, [ORDERS, INVOICES, OF_D], []),
        (TRUNCATED, [UMLAUT, OF_D], [ORDERS]),
    ],
)
def test_whom_a_node_that_cannot_be_read_holds_up(data: bytes, held_up: list[str], not_held_up: list[str]) -> None:
    topic = parse_topic_name("persistent://c/d/strange")
    path = partitioned_topic_path(topic) if data is TRUNCATED else managed_ledger_path(topic.managed_ledger_name)
    known = KnownShadows()
    known.note(path, data)
    for name in held_up:
        with pytest.raises(UndecodableError, match="strange cannot be read, so it may be a shadow's"):
            known.of({parse_topic_name(name)})
    for name in not_held_up:
        assert known.of({parse_topic_name(name)}) == []
    assert list(known.unread) == [path]


def test_a_shadow_that_is_known_goes_before_a_node_that_cannot_be_read() -> None:
    known = KnownShadows()
    for path, data in zip(PATHS, (DATA[3], b"\x47\x78\x00"), strict=False):
        known.note(path, data or b"")
    beside = parse_topic_name("persistent://c/d/other")
    assert [str(shadow.topic) for shadow in known.of({SOURCES[0], beside})] == ["persistent://c/d/x"]
