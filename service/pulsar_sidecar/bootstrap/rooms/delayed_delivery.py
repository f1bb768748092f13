"""Cancelling delayed messages (PIP-423)."""

from pulsar_sidecar.adapters.pulsar.topics.cancellation_topic import PulsarCancellationTopic
from pulsar_sidecar.adapters.pulsar.wire.acknowledger import ConsumerAcknowledger
from pulsar_sidecar.adapters.pulsar.wire.producers import BrokerRepublisher
from pulsar_sidecar.api.rooms.delayed_delivery.routes import router
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.room import Room, RoomEntry
from pulsar_sidecar.delayed_delivery.index.inspection.due_times import BucketDueTimes
from pulsar_sidecar.delayed_delivery.metrics import CancellationMetrics
from pulsar_sidecar.delayed_delivery.ports import Configuration, Ports
from pulsar_sidecar.delayed_delivery.workflow.service import DelayedDelivery


def open_delayed_delivery(cluster: ClusterAccess) -> Room:
    """Cancelling is the one part of delayed delivery that writes a log, and has loops of its own."""
    settings, clock, store = cluster.settings, cluster.clock, cluster.store
    owners = cluster.topic_owners
    log = cluster.closing(PulsarCancellationTopic(owners, cluster.admin, clock))
    ports = Ports(
        clock=clock,
        metadata=store,
        topics=cluster.topics,
        entries=cluster.delayed_entries,
        due_times=BucketDueTimes(cluster.stored_indexes, cluster.buckets),
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
    return Room([service], service.start, service.close, collectors=[metrics])


ENTRY = RoomEntry([router], open_delayed_delivery)
