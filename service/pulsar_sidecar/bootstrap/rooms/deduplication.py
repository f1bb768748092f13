"""Deduplication (PIP-6): its stored state, policies, whether brokers deduplicate, and cursors that are stuck."""

import secrets

from pulsar_sidecar.adapters.bookkeeper.topic_entries import BookieTopicEntries
from pulsar_sidecar.adapters.pulsar.rest.deduplication_policies import BrokerDeduplicationPolicies
from pulsar_sidecar.adapters.pulsar.wire.message_rows import BookieReplayedEntries
from pulsar_sidecar.adapters.pulsar.wire.producers import BrokerDuplicates
from pulsar_sidecar.api.rooms import deduplication, deduplication_policies
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.room import Room, RoomEntry, topic_watch
from pulsar_sidecar.deduplication.inspection.canary import DeduplicationChecks
from pulsar_sidecar.deduplication.inspection.health import DeduplicationHealth
from pulsar_sidecar.deduplication.inspection.policy_changes import PolicyChanges
from pulsar_sidecar.deduplication.inspection.service import DeduplicationService
from pulsar_sidecar.deduplication.metrics import DeduplicationMetrics
from pulsar_sidecar.deduplication.stored import StoredDeduplications
from pulsar_sidecar.ledger_ownership.stored_topics import StoredTopics
from pulsar_sidecar.model.clocks import Pace

_PARTITIONS_AT_ONCE = 8


def open_deduplication(cluster: ClusterAccess) -> Room:
    """The state is stored and needs no broker to load a topic; the check works on topics of the sidecar's own."""
    settings, clock, store, owners = cluster.settings, cluster.clock, cluster.store, cluster.owners
    policies = BrokerDeduplicationPolicies(cluster.rest, store, owners)
    stored = StoredDeduplications(store, cluster.cursors, cluster.lengths, cluster.cursors)
    entries = BookieTopicEntries(store, cluster.entries, settings.ledgers_root_path, Pace(clock, None))
    threads = cluster.threads(_PARTITIONS_AT_ONCE, "deduplication-show")
    service = DeduplicationService(stored, BookieReplayedEntries(entries), policies, owners, clock, threads.map)
    metrics = DeduplicationMetrics(cluster.cluster_name, service)
    watch = topic_watch(
        cluster,
        "deduplication-watch",
        metrics.look,
        settings.deduplication_watched_topics,
        settings.deduplication_watch_interval_in_seconds,
    )
    duplicates = BrokerDuplicates(cluster.topic_owners, clock)
    services = [
        service,
        PolicyChanges(policies, owners, StoredTopics(store), clock),
        DeduplicationChecks(cluster.admin, duplicates, policies, owners, lambda: secrets.token_hex(8)),
        DeduplicationHealth(stored, policies, owners),
    ]
    return Room(services, watch.start, watch.close, collectors=[metrics])


ENTRY = RoomEntry(
    [
        deduplication.router,
        deduplication_policies.router,
        deduplication_policies.check_router,
        deduplication.health_router,
    ],
    open_deduplication,
)
