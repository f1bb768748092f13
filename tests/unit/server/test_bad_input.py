"""Bad input of every kind gets a 4xx with its reason, changes nothing, and leaves the process alive."""

import json
import socket
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.server.serving import Served

BASE = "/admin/v2/ledger-deletion"
LEDGER = "/admin/v2/persistent/public/default/orders/deleteLedger"
GOOD = {
    "ledgerId": 7,
    "topicName": "persistent://public/default/orders",
    "ledgerType": "LEDGER",
    "ledgerComponent": "MANAGED_LEDGER",
}
OFFLOADED = GOOD | {
    "ledgerType": "OFFLOAD_LEDGER",
    "offloadContext": {"lsb": 1, "msb": 2, "driverName": "aws-s3", "metadata": {}},
}

BAD_RECORDS: list[object] = [
    None,
    [],
    {},
    GOOD | {"ledgerId": -1},
    GOOD | {"ledgerId": 2**63},
    GOOD | {"ledgerId": "7"},
    GOOD | {"ledgerId": 7.0},
    GOOD | {"ledgerId": True},
    GOOD | {"unknown": 1},
    GOOD | {"topicName": ""},
    GOOD | {"topicName": 7},
    GOOD | {"topicName": "x" * 1_000_000},
    GOOD | {"topicName": "non-persistent://public/default/orders"},
    GOOD | {"topicName": "persistent://\ud800/b/c"},
    GOOD | {"ledgerType": "ledger"},
    GOOD | {"ledgerComponent": "TRANSACTION_LOG"},
    GOOD | {"ledgerComponent": None},
    GOOD | {"ledgerComponent": "MANAGED_CURSOR"},
    GOOD | {"cursorName": 7},
    GOOD | {"cursorName": "x" * 10_000},
    GOOD | {"schemaId": 1.5},
    GOOD | {"schemaId": True},
    GOOD | {"offloadContext": 7},
    GOOD | {"ledgerType": "OFFLOAD_LEDGER"},
    OFFLOADED | {"ledgerComponent": "SCHEMA_STORAGE"},
    OFFLOADED | {"offloadContext": {"lsb": 1, "msb": 2}},
    OFFLOADED | {"offloadContext": {"lsb": 2**63, "msb": 2, "driverName": "d", "metadata": {}}},
    OFFLOADED | {"offloadContext": {"lsb": 1, "msb": 2, "driverName": "d", "metadata": {"a": 1}}},
    OFFLOADED | {"offloadContext": {"lsb": 1, "msb": 2, "driverName": "d", "metadata": {}, "x": 1}},
]
BAD_MARKS: list[object] = [
    {"requestedBy": "somebody else"},
    {"operationId": "somebody else's"},
    {"createdMs": -1},
    {"createdMs": "1"},
    {"unreferenced": "yes"},
    {"unknown": 1},
    7,
]
BAD_BODIES: list[bytes] = [
    b"",
    b"{",
    b'{"ledgerId": 7',
    b"null",
    b"\xff\xfe",
    b'"',
    b"[" * 200_000,
    b'{"a":' * 200_000,
    b"[]",
    b"NaN",
    b'{"ledgerId": NaN}',
    b'{"ledgerId": Infinity}',
    b'{"ledgerId": 1e999}',
    b'{"ledgerId": ' + b"9" * 10_000 + b"}",
    b'{"\\ud800": 1}',
    b"{" + b'"a' * 100_000,
    b"ledgerId=7",
    b"<xml/>",
]


def named(value: object) -> str:
    """A short id: of a record only what is wrong with it."""
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if repr(GOOD.get(name)) != repr(item)}
    text = repr(value)
    return text if len(text) < 120 else f"{text[:50]}...{text[-30:]}{len(text)}"


@pytest.mark.parametrize("record", BAD_RECORDS, ids=named)
def test_a_bad_record_is_refused(record: object, service: FakeDeletionService, server: Served) -> None:
    answer = server.ask("POST", LEDGER, json.dumps(record).encode())
    assert answer.status == 400, answer
    assert 0 < len(answer.reason) < 2_100
    appended = server.ask("POST", f"{BASE}/pending", {"ledgers": [GOOD, record]})
    assert appended.status == 400
    assert "ledgers.1" in appended.reason or "unicode" in appended.reason
    assert service.asked == []


