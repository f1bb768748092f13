"""New ledger ids from real metadata stores, below roots of their own: no broker's ids change."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pulsar_sidecar.adapters.etcd.etcd import EtcdLedgerIds, EtcdMetadataStore
from pulsar_sidecar.adapters.metadata_access import DEFAULT_OPTIONS
from pulsar_sidecar.adapters.sequential_ledger_ids import SequentialLedgerIds
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperLedgerIds, ZooKeeperMetadataStore
from pulsar_sidecar.model.clocks import SystemClock

from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique

AnyStore = ZooKeeperMetadataStore | EtcdMetadataStore


@pytest.fixture(scope="module", params=["zookeeper", "etcd"])
def store(request: pytest.FixtureRequest) -> Iterator[AnyStore]:
    if request.param == "etcd":
        with EtcdMetadataStore(request.getfixturevalue("etcd_url"), SystemClock(), DEFAULT_OPTIONS) as etcd:
            yield etcd
        return
    cluster: ClusterUnderTest = request.getfixturevalue("cluster")
    with ZooKeeperMetadataStore(cluster.addresses.metadata_store_url, SystemClock()) as opened:
        yield opened


def ids_of(store: AnyStore, root: str) -> SequentialLedgerIds:
    return EtcdLedgerIds(store, root) if isinstance(store, EtcdMetadataStore) else ZooKeeperLedgerIds(store, root)


@pytest.fixture
def root() -> str:
    return f"/test-ledgers-{unique()}"


def test_short_ids_ascend_and_leave_nothing(store: AnyStore, root: str) -> None:
    ids = ids_of(store, root)
    assert [ids.next() for _ in range(3)] == [0, 1, 2]
    assert not store.children(f"{root}/idgen")
    assert store.read(f"{root}/idgen-long") is None


def test_long_ids_where_others_have_begun_with_them(store: AnyStore, root: str) -> None:
    store.create(f"{root}/idgen-long", b"")
    ids = ids_of(store, root)
    first = ids.next()
    # On etcd the number 0 goes to the caller that makes the folder.
    assert first - (1 << 32) in (0, 1)
    assert ids.next() == first + 1
    assert not store.children(f"{root}/idgen-long/HOB-0000000001")


def test_no_two_callers_get_the_same(store: AnyStore, root: str) -> None:
    ids = ids_of(store, root)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: ids.next(), range(100)))
    assert len(set(found)) == 100
