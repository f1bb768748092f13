"""Deduplication (PIP-6): stored state, policies, the check of brokers, and stuck cursors."""

import secrets
from functools import partial

from pulsar_sidecar.adapters.bookkeeper.topic_entries import BookieTopicEntries
from pulsar_sidecar.adapters.pulsar_rest.deduplication_policies import BrokerDeduplicationPolicies
from pulsar_sidecar.adapters.pulsar_wire.message_rows import replayed_entries
from pulsar_sidecar.adapters.pulsar_wire.producers import BrokerDuplicates
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.feature import Feature, FeatureEntry, topic_watch
from pulsar_sidecar.features.deduplication import http
from pulsar_sidecar.features.deduplication.inspection.canary import DeduplicationChecks
from pulsar_sidecar.features.deduplication.inspection.health import DeduplicationHealth
from pulsar_sidecar.features.deduplication.inspection.policy_changes import PolicyChanges
from pulsar_sidecar.features.deduplication.inspection.service import DeduplicationService
from pulsar_sidecar.features.deduplication.metrics import DeduplicationMetrics
from pulsar_sidecar.features.deduplication.stored import StoredDeduplications
from pulsar_sidecar.model.clocks import Pace
from pulsar_sidecar.ownership.stored_topics import StoredTopics

_PARTITIONS_AT_ONCE = 8


def open_feature(cluster: ClusterAccess) -> Feature:
    """Open the feature; it reads stored state without loading topics, and its check uses topics of its own."""
    settings, clock, store, owners = cluster.settings, cluster.clock, cluster.store, cluster.owners
    policies = BrokerDeduplicationPolicies(cluster.rest, store, owners)
    stored = StoredDeduplications(store, cluster.cursors, cluster.lengths, cluster.cursors)
    entries = BookieTopicEntries(store, cluster.entries, settings.ledgers_root_path, Pace(clock, None))
    threads = cluster.threads(_PARTITIONS_AT_ONCE, "deduplication-show")
    service = DeduplicationService(stored, partial(replayed_entries, entries), policies, owners, clock, threads.map)
    metrics = DeduplicationMetrics(cluster.cluster_name, service)
    watch = topic_watch(
        cluster,
        "deduplication-watch",
        metrics.update,
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
    return Feature(services, watch.start, watch.close, collectors=[metrics])


ENTRY = FeatureEntry([http.router, http.policies_router, http.check_router, http.health_router], open_feature)
