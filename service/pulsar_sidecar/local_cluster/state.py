"""The state file in a cluster's directory, which lists its processes, and the cluster's addresses.

Invariants: the file is replaced atomically under a lock, and lists a member from the moment its process exists, so
that any later process can find and end it. The JSON line that ``up --json`` prints has the same addresses; keys keep
Pulsar's spelling.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from pulsar_sidecar.local_cluster.processes import LOOPBACK, ProcessIdentity, exclusive
from pulsar_sidecar.local_cluster.spec import METADATA_STORES, ClusterNotFoundError, Role
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import UndecodableError

_FILE_NAME = "cluster.json"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the cluster: its ports by purpose, and its last process, which may have ended."""

    name: str
    role: Role
    ports: Mapping[str, int]
    argv: tuple[str, ...]
    process: ProcessIdentity | None = None


@decodable
class ClusterState(msgspec.Struct, frozen=True, rename="camel"):
    """Contents of a cluster's directory: members by role and number, and the short-lived metadata setup."""

    version: str
    cluster_name: str
    members: tuple[Member, ...]
    metadata_setup: ProcessIdentity | None = None
    format: Literal[1] = 1

    def processes(self) -> list[ProcessIdentity]:
        """Return the last process of each name; some may have ended."""
        started = [member.process for member in self.members]
        return [process for process in (*started, self.metadata_setup) if process is not None]

    def member(self, name: str) -> Member:
        for member in self.members:
            if member.name == name:
                return member
        names = ", ".join(member.name for member in self.members)
        raise ClusterNotFoundError(f"no member is called {name!r}; the members are {names}")

    def with_member(self, changed: Member) -> "ClusterState":
        """Return the state with one member added or replaced."""
        others = [member for member in self.members if member.name != changed.name]
        return replace(self, members=tuple(sorted([*others, changed], key=_place)))


@decodable
class ClusterAddresses(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Addresses and members of a cluster; URLs in Pulsar's forms, lists in the members' order.

    Attributes:
        directory: directory of the cluster; None on another machine.
        members: process ids by member name; empty on another machine.
        zookeeper_admin_url: URL of the AdminServer; None unless ``admin.enableServer=true``.
    """

    web_service_urls: tuple[str, ...]
    broker_service_url: str
    metadata_store_url: str
    bookie_http_urls: tuple[str, ...] = ()
    directory: Path | None = msgspec.field(name="dir", default=None)
    version: str = "unknown"
    cluster_name: str = "unknown"
    members: Mapping[str, int] = msgspec.field(default_factory=dict)
    member_urls: Mapping[str, str] = msgspec.field(default_factory=dict)
    zookeeper_admin_url: str | None = None

    def json_line(self, **more: object) -> str:
        """Return one line of JSON, without a line break; ``more`` are further keys and values."""
        return msgspec.json.encode({**msgspec.to_builtins(self, enc_hook=str), **more}).decode()


def _place(member: Member) -> tuple[int, int]:
    number = member.name.partition("-")[2]
    return list(Role).index(member.role), int(number or 0)


def has_state(directory: Path) -> bool:
    return (directory / _FILE_NAME).exists()


def read_state(directory: Path) -> ClusterState:
    path = directory / _FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterState)
    except FileNotFoundError as error:
        raise ClusterNotFoundError(f"no cluster in {directory}; start one with up") from error
    except msgspec.DecodeError as error:
        raise UndecodableError(f"{path} cannot be read: {error}; end its processes with kill") from error


def write_state(directory: Path, state: ClusterState) -> None:
    unfinished = directory / f"{_FILE_NAME}.new"
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1))
    unfinished.rename(directory / _FILE_NAME)


def change_state(directory: Path, change: Callable[[ClusterState], ClusterState]) -> None:
    """Read, change and write the state under the lock."""
    with exclusive(directory):
        write_state(directory, change(read_state(directory)))


def remove(directory: Path) -> None:
    """Remove a cluster's directory, the state last, so that a failed attempt can be retried."""
    for content in directory.iterdir():
        if content.is_dir():
            shutil.rmtree(content)
        elif content.name != _FILE_NAME:
            content.unlink()
    (directory / _FILE_NAME).unlink()
    directory.rmdir()


def addresses_of(directory: Path, state: ClusterState) -> ClusterAddresses:
    """Return the addresses of a cluster on this machine."""
    bookies, brokers = ([one for one in state.members if one.role is role] for role in (Role.BOOKIE, Role.BROKER))
    store = next(member for member in state.members if member.role in METADATA_STORES)
    admin_port = store.ports.get("admin")
    return ClusterAddresses(
        web_service_urls=tuple(map(_url, brokers)),
        broker_service_url=broker_service_url(brokers),
        metadata_store_url=metadata_store_url(store),
        bookie_http_urls=tuple(map(_url, bookies)),
        directory=directory,
        version=state.version,
        cluster_name=state.cluster_name,
        members={member.name: member.process.pid for member in state.members if member.process},
        member_urls={member.name: _url(member) for member in state.members},
        zookeeper_admin_url=None if admin_port is None else f"http://{LOOPBACK}:{admin_port}",
    )


def metadata_store_url(store: Member) -> str:
    """Return the metadata store's address in Pulsar's form."""
    scheme = "etcd:http://" if store.role is Role.ETCD else "zk:"
    return f"{scheme}{LOOPBACK}:{store.ports['client']}"


def web_service_url(brokers: Sequence[Member]) -> str:
    """Return brokers' HTTP addresses in Pulsar's form: ``http://host:port,host:port``."""
    return "http://" + ",".join(f"{LOOPBACK}:{broker.ports['http']}" for broker in brokers)


def broker_service_url(brokers: Sequence[Member]) -> str:
    """Return brokers' binary addresses in Pulsar's form: ``pulsar://host:port,host:port``."""
    return "pulsar://" + ",".join(f"{LOOPBACK}:{broker.ports['broker']}" for broker in brokers)


def _url(member: Member) -> str:
    return metadata_store_url(member) if member.role in METADATA_STORES else web_service_url([member])
