"""The record to the byte, since others write and read it too, its limits, and the error for a malformed one."""

import json

import pytest
from pulsar_sidecar.features.ledger_deletion.record import (
    MAX_RECORD_BYTES,
    Mark,
    PendingDeleteLedgerInfo,
    encode_record,
    parse_record,
    parse_record_document,
)
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import LedgerId, NodeVersion, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType, OffloadContext
from pulsar_sidecar.model.names import parse_topic_name

from tests.unit.ledger_deletion.cases import CURSOR, PLAIN

MAX = 2**63 - 1
TOPIC = parse_topic_name("persistent://public/default/ördérs")
WHOLE = PendingDeleteLedgerInfo(
    TOPIC,
    LedgerComponent.MANAGED_LEDGER,
    LedgerType.OFFLOAD_LEDGER,
    LedgerId(7),
    cursor_name="sub",
    schema_id="public/default/s",
    offload_context=OffloadContext(1, -2, "aws-s3", {"bucket": "b"}),
    mark=Mark(OperationId("op-1"), NodeVersion(3), True, "here", 4, 5, "me"),
)
BYTES = (
    '{"topicName":"persistent://public/default/ördérs","ledgerComponent":"MANAGED_LEDGER","cursorName":"sub",'
    '"schemaId":"public/default/s","ledgerType":"OFFLOAD_LEDGER","ledgerId":7,"offloadContext":{"msb":1,"lsb":-2,'
    '"driverName":"aws-s3","metadata":{"bucket":"b"}},"sidecar":{"operationId":"op-1","markedVersion":3,'
    '"unreferenced":true,"instanceId":"here","createdMs":4,"lengthBytes":5,"requestedBy":"me"}}'
).encode()
OFFLOADED = PLAIN | {"ledgerType": "OFFLOAD_LEDGER", "offloadContext": {"msb": 0, "lsb": 0}}


def test_a_whole_record() -> None:
    assert encode_record(WHOLE) == BYTES
    assert parse_record(BYTES) == WHOLE


@pytest.mark.parametrize(
    ("text", "local_name"),
    [
        ("public/default/persistent/a%2Fb", "a/b"),
        ("persistent://public/default/persistent", "persistent"),
        ("persistent://a/persistent/c", "c"),
    ],
)
def test_a_topic_in_either_spelling(text: str, local_name: str) -> None:
    assert parse_record_document(PLAIN | {"topicName": text}).topic.local_name == local_name


def test_a_record_without_anything_optional() -> None:
    record = parse_record_document(PLAIN)
    assert encode_record(record) == json.dumps(PLAIN, separators=(",", ":")).encode()
    assert record.mark == Mark()
    assert WHOLE.marked(Mark()).mark == Mark()
    assert WHOLE.marked(WHOLE.mark) == WHOLE


def test_a_record_may_be_as_long_as_it_may() -> None:
    padded = BYTES + b" " * (MAX_RECORD_BYTES - len(BYTES))
    assert parse_record(padded) == WHOLE
    with pytest.raises(InvalidInputError, match=r"^a record is at most 262144 bytes long, this one has 262145$"):
        parse_record(padded + b" ")


