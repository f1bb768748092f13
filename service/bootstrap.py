"""The composition root: settings become adapters, adapters become a room's world, the room gets its doors.

Invariants: this is the only module that names concrete adapters; whatever is opened here is closed in the opposite
order, however the process ends short of a kill.
"""

import gc
import importlib.metadata
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry, ProcessCollector

from service.adapters.bookkeeper.bookie_addresses import RegisteredBookies
from service.adapters.bookkeeper.bookie_connections import BookieConnections
from service.adapters.bookkeeper.bookie_http import BookieHttp
from service.adapters.bookkeeper.bookie_wire import BookieEntries
from service.adapters.metadata.probe import LatencyProbe
from service.adapters.metadata.session import ZooKeeperCredential, parse_credential
from service.adapters.metadata.store_clock import StoreTime
from service.adapters.metadata.url import parse_metadata_store_url
from service.adapters.metadata.zookeeper import ZooKeeperMetadataStore, open_metadata_store
from service.adapters.offload.credentials import AccessKey, OffloadCredentials, credentials_from_environment
from service.adapters.offload.offloaded_ledgers import ObjectStoreOffloadedLedgers
from service.adapters.pulsar.admin_rest import AdminRest
from service.adapters.pulsar.clients import SHARED, open_client
from service.adapters.pulsar.consumer import ConsumerSettings
from service.adapters.pulsar.credentials import ClientCredentials, TlsOptions, parse_credentials
from service.adapters.pulsar.errors import translated
from service.adapters.pulsar.live_owners import BrokerLiveOwners
from service.adapters.pulsar.topic_admin import BrokerTopicAdmin
from service.adapters.pulsar.topics import PulsarDeletionTopics
from service.adapters.pulsar.topics_setup import TopicsSettings
from service.api.app import create_app
from service.api.authentication import Authenticator, NoAuthentication, TokenAuthentication, public_key, secret_key
from service.api.routes import ack_state, delayed_delivery, waiting
from service.api.server import Endpoint, listening_socket, server_for
from service.delayed_delivery.workflow.serving import DelayedDelivery
from service.delayed_delivery.workflow.world import Configuration as CancellingConfiguration
from service.demo.playing import Eyes, Report, play
from service.demo.stage import Stage, demo_directory
from service.ledger_deletion.deciding import Policy
from service.ledger_deletion.limiting import AdaptiveLimit
from service.ledger_deletion.operating import SidecarInstance
from service.ledger_deletion.retrying import RetryPolicy
from service.ledger_deletion.steps import Steps
from service.ledger_deletion.workflow.runtime import Configuration, World
from service.ledger_deletion.workflow.serving import LedgerDeletion
from service.ledger_deletion.workflow.shared_limit import SharedLimit
from service.ledger_ownership.compaction import CompactedLedgers
from service.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT
from service.local_cluster.addresses import ClusterAddresses
from service.model.clocks import Clock, SystemClock
from service.model.errors import InvalidInputError, SidecarError, TemporaryError
from service.model.names import parse_topic_name
from service.observability.logging import configure_logging
from service.observability.metrics import DeletionMetrics
from service.room_bootstrap import (
    AckStateRoom,
    Closable,
    ClusterAccess,
    open_ack_states,
    open_delayed_delivery,
    open_waiting_messages,
)
from service.settings import Settings, load_settings

_CLUSTER_NAME_PATIENCE_SECONDS = 60.0
_OBJECTS_BETWEEN_COLLECTIONS = 100_000
_SWITCH_SECONDS = 0.001
_log = structlog.get_logger("pulsar-sidecar")