@pytest.mark.parametrize("mark", BAD_MARKS, ids=named)
def test_a_bad_mark_is_refused(mark: object, service: FakeDeletionService, server: Served) -> None:
    answer = server.ask("POST", f"{BASE}/pending", {"ledgers": [GOOD | {"sidecar": mark}]})
    assert answer.status == 400
    assert "sidecar" in answer.reason
    assert service.asked == []


@pytest.mark.parametrize("body", BAD_BODIES, ids=named)
@pytest.mark.parametrize(("method", "path"), [("POST", LEDGER), ("POST", f"{BASE}/pending"), ("PUT", f"{BASE}/rate")])
def test_invalid_body_is_refused(
    method: str, path: str, body: bytes, service: FakeDeletionService, server: Served
) -> None:
    answer = server.ask(method, path, body)
    assert answer.status == 400, answer
    assert answer.reason
    assert service.asked == []


@pytest.mark.parametrize(
    ("method", "call", "body"),
    [
        ("POST", "pending", {"ledgers": []}),
        ("POST", "pending", {"ledgers": [GOOD], "extra": 1}),
        ("POST", "pending", {"ledgers": [GOOD], "producerName": "p"}),
        ("POST", "pending", {"ledgers": [GOOD], "firstSequenceId": 1}),
        ("POST", "pending", {"ledgers": [GOOD], "producerName": "p", "firstSequenceId": -1}),
        ("POST", "pending", {"ledgers": [GOOD], "producerName": "p", "firstSequenceId": 2**63}),
        ("POST", "pending", {"ledgers": [GOOD], "producerName": "a b", "firstSequenceId": 1}),
        ("POST", "pending", {"ledgers": [GOOD], "producerName": "", "firstSequenceId": 1}),
        ("POST", "pending", {"ledgers": [GOOD], "producerName": "p" * 201, "firstSequenceId": 1}),
        ("POST", "pause", {"reason": 7}),
        ("POST", "pause", {"reason": "x" * 1_001}),
        ("POST", "pause", {"because": "x"}),
        ("POST", "pause", []),
        ("PUT", "rate", {}),
        ("PUT", "rate", {"ledgersPerSecond": 0}),
        ("PUT", "rate", {"ledgersPerSecond": -1}),
        ("PUT", "rate", {"ledgersPerSecond": "5"}),
        ("PUT", "rate", {"ledgersPerSecond": True}),
        ("PUT", "rate", {"ledgersPerSecond": 1e12}),
        ("POST", "undelete", {}),
        ("POST", "undelete", {"ledgerId": -1}),
        ("POST", "undelete", {"ledgerId": 2**63}),
        ("POST", "undelete", {"ledgerId": 7, "force": "yes"}),
        ("POST", "undelete", {"ledgerId": 7, "force": 1}),
        ("POST", "end-protection", {}),
        ("POST", "end-protection", {"ledgerId": -1}),
        ("POST", "dead-letters/redrive", {"ledgerIds": []}),
        ("POST", "dead-letters/redrive", {"ledgerIds": [-1]}),
        ("POST", "dead-letters/redrive", {"ledgerIds": 7}),
        ("POST", "dead-letters/redrive", {"limit": 0}),
        ("POST", "dead-letters/redrive", {"all": True}),
        ("POST", "dead-letters/redrive", None),
        *(
            ("GET", f"dead-letters?{query}", None)
            for query in ("limit=0", "limit=-1", "limit=10001", "limit=x", "limit=1.5", "limits=1", "limit=")
        ),
    ],
    ids=named,
)
def test_a_verb_with_bad_arguments_is_refused(
    method: str, call: str, body: object, service: FakeDeletionService, server: Served
) -> None:
    answer = server.ask(method, f"{BASE}/{call}", body)
    assert answer.status == 400, answer
    assert answer.reason
    assert service.asked == []


def test_a_body_in_another_format_is_refused(service: FakeDeletionService, server: Served) -> None:
    for content_type in ("application/x-www-form-urlencoded", "text/plain", ""):
        answer = server.ask("POST", f"{BASE}/pause", b'{"reason": "x"}', {"Content-Type": content_type})
        assert answer.status == 400
    assert service.asked == []


