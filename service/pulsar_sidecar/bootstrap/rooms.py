"""Joins the rooms beside ledger deletion with their adapters: the part of the composition root that `bootstrap` calls.

Invariant: settings stop at `bootstrap`; here they arrive in the rooms' own words.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry

from pulsar_sidecar.ack_state.judging import AckState
from pulsar_sidecar.ack_state.workflow.asking import AckStates
from pulsar_sidecar.ack_state.workflow.asking import World as AckStateWorld
from pulsar_sidecar.ack_state.workflow.remembering import Remembered
from pulsar_sidecar.ack_state.workflow.watching import AckStateWatch
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_wire import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.bulk_entries import BulkEntries
from pulsar_sidecar.adapters.bookkeeper.stored_cursors import BookieStoredCursors
from pulsar_sidecar.adapters.pulsar.client.acknowledger import ConsumerAcknowledger
from pulsar_sidecar.adapters.pulsar.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.adapters.pulsar.rest.ack_state_budget import BrokerAckStateBudget
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.delayed_topics import BrokerTopics
from pulsar_sidecar.adapters.pulsar.rest.pause_policies import BrokerPausePolicies
from pulsar_sidecar.adapters.pulsar.rest.shadow_retention import BrokerShadows
from pulsar_sidecar.adapters.pulsar.rest.subscription_cursors import BrokerSubscriptions
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.topics.cancellation_topic import PulsarCancellationTopic
from pulsar_sidecar.adapters.pulsar.wire.binary_connections import BinaryConnections
from pulsar_sidecar.adapters.pulsar.wire.delayed_entries import BulkDelayedEntries
from pulsar_sidecar.adapters.pulsar.wire.republisher import BrokerRepublisher
from pulsar_sidecar.adapters.pulsar.wire.topic_owners import TopicOwners
from pulsar_sidecar.bootstrap.closing import close_at_the_end
from pulsar_sidecar.delayed_delivery.ports import Configuration, Ports
from pulsar_sidecar.delayed_delivery.workflow.serving import DelayedDelivery
from pulsar_sidecar.delayed_delivery.workflow.waiting import WaitingReader
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.observability.metrics import AckStateGauges, AckStateReading, CancellationMetrics


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """What `bootstrap` has opened to a cluster, for all rooms."""

    store: MetadataStore
    rest: AdminRest
    bookies: BookieConnections
    entries: BookieEntries
    broker_service_url: str
    credentials: ClientCredentials
    tls: TlsOptions
    ledgers_root: str
    clock: Clock
    registry: CollectorRegistry
    cluster_name: str
    instance_name: str


@dataclass(frozen=True, slots=True)
class AckStateRoom:
    """The room of acknowledgement states: what answers, and what watches."""

    states: AckStates
    watch: AckStateWatch


def open_ack_states(
    access: ClusterAccess,
    watched: Sequence[TopicName],
    every_seconds: float,
    stack: ExitStack,
) -> AckStateRoom:
    """The room of acknowledgement states with its adapters, not started yet."""
    subscriptions = BrokerSubscriptions(access.rest, access.store, access.clock)
    policies = BrokerPausePolicies(access.rest, access.store, subscriptions)
    stored = BookieStoredCursors(access.store, access.entries, access.ledgers_root)
    remembered = Remembered(access.clock)
    states = AckStates(
        AckStateWorld(subscriptions, stored, policies, BrokerShadows(access.rest, access.store)), remembered
    )
    watch = AckStateWatch(states, watched, every_seconds, access.clock)
    close_at_the_end(stack, states)
    close_at_the_end(stack, watch)
    access.registry.register(AckStateGauges(access.cluster_name, partial(_readings, remembered)))
    return AckStateRoom(states, watch)


def _readings(remembered: Remembered) -> list[AckStateReading]:
    return [_reading(state) for state in remembered.recent()]


def _reading(state: AckState) -> AckStateReading:
    return AckStateReading(
        topic=str(state.topic),
        subscription=state.subscription,
        blocked=state.blocked,
        ranges=state.cursor.ranges,
        max_ranges=state.limits.max_unacked_ranges,
        entries_lost_in_a_crash=state.after_crash.entries,
    )


def open_waiting_messages(access: ClusterAccess, stack: ExitStack) -> WaitingReader:
    """Reading what waits, which needs no log and changes nothing."""
    bulk = BulkEntries(access.bookies)
    close_at_the_end(stack, bulk)
    entries = BulkDelayedEntries(access.store, bulk, access.rest, access.ledgers_root, access.clock)
    return WaitingReader(BrokerTopics(access.rest, access.store, access.clock), entries, access.clock)


def open_delayed_delivery(
    access: ClusterAccess,
    configuration: Configuration,
    stack: ExitStack,
) -> DelayedDelivery:
    """The room of cancelling with its adapters, not started yet; ``stack`` closes what was opened for it."""
    bulk = BulkEntries(access.bookies)
    close_at_the_end(stack, bulk)
    connections = BinaryConnections(access.credentials, access.tls, access.clock)
    owners = TopicOwners(access.broker_service_url, connections)
    log = PulsarCancellationTopic(owners, connections, BrokerTopicAdmin(access.rest), access.clock)
    close_at_the_end(stack, log)
    subscriptions = BrokerSubscriptions(access.rest, access.store, access.clock)
    policies = BrokerPausePolicies(access.rest, access.store, subscriptions)
    ports = Ports(
        clock=access.clock,
        metadata=access.store,
        topics=BrokerTopics(access.rest, access.store, access.clock),
        entries=BulkDelayedEntries(access.store, bulk, access.rest, access.ledgers_root, access.clock),
        budget=BrokerAckStateBudget(subscriptions, policies, access.clock),
        acknowledger=ConsumerAcknowledger(owners, connections, access.clock),
        stored=BookieStoredCursors(access.store, access.entries, access.ledgers_root),
        log=log,
        republisher=BrokerRepublisher(access.store, bulk, owners, connections, access.clock, access.ledgers_root),
    )
    metrics = CancellationMetrics(access.registry, cluster=access.cluster_name)
    service = DelayedDelivery(configuration, ports, access.instance_name, metrics)
    metrics.bind(service.open_cancellations)
    return service
