"""The rooms of the service, one entry each; nothing else in the process knows them one by one.

A new room is a folder of its own, a function here that opens it with its entry in `ROOMS`, its routes in ``api/rooms``
and its commands in ``cli/groups``.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter
from prometheus_client.registry import Collector

from pulsar_sidecar.ack_state.judging import DetailOptions
from pulsar_sidecar.ack_state.metrics import AckStateMetrics
from pulsar_sidecar.ack_state.workflow import AckStateService
from pulsar_sidecar.ack_state.workflow import Ports as AckStatePorts
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_http import BookieHttp
from pulsar_sidecar.adapters.bookkeeper.bucket_snapshots import BookieBucketSnapshots
from pulsar_sidecar.adapters.bookkeeper.ledger_writer import LedgerWriter
from pulsar_sidecar.adapters.bookkeeper.stored_cursors import BookieStoredCursors
from pulsar_sidecar.adapters.bookkeeper.topic_entries import BookieTopicEntries
from pulsar_sidecar.adapters.metadata.ledger_ids import ZooKeeperLedgerIds
from pulsar_sidecar.adapters.metadata.session import SessionOptions
from pulsar_sidecar.adapters.metadata.zookeeper import StoreTime
from pulsar_sidecar.adapters.metadata.zookeeper_changes import ZooKeeperChanges
from pulsar_sidecar.adapters.offload.object_stores import AccessKey, OffloadCredentials, credentials_from_environment
from pulsar_sidecar.adapters.offload.offloaded_ledgers import ObjectStoreOffloadedLedgers
from pulsar_sidecar.adapters.pulsar.client.clients import open_client
from pulsar_sidecar.adapters.pulsar.rest.ack_states import BrokerAckStates
from pulsar_sidecar.adapters.pulsar.rest.broker_configuration import AdminBrokersMetadata
from pulsar_sidecar.adapters.pulsar.rest.broker_trackers import RestBrokerTrackers
from pulsar_sidecar.adapters.pulsar.rest.deduplication_policies import BrokerDeduplicationPolicies
from pulsar_sidecar.adapters.pulsar.rest.delayed_topics import BrokerTopics
from pulsar_sidecar.adapters.pulsar.rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerShadows, BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.topics.cancellation_topic import PulsarCancellationTopic
from pulsar_sidecar.adapters.pulsar.topics.deletion_topics import PulsarDeletionTopics
from pulsar_sidecar.adapters.pulsar.topics.pending_consumer import ConsumerSettings
from pulsar_sidecar.adapters.pulsar.topics.topics_setup import TopicsSettings
from pulsar_sidecar.adapters.pulsar.wire.acknowledger import ConsumerAcknowledger
from pulsar_sidecar.adapters.pulsar.wire.binary_connections import BinaryConnections, TopicOwners
from pulsar_sidecar.adapters.pulsar.wire.delay_times import BookieDelayTimes
from pulsar_sidecar.adapters.pulsar.wire.delayed_entries import BulkDelayedEntries
from pulsar_sidecar.adapters.pulsar.wire.producers import BrokerDuplicates, BrokerRepublisher
from pulsar_sidecar.adapters.pulsar.wire.replayed_entries import BookieReplayedEntries
from pulsar_sidecar.api.rooms import (
    ack_state,
    deduplication,
    deduplication_checks,
    deduplication_health,
    deduplication_policies,
    delayed_index,
    delayed_index_build,
    delayed_index_checks,
    delayed_index_planning,
)
from pulsar_sidecar.api.rooms.delayed_delivery import routes as delayed_delivery
from pulsar_sidecar.api.rooms.ledger_deletion import routes as ledger_deletion
from pulsar_sidecar.bootstrap.bucket_deletions import BucketDeletions
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess, close_at_the_end, store_credential_of
from pulsar_sidecar.deduplication.inspection.canary import DeduplicationChecks
from pulsar_sidecar.deduplication.inspection.changing import PolicyChanges
from pulsar_sidecar.deduplication.inspection.health import DeduplicationHealth
from pulsar_sidecar.deduplication.inspection.service import DeduplicationService
from pulsar_sidecar.deduplication.inspection.service import Ports as DeduplicationPorts
from pulsar_sidecar.deduplication.metrics import DeduplicationMetrics, WatchedDeduplication
from pulsar_sidecar.delayed_delivery.backlog import WaitingReader
from pulsar_sidecar.delayed_delivery.index.inspection.counting import CalendarReader
from pulsar_sidecar.delayed_delivery.index.inspection.due_times import BucketDueTimes
from pulsar_sidecar.delayed_delivery.index.inspection.forecast import Forecaster
from pulsar_sidecar.delayed_delivery.index.inspection.overdue import OverdueReader
from pulsar_sidecar.delayed_delivery.index.inspection.planning import IndexPlanning
from pulsar_sidecar.delayed_delivery.index.inspection.simulate import Simulator
from pulsar_sidecar.delayed_delivery.index.maintenance.attach import BucketPointers
from pulsar_sidecar.delayed_delivery.index.maintenance.build import IndexBuilder
from pulsar_sidecar.delayed_delivery.index.maintenance.checking import CheckPorts
from pulsar_sidecar.delayed_delivery.index.maintenance.repair import IndexRepair, RepairPorts
from pulsar_sidecar.delayed_delivery.index.metrics import DelayedIndexMetrics, WatchedIndexes
from pulsar_sidecar.delayed_delivery.index.service import DelayedIndexService
from pulsar_sidecar.delayed_delivery.index.service import Ports as DelayedIndexPorts
from pulsar_sidecar.delayed_delivery.index.settings import BrokerTracker
from pulsar_sidecar.delayed_delivery.metrics import CancellationMetrics
from pulsar_sidecar.delayed_delivery.ports import Configuration as CancellingConfiguration
from pulsar_sidecar.delayed_delivery.ports import Ports as CancellingPorts
from pulsar_sidecar.delayed_delivery.workflow.service import DelayedDelivery
from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_deletion.second_phase.decide import Policy
from pulsar_sidecar.ledger_deletion.second_phase.retry import RetryPolicy
from pulsar_sidecar.ledger_deletion.service import SentLedger, SidecarInstance
from pulsar_sidecar.ledger_deletion.steps import Steps
from pulsar_sidecar.ledger_deletion.watch.ports import StoreChanges, WholeStore
from pulsar_sidecar.ledger_deletion.watch.service import WatchMode
from pulsar_sidecar.ledger_deletion.workflow.leak_tracking import WatchConfiguration
from pulsar_sidecar.ledger_deletion.workflow.runtime import Configuration, Runtime
from pulsar_sidecar.ledger_deletion.workflow.runtime import Ports as DeletionPorts
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.ledger_ownership.stored_topics import StoredTopics
from pulsar_sidecar.model.clocks import Pace
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.runtime import TopicWatch
from pulsar_sidecar.settings.fields import Settings

_PARTITIONS_AT_ONCE = 8
_CURSORS_AT_ONCE = 16
"""A repaired cursor is looked at again after some seconds."""


@dataclass(frozen=True, slots=True)
class Room:
    """An open room, as the process and its doors see it. A room without loops or metrics has only a service.

    Attributes:
        service: what the room's routes call.
        start: starts what runs by itself, and returns at once.
        close: finishes the work in hand; the room's adapters are closed after it.
        ready: None when the room can work, otherwise what is missing.
        collectors: the room's metrics.
    """

    service: Any
    start: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None
    ready: Callable[[], str | None] = lambda: None
    collectors: Sequence[Collector] = ()


def missing_in(rooms: Iterable[Room]) -> str | None:
    """What the first room that cannot work misses; None when all of them can."""
    return next(filter(None, (room.ready() for room in rooms)), None)


def open_ledger_deletion(cluster: ClusterAccess) -> Room:
    """Two-phase ledger deletion (PIP-186)."""
    settings, clock, store, rest = cluster.settings, cluster.clock, cluster.store, cluster.rest
    client = open_client(settings.broker_service_url, cluster.credentials, cluster.tls)
    close_at_the_end(cluster.stack, client.close)
    direct = BookieHttp(settings.bookie_http_urls) if settings.bookie_http_urls else None
    if direct is not None:
        close_at_the_end(cluster.stack, direct.close)
    changes, whole = _watched(cluster)
    ports = DeletionPorts(
        clock=clock,
        store=store,
        entries=cluster.entries,
        owners=BrokerLiveOwners(rest, store),
        admin=BrokerTopicAdmin(rest),
        endangered_source=BrokerShadows(rest, store).endangered_source,
        topics=PulsarDeletionTopics(
            client,
            rest,
            clock,
            topics=TopicsSettings(
                parallelism=settings.two_phase_deletion_ledger_deletion_parallelism,
                outcome_retention_minutes=settings.two_phase_deletion_outcome_retention_in_minutes,
                outcome_retention_mebibytes=settings.two_phase_deletion_outcome_retention_size_in_mb,
            ),
            consumer=ConsumerSettings(
                max_messages=settings.two_phase_deletion_batch_size,
                postpone_ms=settings.two_phase_deletion_postpone_in_seconds * 1000,
                consumer_name=settings.effective_instance_name,
            ),
            brokers_clock=StoreTime(store, clock),
        ),
        offloaded=ObjectStoreOffloadedLedgers(
            settings.offload_allowed_locations, cluster.cluster_name, _offload_credentials(cluster)
        ),
        metadata_mismatch=AdminBrokersMetadata(
            rest, store, settings.metadata_store_url, settings.ledgers_root_path
        ).mismatch,
        direct=direct.delete if direct is not None else None,
        limit=cluster.limit,
        changes=changes,
        whole=whole,
    )
    instance = SidecarInstance(
        name=settings.effective_instance_name,
        advertised_url=settings.effective_advertised_url,
        # With several brokers in one setting, this sidecar stands beside none of them in particular.
        broker_url=settings.web_service_url if "," not in settings.web_service_url else None,
        started_ms=clock.now_ms(),
    )
    metrics = DeletionMetrics(cluster.cluster_name)
    service = LedgerDeletion(Runtime(configuration_of(settings), ports, instance, metrics, cluster.steps))
    cluster.deletion = service
    return Room(service, service.start, service.close, service.ready, [metrics])


def _watched(cluster: ClusterAccess) -> tuple[StoreChanges, WholeStore] | tuple[None, None]:
    """What the watch for leaked ledgers hears and reads; nothing where it is switched off."""
    settings, clock = cluster.settings, cluster.clock
    if not settings.topic_two_phase_deletion_enabled or settings.ledger_deletion_watch == WatchMode.OFF.value:
        return None, None
    # A walk takes Arrow, which the rest of the service does without.
    from pulsar_sidecar.adapters.metadata.zookeeper_walk import ZooKeeperWholeStore

    url, root, credential = settings.metadata_store_url, settings.ledgers_root_path, store_credential_of(settings)
    changes = ZooKeeperChanges(url, clock, root, options=SessionOptions(credential=credential))
    close_at_the_end(cluster.stack, changes.close)
    per_second = settings.ledger_deletion_watch_nodes_per_second
    whole = ZooKeeperWholeStore(url, cluster.store, clock, root, credential=credential, nodes_per_second=per_second)
    return changes, whole


def configuration_of(settings: Settings) -> Configuration:
    """The settings of ledger deletion, in its own units."""
    return Configuration(
        enabled=settings.topic_two_phase_deletion_enabled,
        ledgers_root=settings.ledgers_root_path,
        policy=Policy(
            open_min_age_ms=settings.two_phase_deletion_open_ledger_min_age_in_seconds * 1000,
            unlinked_min_age_ms=settings.two_phase_deletion_unlinked_ledger_min_age_in_seconds * 1000,
            in_use_wait_ms=settings.two_phase_deletion_in_use_settle_in_seconds * 1000,
            bookkeeper_exclusive=settings.bookkeeper_exclusive_to_cluster,
        ),
        retry_policy=RetryPolicy(
            reconsume_later_ms=settings.two_phase_deletion_reconsume_later_in_seconds * 1000,
            max_redeliver_count=settings.two_phase_deletion_max_retry_delete_count,
        ),
        rate_per_second=settings.two_phase_deletion_rate_per_second,
        watchdog_late_ms=settings.two_phase_deletion_watchdog_late_in_seconds * 1000,
        topic_deletion_wait_ms=settings.two_phase_deletion_topic_deletion_wait_in_seconds * 1000,
        undelete_lookback_ms=settings.two_phase_deletion_outcome_retention_in_minutes * 60_000,
        undelete_protection_ms=settings.two_phase_deletion_undelete_protection_in_seconds * 1000,
        batch_size=settings.two_phase_deletion_batch_size,
        watch=WatchConfiguration(
            mode=WatchMode(settings.ledger_deletion_watch),
            settle_ms=settings.ledger_deletion_watch_settle_in_seconds * 1000,
            brake_references=settings.ledger_deletion_watch_brake_references,
            walk_interval_ms=settings.ledger_deletion_watch_walk_interval_in_seconds * 1000,
            nodes_per_second=settings.ledger_deletion_watch_nodes_per_second,
        ),
    )


def _offload_credentials(cluster: ClusterAccess) -> OffloadCredentials:
    secret = cluster.settings.s3_managed_ledger_offload_credential_secret
    key_id = cluster.settings.s3_managed_ledger_offload_credential_id
    return replace(
        credentials_from_environment(cluster.environment),
        aws_s3=AccessKey(key_id, secret.get_secret_value()) if key_id and secret else None,
        gcs_service_account_key_file=cluster.settings.gcs_managed_ledger_offload_service_account_key_file,
    )


def open_cancelling(cluster: ClusterAccess) -> Room:
    """Cancelling delayed messages (PIP-423)."""
    settings, clock, store, rest = cluster.settings, cluster.clock, cluster.store, cluster.rest
    ledgers_root = settings.ledgers_root_path
    connections = BinaryConnections(cluster.credentials, cluster.tls, clock)
    owners = TopicOwners(settings.broker_service_url, connections)
    log = PulsarCancellationTopic(owners, connections, BrokerTopicAdmin(rest), clock)
    close_at_the_end(cluster.stack, log.close)
    ack_states = BrokerAckStates(rest, store, clock)
    ports = CancellingPorts(
        clock=clock,
        metadata=store,
        topics=BrokerTopics(rest, store, clock),
        entries=BulkDelayedEntries(store, cluster.entries, rest, ledgers_root, clock),
        due_times=BucketDueTimes(cluster.stored_indexes, cluster.buckets),
        max_ranges=lambda: ack_states.limits(None).max_unacked_ranges,
        acknowledger=ConsumerAcknowledger(owners, connections, clock),
        stored=BookieStoredCursors(store, cluster.entries, ledgers_root),
        log=log,
        republisher=BrokerRepublisher(store, cluster.entries, owners, connections, clock, ledgers_root),
    )
    metrics = CancellationMetrics(cluster.cluster_name)
    configuration = CancellingConfiguration(
        enabled=settings.delayed_message_cancelling_enabled,
        reconcile_interval_ms=settings.delayed_message_reassert_in_seconds * 1000,
        persist_patience_ms=settings.delayed_message_persist_wait_in_seconds * 1000,
    )
    service = DelayedDelivery(configuration, ports, settings.effective_instance_name, metrics)
    metrics.bind(service.open_cancellations)
    return Room(service, service.start, service.close, collectors=[metrics])


def open_ack_states(cluster: ClusterAccess) -> Room:
    """Acknowledgement states (PIP-299)."""
    settings, clock, store, rest = cluster.settings, cluster.clock, cluster.store, cluster.rest
    broker_states = BrokerAckStates(rest, store, clock)
    ports = AckStatePorts(
        broker_states,
        BookieStoredCursors(store, cluster.entries, settings.ledgers_root_path),
        broker_states,
        BrokerShadows(rest, store),
    )
    states = AckStateService(ports, clock)
    close_at_the_end(cluster.stack, states.close)
    watched = [parse_topic_name(name) for name in settings.ack_state_watched_topics]
    watch = TopicWatch(
        "ack-state-watch",
        lambda topic: states.ack_states(topic, None, DetailOptions(ranges=0, stretches=0)),
        watched,
        settings.ack_state_watch_interval_in_seconds,
        clock,
    )
    metrics = AckStateMetrics(cluster.cluster_name, states.recent)
    return Room(states, watch.start, watch.close, collectors=[metrics])


def open_waiting_messages(cluster: ClusterAccess) -> Room:
    """Reading what waits in topics, which needs no log and changes nothing."""
    clock, store, rest = cluster.clock, cluster.store, cluster.rest
    entries = BulkDelayedEntries(store, cluster.entries, rest, cluster.settings.ledgers_root_path, clock)
    return Room(WaitingReader(BrokerTopics(rest, store, clock), entries, clock))


def open_delayed_index(cluster: ClusterAccess) -> Room:
    """Delayed indexes (PIP-195), which are stored and need no broker."""
    store, rest, ledgers_root = cluster.store, cluster.rest, cluster.settings.ledgers_root_path
    owners = BrokerLiveOwners(rest, store)
    stored = cluster.stored_indexes
    calendar = CalendarReader(
        stored,
        cluster.buckets,
        cluster.lengths,
        BulkDelayedEntries(store, cluster.entries, rest, ledgers_root, cluster.clock),
        cluster.clock,
    )
    ports = DelayedIndexPorts(
        stored=stored,
        trackers=RestBrokerTrackers(rest, store),
        loaded=owners,
        owner=owners.owner_url,
        calendar=calendar,
    )
    service, metrics = DelayedIndexService(ports), DelayedIndexMetrics(cluster.cluster_name)
    watched = [parse_topic_name(name) for name in cluster.settings.delayed_index_watched_topics]
    watch = TopicWatch(
        "delayed-index-watch",
        WatchedIndexes(service, metrics, cluster.clock).look,
        watched,
        cluster.settings.delayed_index_watch_interval_in_seconds,
        cluster.clock,
    )
    return Room(service, watch.start, watch.close, collectors=[metrics])


def open_index_planning(cluster: ClusterAccess) -> Room:
    """What is overdue, and what loads and settings of delayed indexes (PIP-195) would cost."""
    clock, store, rest, root = cluster.clock, cluster.store, cluster.rest, cluster.settings.ledgers_root_path
    entries = BulkDelayedEntries(store, cluster.entries, rest, root, clock)
    ack_states = BrokerAckStates(rest, store, clock)
    stored = cluster.stored_indexes
    lengths = cluster.lengths

    trackers = RestBrokerTrackers(rest, store)

    def configuration() -> BrokerTracker:
        return trackers.configured(None)

    def pause_limit(topic: TopicName) -> int | None:
        if ack_states.policies(topic, None).enabled is False:
            return None
        return ack_states.limits(None).max_unacked_ranges

    return Room(
        IndexPlanning(
            OverdueReader(
                BrokerTopics(rest, store, clock), entries, BucketDueTimes(stored, cluster.buckets), pause_limit, clock
            ),
            Forecaster(stored, lengths, configuration, clock),
            Simulator(stored, lengths, entries, configuration, clock),
        )
    )


def open_index_building(cluster: ClusterAccess) -> Room:
    """Building delayed indexes, which writes ledgers to bookies and changes cursors of unloaded topics."""
    store, rest, root = cluster.store, cluster.rest, cluster.settings.ledgers_root_path
    bookies = BookieConnections(store, root)
    close_at_the_end(cluster.stack, bookies.close)
    trackers = RestBrokerTrackers(rest, store)
    writer = LedgerWriter(store, ZooKeeperLedgerIds(store, root).next, bookies, root)
    return Room(
        IndexBuilder(
            store,
            cluster.stored_indexes,
            BookieDelayTimes(cluster.entries),
            trackers,
            BookieBucketSnapshots(store, cluster.entries, writer, trackers.replication, root),
            BucketPointers(store, BrokerLiveOwners(rest, store), cluster.clock, root),
            root,
        )
    )


def open_index_checks(cluster: ClusterAccess) -> Room:
    """Checking and repairing delayed indexes (PIP-195); what is to be deleted goes to the deletion service."""
    settings, clock, store, rest = cluster.settings, cluster.clock, cluster.store, cluster.rest
    root = settings.ledgers_root_path
    owners = BrokerLiveOwners(rest, store)
    check = CheckPorts(
        clock=clock,
        store=store,
        stored=cluster.stored_indexes,
        buckets=cluster.buckets,
        messages=BulkDelayedEntries(store, cluster.entries, rest, root, clock),
        ledgers=lambda: _every_ledger(cluster),
        brokers=RestBrokerTrackers(rest, store),
        ledgers_root=root,
    )

    # The deletion service's room may be opened later than this one.
    def demand_ready() -> None:
        cluster.deletion.require_ready()

    def send(records: Sequence[PendingDeleteLedgerInfo]) -> Sequence[SentLedger]:
        return cluster.deletion.send_pending_delete_ledgers(records)

    deletions = BucketDeletions(demand_ready, send, store, root, cluster.steps or Steps())
    threads = ThreadPoolExecutor(_CURSORS_AT_ONCE, "index-repair")
    close_at_the_end(cluster.stack, threads.shutdown)
    pointers = BucketPointers(store, owners, clock, root)
    return Room(IndexRepair(RepairPorts(check, owners, pointers, deletions, BrokerTopicAdmin(rest).stats, threads.map)))


def open_deduplication_policies(cluster: ClusterAccess) -> Room:
    """Policies of deduplication (PIP-6)."""
    owners = BrokerLiveOwners(cluster.rest, cluster.store)
    policies = BrokerDeduplicationPolicies(cluster.rest, cluster.store, owners)
    return Room(PolicyChanges(policies, owners, StoredTopics(cluster.store), cluster.clock))


def open_deduplication_checks(cluster: ClusterAccess) -> Room:
    """Finding out whether brokers deduplicate, on topics of the sidecar's own."""
    owners = BrokerLiveOwners(cluster.rest, cluster.store)
    connections = BinaryConnections(cluster.credentials, cluster.tls, cluster.clock)
    close_at_the_end(cluster.stack, connections.close)
    return Room(
        DeduplicationChecks(
            BrokerTopicAdmin(cluster.rest),
            BrokerDuplicates(TopicOwners(cluster.settings.broker_service_url, connections), connections, cluster.clock),
            BrokerDeduplicationPolicies(cluster.rest, cluster.store, owners),
            owners,
            lambda: secrets.token_hex(8),
        )
    )


