"""New ledger ids from a real ZooKeeper, below roots of their own: no broker's ids change."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pulsar_sidecar.adapters.metadata.ledger_ids import ZooKeeperLedgerIds
from pulsar_sidecar.adapters.metadata.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.model.clocks import SystemClock

from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique


@pytest.fixture(scope="module")
def store(cluster: ClusterUnderTest) -> Iterator[ZooKeeperMetadataStore]:
    with ZooKeeperMetadataStore(cluster.addresses.metadata_store_url, SystemClock()) as opened:
        yield opened


@pytest.fixture
def root() -> str:
    return f"/test-ledgers-{unique()}"


def test_short_ids_ascend_and_leave_nothing(store: ZooKeeperMetadataStore, root: str) -> None:
    ids = ZooKeeperLedgerIds(store, root)
    assert [ids.next() for _ in range(3)] == [0, 1, 2]
    assert store.children(f"{root}/idgen") == []
    assert store.read(f"{root}/idgen-long") is None


def test_long_ids_where_others_have_begun_with_them(store: ZooKeeperMetadataStore, root: str) -> None:
    store.create(f"{root}/idgen-long", b"")
    ids = ZooKeeperLedgerIds(store, root)
    assert [ids.next() for _ in range(2)] == [1 << 32, 1 << 32 | 1]
    assert store.children(f"{root}/idgen-long/HOB-0000000001") == []


def test_no_two_callers_get_the_same(store: ZooKeeperMetadataStore, root: str) -> None:
    ids = ZooKeeperLedgerIds(store, root)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: ids.next(), range(100)))
    assert len(set(found)) == 100
