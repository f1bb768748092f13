"""Waits of a ZooKeeper session for its sockets."""

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from pulsar_sidecar.adapters.zookeeper.session import _Handler

MOST_OF_SELECT = 1024


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_sockets_are_returned_in_their_own_list(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    handler = _Handler()
    assert handler.select([one, other], [], [], 0) == ([], [], [])
    assert handler.select([], [one, other], [], 0) == ([], [one, other], [])
    other.send(b"x")
    assert handler.select([one, other], [], [], 5.0) == ([one], [], [])
    other.close()
    assert handler.select([one], [], [], 5.0) == ([one], [], []), "the end is read as well"


def test_waits_last_as_long_as_their_timeout(pair: tuple[socket.socket, socket.socket]) -> None:
    began = time.monotonic()
    assert _Handler().select([pair[0]], [], [], 0.0501) == ([], [], [])
    assert time.monotonic() - began >= 0.05


def test_a_closed_socket_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    one, _ = pair
    one.close()
    with pytest.raises(ValueError, match="negative"):
        _Handler().select([one], [], [], 0)


def test_numbers_above_those_of_select() -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MOST_OF_SELECT + 200
    if limit < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
    with ExitStack() as stack:
        while True:
            one, other = socket.socketpair()
            stack.enter_context(one)
            stack.enter_context(other)
            if one.fileno() > MOST_OF_SELECT:
                break
        other.send(b"x")
        assert _Handler().select([one], [], [], 5.0) == ([one], [], [])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
