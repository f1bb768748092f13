"""Free TCP ports on the loopback address.

Invariant: a port handed out was free a moment ago and lies below the range from which systems pick ports for outgoing
connections, so a member that is restarted finds its port still free. Somebody else may take it first all the same:
whoever starts a member on it must be ready to ask for another (``starting``).
"""

import secrets
import socket
from collections.abc import Iterable
from pathlib import Path

from pulsar_sidecar.model.errors import TemporaryError

LOOPBACK = "127.0.0.1"
_FIRST_PORT = 15_000
_PORT_COUNT = 17_000
_TRIES = 200
_LISTENING = "0A"


def is_free(port: int) -> bool:
    """Whether a listener could be opened on the loopback address now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> tuple[int, ...]:
    """Different free ports, chosen at random so that two clusters started together rarely meet.

    Raises:
        TemporaryError: no free port was found.
    """
    chosen: list[int] = []
    for _ in range(_TRIES + count):
        if len(chosen) == count:
            break
        port = _FIRST_PORT + secrets.randbelow(_PORT_COUNT)
        if port not in chosen and is_free(port):
            chosen.append(port)
    if len(chosen) < count:
        raise TemporaryError(f"found only {len(chosen)} of {count} free ports on {LOOPBACK}; stop something")
    return tuple(chosen)


def listens_on(pid: int, ports: Iterable[int]) -> bool:
    """Whether it is this process that listens on all these ports, not another that was quicker.

    Where the system has no ``/proc/net/tcp`` to tell, the answer is True.
    """
    table = Path("/proc/net/tcp")
    if not table.exists():
        return True
    own = _sockets_of(pid)
    listeners = {
        int(fields[1].rpartition(":")[2], 16)
        for fields in (line.split() for line in table.read_text().splitlines()[1:])
        if fields[3] == _LISTENING and fields[9] in own
    }
    return listeners.issuperset(ports)


def _sockets_of(pid: int) -> set[str]:
    """Inodes of a process's sockets; the empty set if it ended."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    return inodes
