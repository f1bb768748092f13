"""What waits in topics, and the delayed indexes of it (PIP-195): reading, planning, checking, repairing, building.

All of it is read from where it is stored, and no broker has to load a topic. What a repair deletes goes to the deletion
service; building writes ledgers to bookies and changes cursors of unloaded topics.
"""

from pulsar_sidecar.adapters.bookkeeper.bucket_snapshots import BookieBucketSnapshots
from pulsar_sidecar.adapters.bookkeeper.ledger_writer import LedgerWriter
from pulsar_sidecar.adapters.metadata.ledger_ids import ZooKeeperLedgerIds
from pulsar_sidecar.adapters.pulsar.rest.broker_trackers import RestBrokerTrackers
from pulsar_sidecar.adapters.pulsar.wire.delayed_entries import BookieDelayTimes, BulkDelayedEntries
from pulsar_sidecar.api.rooms import delayed_index, delayed_index_checks, delayed_index_planning
from pulsar_sidecar.api.rooms.delayed_delivery.routes import waiting_router
from pulsar_sidecar.bootstrap.bucket_deletions import BucketDeletions
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.room import Room, RoomEntry, topic_watch
from pulsar_sidecar.delayed_delivery.backlog import WaitingReader
from pulsar_sidecar.delayed_delivery.index.inspection.counting import CalendarReader
from pulsar_sidecar.delayed_delivery.index.inspection.due_times import BucketDueTimes
from pulsar_sidecar.delayed_delivery.index.inspection.forecast import Forecaster
from pulsar_sidecar.delayed_delivery.index.inspection.overdue import OverdueReader
from pulsar_sidecar.delayed_delivery.index.inspection.simulate import Simulator
from pulsar_sidecar.delayed_delivery.index.maintenance.attach import BucketPointers
from pulsar_sidecar.delayed_delivery.index.maintenance.build import IndexBuilder
from pulsar_sidecar.delayed_delivery.index.maintenance.checking import CheckPorts
from pulsar_sidecar.delayed_delivery.index.maintenance.repair import IndexRepair, RepairPorts
from pulsar_sidecar.delayed_delivery.index.metrics import DelayedIndexMetrics, WatchedIndexes
from pulsar_sidecar.delayed_delivery.index.service import DelayedIndexService, IndexPlanning
from pulsar_sidecar.delayed_delivery.index.settings import BrokerTracker
from pulsar_sidecar.ledger_deletion.steps import Steps
from pulsar_sidecar.model.names import TopicName

_CURSORS_AT_ONCE = 16
"""A repaired cursor is looked at again after some seconds."""


def open_delayed_index(cluster: ClusterAccess) -> Room:
    """The indexes of watched topics are read again and again, for the metrics."""
    settings = cluster.settings
    trackers = RestBrokerTrackers(cluster.rest, cluster.store)
    pointers = BucketPointers(cluster.store, cluster.owners, cluster.clock, settings.ledgers_root_path)
    stored, entries = cluster.stored_indexes, cluster.delayed_entries
    service = DelayedIndexService(stored, trackers, cluster.owners, cluster.owners.owner_url)
    metrics = DelayedIndexMetrics(cluster.cluster_name)
    watch = topic_watch(
        cluster,
        "delayed-index-watch",
        WatchedIndexes(service, metrics, cluster.clock).look,
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
    return Room(services, watch.start, watch.close, collectors=[metrics])


def _planning(cluster: ClusterAccess, trackers: RestBrokerTrackers) -> IndexPlanning:
    clock, stored, lengths, entries = cluster.clock, cluster.stored_indexes, cluster.lengths, cluster.delayed_entries
    ack_states, due_times = cluster.ack_states, BucketDueTimes(cluster.stored_indexes, cluster.buckets)

    def configuration() -> BrokerTracker:
        return trackers.configured(None)

    def pause_limit(topic: TopicName) -> int | None:
        if ack_states.policies(topic, None).enabled is False:
            return None
        return ack_states.limits(None).max_unacked_ranges

    return IndexPlanning(
        OverdueReader(cluster.topics, entries, due_times, pause_limit, clock),
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
    # The room of the deletion service may be opened later than this one.
    deletions = BucketDeletions(lambda: cluster.deletion, store, root, cluster.steps or Steps())
    threads = cluster.threads(_CURSORS_AT_ONCE, "index-repair")
    return IndexRepair(RepairPorts(check, cluster.owners, pointers, deletions, cluster.admin.stats, threads.map))


def _builder(cluster: ClusterAccess, trackers: RestBrokerTrackers, pointers: BucketPointers) -> IndexBuilder:
    store, root = cluster.store, cluster.settings.ledgers_root_path
    writer = LedgerWriter(store, ZooKeeperLedgerIds(store, root).next, cluster.bookies, root)
    return IndexBuilder(
        cluster.stored_indexes,
        BookieDelayTimes(cluster.entries),
        trackers,
        BookieBucketSnapshots(store, cluster.entries, writer, trackers.replication, root),
        pointers,
    )


ENTRY = RoomEntry(
    [
        waiting_router,
        delayed_index.router,
        delayed_index.calendar_router,
        delayed_index_planning.router,
        delayed_index_checks.router,
        delayed_index_checks.build_router,
    ],
    open_delayed_index,
)
