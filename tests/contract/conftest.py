"""A ZooKeeper of a module's own, which its tests freeze, kill and starve."""

from collections.abc import Iterator

import pytest

from tests.contract.metadata_store_servers import LoneZooKeeper, chroot, lone_etcd, lone_zookeeper


@pytest.fixture(scope="session")
def etcd_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An etcd of the session, whose content each test removes."""
    with lone_etcd(tmp_path_factory.mktemp("etcd") / "members") as cluster:
        yield cluster.addresses().metadata_store_url


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneZooKeeper]:
    with lone_zookeeper(tmp_path_factory.mktemp("zookeeper") / "members") as server:
        yield server


@pytest.fixture
def url(zookeeper: LoneZooKeeper) -> Iterator[str]:
    with chroot(zookeeper.url) as below:
        yield below
