"""The record of PIP-186 on the wire, to the byte, since others write and read it too; nothing else is accepted."""

import json
from string import ascii_letters, ascii_lowercase, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.record import (
    MAX_RECORD_BYTES,
    Mark,
    PendingDeleteLedgerInfo,
    encode_record,
    parse_record,
    parse_record_document,
    record_document,
)
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId, NodeVersion, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType, OffloadContext
from pulsar_sidecar.model.names import parse_topic_name

from tests.unit.ledger_deletion.cases import CURSOR, PLAIN

OFFLOADED = PLAIN | {
    "ledgerType": "OFFLOAD_LEDGER",
    "offloadContext": {"msb": 1, "lsb": -2, "driverName": "aws-s3", "metadata": {"bucket": "b"}},
}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
names = st.builds(
    "{}{}".format, st.text(ascii_letters + digits + "_-=:.", max_size=5), st.sampled_from(ascii_lowercase)
)
topics = st.builds(
    lambda tenant, namespace, local: parse_topic_name(f"persistent://{tenant}/{namespace}/{local}"),
    names,
    names,
    texts.filter(lambda text: text not in ("", ".", "..") and "/" not in text),
)
int64 = st.integers(-(2**63), 2**63 - 1)
contexts = st.builds(OffloadContext, int64, int64, texts, st.dictionaries(texts, texts, max_size=3))
marks = st.builds(
    Mark,
    operation_id=st.none() | st.text(ascii_lowercase + digits + "_-", min_size=1, max_size=32).map(OperationId),
    marked_version=st.none() | st.integers(0, 2**31 - 1).map(NodeVersion),
    unreferenced=st.booleans(),
    instance_id=st.none() | texts,
    created_ms=st.none() | st.integers(0, 2**63 - 1),
    created_order=st.none() | st.integers(0, 2**63 - 1),
    length_bytes=st.none() | st.integers(0, 2**63 - 1),
    requested_by=st.none() | texts,
)


@st.composite
def records(draw: st.DrawFn) -> PendingDeleteLedgerInfo:
    component = draw(st.sampled_from(LedgerComponent))
    offloaded = component is LedgerComponent.MANAGED_LEDGER and draw(st.booleans())
    cursor = texts.filter(bool) if component is LedgerComponent.MANAGED_CURSOR else st.none() | texts
    return PendingDeleteLedgerInfo(
        topic=draw(topics),
        component=component,
        ledger_type=LedgerType.OFFLOAD_LEDGER if offloaded else LedgerType.LEDGER,
        ledger_id=LedgerId(draw(st.integers(0, MAX_LEDGER_ID))),
        cursor_name=draw(cursor),
        schema_id=draw(st.none() | texts | int64),
        offload_context=draw(contexts if offloaded else st.none() | contexts),
        mark=draw(marks),
    )


# --- to the byte, and at its limits ----------------------------------------------------------------------------------

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
COPY = PLAIN | {"ledgerType": "OFFLOAD_LEDGER", "offloadContext": {"msb": 0, "lsb": 0}}


def test_a_whole_record() -> None:
    assert encode_record(WHOLE) == BYTES
    assert parse_record(BYTES) == WHOLE


