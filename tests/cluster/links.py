"""A network namespace for sidecars, connected to the cluster by a real link for each port of each member.

Sidecars in it use the cluster's own addresses, including those that brokers and bookies advertise, since the routes of
the namespace lead ``127.0.0.1:<port of a member>`` over that port's link. Tests can cut a link both ways (it goes down)
or one way (frames go nowhere), and reset its connections. No side notices a cut: packets are lost.

Invariant: the namespace, its links and its routes end with the process that created them, however it ends, and this
machine's own network does not change.
"""

import contextlib
import ctypes
import secrets
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest
from pulsar_sidecar.local_cluster.processes import LOOPBACK
from pulsar_sidecar.local_cluster.state import ClusterAddresses, read_state

from tests.cluster.patience import OPERATION_SECONDS

_CLONE_NEWNET = 0x40000000
_NOWHERE = "02:00:00:00:00:01"
_FIRST_TABLE = 100
_CHUNK_BYTES = 65536
_HINT = "run the tests as root, or in namespaces of your own: unshare --map-root-user --net"


@dataclass(frozen=True, slots=True)
class Link:
    """A port of a member: ``zookeeper client``, ``broker-1 http``, ``broker-1 broker``, ``bookie-2 bookie``."""

    member: str
    purpose: str

    def __str__(self) -> str:
        return f"{self.member} {self.purpose}"


class Cut(Enum):
    """Directions in which a link loses packets."""

    BOTH = "both ways"
    TO_CLUSTER = "to the cluster"
    TO_SIDECAR = "to the sidecar"


@dataclass(frozen=True, slots=True)
class _Wires:
    """The two ends of a link, and their addresses."""

    port: int
    table: int
    here: str
    there: str
    here_address: str
    there_address: str