def test_a_body_that_is_too_large_is_refused_with_or_without_a_content_length(
    service: FakeDeletionService, server: Served
) -> None:
    answer = server.ask("POST", f"{BASE}/pending", b" " * (8 * 1024 * 1024 + 1))
    assert (answer.status, bool(answer.reason)) == (413, True)
    chunked = raw(
        server,
        b"POST %s/pending HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % BASE.encode()
        + b"100000\r\n"
        + b" " * 0x100000
        + b"\r\n",
        *[b"100000\r\n" + b" " * 0x100000 + b"\r\n"] * 8,
    )
    assert chunked.startswith(b"HTTP/1.1 413 ")
    assert service.asked == []


def raw(server: Served, *parts: bytes) -> bytes:
    """Return the whole response to bytes that need not be HTTP."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        received = b""
        try:
            for part in parts:
                connection.sendall(part)
            while b"}" not in received and (piece := connection.recv(65_536)):
                received += piece
        except (ConnectionResetError, BrokenPipeError):
            pass
        return received


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=named,
)
def test_invalid_http_gets_a_response(request_bytes: bytes, server: Served) -> None:
    answer = raw(server, request_bytes)
    if answer:  # a reset may swallow the response to a megabyte that was never read
        assert answer.startswith(b"HTTP/1.1 4")
        assert set(json.loads(answer.partition(b"\r\n\r\n")[2])) == {"reason"}
    else:
        assert len(request_bytes) > 65_536
    assert server.ask("GET", "/livez").status == 200


@pytest.mark.parametrize("header_bytes", [1, 33_000])
def test_a_head_is_read_to_its_end_up_to_64_kib(server: Served, header_bytes: int) -> None:
    header = b"X: " + b"a" * header_bytes + b"\r\n"
    head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + header
    assert raw(server, head + b"\r\n").startswith(b"HTTP/1.1 200 ")
    at_once = raw(server, head + header * (66_000 // len(header)) + b"\r\n")
    assert at_once.startswith(b"HTTP/1.1 400 ")
    assert b"64 KiB" in at_once
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(head)
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            connection.sendall(header * (10_000_000 // len(header)))  # without an end


def test_a_request_behind_a_large_body_is_answered(service: FakeDeletionService, server: Served) -> None:
    body = json.dumps({"reason": "x" * 200_000}).encode()
    head = b"POST %s/pause HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % BASE.encode()
    large = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    behind = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(large + behind[:20])
        time.sleep(0.1)
        connection.sendall(behind[20:])
        answers = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answers.count(b"HTTP/1.1 ") == 2
    assert answers.rpartition(b"HTTP/1.1 ")[2].startswith(b"200 ")


def test_requests_behind_one_another_are_answered_however_their_bytes_are_cut(server: Served) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n" % (b"a" * 400)
    requests = request * 499 + request.replace(b"X: ", b"Connection: close\r\nX: ")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(requests[:20])
        time.sleep(0.1)
        connection.sendall(requests[20:])  # more than a head may have, and the first head's end is in it
        answers = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answers.count(b"HTTP/1.1 200 ") == answers.count(b"HTTP/1.1 ") == 500


def test_a_request_that_breaks_off_changes_nothing(service: FakeDeletionService, server: Served) -> None:
    head = b"POST %s/pause HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % BASE.encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(head + b"Content-Length: 50\r\n\r\n{")
    assert server.ask("GET", "/livez").status == 200
    assert service.calls("pause") == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    call=st.sampled_from(["pending", "pause", "rate", "undelete", "end-protection", "dead-letters/redrive", "resume"]),
    method=st.sampled_from(["POST", "PUT", "GET", "DELETE", "PATCH"]),
    body=JSON,
)
def test_arbitrary_json_never_causes_a_server_error(
    service: FakeDeletionService, server: Served, call: str, method: str, body: object
) -> None:
    answer = server.ask(method, f"{BASE}/{call}", json.dumps(body).encode())
    assert answer.status < 500
    if answer.status >= 400:
        assert answer.reason
