"""Parsing of a ZooKeeper server's report of itself."""

import socket
import threading
from contextlib import closing

import pytest
from pulsar_sidecar.adapters.zookeeper.four_letter_words import zookeeper_server
from pulsar_sidecar.features.doctor.facts import StoreServer
from pulsar_sidecar.local_cluster.processes import LOOPBACK, free_ports
from pulsar_sidecar.model.errors import UnreachableError

REPORT = b"Zookeeper version: 3.9.4-7246445ec281, built on 2025-08-19\nLatency min/avg/max: 0/0.5/9\nMode: follower\n"


@pytest.mark.parametrize(
    ("report", "server"),
    [
        (REPORT, StoreServer("3.9.4", "follower")),
        (b"srvr is not executed because it is not in the whitelist.\n", StoreServer(None, None)),
        (b"This ZooKeeper instance is not currently serving requests\n", StoreServer(None, None)),
        (b"", StoreServer(None, None)),
    ],
)
def test_server_report_is_parsed(report: bytes, server: StoreServer) -> None:
    def answer() -> None:
        connection, _ = listening.accept()
        with connection:
            assert connection.recv(4) == b"srvr"
            connection.sendall(report)

    with closing(socket.create_server((LOOPBACK, 0))) as listening:
        thread = threading.Thread(target=answer)
        thread.start()
        assert zookeeper_server(f"{LOOPBACK}:{listening.getsockname()[1]}") == server
        thread.join()


def test_a_server_that_is_away() -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnreachableError, match="refused"):
        zookeeper_server(f"{LOOPBACK}:{port}")
