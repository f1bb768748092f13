"""Specification of a local cluster: number of members, version and configuration; errors of local clusters.

Invariants: a specification names no port and no process; the start chooses these and records them in the state file.
Every error's text names the next step, because its reader is a person at a terminal.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, NotFoundError, PermanentError

DEFAULT_VERSION = "4.0.8"


class Role(Enum):
    """The program of a member."""

    ZOOKEEPER = "zookeeper"
    ETCD = "etcd"
    BOOKIE = "bookie"
    BROKER = "broker"


METADATA_STORES = (Role.ZOOKEEPER, Role.ETCD)


class MissingPrerequisiteError(PermanentError):
    """Raised when a JDK, Maven or etcd is not installed on this machine."""


class DistributionError(PermanentError):
    """Raised when the Pulsar distribution could not be fetched or unpacked."""


class MemberFailedError(PermanentError):
    """Raised when a member did not become ready; the message ends with the last lines of its log."""


class ClusterExistsError(ConflictError):
    """Raised when the directory already holds a cluster, or foreign files."""


class ClusterNotFoundError(NotFoundError):
    """Raised when the directory holds no cluster, or the cluster has no member of that name."""


def cache_directory() -> Path:
    """Return the directory of distributions and of the default cluster, shared between runs.

    ``PULSAR_SIDECAR_CACHE``, else ``pulsar-sidecar`` below ``XDG_CACHE_HOME`` or ``~/.cache``.
    """
    chosen = os.environ.get("PULSAR_SIDECAR_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "pulsar-sidecar"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster to start.

    Attributes:
        directory: directory of the members' configuration, data and logs; removed by ``down``.
        bookies: number of bookies, 0 only without brokers; quorums are ``min(2, bookies)``.
        version: Pulsar's version; `TESTED_VERSIONS` are known to work.
        broker_conf: settings of ``broker.conf`` for every broker, on top of the defaults; the next two likewise.
        member_conf: settings of one member by its name (``broker-2``), on top of all above.
        java_options: JVM options of every member, added at the end so that they win.
        metadata_store: one of `METADATA_STORES`, whose single member has that name.
        offloaders: True to fetch Pulsar's tiered-storage offloaders and point the brokers at them.
        ends_with_starter: True to end the members with the process that starts them, however it ends; otherwise they
            live until ``down``, independently of that process and its terminal.
    """

    directory: Path
    brokers: int = 2
    bookies: int = 2
    version: str = DEFAULT_VERSION
    cluster_name: str = "local"
    broker_conf: Mapping[str, str] = field(default_factory=dict)
    bookie_conf: Mapping[str, str] = field(default_factory=dict)
    zookeeper_conf: Mapping[str, str] = field(default_factory=dict)
    member_conf: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    java_options: tuple[str, ...] = ()
    metadata_store: Role = Role.ZOOKEEPER
    offloaders: bool = False
    ends_with_starter: bool = False

    def __post_init__(self) -> None:
        if self.bookies < 0 or self.brokers < 0 or (self.brokers and not self.bookies):
            raise InvalidInputError(
                "a cluster must have 0 or more bookies and brokers, and brokers need at least 1 bookie"
            )
        unknown = set(self.member_conf) - set(self.member_names())
        if unknown:
            names = ", ".join(self.member_names())
            raise InvalidInputError(f"no member is called {sorted(unknown)[0]!r}; the members are {names}")

    def member_names(self) -> tuple[str, ...]:
        """Return all members' names in starting order."""
        bookies = (f"bookie-{number}" for number in range(1, self.bookies + 1))
        brokers = (f"broker-{number}" for number in range(1, self.brokers + 1))
        return (self.metadata_store.value, *bookies, *brokers)


def role_of(member_name: str) -> Role:
    """Return the role in a member's name: ``broker-2`` is a broker."""
    return Role(member_name.partition("-")[0])


def parse_settings(texts: list[str]) -> dict[str, str]:
    """Parse ``key=value`` strings; a value may be empty or contain ``=``; a later one wins."""
    settings: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidInputError(f"expected key=value, got {text!r}")
        settings[key.strip()] = value
    return settings