def open_deduplication(cluster: ClusterAccess) -> Room:
    """The state of deduplication (PIP-6), which is stored and needs no broker to load a topic."""
    owners = BrokerLiveOwners(cluster.rest, cluster.store)
    root = cluster.settings.ledgers_root_path
    entries = BookieTopicEntries(cluster.store, cluster.entries, root, Pace(cluster.clock, None))
    threads = ThreadPoolExecutor(_PARTITIONS_AT_ONCE, "deduplication-show")
    close_at_the_end(cluster.stack, threads.shutdown)
    ports = DeduplicationPorts(
        cluster.stored_deduplications,
        BookieReplayedEntries(entries),
        BrokerDeduplicationPolicies(cluster.rest, cluster.store, owners),
        owners,
        cluster.clock,
        threads.map,
    )
    service, metrics = DeduplicationService(ports), DeduplicationMetrics(cluster.cluster_name)
    watched = [parse_topic_name(name) for name in cluster.settings.deduplication_watched_topics]
    watch = TopicWatch(
        "deduplication-watch",
        WatchedDeduplication(service, metrics).look,
        watched,
        cluster.settings.deduplication_watch_interval_in_seconds,
        cluster.clock,
    )
    return Room(service, watch.start, watch.close, collectors=[metrics])


def open_deduplication_health(cluster: ClusterAccess) -> Room:
    """Deduplication cursors that are stuck, and slow loads."""
    owners = BrokerLiveOwners(cluster.rest, cluster.store)
    policies = BrokerDeduplicationPolicies(cluster.rest, cluster.store, owners)
    return Room(DeduplicationHealth(cluster.stored_deduplications, policies, owners))


