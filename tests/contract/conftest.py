"""A ZooKeeper of a module's own, which its tests freeze, kill and starve."""

from collections.abc import Iterator

import pytest

from tests.contract.metadata_store_servers import LoneZooKeeper, chroot, lone_zookeeper


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneZooKeeper]:
    with lone_zookeeper(tmp_path_factory.mktemp("zookeeper") / "members") as server:
        yield server


@pytest.fixture
def url(zookeeper: LoneZooKeeper) -> Iterator[str]:
    with chroot(zookeeper.url) as below:
        yield below