@pytest.mark.parametrize(
    ("text", "local_name"),
    [
        ("public/default/persistent/a%2Fb+c", "a/b c"),
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
    with pytest.raises(InvalidInputError, match=r"^a record must be at most 262144 bytes long; this one has 262145$"):
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
    context = parse_record_document(COPY | {"offloadContext": {"msb": half, "lsb": half}}).offload_context
    assert context == OffloadContext(half, half, "", {})


# --- round trips -----------------------------------------------------------------------------------------------------


@given(records())
def test_a_record_survives_its_journey(record: PendingDeleteLedgerInfo) -> None:
    assert parse_record(encode_record(record)) == record
    assert parse_record_document(record_document(record)) == record


@given(records())
def test_truncated_record_is_malformed(record: PendingDeleteLedgerInfo) -> None:
    payload = encode_record(record)
    for end in range(0, len(payload), max(1, len(payload) // 40)):
        with pytest.raises(InvalidInputError):
            parse_record(payload[:end])


def test_a_null_is_an_absent_field() -> None:
    nulls = dict.fromkeys(("cursorName", "schemaId", "offloadContext", "sidecar"))
    assert parse_record_document(PLAIN | nulls) == parse_record_document(PLAIN)
    empty_mark = dict.fromkeys(
        ("operationId", "markedVersion", "unreferenced", "instanceId", "createdMs", "lengthBytes", "requestedBy")
    )
    assert parse_record_document(PLAIN | {"sidecar": empty_mark}) == parse_record_document(PLAIN)


@pytest.mark.parametrize(
    ("component", "expected"),
    [
        ("Managed-Ledger", LedgerComponent.MANAGED_LEDGER),
        ("Managed-Cursor", LedgerComponent.MANAGED_CURSOR),
        ("Managed-Corsor", LedgerComponent.MANAGED_CURSOR),
        ("Schema-Storage", LedgerComponent.SCHEMA_STORAGE),
        *((component.value, component) for component in LedgerComponent),
    ],
)
def test_the_pips_spellings_of_a_component(component: str, expected: LedgerComponent) -> None:
    assert parse_record_document(CURSOR | {"ledgerComponent": component}).component is expected


@pytest.mark.parametrize(
    ("kind", "expected"), [("Ledger", LedgerType.LEDGER), ("Offload-Ledger", LedgerType.OFFLOAD_LEDGER)]
)
def test_the_pips_spellings_of_a_type(kind: str, expected: LedgerType) -> None:
    assert parse_record_document(OFFLOADED | {"ledgerType": kind}).ledger_type is expected


# --- refusals --------------------------------------------------------------------------------------------------------

WRONG_FIELDS: list[tuple[str, object]] = [
    ("topicName", "persistent://a/../c"),
    ("topicName", "persistent://public/default/" + "x" * 1_000_000),
    ("topicName", "persistent://public/default/\ud800"),
    ("ledgerComponent", "managed_ledger"),
    ("ledgerId", 2**80),
    ("ledgerId", 7.0),
    ("schemaId", False),
    ("offloadContext", {"msb": True, "lsb": 2, "driverName": "aws-s3"}),
    ("offloadContext", {"msb": 1, "lsb": 2, "driverName": 3}),
    ("offloadContext", {"msb": 1, "lsb": 2, "driverName": "aws-s3", "metadata": {"bucket": None}}),
    ("sidecar", {"operationId": "."}),
    ("sidecar", {"operationId": "a\u0000"}),
    ("sidecar", {"operationId": "\U0001f600"}),
    ("sidecar", {"markedVersion": "3"}),
    ("sidecar", {"instanceId": 1}),
    ("sidecar", {"createdMs": -1}),
    ("ledgerid", 7),
    ("\ud800", 1),
]


@pytest.mark.parametrize("number", range(len(WRONG_FIELDS)))
def test_a_wrong_field_makes_the_record_malformed(number: int) -> None:
    field, value = WRONG_FIELDS[number]
    with pytest.raises(InvalidInputError) as caught:
        parse_record(json.dumps(PLAIN | {field: value}).encode())
    assert str(caught.value).encode()
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("field", ["topicName", "ledgerComponent", "ledgerType", "ledgerId"])
def test_a_missing_field_is_named(field: str) -> None:
    document = {name: value for name, value in PLAIN.items() if name != field}
    with pytest.raises(InvalidInputError, match=field):
        parse_record_document(document)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"7",
        b'"text"',
        b"[]",
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b"\xff\xfe{}",
        b"\x00",
        b"\xef\xbb\xbf" + json.dumps(PLAIN).encode(),
        json.dumps(PLAIN).encode("utf-16"),
        json.dumps(PLAIN).encode() + b"{}",
        json.dumps(PLAIN).replace("7", "NaN").encode(),
        json.dumps(PLAIN).replace("7", "Infinity").encode(),
        json.dumps(PLAIN).replace("7", "-Infinity").encode(),
        json.dumps(PLAIN).replace("7", "1e3").encode(),
        json.dumps(PLAIN).replace("7", "1" * 5_000).encode(),
        json.dumps(PLAIN).replace("7", "07").encode(),
        json.dumps(PLAIN).encode() + b" " * MAX_RECORD_BYTES,
    ],
    ids=lambda payload: f"{len(payload)} bytes, {repr(payload)[:12]} to {repr(payload)[-24:]}",
)
def test_invalid_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidInputError):
        parse_record(payload)


@pytest.mark.parametrize(
    "payload",
    [
        json.dumps(PLAIN).encode()[:-1] + b',"ledgerId":8}',
        json.dumps(PLAIN).encode()[:-1] + b',"ledgerId":7}',
        json.dumps(OFFLOADED).encode().replace(b'"msb": 1', b'"msb": 1, "msb": 2'),
        json.dumps(PLAIN).encode()[:-1] + b',"sidecar":{"operationId":"a","operationId":"b"}}',
        json.dumps(PLAIN).encode()[:-1] + b',"ledgerI\\u0064":8}',
    ],
)
def test_a_name_that_occurs_twice_is_a_contradiction(payload: bytes) -> None:
    with pytest.raises(InvalidInputError):
        parse_record(payload)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    with pytest.raises(InvalidInputError):
        parse_record(payload)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from([*CURSOR, "schemaId", "offloadContext", "sidecar", "other"]), json_values)
