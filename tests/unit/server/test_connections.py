"""No client keeps others out: real connections to a real server, with limits that a test can wait for."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pulsar_sidecar.features.delayed_messages.http import routes as delayed_delivery
from pulsar_sidecar.features.ledger_deletion.results import ServiceStatus
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, secret_key
from pulsar_sidecar.server.listener_tls import ListenerTls
from pulsar_sidecar.server.server import Limits

from tests.cluster.certificates import Certificate, write_certificate
from tests.fakes.delayed_service import FakeDelayedDelivery
from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.server.serving import Served, served

CLOCK = SystemClock()
QUICK = Limits(connections=4, head_seconds=2.0, body_seconds=2.0)
LARGE = 8 * 1024 * 1024
STREAMED = "/admin/v2/persistent/t/n/x/cancelDelayedMessages"


@pytest.fixture(scope="module")
def quick() -> Iterator[Served]:
    routers = [delayed_delivery.router(FakeDelayedDelivery())]
    with served(FakeDeletionService(), routers=routers, limits=QUICK) as server:
        assert server.ask("GET", "/livez").status == 200  # the first response takes longest
        yield server


@contextmanager
def connected(server: Served) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        yield connection


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *lines, "", ""]).encode()


def all_of(connection: socket.socket) -> bytes:
    """Return the bytes until the server closes the connection."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/livez", 200),
        ("POST", "/livez", 405),
        ("GET", "/readyz", 200),
        ("PUT", "/metrics", 405),
        ("GET", "/admin/v2/ledger-deletion/status", 401),
        ("POST", "/admin/v2/ledger-deletion/pending", 401),
        ("POST", STREAMED, 401),
    ],
)
def test_an_answer_does_not_wait_for_an_unwanted_body(method: str, path: str, expected: int) -> None:
    key = secret_key("data:;base64," + "QUJD" * 11)
    authentication = Authentication(TokenVerifier(key, CLOCK))
    with served(FakeDeletionService(), authentication) as server, connected(server) as connection:
        connection.sendall(head(method, path, f"content-length: {LARGE}"))
        assert status(connection.recv(65536)) == expected


def test_a_reader_with_credentials_is_not_asked_for_a_body_either() -> None:
    with served(FakeDeletionService()) as server, connected(server) as connection:
        connection.sendall(head("GET", "/admin/v2/ledger-deletion/status", f"content-length: {LARGE}"))
        assert status(connection.recv(65536)) == 200


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"", None),
        (b"GET /livez HT", 408),
        (head("GET", "/livez")[:-2], 408),
        (head("POST", "/admin/v2/ledger-deletion/pending", "content-length: 10") + b"{", 408),
        (head("GET", "/livez", "content-length: 10") + b"{", 200),
    ],
)
def test_request_that_times_out_closes_the_connection(quick: Served, sent: bytes, expected: int | None) -> None:
    with connected(quick) as connection:
        connection.sendall(sent)
        begin = CLOCK.monotonic_seconds()
        answer = all_of(connection)
        assert CLOCK.monotonic_seconds() - begin < 10
    assert (status(answer) if answer else None) == expected
    if expected == 408:
        assert "in time" in json.loads(answer.rpartition(b"\r\n")[2])["reason"]


def test_a_head_or_a_body_that_comes_drop_by_drop_is_not_waited_for(quick: Served) -> None:
    for begun in (b"GET /livez HTTP/1.1\r\nx: ", head("PUT", "/admin/v2/ledger-deletion/rate", "content-length: 500")):
        with connected(quick) as connection:
            connection.sendall(begun)
            for _ in range(200):
                try:
                    connection.sendall(b"x")
                except OSError:
                    break
                CLOCK.wait_seconds(0.05, threading.Event())
            else:
                pytest.fail("the connection was kept for ten seconds")


def test_a_bulk_request_takes_as_long_as_its_lines_keep_coming(quick: Served) -> None:
    line = b'{"ledgerId": 1, "entryId": 2}\n'
    with connected(quick) as connection:
        connection.sendall(head("POST", STREAMED, "connection: close", f"content-length: {len(line) * 8}"))
        for _ in range(8):
            connection.sendall(line)
            CLOCK.wait_seconds(0.5, threading.Event())
        assert status(all_of(connection)) != 408


def test_a_request_with_no_room_left_takes_the_place_of_who_waits_longest(quick: Served) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(quick)) for _ in range(QUICK.connections)]
        with connected(quick) as connection:
            connection.sendall(head("GET", "/livez", "connection: close"))
            assert status(all_of(connection)) == 200
        assert all_of(silent[0]) == b""


def test_many_unfinished_requests_do_not_keep_others_out() -> None:
    limits = Limits(connections=50)
    with served(FakeDeletionService(), limits=limits) as server, ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connected(server)).sendall(b"GET /livez HTTP/1.1\r\n")
        assert [server.ask("GET", "/livez").status for _ in range(5)] == [200] * 5


def test_connection_is_refused_if_all_others_are_busy() -> None:
    limits = Limits(connections=3)
    with served(FakeDeletionService(), limits=limits) as server, ExitStack() as stack:
        for _ in range(limits.connections):
            busy = stack.enter_context(connected(server))
            busy.sendall(head("PUT", "/admin/v2/ledger-deletion/rate", "expect: 100-continue", "content-length: 10"))
            assert busy.recv(100).startswith(b"HTTP/1.1 100")
        with connected(server) as refused:
            answer = all_of(refused)
        assert status(answer) == 503
        assert "maxHttpServerConnections" in json.loads(answer.rpartition(b"\r\n")[2])["reason"]


