"""What builds delayed indexes on a cluster, put together as the service does."""

from contextlib import ExitStack

from pulsar_sidecar.adapters.bookkeeper.bucket_snapshots import BookieBucketEntries
from pulsar_sidecar.adapters.bookkeeper.stored_cursors import BookieStoredCursors
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.broker_trackers import RestBrokerTrackers
from pulsar_sidecar.adapters.pulsar.rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.adapters.pulsar.wire.delayed_entries import BookieDelayTimes
from pulsar_sidecar.delayed_delivery.index.maintenance.attach import BucketPointers
from pulsar_sidecar.delayed_delivery.index.maintenance.build import IndexBuilder
from pulsar_sidecar.delayed_delivery.index.stored import StoredIndexes
from pulsar_sidecar.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT
from pulsar_sidecar.model.clocks import SystemClock

from tests.cluster.running import ClusterUnderTest
from tests.contract.snapshot_storages import real_bookkeeper


class IndexBuilding:
    """Reads, writes and builds buckets; ``stack`` closes what it opens."""

    def __init__(self, cluster: ClusterUnderTest, stack: ExitStack) -> None:
        self.bookkeeper = real_bookkeeper(cluster, stack)
        store, held = self.bookkeeper.store, self.bookkeeper.entries
        rest = AdminRest(cluster.addresses.web_service_urls, store=store)
        self.trackers = trackers = RestBrokerTrackers(rest, store)
        entries = BookieBucketEntries(held)
        stack.callback(entries.close)
        cursors = BookieStoredCursors(store, held, DEFAULT_LEDGERS_ROOT)
        self.stored = StoredIndexes(store, entries, cursors, DEFAULT_LEDGERS_ROOT)
        self.storage = self.bookkeeper.with_replication(trackers.replication())
        self.builder = IndexBuilder(
            self.stored,
            BookieDelayTimes(held),
            trackers,
            self.storage,
            BucketPointers(store, BrokerLiveOwners(rest, store), SystemClock(), DEFAULT_LEDGERS_ROOT),
        )
