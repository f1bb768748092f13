"""Drivers of the metadata store, chosen by Pulsar's ``metadataStoreUrl``."""

from dataclasses import dataclass
from typing import TypeAlias

from pulsar_sidecar.adapters.etcd.etcd import EtcdLedgerIds, EtcdMetadataStore
from pulsar_sidecar.adapters.etcd.etcd_changes import EtcdChanges
from pulsar_sidecar.adapters.etcd.etcd_walk import EtcdWholeStore
from pulsar_sidecar.adapters.etcd.gateway import endpoints_of
from pulsar_sidecar.adapters.heard_changes import store_scope, topic_scope
from pulsar_sidecar.adapters.latency_probe import EtcdProbe, LatencyProbe, ZooKeeperProbe
from pulsar_sidecar.adapters.metadata_access import DEFAULT_OPTIONS, UNLIMITED, SessionOptions, WalkOptions
from pulsar_sidecar.adapters.sequential_ledger_ids import SequentialLedgerIds
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.adapters.zookeeper.whole_store import ZooKeeperWholeStore
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperLedgerIds, ZooKeeperMetadataStore
from pulsar_sidecar.adapters.zookeeper.zookeeper_changes import ZooKeeperChanges, ZooKeeperTopicChanges
from pulsar_sidecar.features.ledger_deletion.second_phase.limits import AdaptiveLimit
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.metadata import DeletionLimit
from pulsar_sidecar.model.metadata_stores import ETCD, is_etcd

ClusterStore: TypeAlias = ZooKeeperMetadataStore | EtcdMetadataStore
ClusterWholeStore: TypeAlias = ZooKeeperWholeStore | EtcdWholeStore


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A checked ``metadataStoreUrl``.

    Attributes:
        text: the URL in Pulsar's form.
        product: the store's display name.
        servers: servers by ``host:port``.
        chroot: path below which the cluster keeps its nodes; "" for the root.
    """

    text: str
    product: str
    servers: tuple[str, ...]
    chroot: str = ""


def store_address(url: str) -> StoreAddress:
    """Return the parts of a URL; raise `InvalidInputError` if it is malformed or names a store without a driver."""
    if is_etcd(url):
        endpoints = endpoints_of(url)
        servers = tuple(endpoint.partition("://")[2] for endpoint in endpoints)
        return StoreAddress(ETCD + ",".join(endpoints), "etcd", servers)
    parsed = parse_metadata_store_url(url)
    return StoreAddress(f"zk:{parsed.hosts}", "ZooKeeper", parsed.servers, parsed.chroot)


def open_store(
    url: str, clock: Clock, options: SessionOptions = DEFAULT_OPTIONS, *, limit: DeletionLimit | None = None
) -> ClusterStore:
    """Return the store's driver, which connects on its own; raise as `store_address`."""
    return (EtcdMetadataStore if is_etcd(url) else ZooKeeperMetadataStore)(url, clock, options, limit=limit)


def open_whole_store(url: str, clock: Clock, ledgers_root: str, options: WalkOptions = UNLIMITED) -> ClusterWholeStore:
    return (EtcdWholeStore if is_etcd(url) else ZooKeeperWholeStore)(url, clock, ledgers_root, options)


def open_changes(url: str, clock: Clock, ledgers_root: str, options: SessionOptions) -> ZooKeeperChanges | EtcdChanges:
    if is_etcd(url):
        return EtcdChanges(url, clock, store_scope(ledgers_root), options)
    return ZooKeeperChanges(url, clock, ledgers_root, options=options)


def open_topic_changes(url: str, clock: Clock, options: SessionOptions) -> ZooKeeperTopicChanges | EtcdChanges:
    if is_etcd(url):
        return EtcdChanges(url, clock, topic_scope(), options)
    return ZooKeeperTopicChanges(url, clock, options=options)


def ledger_ids_of(store: ClusterStore, ledgers_root: str) -> SequentialLedgerIds:
    if isinstance(store, EtcdMetadataStore):
        return EtcdLedgerIds(store, ledgers_root)
    return ZooKeeperLedgerIds(store, ledgers_root)


def latency_probe(
    url: str, clock: Clock, options: SessionOptions, listener: AdaptiveLimit, after_seconds: float = 0.0
) -> LatencyProbe:
    """Return a probe of the store, not started yet."""
    servers = endpoints_of(url) if is_etcd(url) else store_address(url).servers
    connection = EtcdProbe if is_etcd(url) else ZooKeeperProbe
    return LatencyProbe(servers, lambda server: connection(server, options, clock), clock, listener, after_seconds)