def deaf(server: Served, stack: ExitStack, most_bytes: int = 4096) -> socket.socket:
    """A connection that takes next to nothing of what it is sent before it is read."""
    connection = stack.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, most_bytes)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", server.port))
    return connection


@pytest.mark.parametrize("behind", [b"", b"no HTTP\r\n\r\n"])
def test_a_client_that_does_not_read_the_answers_keeps_no_other_out_and_is_not_kept(behind: bytes) -> None:
    limits = Limits(connections=2, head_seconds=1.0, body_seconds=1.0)
    with served(FakeDeletionService(), limits=limits) as server, ExitStack() as stack:
        begin = CLOCK.monotonic_seconds()
        for _ in range(limits.connections):
            busy = deaf(server, stack)
            busy.sendall(head("GET", "/openapi.json") * 200)
            CLOCK.wait_seconds(0.5, threading.Event())
            busy.sendall(behind)
        statuses: list[int] = []
        while 200 not in statuses and CLOCK.monotonic_seconds() - begin < 60:
            with connected(server) as newcomer:
                newcomer.sendall(head("GET", "/livez", "connection: close"))
                statuses.append(status(all_of(newcomer)))
        assert 200 in statuses


def test_a_connection_whose_place_is_needed_while_it_is_opened_does_not_hold_up_the_end() -> None:
    limits = Limits(connections=1)
    with served(FakeDeletionService(), limits=limits) as server, ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connected(server))


def test_slow_reader_gets_the_full_response() -> None:
    limits = Limits(connections=2, head_seconds=1.0, body_seconds=4.0)
    with served(FakeDeletionService(), limits=limits) as server, ExitStack() as stack:
        slow = deaf(server, stack, 65_536)  # of a smaller one the system itself may wait for seconds to use it again
        slow.sendall(head("GET", "/openapi.json") * 100 + head("GET", "/livez", "connection: close"))
        received = b""
        while piece := slow.recv(65_536):
            received += piece
            CLOCK.wait_seconds(0.05, threading.Event())
        assert received.count(b"HTTP/1.1 200 ") == 101


def test_more_requests_without_waiting_than_are_kept_are_refused() -> None:
    with served(FakeDeletionService()) as server, connected(server) as connection:
        connection.sendall(head("GET", "/livez") * 5_000)
        answer = all_of(connection)
        assert b"without waiting for answers" in answer.rpartition(b"HTTP/1.1 400 ")[2]


def test_requests_of_later_pieces_are_read_only_when_those_before_are_answered() -> None:
    request = head("GET", "/livez", "x: " + "a" * 1_000)
    with served(FakeDeletionService()) as server, connected(server) as connection:
        sending = threading.Thread(target=connection.sendall, args=(request * 3_000 + head("GET", "/x"),))
        sending.start()
        received = b""
        while b"HTTP/1.1 404 " not in received:
            piece = connection.recv(65_536)
            assert piece, received[-200:]
            received += piece
        sending.join(20)
        assert received.count(b"HTTP/1.1 200 ") == 3_000


def test_an_empty_line_after_an_answer_does_not_keep_the_connection(quick: Served) -> None:
    with connected(quick) as connection:
        connection.sendall(head("GET", "/livez"))
        assert status(connection.recv(65_536)) == 200
        begin = CLOCK.monotonic_seconds()
        connection.sendall(b"\r\n")
        all_of(connection)
        assert CLOCK.monotonic_seconds() - begin < 10


def test_probes_are_answered_while_every_thread_hangs() -> None:
    release = threading.Event()

    class Hanging(FakeDeletionService):
        def status(self) -> ServiceStatus:
            release.wait(60)
            return super().status()

    with served(Hanging()) as server, ExitStack() as stack:
        stack.callback(release.set)
        for _ in range(130):
            stack.enter_context(connected(server)).sendall(head("GET", "/admin/v2/ledger-deletion/status"))
        CLOCK.wait_seconds(0.5, threading.Event())
        for path in ("/livez", "/readyz"):
            with connected(server) as connection:
                connection.settimeout(30)  # half of what a thread hangs for
                connection.sendall(head("GET", path, "connection: close"))
                assert status(all_of(connection)) == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return write_certificate(tmp_path_factory.mktemp("tls"), "sidecar")


def over_tls(server: Served, certificate: Path) -> bytes:
    context = ssl.create_default_context(cafile=str(certificate))
    with connected(server) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        connection.sendall(head("GET", "/livez", "connection: close"))
        return all_of(connection)


def test_a_handshake_that_never_starts_ends_the_connection(certificate: Certificate) -> None:
    with served(FakeDeletionService(), limits=QUICK, tls=ListenerTls(certificate.file, certificate.key_file)) as server:
        for sent in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"):
            with connected(server) as connection:
                connection.sendall(sent)
                begin = CLOCK.monotonic_seconds()
                all_of(connection)
                assert CLOCK.monotonic_seconds() - begin < 10
        assert status(over_tls(server, certificate.file)) == 200


def test_handshakes_that_never_start_do_not_keep_others_out(certificate: Certificate) -> None:
    limits = Limits(connections=50)
    with (
        served(FakeDeletionService(), limits=limits, tls=ListenerTls(certificate.file, certificate.key_file)) as server,
        ExitStack() as stack,
    ):
        for _ in range(200):
            stack.enter_context(connected(server))
        assert status(over_tls(server, certificate.file)) == 200
