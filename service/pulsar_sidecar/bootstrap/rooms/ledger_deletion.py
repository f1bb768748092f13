"""Two-phase ledger deletion (PIP-186), with the watch for leaked ledgers."""

from dataclasses import replace

from pulsar_sidecar.adapters.bookkeeper.bookie_http import BookieHttp
from pulsar_sidecar.adapters.metadata.zookeeper import StoreTime
from pulsar_sidecar.adapters.metadata.zookeeper_changes import ZooKeeperChanges
from pulsar_sidecar.adapters.metadata.zookeeper_topic_changes import ZooKeeperTopicChanges
from pulsar_sidecar.adapters.offload.object_stores import AccessKey, OffloadCredentials, credentials_from_environment
from pulsar_sidecar.adapters.offload.offloaded_ledgers import ObjectStoreOffloadedLedgers
from pulsar_sidecar.adapters.pulsar.client.clients import open_client
from pulsar_sidecar.adapters.pulsar.rest.broker_configuration import AdminBrokersMetadata
from pulsar_sidecar.adapters.pulsar.rest.namespace_admin import BrokerNamespaceAdmin
from pulsar_sidecar.adapters.pulsar.topics.deletion_topics import PulsarDeletionTopics
from pulsar_sidecar.adapters.pulsar.topics.pending_consumer import ConsumerSettings
from pulsar_sidecar.adapters.pulsar.topics.topics_setup import TopicsSettings
from pulsar_sidecar.api.rooms.ledger_deletion.routes import router
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess, store_session_of
from pulsar_sidecar.bootstrap.room import Room, RoomEntry
from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.ledger_deletion.second_phase.decide import DeletionPolicy
from pulsar_sidecar.ledger_deletion.second_phase.retry import RetryPolicy
from pulsar_sidecar.ledger_deletion.service import SidecarInstance
from pulsar_sidecar.ledger_deletion.watch.ports import StoreChanges, TopicChanges, WholeStore
from pulsar_sidecar.ledger_deletion.watch.service import WatchMode
from pulsar_sidecar.ledger_deletion.workflow.runtime import Configuration, Ports, Runtime
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.ledger_deletion.workflow.watch_configuration import WatchConfiguration
from pulsar_sidecar.model.file_urls import content_of
from pulsar_sidecar.settings.fields import Settings


def open_ledger_deletion(cluster: ClusterAccess) -> Room:
    """Two-phase ledger deletion (PIP-186)."""
    settings, clock, store, rest = cluster.settings, cluster.clock, cluster.store, cluster.rest
    client = cluster.closing(open_client(settings.broker_service_url, cluster.credentials, cluster.tls))
    direct = cluster.closing(BookieHttp(settings.bookie_http_urls)) if settings.bookie_http_urls else None
    changes, whole = _watched(cluster)
    ports = Ports(
        clock=clock,
        store=store,
        entries=cluster.entries,
        owners=cluster.owners,
        admin=cluster.admin,
        namespaces=BrokerNamespaceAdmin(rest),
        endangered_source=cluster.shadows.endangered_source,
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
        topic_changes=_topic_changes(cluster),
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
    return Room([service], service.start, service.close, service.ready, [metrics])


def _watched(cluster: ClusterAccess) -> tuple[StoreChanges, WholeStore] | tuple[None, None]:
    """What the watch for leaked ledgers hears and reads; nothing where it is switched off."""
    settings, clock = cluster.settings, cluster.clock
    if not settings.topic_two_phase_deletion_enabled or settings.ledger_deletion_watch == WatchMode.OFF.value:
        return None, None
    url, root = settings.metadata_store_url, settings.ledgers_root_path
    options = store_session_of(settings)
    return cluster.closing(ZooKeeperChanges(url, clock, root, options=options)), cluster.whole_store()


def _topic_changes(cluster: ClusterAccess) -> TopicChanges | None:
    """What names the topics that became shadows; nothing where no topic is deleted."""
    settings = cluster.settings
    if not settings.topic_two_phase_deletion_enabled:
        return None
    options = store_session_of(settings)
    return cluster.closing(ZooKeeperTopicChanges(settings.metadata_store_url, cluster.clock, options=options))


def configuration_of(settings: Settings) -> Configuration:
    """The settings of ledger deletion, in its own units."""
    return Configuration(
        enabled=settings.topic_two_phase_deletion_enabled,
        ledgers_root=settings.ledgers_root_path,
        policy=DeletionPolicy(
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
    text = None if secret is None else content_of(secret.get_secret_value(), "s3ManagedLedgerOffloadCredentialSecret")
    return replace(
        credentials_from_environment(cluster.environment),
        aws_s3=AccessKey(key_id, text) if key_id and text else None,
        gcs_service_account_key_file=cluster.settings.gcs_managed_ledger_offload_service_account_key_file,
    )


ENTRY = RoomEntry([router], open_ledger_deletion)
