"""Pins, from the metadata store, from bookies, and from brokers about their loaded topics."""

from pulsar_sidecar.adapters.bookkeeper.bookie_disks import RegisteredBookies
from pulsar_sidecar.adapters.pulsar_rest.trim_policies import BrokerTrimPolicies
from pulsar_sidecar.adapters.pulsar_wire.delayed_entries import BulkDelayedEntries, StoredDueTimes
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.feature import Feature, FeatureEntry
from pulsar_sidecar.features.pins.bookies import BookiesReader
from pulsar_sidecar.features.pins.gathering import Sources
from pulsar_sidecar.features.pins.http import bookies_router, router, sweep_router
from pulsar_sidecar.features.pins.reading import PinsReader
from pulsar_sidecar.features.pins.sweep import RetentionSweep
from pulsar_sidecar.ownership.compaction import CompactedLedgers

_BOOKIES_AT_ONCE = 8


def open_feature(cluster: ClusterAccess) -> Feature:
    """Open the feature, which has no loops and no metrics, and reads on request."""
    store, root = cluster.store, cluster.settings.ledgers_root_path
    entries = BulkDelayedEntries(store, cluster.entries, None, root, cluster.clock)
    policies = BrokerTrimPolicies(cluster.rest, store)
    sources = Sources(
        store=store,
        cursors=cluster.cursors,
        lengths=cluster.lengths,
        compacted=CompactedLedgers(store, cluster.entries, root),
        views=cluster.owners,
        policies=policies,
        dues=StoredDueTimes(entries, cluster.stored_indexes),
        clock=cluster.clock,
        ledgers_root=root,
    )
    threads = cluster.threads(_BOOKIES_AT_ONCE, "bookies")
    bookies = cluster.closing(RegisteredBookies(store, cluster.bookies, threads, root))
    every = BookiesReader(lambda: cluster.whole_store().ledgers(), bookies, cluster.clock)
    sweep = RetentionSweep(sources, policies.on_loading, cluster.owners.busiest, cluster.admin)
    return Feature([PinsReader(sources, bookies), every, sweep])


ENTRY = FeatureEntry([router, bookies_router, sweep_router], open_feature)
