"""Reads over plain HTTP: connections that are kept, that end, and what failures are called."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import requests
from pulsar_sidecar.adapters.pulsar.rest.plain_reads import PlainReads

from tests.unit.pulsar.http_brokers import Answer, HttpBroker, http_broker


@pytest.fixture
def broker() -> Iterator[HttpBroker]:
    with http_broker(lambda arrived: Answer(404, b'{"reason":"none"}', {"X-Pulsar-a": "1"})) as running:
        yield running


def test_answers_are_those_of_requests(broker: HttpBroker) -> None:
    answer = PlainReads(2, 2).get(f"{broker.url}/a%2Fb?c=d%20e", {"Authorization": "secret"})
    assert (answer.status_code, answer.json(), answer.text) == (404, {"reason": "none"}, '{"reason":"none"}')
    assert (answer.headers["x-pulsar-A"], answer.url) == ("1", f"{broker.url}/a%2Fb?c=d%20e")
    assert (broker.arrived[0].target, broker.arrived[0].authorization) == ("/a%2Fb?c=d%20e", "secret")


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
        reads, url = PlainReads(2, 2), f"http://127.0.0.1:{server.getsockname()[1]}/"
        assert [reads.get(url, {}).headers["a"] for _ in range(2)] == ["1, 2", "1, 2"]
        assert len(accepted) == 1
        accepted[0].close()
        assert reads.get(url, {}).json() == {}
        thread.join()


def test_what_goes_wrong_has_the_names_that_requests_gives_it(broker: HttpBroker) -> None:
    broker.answer = lambda arrived: Answer(0)
    with pytest.raises(requests.ConnectionError):
        PlainReads(2, 2).get(broker.url, {})
    with closing(socket.create_server(("127.0.0.1", 0))) as silent, pytest.raises(requests.ReadTimeout):
        PlainReads(2, 0.05).get(f"http://127.0.0.1:{silent.getsockname()[1]}/", {})
    with pytest.raises(requests.ConnectionError):
        PlainReads(2, 2).get("http://127.0.0.1:1/", {})
