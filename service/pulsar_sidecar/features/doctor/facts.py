"""Facts about a cluster, before any conclusion.

Invariant: a failed look-up is recorded as its error, never as an absence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from pulsar_sidecar.model.entry_sizes import STOCK_JUTE_MAX_BUFFER
from pulsar_sidecar.model.errors import SidecarError

T = TypeVar("T")
OrError: TypeAlias = T | SidecarError


@dataclass(frozen=True, slots=True)
class StoreServer:
    """Report of a server on itself; ``version`` is None if it does not report one (``4lw.commands.whitelist``)."""

    version: str | None
    mode: str | None = None
    product: str = "ZooKeeper"


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Metadata store as the sidecar sees it.

    Attributes:
        hosts: connect string.
        servers: servers by ``host:port``.
        missing: paths that every Pulsar cluster has, and this store lacks.
        undeletable: paths below which the sidecar's credential may not delete nodes.
        ahead_seconds: seconds by which this machine's clock is ahead of the store's.
    """

    hosts: str
    servers: Mapping[str, OrError[StoreServer]]
    missing: OrError[Sequence[str]]
    undeletable: OrError[Sequence[str]]
    ahead_seconds: OrError[float]


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """Broker that is registered in the metadata store.

    Attributes:
        version: version; None if the response is not one.
        settings: present configuration.
        ahead_seconds: seconds by which its clock is ahead of the store's, exact to one second; None if unknown.
    """

    name: str
    version: OrError[str | None]
    settings: OrError[Mapping[str, object]]
    ahead_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class BrokersFacts:
    """Brokers as the sidecar sees them.

    Attributes:
        addresses: addresses in the sidecar's settings, with None for each that responds.
        registered: all registered brokers.
        mismatch: difference between their metadata and the sidecar's; None if there is none.
        own_topics: problems with the sidecar's own topics; None if these do not exist yet.
    """

    addresses: Mapping[str, SidecarError | None]
    registered: OrError[Sequence[BrokerFacts]]
    mismatch: OrError[str | None]
    own_topics: OrError[Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class BookieFacts:
    """Registered bookie; ``failure`` is the reason why it did not respond."""

    name: str
    read_only: bool
    failure: SidecarError | None


@dataclass(frozen=True, slots=True)
class Feature:
    """Feature of the sidecar: its state, its purpose, and the setting that enables it."""

    name: str
    on: bool
    purpose: str
    setting: str


@dataclass(frozen=True, slots=True)
class OwnFacts:
    """Settings of the sidecar itself.

    Attributes:
        features: features that can be enabled.
        warnings: settings that expose a credential, and names that are not settings.
        deletes: True if the sidecar deletes ledgers.
        cluster_name: name in the settings; None for the brokers' name.
        jute_max_buffer: limit in the settings, bytes.
    """

    features: Sequence[Feature]
    warnings: Sequence[str]
    deletes: bool
    cluster_name: str | None
    jute_max_buffer: int = STOCK_JUTE_MAX_BUFFER


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts about a cluster and the sidecar."""

    own: OwnFacts
    store: StoreFacts
    brokers: BrokersFacts
    bookies: OrError[Sequence[BookieFacts]]