def test_any_value_in_any_field_is_read_or_refused(field: str, value: object) -> None:
    try:
        record = parse_record_document(OFFLOADED | {field: value})
    except InvalidInputError:
        return
    assert parse_record(encode_record(record)) == record


# --- errors of malformed records --------------------------------------------------------------------------------------

KNOWN = "MANAGED_LEDGER, MANAGED_CURSOR, SCHEMA_STORAGE, COMPACTED_LEDGER, DELAYED_INDEX_BUCKET"
REFUSALS: list[tuple[object, str]] = [
    (7, "the record is not a JSON object"),
    (PLAIN | {"sidecar": 7}, "sidecar is not a JSON object"),
    (PLAIN | {"offloadContext": []}, "offloadContext is not a JSON object"),
    (PLAIN | {"topicName": "non-persistent://a/b/c"}, "topicName must be persistent: other topics have no ledgers"),
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
    (COPY | {"ledgerComponent": "SCHEMA_STORAGE"}, "only a MANAGED_LEDGER can be an OFFLOAD_LEDGER"),
    (COPY | {"offloadContext": None}, "offloadContext is missing: an OFFLOAD_LEDGER is found by it"),
    (COPY | {"offloadContext": {"lsb": 0}}, "msb is missing"),
    (COPY | {"offloadContext": {"msb": 0, "lsb": 2**63}}, f"lsb must lie between {-(2**63)} and {MAX}"),
    (COPY | {"offloadContext": {"msb": 0, "lsb": 0, "metadata": []}}, "metadata must be an object of strings"),
    (
        COPY | {"offloadContext": {"msb": 0, "lsb": 0, "metadata": {"a": 1}}},
        "metadata must be an object of strings",
    ),
    (
        COPY | {"offloadContext": {"msb": 0, "lsb": 0, "metadata": {"\ud800": ""}}},
        "metadata is not valid Unicode text",
    ),
    (
        COPY | {"offloadContext": {"msb": 0, "lsb": 0, "metadata": {"": "\ud800"}}},
        "metadata is not valid Unicode text",
    ),
    (COPY | {"offloadContext": {"msb": 0, "lsb": 0, "x": 1}}, "offloadContext has unknown fields: 'x'"),
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
