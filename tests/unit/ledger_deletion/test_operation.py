"""The node of a running topic deletion: written, read back, refused, and too large."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pulsar_sidecar.features.ledger_deletion.results import OperationState, TopicDeletionStatus
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    HeldOperation,
    Operation,
    OperationEndedError,
    decode_node,
    driver_path,
    encode_operation,
    operation_path,
    write_operation,
)
from pulsar_sidecar.model.errors import ConflictError, UndecodableError
from pulsar_sidecar.model.ids import NodeVersion, OperationId
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.metadata import FakeMetadataStore

OPERATION_ID = OperationId("op-1")
TOPIC = parse_topic_name("persistent://public/default/or ders")
OPERATION = Operation(
    operation_id=OPERATION_ID,
    topic_name=str(TOPIC),
    partitions=2,
    force=True,
    requested_by="admin",
    requested_ms=11,
    incarnations={"/a": 1, "/b": 2},
    recorded=("1", "2"),
    attempts=4,
    last_reason="the broker does not respond",
    not_before_ms=12,
)
DOCUMENT = {
    "operationId": "op-1",
    "topicName": "persistent://public/default/or ders",
    "partitions": 2,
    "force": True,
    "requestedBy": "admin",
    "requestedMs": 11,
    "incarnations": {"/a": 1, "/b": 2},
    "recorded": ["1", "2"],
    "attempts": 4,
    "lastReason": "the broker does not respond",
    "notBeforeMs": 12,
}


def encoded(**changes: object) -> bytes:
    return json.dumps(DOCUMENT | changes).encode()


def test_the_node_is_what_other_versions_read() -> None:
    """The form is fixed: a sidecar of another version continues with it."""
    assert encode_operation(OPERATION) == json.dumps(DOCUMENT, separators=(",", ":")).encode()
    assert decode_node(encoded(), Operation) == OPERATION


def test_added_fields_come_last_and_are_optional() -> None:
    """An older sidecar's node has none of them, and confirms nothing."""
    assert not OPERATION.source_data_loss_confirmed
    failed = replace(OPERATION, source_data_loss_confirmed=True, failures=3, failing_since_ms=9)
    added = {"sourceDataLossConfirmed": True, "failures": 3, "failingSinceMs": 9}
    assert encode_operation(failed) == json.dumps(DOCUMENT | added, separators=(",", ":")).encode()
    assert decode_node(encode_operation(failed), Operation) == failed


def test_operation_and_driver_paths() -> None:
    path = "/pulsar-sidecar/ledger-deletion/topic-deletions/op-1"
    assert operation_path(OPERATION_ID) == path
    assert driver_path(OPERATION_ID) == f"{path}/driver"


operations = st.builds(
    Operation,
    operation_id=st.text("abc-_019", min_size=1).map(OperationId),
    topic_name=st.just(str(TOPIC)),
    partitions=st.none() | st.integers(0, 9),
    force=st.booleans(),
    requested_by=st.none() | st.text(),
    requested_ms=st.integers(0, 2**63),
    incarnations=st.dictionaries(st.text(), st.integers()),
    recorded=st.lists(st.text()).map(tuple),
    attempts=st.integers(0),
    last_reason=st.none() | st.text(),
    not_before_ms=st.integers(0),
    failures=st.integers(0),
    failing_since_ms=st.integers(0),
)


@given(operations)
def test_operation_round_trip(operation: Operation) -> None:
    assert decode_node(encode_operation(operation), Operation) == operation


def test_recorded_ids_are_dropped_if_the_node_exceeds_most_of_a_megabyte() -> None:
    left = 900_000 - len(encode_operation(replace(OPERATION, recorded=("",))))
    large = replace(OPERATION, recorded=("x" * left,))
    assert decode_node(encode_operation(large), Operation) == large
    too_large = replace(OPERATION, recorded=("x" * (left + 1),))
    assert decode_node(encode_operation(too_large), Operation) == replace(OPERATION, recorded=())


UNREADABLE = {
    "empty": b"",
    "cut short": b"{",
    "a list": b"[]",
    "a number": b"7",
    "no text": b"\xff",
    "nested": b"[" * 100_000,
    **{f"without {left}": json.dumps({k: v for k, v in DOCUMENT.items() if k != left}).encode() for left in DOCUMENT},
    **{
        f"{name}={value!r}": encoded(**{name: value})
        for name, value in [
            ("operationId", 7),
            ("topicName", 7),
            ("topicName", "persistent://a"),
            ("topicName", None),
            ("partitions", "2"),
            ("partitions", True),
            ("partitions", 1.0),
            ("force", 1),
            ("force", None),
            ("requestedMs", "1"),
            ("requestedMs", True),
            ("attempts", 1.5),
            ("notBeforeMs", []),
            ("recorded", "12"),
            ("recorded", None),
            ("recorded", ["1", 2]),
            ("recorded", {"1": 2}),
            ("incarnations", [1]),
            ("incarnations", {"/a": "1"}),
            ("incarnations", {"/a": True}),
            ("incarnations", {"/a": 1, "/b": None}),
            ("sourceDataLossConfirmed", 1),
        ]
    },
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_operation_of_another_version_is_undecodable(case: str) -> None:
    with pytest.raises(
        UndecodableError,
        match=r"^the node of a deletion cannot be read \([A-Z][A-Za-z]+Error: .+\); continue with",
    ):
        decode_node(UNREADABLE[case], Operation)


def test_writing_replaces_the_version_that_was_held() -> None:
    store = FakeMetadataStore()
    node = store.put(operation_path(OPERATION_ID), encode_operation(OPERATION))
    later = replace(OPERATION, attempts=5)
    held = write_operation(store, later, node.version)
    after = store.peek(operation_path(OPERATION_ID))
    assert held == HeldOperation(later, after.version)
    assert decode_node(after.data, Operation) == later
    with pytest.raises(ConflictError):
        write_operation(store, OPERATION, node.version)


def test_an_operation_that_has_ended_cannot_be_written() -> None:
    with pytest.raises(OperationEndedError, match=r"^the deletion op-1 has ended already$"):
        write_operation(FakeMetadataStore(), OPERATION, NodeVersion(0))


def test_topics_and_node_paths_of_an_operation() -> None:
    ledgers = tuple(f"/managed-ledgers/public/default/persistent/or+ders-partition-{index}" for index in range(2))
    assert OPERATION.partitioned
    assert OPERATION.node_paths == (*ledgers, "/admin/partitioned-topics/public/default/persistent/or+ders")
    plain = replace(OPERATION, partitions=None)
    assert not plain.partitioned
    assert plain.topics == (TOPIC,)
    assert plain.node_paths == ("/managed-ledgers/public/default/persistent/or+ders",)
    assert plain.recording(("3",)).recorded == ("1", "2", "3")


def test_its_state_as_an_operator_sees_it() -> None:
    status = OPERATION.status(OperationState.RUNNING, "it waits")
    assert status == TopicDeletionStatus(
        OPERATION_ID, str(TOPIC), None, OperationState.RUNNING, 2, 4, 11, "it waits", "admin", next_attempt_ms=12
    )
    assert OPERATION.status(OperationState.DONE).reason is None


def test_the_node_is_ascii() -> None:
    """Like older versions' nodes: the same operation has the same bytes."""
    reason = "caf\u00e9 \ud800"
    encoded_operation = encode_operation(replace(OPERATION, last_reason=reason))
    assert encoded_operation == json.dumps(DOCUMENT | {"lastReason": reason}, separators=(",", ":")).encode()
    assert decode_node(encoded_operation, Operation).last_reason == reason
