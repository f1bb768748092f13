"""The composition root: the only file that names concrete adapters and joins them to rooms and doors."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from service.adapters.bookkeeper.bookie_addresses import RegisteredBookies
from service.adapters.bookkeeper.bookie_connections import BookieConnections
from service.adapters.bookkeeper.bookie_http import BookieHttp
from service.adapters.bookkeeper.bookie_wire import BookieEntries
from service.adapters.metadata.session import ZooKeeperCredential
from service.adapters.metadata.zookeeper import ZooKeeperMetadataStore, open_metadata_store
from service.adapters.offload.credentials import AccessKey, OffloadCredentials, credentials_from_environment
from service.adapters.offload.offloaded_ledgers import ObjectStoreOffloadedLedgers
from service.adapters.pulsar.admin_rest import AdminRest
from service.adapters.pulsar.clients import open_client
from service.adapters.pulsar.consumer import ConsumerSettings
from service.adapters.pulsar.credentials import ClientCredentials, TlsOptions, parse_credentials
from service.adapters.pulsar.live_owners import BrokerLiveOwners
from service.adapters.pulsar.topic_admin import BrokerTopicAdmin
from service.adapters.pulsar.topics import PulsarDeletionTopics
from service.adapters.pulsar.topics_setup import TopicsSettings
from service.api.app import create_app
from service.api.authentication import Authenticator, NoAuthentication, TokenAuthentication, public_key, secret_key
from service.api.server import Endpoint, listening_socket, server_for
from service.demo.playing import Eyes, Report, play
from service.demo.stage import Stage, demo_directory
from service.ledger_deletion.deciding import Policy
from service.ledger_deletion.operating import SidecarInstance
from service.ledger_deletion.retrying import RetryPolicy
from service.ledger_deletion.workflow.runtime import Configuration, World
from service.ledger_deletion.workflow.serving import LedgerDeletion
from service.ledger_ownership.compaction import CompactedLedgers
from service.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT
from service.local_cluster.addresses import ClusterAddresses
from service.model.clocks import Clock, SystemClock
from service.model.errors import InvalidInputError
from service.observability.logging import configure_logging
from service.observability.metrics import DeletionMetrics
from service.settings import Settings, load_settings

_DISTRIBUTION = "pulsar-sidecar"
log = structlog.get_logger("service")


# --- serve ---------------------------------------------------------------------------------------------------------


def serve(flags: Mapping[str, str | None], environment: Mapping[str, str], config: Path | None) -> int:
    """Run the sidecar until SIGTERM or SIGINT; the process's exit code.

    Raises:
        InvalidInputError: the settings do not fit together, or the address is taken.
    """
    warnings: list[str] = []
    settings = load_settings(flags, environment, config, warnings.append)
    configure_logging(settings.log_level, settings.log_format)
    for warning in warnings:
        log.warning(warning)
    endpoint = Endpoint(
        settings.listen_host,
        settings.listen_port,
        settings.listen_tls_certificate_file_path,
        settings.listen_tls_key_file_path,
    )
    clock = SystemClock()
    draining = threading.Event()
    with listening_socket(endpoint) as listener, ExitStack() as resources:
        metrics, service = _open_service(settings, environment, clock, resources)
        app = create_app(
            service,
            metrics,
            _authenticator(settings, clock),
            clock=clock,
            draining=draining,
            own_hosts=_own_hosts(settings),
            docs=settings.api_docs_enabled,
            version=version(_DISTRIBUTION),
        )
        service.start()
        resources.callback(service.close)
        log.info("listening", listen=settings.listen, enabled=settings.topic_two_phase_deletion_enabled)
        server_for(app, endpoint, draining).run([listener])
        log.info("stopping: the batch in hand is finished first")
    log.info("stopped")
    return 0


def _open_service(
    settings: Settings, environment: Mapping[str, str], clock: Clock, resources: ExitStack
) -> tuple[DeletionMetrics, LedgerDeletion]:
    cluster_name = settings.cluster_name or "unknown"
    metrics = DeletionMetrics(
        CollectorRegistry(),
        cluster=cluster_name,
        instance=settings.effective_instance_name,
        version=version(_DISTRIBUTION),
    )
    world = _open_world(settings, environment, cluster_name, clock, resources)
    instance = SidecarInstance(
        name=settings.effective_instance_name,
        advertised_url=settings.effective_advertised_url,
        broker_url=None if "," in settings.web_service_url else settings.web_service_url,
        started_ms=clock.now_ms(),
    )
    return metrics, LedgerDeletion(_configuration(settings), world, instance, metrics)


def _open_world(
    settings: Settings, environment: Mapping[str, str], cluster_name: str, clock: Clock, resources: ExitStack
) -> World:
    store = _open_store(settings, clock, resources)
    entries = BookieEntries(BookieConnections(RegisteredBookies(store, settings.ledgers_root_path).address))
    resources.callback(entries.close)
    credentials, tls = _credentials(settings), _tls(settings)
    rest = AdminRest([settings.web_service_url], credentials, tls, store=store)
    client = open_client(settings.broker_service_url, credentials, tls)
    resources.callback(client.close)
    return World(
        clock=clock,
        store=store,
        entries=entries,
        owners=BrokerLiveOwners(rest, store),
        admin=BrokerTopicAdmin(rest),
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
        ),
        offloaded=ObjectStoreOffloadedLedgers(
            settings.offload_allowed_locations, cluster_name, _offload_credentials(settings, environment)
        ),
        direct=BookieHttp(settings.bookie_http_urls) if settings.bookie_http_urls else None,
    )


def _open_store(settings: Settings, clock: Clock, resources: ExitStack) -> ZooKeeperMetadataStore:
    store = open_metadata_store(
        settings.metadata_store_url,
        clock,
        session_timeout_ms=settings.metadata_store_session_timeout_millis,
        credential=_store_credential(settings),
    )
    resources.callback(store.close)
    return store


def _store_credential(settings: Settings) -> ZooKeeperCredential | None:
    if settings.metadata_store_auth is None:
        return None
    scheme, _, secret = settings.metadata_store_auth.get_secret_value().partition(":")
    return ZooKeeperCredential(scheme, secret)


def _credentials(settings: Settings) -> ClientCredentials:
    params = settings.auth_params.get_secret_value() if settings.auth_params else None
    return parse_credentials(settings.auth_plugin, params)


def _tls(settings: Settings) -> TlsOptions:
    return TlsOptions(
        trust_certs_file=settings.tls_trust_certs_file_path,
        allow_insecure_connection=settings.tls_allow_insecure_connection,
        hostname_verification=settings.tls_enable_hostname_verification,
    )


def _offload_credentials(settings: Settings, environment: Mapping[str, str]) -> OffloadCredentials:
    found = credentials_from_environment(environment)
    key_id = settings.s3_managed_ledger_offload_credential_id
    secret = settings.s3_managed_ledger_offload_credential_secret
    return OffloadCredentials(
        aws_s3=AccessKey(key_id, secret.get_secret_value()) if key_id and secret else found.aws_s3,
        s3=found.s3,
        aliyun_oss=found.aliyun_oss,
        azureblob=found.azureblob,
        gcs_service_account_key_file=settings.gcs_managed_ledger_offload_service_account_key_file,
    )


def _configuration(settings: Settings) -> Configuration:
    return Configuration(
        enabled=settings.topic_two_phase_deletion_enabled,
        ledgers_root=settings.ledgers_root_path,
        policy=Policy(
            open_min_age_ms=settings.two_phase_deletion_open_ledger_min_age_in_seconds * 1000,
            unlinked_min_age_ms=settings.two_phase_deletion_unlinked_ledger_min_age_in_seconds * 1000,
            in_use_settle_ms=settings.two_phase_deletion_in_use_settle_in_seconds * 1000,
        ),
        retry_policy=RetryPolicy(
            reconsume_later_ms=settings.two_phase_deletion_reconsume_later_in_seconds * 1000,
            max_redeliver_count=settings.two_phase_deletion_max_retry_delete_count,
        ),
        rate_per_second=settings.two_phase_deletion_rate_per_second,
        watchdog_late_ms=settings.two_phase_deletion_watchdog_late_in_seconds * 1000,
        topic_deletion_wait_ms=settings.two_phase_deletion_topic_deletion_wait_in_seconds * 1000,
        undelete_lookback_ms=settings.two_phase_deletion_outcome_retention_in_minutes * 60_000,
        batch_size=settings.two_phase_deletion_batch_size,
    )


def _authenticator(settings: Settings, clock: Clock) -> Authenticator:
    if not settings.authentication_enabled:
        return NoAuthentication()
    if settings.token_secret_key is not None:
        key = secret_key(settings.token_secret_key.get_secret_value())
    elif settings.token_public_key is not None:
        key = public_key(settings.token_public_key)
    else:
        raise InvalidInputError("authenticationEnabled=true needs tokenSecretKey or tokenPublicKey")
    return TokenAuthentication(key, settings.super_user_roles, clock)


def _own_hosts(settings: Settings) -> tuple[str, ...]:
    host = settings.effective_advertised_url.partition("://")[2].rpartition(":")[0] or settings.listen_host
    return (host.strip("[]"), settings.listen_host)


# --- demo ----------------------------------------------------------------------------------------------------------


def play_demo(directory: Path | None, topics: int, say: Callable[[str], None]) -> Report:
    """Tell the story on a cluster of this machine; leaves it running."""
    configure_logging("ERROR", "text")
    clock = SystemClock()
    return play(Stage(directory or demo_directory(), clock, say), lambda at: _eyes(at, clock), clock, say, topics)


def strike_demo(directory: Path | None, say: Callable[[str], None]) -> None:
    """End the demo's processes and remove its files."""
    Stage(directory or demo_directory(), SystemClock(), say).strike()


@contextmanager
def _eyes(addresses: ClusterAddresses, clock: Clock) -> Iterator[Eyes]:
    with ExitStack() as resources:
        store = open_metadata_store(addresses.metadata_store_url, clock)
        resources.callback(store.close)
        entries = BookieEntries(BookieConnections(RegisteredBookies(store).address))
        resources.callback(entries.close)
        client = open_client(addresses.broker_service_url)
        resources.callback(client.close)
        yield Eyes(store, CompactedLedgers(store, entries, DEFAULT_LEDGERS_ROOT), client)
