"""Two-phase ledger deletion (PIP-186), with the watch for leaked ledgers."""

from pulsar_sidecar.adapters.bookkeeper.bookie_disks import RegisteredBookies
from pulsar_sidecar.adapters.metadata_access import StoreTime
from pulsar_sidecar.adapters.metadata_stores import open_changes, open_topic_changes
from pulsar_sidecar.adapters.offload.object_stores import OffloadCredentials, credentials_of
from pulsar_sidecar.adapters.offload.offloaded_ledgers import ObjectStoreOffloadedLedgers
from pulsar_sidecar.adapters.pulsar_client.clients import open_client
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import AdminBrokersMetadata
from pulsar_sidecar.adapters.pulsar_rest.namespace_admin import BrokerNamespaceAdmin
from pulsar_sidecar.adapters.pulsar_topics.deletion_topics import PulsarDeletionTopics
from pulsar_sidecar.adapters.pulsar_topics.pending_consumer import ConsumerSettings
from pulsar_sidecar.adapters.pulsar_topics.topics_setup import TopicsSettings
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess, store_session_of
from pulsar_sidecar.bootstrap.feature import Feature, FeatureEntry
from pulsar_sidecar.features.ledger_deletion.http.routes import router
from pulsar_sidecar.features.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.features.ledger_deletion.results import SidecarInstance
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import DeletionPolicy
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import RetryPolicy
from pulsar_sidecar.features.ledger_deletion.watch.ports import StoreChanges, TopicChanges
from pulsar_sidecar.features.ledger_deletion.watch.results import WatchMode
from pulsar_sidecar.features.ledger_deletion.workflow.configuration import Configuration, Ports, WatchConfiguration
from pulsar_sidecar.features.ledger_deletion.workflow.runtime import Runtime
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.addresses import sidecars_by_cluster
from pulsar_sidecar.settings.fields import Settings

_BOOKIES_AT_ONCE = 8


def open_feature(cluster: ClusterAccess) -> Feature:
    """Open two-phase ledger deletion (PIP-186)."""
    settings, clock, store, rest = cluster.settings, cluster.clock, cluster.store, cluster.rest
    client = cluster.closing(open_client(settings.broker_service_url, cluster.credentials, cluster.tls))
    threads = cluster.threads(_BOOKIES_AT_ONCE, "collections")
    ports = Ports(
        clock=clock,
        store=store,
        entries=cluster.entries,
        owners=cluster.owners,
        admin=cluster.admin,
        namespaces=BrokerNamespaceAdmin(rest, sidecars_by_cluster(settings.cluster_urls)),
        endangered_source=cluster.endangered_source,
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
        bookies=cluster.closing(RegisteredBookies(store, cluster.bookies, threads, settings.ledgers_root_path)),
        metadata_mismatch=AdminBrokersMetadata(
            rest, store, settings.metadata_store_url, settings.ledgers_root_path
        ).mismatch,
        limit=cluster.limit,
        changes=_watch_changes(cluster),
        whole=cluster.whole_store(),
        topic_changes=_topic_changes(cluster),
    )
    instance = SidecarInstance(
        name=settings.effective_instance_name,
        advertised_url=settings.effective_advertised_url,
        # With several brokers in one setting, this sidecar runs beside none of them in particular.
        broker_url=settings.web_service_url if "," not in settings.web_service_url else None,
        started_ms=clock.now_ms(),
        consumes=settings.two_phase_deletion_consumer_enabled,
    )
    metrics = DeletionMetrics(cluster.cluster_name)
    service = LedgerDeletion(Runtime(configuration_of(settings), ports, instance, metrics, cluster.steps))
    cluster.deletion = service
    return Feature([service], service.start, service.close, service.ready, [metrics])


def _watch_changes(cluster: ClusterAccess) -> StoreChanges | None:
    settings, clock = cluster.settings, cluster.clock
    if not settings.topic_two_phase_deletion_enabled or settings.ledger_deletion_watch == WatchMode.OFF.value:
        return None
    url, root = settings.metadata_store_url, settings.ledgers_root_path
    return cluster.closing(open_changes(url, clock, root, store_session_of(settings)))


def _topic_changes(cluster: ClusterAccess) -> TopicChanges | None:
    settings = cluster.settings
    if not settings.topic_two_phase_deletion_enabled:
        return None
    options = store_session_of(settings)
    return cluster.closing(open_topic_changes(settings.metadata_store_url, cluster.clock, options))


def configuration_of(settings: Settings) -> Configuration:
    """Return the settings of ledger deletion, in its own units."""
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
    settings = cluster.settings
    secret = settings.s3_managed_ledger_offload_credential_secret
    return credentials_of(
        cluster.environment,
        settings.s3_managed_ledger_offload_credential_id,
        None if secret is None else secret.get_secret_value(),
        settings.gcs_managed_ledger_offload_service_account_key_file,
    )


ENTRY = FeatureEntry([router], open_feature)
