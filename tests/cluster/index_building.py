"""Builder of delayed indexes on a cluster, assembled like in the service."""

from contextlib import ExitStack

from pulsar_sidecar.adapters.bookkeeper.bucket_snapshots import BookieBucketEntries
from pulsar_sidecar.adapters.bookkeeper.stored_cursors import BookieStoredCursors
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.broker_trackers import RestBrokerTrackers
from pulsar_sidecar.adapters.pulsar_rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.adapters.pulsar_wire.delayed_entries import BookieDelayTimes
from pulsar_sidecar.features.delayed_index.maintenance.attach import BucketPointers
from pulsar_sidecar.features.delayed_index.maintenance.build import IndexBuilder
from pulsar_sidecar.features.delayed_index.stored import StoredIndexes
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT

from tests.cluster.running import ClusterUnderTest
from tests.contract.snapshot_storages import real_bookkeeper


class IndexBuilding:
    """Reader, writer and builder of buckets; ``stack`` closes their adapters."""

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