@pytest.mark.parametrize(
    "changes",
    [
        {"ledgerId": 0},
        {"ledgerId": MAX},
        {"schemaId": -(2**63)},
        {"schemaId": MAX},
        {"schemaId": "x" * 8192},
        *({"sidecar": {name: value}} for name in ("markedVersion", "createdMs", "lengthBytes") for value in (0, MAX)),
        {"sidecar": {"operationId": "x" * 128}},
        {"sidecar": {"operationId": "Az_9-"}},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_values_at_their_limits_are_read(changes: dict[str, object]) -> None:
    document = PLAIN | changes
    assert json.loads(encode_record(parse_record_document(document))) == document


@pytest.mark.parametrize("half", [-(2**63), MAX])
def test_halves_of_a_uuid_at_their_limits_are_read(half: int) -> None:
    context = parse_record_document(OFFLOADED | {"offloadContext": {"msb": half, "lsb": half}}).offload_context
    assert context == OffloadContext(half, half, "", {})


KNOWN = "MANAGED_LEDGER, MANAGED_CURSOR, SCHEMA_STORAGE, COMPACTED_LEDGER, DELAYED_INDEX_BUCKET"
REFUSALS: list[tuple[object, str]] = [
    (7, "the record is not a JSON object"),
    (PLAIN | {"sidecar": 7}, "sidecar is not a JSON object"),
    (PLAIN | {"offloadContext": []}, "offloadContext is not a JSON object"),
    (PLAIN | {"topicName": "non-persistent://a/b/c"}, "topicName is not persistent: such a topic has no ledgers"),
    (PLAIN | {"topicName": ""}, "topicName is missing"),
    (PLAIN | {"topicName": 7}, "topicName must be a string"),
    (
        PLAIN | {"topicName": "public/default/persistent/a/b"},
        "write a topic as persistent://tenant/namespace/topic, tenant/namespace/topic or a plain topic name",
    ),
    (PLAIN | {"ledgerId": None}, "ledgerId is missing"),
    (PLAIN | {"ledgerId": "7"}, "ledgerId must be an integer"),
    (PLAIN | {"ledgerId": True}, "ledgerId must be an integer"),
    (PLAIN | {"ledgerId": -1}, f"ledgerId must lie between 0 and {MAX}"),
    (PLAIN | {"ledgerId": 2**63}, f"ledgerId must lie between 0 and {MAX}"),
    (PLAIN | {"schemaId": []}, "schemaId must be an integer"),
    (PLAIN | {"schemaId": -(2**63) - 1}, f"schemaId must lie between {-(2**63)} and {MAX}"),
    (PLAIN | {"schemaId": "x" * 8193}, "schemaId is longer than 8192 characters"),
    (PLAIN | {"ledgerComponent": "X" * 61}, f"ledgerComponent {'X' * 60!r} is unknown; known are {KNOWN}"),
    (PLAIN | {"ledgerType": "x"}, "ledgerType 'x' is unknown; known are LEDGER, OFFLOAD_LEDGER"),
    (CURSOR | {"cursorName": None}, "cursorName is missing: a cursor's ledger needs the cursor's name"),
    (CURSOR | {"cursorName": ""}, "cursorName is missing: a cursor's ledger needs the cursor's name"),
    (CURSOR | {"cursorName": "\ud800"}, "cursorName is not valid Unicode text"),
    (CURSOR | {"ledgerType": "OFFLOAD_LEDGER"}, "only a MANAGED_LEDGER can be an OFFLOAD_LEDGER"),
    (OFFLOADED | {"ledgerComponent": "SCHEMA_STORAGE"}, "only a MANAGED_LEDGER can be an OFFLOAD_LEDGER"),
    (OFFLOADED | {"offloadContext": None}, "offloadContext is missing: an OFFLOAD_LEDGER is found by it"),
    (OFFLOADED | {"offloadContext": {"lsb": 0}}, "msb is missing"),
    (OFFLOADED | {"offloadContext": {"msb": 0, "lsb": 2**63}}, f"lsb must lie between {-(2**63)} and {MAX}"),
    (OFFLOADED | {"offloadContext": {"msb": 0, "lsb": 0, "metadata": []}}, "metadata must be an object of strings"),
    (
        OFFLOADED | {"offloadContext": {"msb": 0, "lsb": 0, "metadata": {"a": 1}}},
        "metadata must be an object of strings",
    ),
    (
        OFFLOADED | {"offloadContext": {"msb": 0, "lsb": 0, "metadata": {"\ud800": ""}}},
        "metadata is not valid Unicode text",
    ),
    (
        OFFLOADED | {"offloadContext": {"msb": 0, "lsb": 0, "metadata": {"": "\ud800"}}},
        "metadata is not valid Unicode text",
    ),
    (OFFLOADED | {"offloadContext": {"msb": 0, "lsb": 0, "x": 1}}, "offloadContext has unknown fields: 'x'"),
    (PLAIN | {"sidecar": {"unreferenced": 1}}, "unreferenced must be true or false"),
    (PLAIN | {"sidecar": {"operationId": "a/b"}}, "operationId is not an operation's id"),
    (PLAIN | {"sidecar": {"operationId": ""}}, "operationId is not an operation's id"),
    (PLAIN | {"sidecar": {"operationId": "x" * 129}}, "operationId is not an operation's id"),
    (PLAIN | {"sidecar": {"markedVersion": -1}}, f"markedVersion must lie between 0 and {MAX}"),
    (PLAIN | {"sidecar": {"createdMs": 2**63}}, f"createdMs must lie between 0 and {MAX}"),
    (PLAIN | {"sidecar": {"lengthBytes": 2**63}}, f"lengthBytes must lie between 0 and {MAX}"),
    (PLAIN | {"sidecar": {"markedVersion": 2**63}}, f"markedVersion must lie between 0 and {MAX}"),
    (PLAIN | {"sidecar": {"x": 1}}, "sidecar has unknown fields: 'x'"),
    (PLAIN | {"z": 1, "y" * 61: 1}, f"the record has unknown fields: {'y' * 60!r}, 'z'"),
    (
        PLAIN | {f"{number}{'y' * 59}": 1 for number in range(9)},
        "the record has unknown fields: " + ", ".join(f"'{number}{'y' * 59}'" for number in range(9))[:500],
    ),
]


@pytest.mark.parametrize("number", range(len(REFUSALS)))
def test_why_a_record_is_malformed(number: int) -> None:
    document, reason = REFUSALS[number]
    with pytest.raises(InvalidInputError) as refusal:
        parse_record_document(document)
    assert str(refusal.value) == reason


@pytest.mark.parametrize(
    ("payload", "kind", "cause"),
    [
        (b'{"ledgerId": NaN}', "ValueError", "NaN"),
        (b'{"a": 1, "a": 1}', "ValueError", "a name occurs twice in one object"),
        (b"{", "JSONDecodeError", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ],
)
def test_why_bytes_are_no_document(payload: bytes, kind: str, cause: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^the record is not a JSON document: {kind}$") as refusal:
        parse_record(payload)
    assert str(refusal.value.__cause__) == cause
