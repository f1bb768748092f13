"""Delayed messages waiting in topics and their indexes (PIP-195): read, plan, check, repair, build.

The feature reads stored data, so no broker has to load a topic. A repair enqueues ledgers for deletion;
building writes ledgers to bookies and changes cursors of unloaded topics.
"""

from pulsar_sidecar.adapters.bookkeeper.bucket_snapshots import BookieBucketSnapshots
from pulsar_sidecar.adapters.bookkeeper.ledger_writer import LedgerWriter
from pulsar_sidecar.adapters.metadata_stores import ledger_ids_of
from pulsar_sidecar.adapters.pulsar_rest.broker_trackers import RestBrokerTrackers
from pulsar_sidecar.adapters.pulsar_wire.delayed_entries import BookieDelayTimes, BulkDelayedEntries
from pulsar_sidecar.backlog.waiting import WaitingReader
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.feature import Feature, FeatureEntry, topic_watch
from pulsar_sidecar.features.delayed_index import http
from pulsar_sidecar.features.delayed_index.inspection.counting import CalendarReader
from pulsar_sidecar.features.delayed_index.inspection.forecast import Forecaster
from pulsar_sidecar.features.delayed_index.inspection.overdue import OverdueReader
from pulsar_sidecar.features.delayed_index.inspection.simulate import Simulator
from pulsar_sidecar.features.delayed_index.maintenance.attach import BucketPointers
from pulsar_sidecar.features.delayed_index.maintenance.build import IndexBuilder
from pulsar_sidecar.features.delayed_index.maintenance.checking import CheckPorts
from pulsar_sidecar.features.delayed_index.maintenance.repair import IndexRepair, RepairPorts
from pulsar_sidecar.features.delayed_index.metrics import DelayedIndexMetrics, WatchedIndexes
from pulsar_sidecar.features.delayed_index.service import DelayedIndexService, IndexPlanning
from pulsar_sidecar.features.delayed_index.settings import BrokerTracker
from pulsar_sidecar.model.names import TopicName

_CURSORS_AT_ONCE = 16
"""Number of cursors repaired at a time; each takes some seconds, because the sidecar checks it again."""


def open_feature(cluster: ClusterAccess) -> Feature:
    """Open the feature, with the watch that reads the indexes of watched topics for the metrics."""
    settings = cluster.settings
    trackers = RestBrokerTrackers(cluster.rest, cluster.store)
    pointers = BucketPointers(cluster.store, cluster.owners, cluster.clock, settings.ledgers_root_path)
    stored, entries = cluster.stored_indexes, cluster.delayed_entries
    service = DelayedIndexService(stored, trackers, cluster.owners, cluster.owners.owner_url)
    metrics = DelayedIndexMetrics(cluster.cluster_name)
    watch = topic_watch(
        cluster,
        "delayed-index-watch",
        WatchedIndexes(service, metrics, cluster.clock).update,
        settings.delayed_index_watched_topics,
        settings.delayed_index_watch_interval_in_seconds,
    )
    services = [
        WaitingReader(cluster.topics, entries, cluster.clock),
        service,
        CalendarReader(stored, cluster.buckets, cluster.lengths, entries, cluster.clock),
        _planning(cluster, trackers),
        _repair(cluster, trackers, pointers),
        _builder(cluster, trackers, pointers),
    ]
    return Feature(services, watch.start, watch.close, collectors=[metrics])


def _planning(cluster: ClusterAccess, trackers: RestBrokerTrackers) -> IndexPlanning:
    clock, stored, lengths, entries = cluster.clock, cluster.stored_indexes, cluster.lengths, cluster.delayed_entries
    ack_states = cluster.ack_states

    def configuration() -> BrokerTracker:
        return trackers.configured(None)

    def pause_limit(topic: TopicName) -> int | None:
        if ack_states.policies(topic, None).enabled is False:
            return None
        return ack_states.limits(None).max_unacked_ranges

    return IndexPlanning(
        OverdueReader(cluster.topics, entries, cluster.due_times, pause_limit, clock),
        Forecaster(stored, lengths, configuration, clock),
        Simulator(stored, lengths, entries, configuration, clock),
    )


def _repair(cluster: ClusterAccess, trackers: RestBrokerTrackers, pointers: BucketPointers) -> IndexRepair:
    store, root = cluster.store, cluster.settings.ledgers_root_path
    check = CheckPorts(
        clock=cluster.clock,
        store=store,
        stored=cluster.stored_indexes,
        buckets=cluster.buckets,
        messages=BulkDelayedEntries(store, cluster.entries, None, root, cluster.clock),
        ledgers=lambda: cluster.whole_store().ledgers(),
        brokers=trackers,
        ledgers_root=root,
    )
    threads = cluster.threads(_CURSORS_AT_ONCE, "index-repair")
    return IndexRepair(
        RepairPorts(check, cluster.owners, pointers, cluster.bucket_deletions(), cluster.admin.stats, threads.map)
    )


def _builder(cluster: ClusterAccess, trackers: RestBrokerTrackers, pointers: BucketPointers) -> IndexBuilder:
    store, root = cluster.store, cluster.settings.ledgers_root_path
    writer = LedgerWriter(store, ledger_ids_of(store, root).next, cluster.bookies, root)
    return IndexBuilder(
        cluster.stored_indexes,
        BookieDelayTimes(cluster.entries),
        trackers,
        BookieBucketSnapshots(store, cluster.entries, writer, trackers.replication, root),
        pointers,
    )


ENTRY = FeatureEntry(
    [
        http.waiting_router,
        http.index_router,
        http.calendar_router,
        http.planning_router,
        http.repair_router,
        http.build_router,
    ],
    open_feature,
)