def serve(
    flags: Mapping[str, str | None], environment: Mapping[str, str], config: Path | None, steps: Steps | None = None
) -> int:
    """Run the service until SIGTERM or SIGINT; 0 when it ended in order.

    Args:
        flags: what the command line says.
        environment: what the environment says.
        config: a properties file.
        steps: told of each step of the two phases; nobody in production.

    Raises:
        InvalidInputError: a setting is wrong, or the address is taken.
        TemporaryError: the brokers did not say which cluster they are.
    """
    warnings: list[str] = []
    settings = load_settings(flags, environment, config, warnings.append)
    configure_logging(settings.log_level, settings.log_format)
    for warning in warnings:
        _log.warning(warning)
    _prepare_interpreter()
    with ExitStack() as stack:
        _run(settings, environment, SystemClock(), stack, steps)
    _log.info("stopped")
    return 0


def _run(
    settings: Settings, environment: Mapping[str, str], clock: Clock, stack: ExitStack, steps: Steps | None
) -> None:
    authentication = authenticator(settings, clock)
    endpoint = _endpoint(settings)
    listening = stack.enter_context(listening_socket(endpoint))
    metrics, service, access = open_service(settings, environment, clock, stack, steps)
    draining = threading.Event()
    cancelling = _open_cancelling(settings, access, stack)
    acknowledged = _open_ack_states(settings, access, stack)
    reading = open_waiting_messages(access, lambda opened: _close_at_the_end(stack, opened))
    routers = [delayed_delivery.router(cancelling), ack_state.router(acknowledged.states), waiting.router(reading)]
    app = _app(settings, service, metrics, authentication, clock, draining, routers)
    _close_at_the_end(stack, service)
    _close_at_the_end(stack, cancelling)
    service.start()
    cancelling.start()
    acknowledged.watch.start()
    _log.info(
        "listening",
        address=settings.listen,
        instance=settings.effective_instance_name,
        authentication=settings.authentication_enabled,
        two_phase_deletion=settings.topic_two_phase_deletion_enabled,
    )
    server_for(app, endpoint, draining).run([listening])
    _log.info("stopping")


def _prepare_interpreter() -> None:
    """Suit the interpreter to batches: they make many objects and no cycles, and keep one thread busy for long.

    With the defaults a good part of a drain's processor time goes into looking for cycles, and a thread that brings the
    store's answers or a caller's request waits up to 5 ms for its turn.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 20, 20)
    sys.setswitchinterval(_SWITCH_SECONDS)


def open_service(
    settings: Settings, environment: Mapping[str, str], clock: Clock, stack: ExitStack, steps: Steps | None = None
) -> tuple[DeletionMetrics, LedgerDeletion, ClusterAccess]:
    """The room with its adapters, not started yet, and what it opened; ``stack`` closes that."""
    credentials, tls = _credentials(settings), _tls(settings)
    limit = _adaptive_limit(settings, clock, stack)
    store = _open_store(settings, clock, stack, limit)
    rest = AdminRest([settings.web_service_url], credentials, tls, store=store)
    cluster_name = settings.cluster_name or _cluster_name(rest, clock)
    registry = CollectorRegistry()
    metrics = _metrics(settings, cluster_name, registry)
    client = open_client(settings.broker_service_url, credentials, tls)
    _close_at_the_end(stack, client)
    bookies = BookieConnections(RegisteredBookies(store, settings.ledgers_root_path).address)
    entries = BookieEntries(bookies)
    _close_at_the_end(stack, entries)
    world = World(
        clock=clock,
        store=store,
        entries=entries,
        owners=BrokerLiveOwners(rest, store),
        admin=BrokerTopicAdmin(rest),
        topics=PulsarDeletionTopics(
            client,
            rest,
            clock,
            topics=_topics_settings(settings),
            consumer=_consumer_settings(settings),
            brokers_clock=StoreTime(store, clock),
        ),
        offloaded=ObjectStoreOffloadedLedgers(
            settings.offload_allowed_locations, cluster_name, _offload_credentials(settings, environment)
        ),
        direct=_direct_deletion(settings, stack),
        limit=limit,
    )
    access = ClusterAccess(
        store=store,
        rest=rest,
        client=client,
        bookies=bookies,
        entries=entries,
        broker_service_url=settings.broker_service_url,
        credentials=credentials,
        tls=tls,
        ledgers_root=settings.ledgers_root_path,
        clock=clock,
        registry=registry,
        cluster_name=cluster_name,
        instance_name=settings.effective_instance_name,
    )
    service = LedgerDeletion(configuration(settings), world, _instance(settings, clock), metrics, steps)
    return metrics, service, access


def _open_cancelling(settings: Settings, access: ClusterAccess, stack: ExitStack) -> DelayedDelivery:
    configured = CancellingConfiguration(
        enabled=settings.delayed_message_cancelling_enabled,
        reassert_ms=settings.delayed_message_reassert_in_seconds * 1000,
        persist_patience_ms=settings.delayed_message_persist_wait_in_seconds * 1000,
    )
    return open_delayed_delivery(access, configured, lambda opened: _close_at_the_end(stack, opened))


def _open_ack_states(settings: Settings, access: ClusterAccess, stack: ExitStack) -> AckStateRoom:
    watched = [parse_topic_name(name) for name in settings.ack_state_watched_topics]
    every_seconds = settings.ack_state_watch_interval_in_seconds
    return open_ack_states(access, watched, every_seconds, lambda opened: _close_at_the_end(stack, opened))


def authenticator(settings: Settings, clock: Clock) -> Authenticator:
    """Who may call.

    Raises:
        InvalidInputError: the key cannot be read.
    """
    if not settings.authentication_enabled:
        return NoAuthentication()
    if settings.token_secret_key is not None:
        key = secret_key(settings.token_secret_key.get_secret_value())
    else:
        key = public_key(settings.token_public_key or "")
    return TokenAuthentication(key, settings.super_user_roles, clock)


# --- settings in the words of those who need them ------------------------------------------------------------------


def configuration(settings: Settings) -> Configuration:
    """The room's settings, in its own units."""
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


