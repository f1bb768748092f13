"""What a local cluster is asked to be: how many members of which version, with which configuration.

Invariant: a specification names no port and no process; those are found while starting and live in the state file.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from pulsar_sidecar.model.errors import InvalidInputError

DEFAULT_VERSION = "4.0.8"


class Role(Enum):
    """What a member runs."""

    ZOOKEEPER = "zookeeper"
    BOOKIE = "bookie"
    BROKER = "broker"


class Lifetime(Enum):
    """How long the members live."""

    DETACHED = "detached"
    """Until ``down``; closing the terminal or ending the starting process changes nothing."""

    STARTING_PROCESS = "starting-process"
    """Until ``down`` or until the process that started them ends, however it ends."""


def cache_directory() -> Path:
    """Where distributions (and the default cluster) are kept, shared between runs.

    ``PULSAR_SIDECAR_CACHE``, else ``pulsar-sidecar`` below ``XDG_CACHE_HOME`` or ``~/.cache``.
    """
    chosen = os.environ.get("PULSAR_SIDECAR_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "pulsar-sidecar"


def default_cluster_directory() -> Path:
    """The directory of the cluster that commands mean when they are given none."""
    return cache_directory() / "clusters" / "default"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster to start.

    Attributes:
        directory: where the members keep configuration, data and logs; removed by ``down``.
        brokers: number of brokers, 0 or more.
        bookies: number of bookies, 1 or more; quorums are ``min(2, bookies)``.
        version: Pulsar's version; 3.3.6, 4.0.6 and 4.0.8 are known to work.
        cluster_name: Pulsar's name for the cluster.
        broker_conf: settings of ``broker.conf`` for every broker, over ours.
        bookie_conf: settings of ``bookkeeper.conf`` for every bookie, over ours.
        zookeeper_conf: settings of ``zookeeper.conf``, over ours.
        member_conf: settings of one member by its name (``broker-2``), over all of the above.
        java_options: added at the end of every member's JVM options, so they win.
        offloaders: whether to fetch Pulsar's tiered-storage offloaders and point the brokers at them.
        lifetime: whether members outlive the process that starts them.
        start_timeout_seconds: how long the members of one step may take to become ready.
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
    offloaders: bool = False
    lifetime: Lifetime = Lifetime.DETACHED
    start_timeout_seconds: float = 120.0

    def __post_init__(self) -> None:
        if self.bookies < 1 or self.brokers < 0:
            raise InvalidInputError("a cluster needs at least 1 bookie and 0 or more brokers")
        unknown = set(self.member_conf) - set(self.member_names())
        if unknown:
            names = ", ".join(self.member_names())
            raise InvalidInputError(f"no member is called {sorted(unknown)[0]!r}; the members are {names}")

    def member_names(self) -> tuple[str, ...]:
        """Every member's name, in the order in which they are started."""
        bookies = (f"bookie-{number}" for number in range(1, self.bookies + 1))
        brokers = (f"broker-{number}" for number in range(1, self.brokers + 1))
        return ("zookeeper", *bookies, *brokers)


def role_of(member_name: str) -> Role:
    """The role that a member's name stands for: ``broker-2`` is a broker."""
    return Role(member_name.partition("-")[0])


def parse_settings(texts: list[str]) -> dict[str, str]:
    """Read ``key=value`` texts; the value may be empty or contain ``=``; a later text wins.

    Raises:
        InvalidInputError: a text has no ``=`` or no key.
    """
    settings: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidInputError(f"expected key=value, got {text!r}")
        settings[key.strip()] = value
    return settings
