"""What was found of a cluster, before anything is concluded.

Invariant: a look that failed stands as its error; it is never an absence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from pulsar_sidecar.model.entry_sizes import STOCK_JUTE_MAX_BUFFER
from pulsar_sidecar.model.errors import SidecarError

T = TypeVar("T")
OrError: TypeAlias = T | SidecarError


@dataclass(frozen=True, slots=True)
class ZooKeeperServer:
    """What a server reports of itself; ``version`` None where it does not report it (``4lw.commands.whitelist``)."""

    version: str | None
    mode: str | None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The metadata store.

    Attributes:
        hosts: its connect string.
        servers: each server of it, by ``host:port``.
        missing: paths of every Pulsar cluster that do not exist here.
        undeletable: paths below which the sidecar's credential may not delete nodes.
        ahead_seconds: how far this machine's clock is ahead of the store's.
    """

    hosts: str
    servers: Mapping[str, OrError[ZooKeeperServer]]
    missing: OrError[Sequence[str]]
    undeletable: OrError[Sequence[str]]
    ahead_seconds: OrError[float]


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A broker that is registered in the metadata store.

    Attributes:
        version: None where the answer is not a version.
        settings: its configuration as it holds now.
        ahead_seconds: how far its clock is ahead of the metadata store's, a second off at most; None if not known.
    """

    name: str
    version: OrError[str | None]
    settings: OrError[Mapping[str, object]]
    ahead_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class BrokersFacts:
    """The brokers.

    Attributes:
        addresses: the addresses of the sidecar's settings, with None for each that answers.
        registered: all of them.
        mismatch: how their metadata differs from the sidecar's; None where it is the same.
        own_topics: what of the sidecar's own topics hinders it; None while they do not exist.
    """

    addresses: Mapping[str, SidecarError | None]
    registered: OrError[Sequence[BrokerFacts]]
    mismatch: OrError[str | None]
    own_topics: OrError[Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class BookieFacts:
    """A registered bookie; ``failure`` is why it did not answer."""

    name: str
    read_only: bool
    failure: SidecarError | None


@dataclass(frozen=True, slots=True)
class BookiesFacts:
    """The bookies, and the addresses of ``bookieHttpUrls`` with None for each that answers."""

    registered: OrError[Sequence[BookieFacts]]
    http: Mapping[str, SidecarError | None]


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the sidecar: whether it is on, what it does, and the setting that switches it on."""

    name: str
    on: bool
    purpose: str
    setting: str


@dataclass(frozen=True, slots=True)
class OwnFacts:
    """The sidecar's own settings.

    Attributes:
        features: those that can be switched on.
        warnings: what works, and lets others read a credential, or is not a setting.
        deletes: whether it deletes ledgers.
        cluster_name: the setting; None to take the brokers'.
        jute_max_buffer: the setting.
    """

    features: Sequence[Feature]
    warnings: Sequence[str]
    deletes: bool
    cluster_name: str | None
    jute_max_buffer: int = STOCK_JUTE_MAX_BUFFER


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything."""

    own: OwnFacts
    store: StoreFacts
    brokers: BrokersFacts
    bookies: BookiesFacts