def _instance(settings: Settings, clock: Clock) -> SidecarInstance:
    # Several brokers behind one setting are nobody's neighbour in particular.
    one_broker = "," not in settings.web_service_url
    return SidecarInstance(
        name=settings.effective_instance_name,
        advertised_url=settings.effective_advertised_url,
        broker_url=settings.web_service_url if one_broker else None,
        started_ms=clock.now_ms(),
    )


def _topics_settings(settings: Settings) -> TopicsSettings:
    return TopicsSettings(
        parallelism=settings.two_phase_deletion_ledger_deletion_parallelism,
        outcome_retention_minutes=settings.two_phase_deletion_outcome_retention_in_minutes,
        outcome_retention_mebibytes=settings.two_phase_deletion_outcome_retention_size_in_mb,
    )


def _consumer_settings(settings: Settings) -> ConsumerSettings:
    return ConsumerSettings(
        max_messages=settings.two_phase_deletion_batch_size,
        postpone_ms=settings.two_phase_deletion_postpone_in_seconds * 1000,
        consumer_name=settings.effective_instance_name,
    )


def _credentials(settings: Settings) -> ClientCredentials:
    if settings.auth_params is not None and settings.auth_plugin is None:
        raise InvalidInputError("authParams are set and authPlugin is not; write for example authPlugin=token")
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
    secret = settings.s3_managed_ledger_offload_credential_secret
    key_id = settings.s3_managed_ledger_offload_credential_id
    return OffloadCredentials(
        aws_s3=AccessKey(key_id, secret.get_secret_value()) if key_id and secret else None,
        s3=found.s3,
        aliyun_oss=found.aliyun_oss,
        azureblob=found.azureblob,
        gcs_service_account_key_file=settings.gcs_managed_ledger_offload_service_account_key_file,
    )


def _endpoint(settings: Settings) -> Endpoint:
    return Endpoint(
        settings.listen_host,
        settings.listen_port,
        settings.listen_tls_certificate_file_path,
        settings.listen_tls_key_file_path,
    )


# --- opening -------------------------------------------------------------------------------------------------------


