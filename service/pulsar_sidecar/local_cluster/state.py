"""The file in a cluster's directory that says what runs there, so that any later process can look after it.

Invariant: the file is replaced in one step and under a lock, and a member stands in it from the moment its process
exists, so whatever was started can be found and ended.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from pulsar_sidecar.local_cluster.failures import ClusterNotFoundError
from pulsar_sidecar.local_cluster.processes import ProcessIdentity, exclusive
from pulsar_sidecar.local_cluster.spec import Role
from pulsar_sidecar.model.errors import UndecodableError

_FILE_NAME = "cluster.json"


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the cluster.

    Attributes:
        name: ``zookeeper``, ``bookie-1``, ``broker-2``.
        role: what it runs.
        ports: by purpose: ``client``, ``bookie``, ``http``, ``broker``.
        argv: the command that starts it, the same every time.
        process: the process that was started last; it may have ended.
    """

    name: str
    role: Role
    ports: Mapping[str, int]
    argv: tuple[str, ...]
    process: ProcessIdentity | None = None


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What was started in a directory.

    Attributes:
        directory: the cluster's directory.
        version: Pulsar's version.
        cluster_name: Pulsar's name for the cluster.
        members: ZooKeeper, then bookies, then brokers, by number.
        metadata_setup: the process that sets up the cluster's metadata; it ends by itself.
    """

    directory: Path
    version: str
    cluster_name: str
    members: tuple[Member, ...] = ()
    metadata_setup: ProcessIdentity | None = None

    def processes(self) -> list[ProcessIdentity]:
        """Everything that was started last under each name; some may have ended."""
        started = [member.process for member in self.members]
        return [process for process in (*started, self.metadata_setup) if process is not None]

    def member(self, name: str) -> Member:
        """The member of that name.

        Raises:
            ClusterNotFoundError: there is none.
        """
        for member in self.members:
            if member.name == name:
                return member
        names = ", ".join(member.name for member in self.members)
        raise ClusterNotFoundError(f"no member is called {name!r}; the members are {names}")

    def with_member(self, changed: Member) -> "ClusterState":
        """The same state with one member added, or replaced if it was there."""
        others = [member for member in self.members if member.name != changed.name]
        return replace(self, members=tuple(sorted([*others, changed], key=_place)))


class _StateFile(msgspec.Struct, rename="camel"):
    format: Literal[1]
    version: str
    cluster_name: str
    members: tuple[Member, ...]
    metadata_setup: ProcessIdentity | None


def _place(member: Member) -> tuple[int, int]:
    number = member.name.partition("-")[2]
    return list(Role).index(member.role), int(number or 0)


def has_state(directory: Path) -> bool:
    """Whether a cluster was started in the directory and not taken down since."""
    return (directory / _FILE_NAME).exists()


def read_state(directory: Path) -> ClusterState:
    """Read what runs in a directory.

    Raises:
        ClusterNotFoundError: no cluster was started there.
        UndecodableError: the file is not one of ours.
    """
    path = directory / _FILE_NAME
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_StateFile)
    except FileNotFoundError as error:
        raise ClusterNotFoundError(f"no cluster in {directory}; start one with up") from error
    except msgspec.DecodeError as error:
        raise UndecodableError(f"{path} cannot be read: {error}; end its processes by hand") from error
    return ClusterState(directory, file.version, file.cluster_name, file.members, file.metadata_setup)


def write_state(state: ClusterState) -> None:
    """Replace the file in one step."""
    path = state.directory / _FILE_NAME
    unfinished = path.with_suffix(".new")
    file = _StateFile(1, state.version, state.cluster_name, state.members, state.metadata_setup)
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=1))
    unfinished.rename(path)


def change_state(directory: Path, change: Callable[[ClusterState], ClusterState]) -> ClusterState:
    """Read, change and write the state while nobody else does."""
    with exclusive(directory):
        state = change(read_state(directory))
        write_state(state)
    return state


def remove(directory: Path) -> None:
    """Remove a cluster's directory, the state last, so that an attempt that fails half-way can be repeated."""
    for content in directory.iterdir():
        if content.is_dir():
            shutil.rmtree(content)
        elif content.name != _FILE_NAME:
            content.unlink()
    (directory / _FILE_NAME).unlink()
    directory.rmdir()
