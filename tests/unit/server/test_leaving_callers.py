"""Callers that leave in the middle of something, which is no defect and no trouble of the sidecar."""

import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import pytest
import structlog

from tests.cluster.patience import until
from tests.fakes.http_servers import Answer
from tests.unit.server.test_pass_through import TENANTS, Front, front

MIB = 1024 * 1024
PAUSE = "/admin/v2/ledger-deletion/pause"
CANCEL = "/admin/v2/persistent/t/n/x/cancelDelayedMessages"
LINE = b'{"ledgerId": 1, "entryId": 2}\n'
PACKAGES = "/admin/v3/packages/function/t/n/f/v"


@pytest.fixture(scope="module")
def opened() -> Iterator[Front]:
    with ExitStack() as stack:
        yield front(stack)


def head(method: str, path: str, length: int) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (head("POST", PAUSE, 100) + b"{", 0),
        (head("POST", TENANTS, 100) + b"{", 0),
        (head("POST", PACKAGES, 9 * MIB) + bytes(MIB), 0),
        (head("POST", PACKAGES, 9 * MIB) + bytes(3 * MIB), 0),
        (head("POST", CANCEL, MIB) + LINE, 0),
        (head("POST", CANCEL, MIB) + LINE * 11_000, 0),
        (head("GET", "/openapi.json", 0), 100),
        (head("GET", TENANTS, 0), 100),
        (head("GET", TENANTS, 0), 3 * MIB),
    ],
    ids=[
        "own body",
        "passed body",
        "passed body of 1 MiB",
        "long passed body",
        "lines",
        "many lines",
        "own answer",
        "passed answer",
        "half",
    ],
)
@pytest.mark.parametrize("leaving", ["orderly", "reset", "waits"])
def test_disconnected_client_logs_no_warning(
    opened: Front, sent: bytes, read: int, leaving: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened.brokers[0].answer = lambda arrived: Answer(200, bytes(30 * MIB))
    with structlog.testing.capture_logs() as lines, caplog.at_level(logging.WARNING):
        with socket.create_connection(("127.0.0.1", opened.server.port)) as caller:
            caller.sendall(sent)
            while read > 0:
                read -= len(caller.recv(65536))
            if leaving == "reset":
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if leaving == "waits":  # longer than the server does
                until(lambda: ended(lines), "the request has ended")
        until(lambda: ended(lines), "the request has ended")
    assert [line for line in lines if line["log_level"] in ("warning", "error", "critical")] == []
    assert caplog.messages == []


def ended(lines: Sequence[Mapping[str, object]]) -> bool:
    return any(line["event"] in ("request", "admin request") for line in lines)
