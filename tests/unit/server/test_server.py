"""The listening socket, which every connection takes its settings from."""

import socket

import pytest
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.server.server import listening_socket


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    with listening_socket("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_an_address_that_is_taken_is_reported() -> None:
    with listening_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInputError, match=f"port {port}"):
            listening_socket("127.0.0.1", port)
