"""Cancelling delayed messages (PIP-423)."""

from pulsar_sidecar.adapters.pulsar_topics.cancellation_topic import PulsarCancellationTopic
from pulsar_sidecar.adapters.pulsar_wire.acknowledger import ConsumerAcknowledger
from pulsar_sidecar.adapters.pulsar_wire.producers import BrokerRepublisher
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.feature import Feature, FeatureEntry
from pulsar_sidecar.features.delayed_messages.http.routes import router
from pulsar_sidecar.features.delayed_messages.metrics import CancellationMetrics
from pulsar_sidecar.features.delayed_messages.ports import Configuration, Ports
from pulsar_sidecar.features.delayed_messages.workflow.service import DelayedDelivery


def open_feature(cluster: ClusterAccess) -> Feature:
    """Open the feature: the part of delayed delivery that writes a log and runs loops."""
    settings, clock, store = cluster.settings, cluster.clock, cluster.store
    owners = cluster.topic_owners
    log = cluster.closing(PulsarCancellationTopic(owners, cluster.admin, clock))
    ports = Ports(
        clock=clock,
        metadata=store,
        topics=cluster.topics,
        entries=cluster.delayed_entries,
        due_times=cluster.due_times,
        max_ranges=lambda: cluster.ack_states.limits(None).max_unacked_ranges,
        acknowledger=ConsumerAcknowledger(owners, clock),
        stored=cluster.cursors,
        log=log,
        republisher=BrokerRepublisher(store, cluster.entries, owners, clock, settings.ledgers_root_path),
    )
    metrics = CancellationMetrics(cluster.cluster_name)
    configuration = Configuration(
        enabled=settings.delayed_message_cancelling_enabled,
        reconcile_interval_ms=settings.delayed_message_reassert_in_seconds * 1000,
        persist_patience_ms=settings.delayed_message_persist_wait_in_seconds * 1000,
    )
    service = DelayedDelivery(configuration, ports, settings.effective_instance_name, metrics)
    return Feature([service], service.start, service.close, collectors=[metrics])


ENTRY = FeatureEntry([router], open_feature)