def _app(
    settings: Settings,
    service: LedgerDeletion,
    metrics: DeletionMetrics,
    authentication: Authenticator,
    clock: Clock,
    draining: threading.Event,
    routers: Sequence[APIRouter],
) -> FastAPI:
    advertised_host = urlsplit(settings.effective_advertised_url).hostname or ""
    return create_app(
        service,
        metrics,
        authentication,
        clock=clock,
        draining=draining,
        own_hosts=(advertised_host, settings.listen_host),
        routers=routers,
        docs=settings.api_docs_enabled,
        version=_version(),
    )


def _metrics(settings: Settings, cluster_name: str, registry: CollectorRegistry) -> DeletionMetrics:
    ProcessCollector(registry=registry)
    return DeletionMetrics(
        registry, cluster=cluster_name, instance=settings.effective_instance_name, version=_version()
    )


def _adaptive_limit(settings: Settings, clock: Clock, stack: ExitStack) -> SharedLimit | None:
    """The limit with the probe that it goes by; None when it is switched off, or nothing is deleted anyway."""
    if not settings.topic_two_phase_deletion_enabled or settings.two_phase_deletion_latency_factor == 0:
        return None
    limit = SharedLimit(AdaptiveLimit(clock, settings.two_phase_deletion_latency_factor))
    servers = parse_metadata_store_url(settings.metadata_store_url).servers
    probe = LatencyProbe(servers, _store_credential(settings), clock, limit)
    probe.start()
    _close_at_the_end(stack, probe)
    return limit


def _open_store(
    settings: Settings, clock: Clock, stack: ExitStack, limit: SharedLimit | None
) -> ZooKeeperMetadataStore:
    store = open_metadata_store(
        settings.metadata_store_url,
        clock,
        session_timeout_ms=settings.metadata_store_session_timeout_millis,
        credential=_store_credential(settings),
        limit=limit,
    )
    _close_at_the_end(stack, store)
    return store


def _store_credential(settings: Settings) -> ZooKeeperCredential | None:
    auth = settings.metadata_store_auth
    return parse_credential(None if auth is None else auth.get_secret_value())


def _direct_deletion(settings: Settings, stack: ExitStack) -> BookieHttp | None:
    if not settings.bookie_http_urls:
        return None
    direct = BookieHttp(settings.bookie_http_urls)
    _close_at_the_end(stack, direct)
    return direct


def _cluster_name(rest: AdminRest, clock: Clock) -> str:
    """What the brokers call their cluster; they may still be starting."""
    give_up = clock.monotonic_seconds() + _CLUSTER_NAME_PATIENCE_SECONDS
    never = threading.Event()
    while True:
        try:
            document = rest.get("/admin/v2/brokers/configuration/runtime")
        except TemporaryError as error:
            if clock.monotonic_seconds() > give_up:
                raise
            _log.warning("the brokers do not say yet which cluster they are", error=str(error))
            clock.wait_seconds(1.0, never)
            continue
        name = document.get("clusterName") if isinstance(document, dict) else None
        if not isinstance(name, str) or not name:
            raise InvalidInputError("the brokers do not say their clusterName; set clusterName")
        return name


def _close_at_the_end(stack: ExitStack, resource: Closable) -> None:
    def close() -> None:
        try:
            with translated(f"closing {type(resource).__name__}"):
                resource.close()
        except SidecarError as error:
            _log.warning("something did not close in order", error=str(error))

    stack.callback(close)


def _version() -> str:
    try:
        return importlib.metadata.version("pulsar-sidecar")
    except importlib.metadata.PackageNotFoundError:
        return "source"


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
    with ExitStack() as stack:
        store = open_metadata_store(addresses.metadata_store_url, clock)
        _close_at_the_end(stack, store)
        entries = BookieEntries(BookieConnections(RegisteredBookies(store).address))
        _close_at_the_end(stack, entries)
        client = open_client(addresses.broker_service_url)
        _close_at_the_end(stack, client)
        yield Eyes(store, CompactedLedgers(store, entries, DEFAULT_LEDGERS_ROOT), client, SHARED)