class SidecarNetwork:
    """The namespace and its links; `close` when done."""

    def __init__(self, ports: Mapping[Link, int]) -> None:
        # `cat`, and the namespace with it, ends with this process, because its standard input is a pipe from it.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        self._wires = _wires(ports)
        self._relays: list[_Relay] = []
        try:
            _wait_for_namespace(self._holder)
            self._connect()
        except BaseException:
            self.close()
            raise

    @property
    def links(self) -> list[Link]:
        """All links, in the members' order."""
        return list(self._wires)

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` in the namespace, as the same process."""
        return ["nsenter", f"--net={self._path}", "--", *argv]

    def expose(self, port: int) -> None:
        """Forward ``127.0.0.1:port`` of this machine to the same address in the namespace."""
        self._relays.append(_Relay(port, self._path))

    def cut(self, links: Iterable[Link], how: Cut = Cut.BOTH) -> None:
        """Lose the packets of these links from now on."""
        for wires in self._chosen(links):
            if how is Cut.BOTH:
                _run("ip", "link", "set", "dev", wires.here, "down")
            elif how is Cut.TO_SIDECAR:
                _run("ip", *_to_nowhere(wires.there_address, wires.here))
            else:
                self._inside("ip", *_to_nowhere(wires.here_address, wires.there))

    def restore(self, links: Iterable[Link] | None = None) -> None:
        """Restore links, all by default."""
        for wires in self._chosen(self._wires if links is None else links):
            _run("ip", "link", "set", "dev", wires.here, "up")
            _run("ip", "neigh", "flush", "dev", wires.here, "nud", "permanent")
            self._inside("ip", "neigh", "flush", "dev", wires.there, "nud", "permanent")

    def reset(self, links: Iterable[Link]) -> None:
        """Reset all connections over these links; new ones are possible at once."""
        for wires in self._chosen(links):
            self._inside("ss", "--kill", "dst", LOOPBACK, "dport", "=", f":{wires.port}")

    def close(self) -> None:
        """End the namespace; sidecars in it must have ended."""
        for relay in self._relays:
            relay.close()
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait(OPERATION_SECONDS)

    @property
    def _path(self) -> str:
        return f"/proc/{self._holder.pid}/ns/net"

    def _chosen(self, links: Iterable[Link]) -> list[_Wires]:
        return [self._wires[link] for link in links]

    def _inside(self, *argv: str) -> None:
        _run(*self.command(argv))

    def _connect(self) -> None:
        """Create the links, and route packets to a member's port over its link instead of the loopback device.

        The rule for the table of local addresses has to follow the ones of the links, so it gets a later place.
        """
        for wires in self._wires.values():
            namespace = str(self._holder.pid)
            _run("ip", "link", "add", wires.here, "type", "veth", "peer", "name", wires.there, "netns", namespace)
        _batch([], [line for wires in self._wires.values() for line in _near_end(wires)])
        inside = ["link set lo up", "rule add pref 20 lookup local", "rule del pref 0 lookup local"]
        _batch(self.command([]), inside + [line for wires in self._wires.values() for line in _far_end(wires)])
        for wires in self._wires.values():
            Path(f"/proc/sys/net/ipv4/conf/{wires.here}/route_localnet").write_text("1")
        devices = [wires.there for wires in self._wires.values()]
        self._inside("sh", "-c", f"for device in {' '.join(devices)}; do {_ACCEPT_LOOPBACK}; done")


_ACCEPT_LOOPBACK = (
    "echo 1 > /proc/sys/net/ipv4/conf/$device/route_localnet; "
    "echo 1 > /proc/sys/net/ipv4/conf/$device/accept_local; "
    "echo 0 > /proc/sys/net/ipv4/conf/$device/rp_filter"
)


def _wires(ports: Mapping[Link, int]) -> dict[Link, _Wires]:
    """Return names and addresses of the links, in the range for network tests (RFC 2544)."""
    name, subnet = secrets.token_hex(3), f"198.18.{secrets.randbelow(256)}"
    found = {}
    for number, (link, port) in enumerate(ports.items()):
        here, there = f"sc{name}{number}", f"scns{number}"
        addresses = f"{subnet}.{4 * number + 1}", f"{subnet}.{4 * number + 2}"
        found[link] = _Wires(port, _FIRST_TABLE + number, here, there, *addresses)
    return found


def _near_end(wires: _Wires) -> list[str]:
    return [f"addr add {wires.here_address}/30 dev {wires.here}", f"link set {wires.here} up"]


def _far_end(wires: _Wires) -> list[str]:
    return [
        f"addr add {wires.there_address}/30 dev {wires.there}",
        f"link set {wires.there} up",
        f"rule add pref 10 ipproto tcp dport {wires.port} lookup {wires.table}",
        f"route add {LOOPBACK}/32 via {wires.here_address} dev {wires.there} src {wires.there_address} "
        f"table {wires.table}",
    ]


def _to_nowhere(address: str, device: str) -> list[str]:
    return ["neigh", "replace", address, "lladdr", _NOWHERE, "dev", device, "nud", "permanent"]


def _run(*argv: str, given: str | None = None) -> None:
    ended = subprocess.run(argv, input=given, capture_output=True, text=True, check=False, timeout=OPERATION_SECONDS)
    assert ended.returncode == 0, f"{' '.join(argv)}: {ended.stderr}\n{given or ''}"


def _batch(prefix: Sequence[str], lines: Sequence[str]) -> None:
    _run(*prefix, "ip", "-batch", "-", given="\n".join(lines) + "\n")


def _wait_for_namespace(holder: subprocess.Popen[bytes]) -> None:
    """Wait until the process has left this process's namespace."""
    own = Path("/proc/self/ns/net").readlink()
    never = threading.Event()
    for _ in range(100):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{holder.pid}/ns/net").readlink() != own:
                return
        never.wait(0.05)
    raise AssertionError("no network namespace was made")


# --- access to listeners in the namespace ----------------------------------------------------------------------------


class _Relay:
    """Forwarder of connections on ``127.0.0.1:port`` into the namespace."""

    def __init__(self, port: int, namespace: str) -> None:
        self._port = port
        self._namespace = namespace
        self._listener = socket.create_server((LOOPBACK, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # A blocked `accept` keeps a closed listener open.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                inside = self._connect()
            except OSError:
                return
            with inside:
                back = threading.Thread(target=_pump, args=(inside, connection), daemon=True)
                back.start()
                _pump(connection, inside)
                back.join()

    def _connect(self) -> socket.socket:
        """Return a connection in the namespace; the thread stays in there, so it serves nothing else."""
        _enter(self._namespace)
        return socket.create_connection((LOOPBACK, self._port))


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(_CHUNK_BYTES):
            sink.sendall(chunk)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _enter(namespace: str) -> None:
    """Move this thread by ``setns``, which Python has from 3.12 on."""
    with Path(namespace).open("rb") as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {namespace}")


# --- for tests -------------------------------------------------------------------------------------------------------


def links_of(addresses: ClusterAddresses) -> dict[Link, int]:
    """Return a link for each port of a cluster on this machine."""
    assert addresses.directory is not None, "only a cluster of this machine has links"
    members = read_state(addresses.directory).members
    return {Link(member.name, purpose): port for member in members for purpose, port in member.ports.items()}


@contextlib.contextmanager
def sidecar_network(addresses: ClusterAddresses) -> Iterator[SidecarNetwork]:
    """Yield a namespace with links to a cluster; skip the test if the system does not allow one."""
    if addresses.directory is None:
        pytest.skip("links are laid to members on this machine only; this cluster runs elsewhere")
    skip_without_namespaces()
    network = SidecarNetwork(links_of(addresses))
    try:
        yield network
    finally:
        network.close()


def skip_without_namespaces() -> None:
    """Skip the test if the system does not allow network namespaces, and name the remedy."""
    missing = [tool for tool in ("unshare", "nsenter", "ip", "ss") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"network namespaces need {', '.join(missing)} (util-linux, iproute2)")
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "scns0", "type", "veth", "peer", "name", "scns1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=OPERATION_SECONDS,
    )
    if tried.returncode != 0:
        pytest.skip(f"this system lets no network namespace be made ({tried.stderr.strip()}); {_HINT}")