def _every_ledger(cluster: ClusterAccess) -> Iterator[tuple[LedgerId, bytes]]:
    # A walk takes Arrow, which the rest of the service does without.
    from pulsar_sidecar.adapters.metadata.ledger_walk import every_ledger

    settings = cluster.settings
    return every_ledger(
        settings.metadata_store_url,
        cluster.store,
        cluster.clock,
        settings.ledgers_root_path,
        credential=store_credential_of(settings),
        nodes_per_second=settings.ledger_deletion_watch_nodes_per_second,
    )


ROOMS: Sequence[tuple[Callable[[Any], APIRouter], Callable[[ClusterAccess], Room]]] = (
    (ledger_deletion.router, open_ledger_deletion),
    (delayed_delivery.router, open_cancelling),
    (ack_state.router, open_ack_states),
    (delayed_delivery.waiting_router, open_waiting_messages),
    (delayed_index.router, open_delayed_index),
    (delayed_index_planning.router, open_index_planning),
    (delayed_index_checks.router, open_index_checks),
    (delayed_index_build.router, open_index_building),
    (deduplication.router, open_deduplication),
    (deduplication_policies.router, open_deduplication_policies),
    (deduplication_checks.router, open_deduplication_checks),
    (deduplication_health.router, open_deduplication_health),
)
"""Each room's routes, which can be described without it, and what opens it; it has not started then."""
