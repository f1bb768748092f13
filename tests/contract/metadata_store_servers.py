"""The metadata stores that the behaviour suite runs on, and a ZooKeeper server that a test may break."""

import logging
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NotEmptyError
from pulsar_sidecar.adapters.etcd.etcd import EtcdMetadataStore
from pulsar_sidecar.adapters.etcd.gateway import EtcdGateway, encoded
from pulsar_sidecar.adapters.metadata_access import SessionOptions
from pulsar_sidecar.adapters.metadata_stores import open_store
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.adapters.zookeeper.zookeeper_changes import ZooKeeperChanges, ZooKeeperTopicChanges
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec, MissingPrerequisiteError, Role
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import TemporaryError

from tests.cluster.freezing import wait_until_frozen
from tests.cluster.patience import until
from tests.fakes.metadata import FakeMetadataStore

CLOCK = SystemClock()
PATIENT = SessionOptions(call_timeout_seconds=60)
AnyStore = FakeMetadataStore | ZooKeeperMetadataStore | EtcdMetadataStore


@dataclass(frozen=True, slots=True)
class TwoSessions:
    """A store, empty but for its root, as two clients see it."""

    store: AnyStore
    rival: AnyStore


@contextmanager
def sessions_of(url: str | None) -> Iterator[TwoSessions]:
    """Two clients of an empty store; None for the one in memory."""
    if url is None:
        fake = FakeMetadataStore()
        yield TwoSessions(fake, fake.other_session())
        return
    with open_store(url, CLOCK, PATIENT) as store, open_store(url, CLOCK, PATIENT) as rival:
        yield TwoSessions(store, rival)


@contextmanager
def empty_store(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The URL of an empty store of the kind that is the fixture's parameter; None for the one in memory."""
    if request.param == "zookeeper":
        with chroot(request.getfixturevalue("cluster").addresses.metadata_store_url) as url:
            yield url
    elif request.param == "etcd":
        url = request.getfixturevalue("etcd_url")
        empty_etcd(url)
        yield url
    else:
        yield None


def empty_etcd(url: str) -> None:
    """Remove an earlier test's keys, since etcd has no chroot."""
    gateway = EtcdGateway(url, CLOCK, PATIENT)
    gateway.reading("remove everything", "kv/deleterange", {"key": encoded("\0"), "range_end": encoded("\0")})
    gateway.close()


def open_patiently(url: str) -> ZooKeeperMetadataStore:
    """A busy machine is no fault; faults have a suite of their own."""
    return ZooKeeperMetadataStore(url, CLOCK, PATIENT)


@contextmanager
def chroot(url: str) -> Iterator[str]:
    """A URL whose root is a new node, removed afterwards with all below it."""
    name = f"/contract-{secrets.token_hex(6)}"
    with raw_client(url) as client:
        client.create_async(name).get()
        try:
            yield url + name
        finally:
            _remove(client, name)


def _remove(client: KazooClient, path: str) -> None:
    # kazoo's own recursive deletion takes a round trip per node, one after the other.
    names = client.get_children_async(path, include_data=True).get()[0]
    leaves = [client.delete_async(f"{path}/{name}") for name in names]
    for name, leaf in zip(names, leaves, strict=True):
        try:
            leaf.get()
        except NotEmptyError:
            _remove(client, f"{path}/{name}")
    client.delete_async(path).get()


@contextmanager
def raw_client(url: str) -> Iterator[KazooClient]:
    """kazoo itself, for changes by other clients than the driver."""
    client = KazooClient(parse_metadata_store_url(url).hosts)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


@dataclass(frozen=True, slots=True)
class LoneZooKeeper:
    """A ZooKeeper server of one's own, without a cluster around it."""

    url: str
    cluster: LocalCluster

    def kill(self) -> None:
        self.cluster.kill("zookeeper")

    def freeze(self) -> None:
        self.cluster.kill("zookeeper", signal.SIGSTOP)
        wait_until_frozen(self.cluster.addresses().members["zookeeper"])

    def thaw(self) -> None:
        self.cluster.kill("zookeeper", signal.SIGCONT)

    def restart(self) -> None:
        self.cluster.restart("zookeeper")


@contextmanager
def lone_etcd(directory: Path) -> Iterator[LocalCluster]:
    """Start an etcd that ends with this process at the latest."""
    try:
        started = LocalCluster.up(
            ClusterSpec(directory, brokers=0, bookies=0, metadata_store=Role.ETCD, ends_with_starter=True)
        )
    except MissingPrerequisiteError as error:
        pytest.skip(f"no etcd: {error}")
    with started as cluster:
        yield cluster


@contextmanager
def lone_zookeeper(directory: Path) -> Iterator[LoneZooKeeper]:
    """Start a server that ends with this process at the latest."""
    try:
        started = LocalCluster.up(ClusterSpec(directory, brokers=0, bookies=0, ends_with_starter=True))
    except MissingPrerequisiteError as error:
        pytest.skip(f"no ZooKeeper to break: {error}")
    with started as cluster:
        yield LoneZooKeeper(cluster.addresses().metadata_store_url, cluster)


def expire(client: KazooClient, url: str) -> None:
    """End a client's session behind its back, as the server does when the timeout is over."""
    double = KazooClient(parse_metadata_store_url(url).hosts, client_id=client.client_id)
    double.start()
    double.stop()
    double.close()


class Poison:
    """A request that ends kazoo's connection thread without a way back."""

    type: ClassVar[int] = 4

    def serialize(self) -> bytes:
        raise RuntimeError("what kazoo does not expect")


@contextmanager
def without_kazoo_log() -> Iterator[None]:
    """Silence kazoo, for a test that lets its thread die: it would log the trace."""
    logger = logging.getLogger("pulsar_sidecar.adapters.zookeeper.session.kazoo")
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False


def arm_in_time(changes: ZooKeeperChanges | ZooKeeperTopicChanges) -> None:
    """Deliver changes again, as soon as the server allows it."""

    def armed() -> bool:
        try:
            changes.arm()
        except TemporaryError:
            return False
        return True

    until(armed, "changes are heard again")
