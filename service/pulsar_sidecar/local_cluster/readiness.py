"""Asking a member whether it can serve; the only thing that counts as started.

Invariant: a probe answers False for "not yet" and never raises for a member that does not answer.
"""

import socket
from typing import assert_never

import requests

from pulsar_sidecar.local_cluster.ports import LOOPBACK
from pulsar_sidecar.local_cluster.spec import Role
from pulsar_sidecar.local_cluster.state import Member

_SOCKET_TIMEOUT_SECONDS = 2.0
_HTTP_TIMEOUT_SECONDS = (2.0, 15.0)


def is_ready(member: Member) -> bool:
    """Whether a member serves: ZooKeeper's ``srvr``, the bookie's ``is_ready``, the broker's ``health``.

    A broker's health check produces and consumes a message, so it covers the way through the bookies.
    """
    match member.role:
        case Role.ZOOKEEPER:
            return "Mode:" in four_letter_word(member.ports["client"], "srvr")
        case Role.BOOKIE:
            return _answers_ok(f"http://{LOOPBACK}:{member.ports['http']}/api/v1/bookie/is_ready")
        case Role.BROKER:
            return _answers_ok(f"http://{LOOPBACK}:{member.ports['http']}/admin/v2/brokers/health")
        case _:
            assert_never(member.role)


def four_letter_word(port: int, command: str) -> str:
    """What ZooKeeper answers to one of its four-letter commands; empty if it does not answer."""
    try:
        with socket.create_connection((LOOPBACK, port), _SOCKET_TIMEOUT_SECONDS) as connection:
            connection.sendall(command.encode())
            return _read_all(connection).decode(errors="replace")
    except OSError:
        return ""


def _read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def _answers_ok(url: str) -> bool:
    with requests.Session() as session:
        session.trust_env = False
        try:
            return session.get(url, timeout=_HTTP_TIMEOUT_SECONDS, allow_redirects=False).ok
        except requests.RequestException:
            return False
