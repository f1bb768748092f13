"""Storages for snapshots of a delayed index in tests: in memory, on fake bookies, and on a cluster's own."""

from collections.abc import Callable
from contextlib import ExitStack
from itertools import count

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.bucket_snapshots import BookieBucketSnapshots
from pulsar_sidecar.adapters.bookkeeper.ledger_writer import LedgerWriter, Replication
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperLedgerIds, ZooKeeperMetadataStore
from pulsar_sidecar.features.delayed_index.tracker.memory_storage import MemorySnapshotStorage
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path

from tests.cluster.running import ClusterUnderTest
from tests.fakes.bookie_servers import FakeBookie
from tests.fakes.metadata import FakeMetadataStore


class MemoryStorage:
    """Without a cluster."""

    def __init__(self) -> None:
        self.storage = MemorySnapshotStorage()


class BookieStorage:
    """The adapter, on a fake or real storage."""

    def __init__(
        self, store: MetadataStore, next_id: Callable[[], LedgerId], bookies: BookieConnections, size: int
    ) -> None:
        self.store = store
        self.entries = BookieEntries(bookies)
        self.writer = LedgerWriter(store, next_id, bookies)
        self.storage = self.with_replication(Replication(size, size, size))

    def with_replication(self, replication: Replication) -> BookieBucketSnapshots:
        return BookieBucketSnapshots(self.store, self.entries, self.writer, lambda: replication)

    def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        node = self.store.read(ledger_path(ledger_id))
        assert node is not None
        return decode_ledger_metadata(node.data)


SnapshotStorage = MemoryStorage | BookieStorage


def fake_bookkeeper(stack: ExitStack) -> BookieStorage:
    """Two bookies that listen on this machine, and the metadata store in memory."""
    store = FakeMetadataStore()
    for bookie in [stack.enter_context(FakeBookie()) for _ in range(2)]:
        store.put(f"/ledgers/available/{bookie.bookie_id}")
    connections = BookieConnections(connect_timeout_seconds=1, read_timeout_seconds=1)
    stack.callback(connections.close)
    ids = count(1)
    return BookieStorage(store, lambda: LedgerId(next(ids)), connections, 2)


def real_bookkeeper(cluster: ClusterUnderTest, stack: ExitStack) -> BookieStorage:
    """All bookies of a cluster hold each bucket."""
    store = stack.enter_context(ZooKeeperMetadataStore(cluster.addresses.metadata_store_url, SystemClock()))
    connections = BookieConnections(store)
    stack.callback(connections.close)
    bookies = sum(name.startswith("bookie-") for name in cluster.addresses.members)
    return BookieStorage(store, ZooKeeperLedgerIds(store).next, connections, min(2, bookies))
