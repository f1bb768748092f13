"""The links that partitions are made with work: packets on a cut link are lost, in that direction and on that link."""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from pulsar_sidecar.local_cluster.processes import LOOPBACK, free_ports

from tests.cluster.links import Cut, Link, SidecarNetwork, skip_without_namespaces
from tests.cluster.patience import OPERATION_SECONDS, until

ONE, OTHER = Link("one", "port"), Link("other", "port")
PATIENCE_SECONDS = 1
PING = f"""
import socket, sys
with socket.create_connection(("{LOOPBACK}", int(sys.argv[1])), {PATIENCE_SECONDS}) as connection:
    connection.sendall(b"ping")
    sys.exit(connection.recv(4) != b"ping")
"""
WAIT = f"""
import socket, sys
with socket.create_connection(("{LOOPBACK}", int(sys.argv[1]))) as connection:
    print("connected", flush=True)
    connection.recv(1)
"""
ANSWER = f"""
import socket, sys
with socket.create_server(("{LOOPBACK}", int(sys.argv[1]))) as listener:
    print("listening", flush=True)
    connection, _ = listener.accept()
    connection.sendall(connection.recv(4))
    connection.close()
"""


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[Link, int]]:
    """Yield two servers on this machine's loopback address that echo everything."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((LOOPBACK, port))) for port in free_ports(2)]
        for listener in listeners:
            threading.Thread(target=answer, args=(listener,), daemon=True).start()
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
        yield dict(zip((ONE, OTHER), (listener.getsockname()[1] for listener in listeners), strict=True))


@pytest.fixture(scope="module")
def network(ports: dict[Link, int]) -> Iterator[SidecarNetwork]:
    skip_without_namespaces()
    network = SidecarNetwork(ports)
    yield network
    network.close()


def answer(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection: socket.socket) -> None:
    with connection, contextlib.suppress(ConnectionError):
        while received := connection.recv(1024):
            connection.sendall(received)


def start(network: SidecarNetwork, program: str, port: int) -> "subprocess.Popen[str]":
    command = network.command([sys.executable, "-c", program, str(port)])
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def reaches(network: SidecarNetwork, port: int) -> bool:
    with start(network, PING, port) as pinging:
        pinging.communicate()
    return pinging.returncode == 0


@pytest.mark.parametrize("how", Cut)
def test_a_cut_link_reaches_nothing_until_it_is_mended(
    network: SidecarNetwork, ports: dict[Link, int], how: Cut
) -> None:
    assert reaches(network, ports[ONE])
    network.cut([ONE], how)
    assert not reaches(network, ports[ONE])
    assert reaches(network, ports[OTHER])
    network.restore([ONE])
    until(lambda: reaches(network, ports[ONE]), "the mended link carries packets")


def test_a_reset_ends_connections_and_lets_new_ones_be_made(network: SidecarNetwork, ports: dict[Link, int]) -> None:
    with start(network, WAIT, ports[ONE]) as waiting, start(network, WAIT, ports[OTHER]) as spared:
        for each in (waiting, spared):
            assert each.stdout is not None
            assert each.stdout.readline() == "connected\n"
        network.reset([ONE])
        _, error = waiting.communicate(timeout=OPERATION_SECONDS)
        assert "ConnectionAbortedError" in error
        assert spared.poll() is None
        spared.kill()
    assert reaches(network, ports[ONE])


def test_servers_inside_are_reached_from_outside(network: SidecarNetwork) -> None:
    (port,) = free_ports(1)
    network.expose(port)
    with start(network, ANSWER, port) as answering:
        assert answering.stdout is not None
        assert answering.stdout.readline() == "listening\n"
        with socket.create_connection((LOOPBACK, port), 20) as connection:
            connection.sendall(b"ping")
            assert connection.recv(4) == b"ping"
