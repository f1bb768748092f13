"""What is written into a shadow's nodes, and what is kept of its deletion."""

import json

import cramjam
import pytest
from msgspec.structs import replace
from pulsar_sidecar.features.ledger_deletion.results import ShadowDeletionStage, ShadowDeletionStatus
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
from pulsar_sidecar.ownership.references import managed_ledger_references
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE, partitioned_topic_shadow_source

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
        ({}, True, False),  # an ordinary topic: the next load would own what it lists
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
    """The form is fixed: a sidecar of another version goes on with it."""
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
    # No broker could load what its property names, so there is nothing to add.
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
