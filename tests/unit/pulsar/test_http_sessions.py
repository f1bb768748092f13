"""Requests to brokers: connections that are kept, that end, and what failures are called."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from pulsar_sidecar.adapters.pulsar_rest.http_sessions import HttpSessions
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions, parse_credentials
from urllib3 import exceptions

from tests.fakes.http_servers import Answer, HttpServer, http_server


@pytest.fixture
def broker() -> Iterator[HttpServer]:
    with http_server(lambda arrived: Answer(404, b'{"reason":"none"}', {"X-Pulsar-a": "1"})) as running:
        yield running


def sessions(read_seconds: float = 2, credentials: ClientCredentials | None = None) -> HttpSessions:
    return HttpSessions(credentials or ClientCredentials(), TlsOptions(), 2, read_seconds)


def test_an_answer_is_whole_and_the_address_arrives_as_it_is(
    broker: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    secret = parse_credentials("token", "token:secret")
    answer = sessions(credentials=secret).send("GET", f"{broker.url}/a%2Fb+c*~", None, {"c": "d e"})
    assert (answer.status, answer.data) == (404, b'{"reason":"none"}')
    assert answer.headers["x-pulsar-A"] == "1"
    assert (broker.arrived[0].target, broker.arrived[0].authorization) == ("/a%2Fb+c*~?c=d+e", "Bearer secret")


def test_a_connection_is_kept_and_replaced_once_it_has_ended() -> None:
    accepted: list[socket.socket] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            # Two answers over the first connection, one over the second.
            for count in (2, 1):
                connection, _ = server.accept()
                accepted.append(connection)
                for _ in range(count):
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nA: 1\r\nA: 2\r\n\r\n{}")
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        kept, url = sessions(), f"http://127.0.0.1:{server.getsockname()[1]}/"
        assert [kept.send("GET", url, None, {}).headers["a"] for _ in range(2)] == ["1, 2", "1, 2"]
        assert len(accepted) == 1
        accepted[0].close()
        assert kept.send("PUT", url, b"1", {}).data == b"{}"
        thread.join()


def test_failures_are_urllib3_errors(broker: HttpServer) -> None:
    broker.answer = lambda arrived: Answer(0)
    with pytest.raises(exceptions.ProtocolError):
        sessions().send("GET", broker.url, None, {})
    assert len(broker.arrived) == 1, "nothing is repeated"
    with closing(socket.create_server(("127.0.0.1", 0))) as silent, pytest.raises(exceptions.ReadTimeoutError):
        sessions(0.05).send("GET", f"http://127.0.0.1:{silent.getsockname()[1]}/", None, {})
    with pytest.raises(exceptions.NewConnectionError):
        sessions().send("GET", "http://127.0.0.1:1/", None, {})
