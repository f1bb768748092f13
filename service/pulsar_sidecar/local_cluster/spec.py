"""What a local cluster is asked to be: how many members of which version, with which configuration; what can go wrong.

Invariants: a specification names no port and no process; those are found while starting and live in the state file.
The text of every error names the next step, because the reader is a person at a terminal.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, NotFoundError, PermanentError

DEFAULT_VERSION = "4.0.8"


class Role(Enum):
    """What a member runs."""

    ZOOKEEPER = "zookeeper"
    BOOKIE = "bookie"
    BROKER = "broker"


class MissingPrerequisiteError(PermanentError):
    """Something that has to be installed on this machine is not (a JDK, Maven)."""


class DistributionError(PermanentError):
    """The Pulsar distribution could not be fetched or unpacked."""


class MemberFailedError(PermanentError):
    """A member did not become ready; the text ends with the last lines of its log."""


class ClusterExistsError(ConflictError):
    """The directory already holds a cluster, or files that are not ours."""


class ClusterNotFoundError(NotFoundError):
    """The directory holds no cluster, or the cluster has no member of that name."""


def cache_directory() -> Path:
    """Where distributions (and the default cluster) are kept, shared between runs.

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
        directory: where the members keep configuration, data and logs; removed by ``down``.
        bookies: 0 only without brokers; quorums are ``min(2, bookies)``.
        version: Pulsar's version; `TRIED_VERSIONS` are known to work.
        broker_conf: settings of ``broker.conf`` for every broker, over ours; the next two likewise.
        member_conf: settings of one member by its name (``broker-2``), over all of the above.
        java_options: added at the end of every member's JVM options, so they win.
        offloaders: fetch Pulsar's tiered-storage offloaders and point the brokers at them.
        ends_with_starter: end the members when the process that starts them ends, however it ends; otherwise they
            live until ``down``, whatever becomes of that process and its terminal.
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
    ends_with_starter: bool = False

    def __post_init__(self) -> None:
        if self.bookies < 0 or self.brokers < 0 or (self.brokers and not self.bookies):
            raise InvalidInputError("a cluster has 0 or more bookies and brokers, and brokers need at least 1 bookie")
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
    """Read ``key=value`` texts; the value may be empty or contain ``=``; a later text wins."""
    settings: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidInputError(f"expected key=value, got {text!r}")
        settings[key.strip()] = value
    return settings
