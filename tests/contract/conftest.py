"""Servers of a session or a module: metadata stores, which tests freeze, kill and starve, and object stores."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.metadata_store_servers import LoneZooKeeper, chroot, empty_store, lone_etcd, lone_zookeeper
from tests.contract.offload_storages import (
    AzureStorage,
    GcsStorage,
    S3Storage,
    azure_server,
    gcs_server,
    s3_server,
)


@pytest.fixture(scope="session")
def etcd_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An etcd of the session, whose content each test removes."""
    with lone_etcd(tmp_path_factory.mktemp("etcd") / "members") as cluster:
        yield cluster.addresses().metadata_store_url


@pytest.fixture(params=["fake", "zookeeper", "etcd"])
def store_url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """An empty store of each kind; None for the one in memory."""
    with empty_store(request) as url:
        yield url


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneZooKeeper]:
    with lone_zookeeper(tmp_path_factory.mktemp("zookeeper") / "members") as server:
        yield server


@pytest.fixture
def url(zookeeper: LoneZooKeeper) -> Iterator[str]:
    with chroot(zookeeper.url) as below:
        yield below


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_bucket(s3_endpoint: str) -> S3Storage:
    return S3Storage(s3_endpoint)


@pytest.fixture(scope="session")
def gcs_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gcs_server(tmp_path_factory.mktemp("gcs")) as endpoint:
        yield endpoint


@pytest.fixture
def gcs_bucket(gcs_endpoint: str, tmp_path: Path) -> GcsStorage:
    return GcsStorage(gcs_endpoint, tmp_path / "key.json")


@pytest.fixture(scope="session")
def azure_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with azure_server(tmp_path_factory.mktemp("azure")) as endpoint:
        yield endpoint


@pytest.fixture
def azure_bucket(azure_endpoint: str) -> AzureStorage:
    return AzureStorage(azure_endpoint)
