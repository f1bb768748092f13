"""The composition root: settings become adapters, adapters become a room's world, the room gets its doors.

Invariants: only this package names concrete adapters; whatever is opened here is closed in the opposite order, however
the process ends short of a kill.
"""

import gc
import importlib.metadata
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry, ProcessCollector

from pulsar_sidecar.adapters.bookkeeper.bookie_addresses import RegisteredBookies
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_http import BookieHttp
from pulsar_sidecar.adapters.bookkeeper.bookie_wire import BookieEntries
from pulsar_sidecar.adapters.metadata.probe import LatencyProbe
from pulsar_sidecar.adapters.metadata.store_clock import StoreTime
from pulsar_sidecar.adapters.metadata.url import parse_metadata_store_url
from pulsar_sidecar.adapters.metadata.zookeeper import ZooKeeperMetadataStore, open_metadata_store
from pulsar_sidecar.adapters.offload.offloaded_ledgers import ObjectStoreOffloadedLedgers
from pulsar_sidecar.adapters.pulsar.client.clients import open_client
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.brokers_metadata import AdminBrokersMetadata
from pulsar_sidecar.adapters.pulsar.rest.http_sessions import HttpTimeouts
from pulsar_sidecar.adapters.pulsar.rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.adapters.pulsar.rest.shadow_admin import BrokerShadowAdmin
from pulsar_sidecar.adapters.pulsar.rest.shadow_retention import BrokerShadows
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.topics.names import PulsarDeletionTopics
from pulsar_sidecar.api.app import create_app, create_starting_app
from pulsar_sidecar.api.authentication import Authenticator
from pulsar_sidecar.api.connections import Limits
from pulsar_sidecar.api.rooms.ack_state import routes as ack_state
from pulsar_sidecar.api.rooms.delayed_delivery import routes as delayed_delivery
from pulsar_sidecar.api.rooms.delayed_delivery import waiting
from pulsar_sidecar.api.server import listening_socket, server_for
from pulsar_sidecar.api.starting import Front
from pulsar_sidecar.bootstrap.closing import ClosingDeadline, close_at_the_end
from pulsar_sidecar.bootstrap.cluster_watch import ClusterWatch
from pulsar_sidecar.bootstrap.opening import Opening
from pulsar_sidecar.bootstrap.process_limits import connections_for_callers
from pulsar_sidecar.bootstrap.rooms import (
    AckStateRoom,
    ClusterAccess,
    open_ack_states,
    open_delayed_delivery,
    open_waiting_messages,
)
from pulsar_sidecar.bootstrap.settings_map import (
    authenticator_of,
    cancelling_configuration_of,
    configuration_of,
    consumer_settings_of,
    credentials_of,
    endpoint_of,
    instance_of,
    offload_credentials_of,
    store_credential_of,
    tls_of,
    topics_settings_of,
    warnings_of,
)
from pulsar_sidecar.delayed_delivery.workflow.serving import DelayedDelivery
from pulsar_sidecar.ledger_deletion.second_phase.adaptive_limit import AdaptiveLimit
from pulsar_sidecar.ledger_deletion.steps import Steps
from pulsar_sidecar.ledger_deletion.workflow.runtime import World
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.clocks import Clock, StopSignal, SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.observability.logging import configure_logging
from pulsar_sidecar.observability.metrics import DeletionMetrics
from pulsar_sidecar.settings.fields import Settings
from pulsar_sidecar.settings.loading import load_settings

_CLOSING_SECONDS = 25.0
_CLOSING_WITHOUT_ZOOKEEPER_SECONDS = 5.0
_QUICK = HttpTimeouts(connect_seconds=3.0, read_seconds=5.0)
_OBJECTS_BETWEEN_COLLECTIONS = 100_000
_SWITCH_SECONDS = 0.001
_STARTING_SECONDS = 3.0
"""A sidecar that starts, and asks brokers for the first time, makes the store slower than it is if it is let alone."""
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
        PermanentError: the brokers refuse to say which cluster they are.
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
    authentication = authenticator_of(settings, clock)
    endpoint = endpoint_of(settings)
    rest = AdminRest([settings.web_service_url], credentials_of(settings), tls_of(settings), timeouts=_QUICK)
    store_credential_of(settings)
    for warning in warnings_of(settings):
        _log.warning(warning)
    draining = threading.Event()
    watch = ClusterWatch(clock)
    deadline = ClosingDeadline(stack)

    def wait(stop: StopSignal, note: Callable[[str], None]) -> str | None:
        return settings.cluster_name or _cluster_name(rest, clock, stop, note)

    def open_rooms(cluster_name: str) -> None:
        front.app = _open_rooms(
            settings, environment, clock, stack, steps, cluster_name, authentication, draining, watch
        )
        watch.watch(f"the brokers at {rest.addresses}", lambda: rest.headers("/admin/v2/brokers/version"))

    starting = create_starting_app(
        authentication, clock=clock, own_hosts=_own_hosts(settings), missing=lambda: opening.waits_for
    )
    front = Front(starting)
    limits = Limits(connections_for_callers(settings.max_http_server_connections))
    server = server_for(front, endpoint, draining, limits)
    opening = Opening(wait, open_rooms, server.end)
    close_at_the_end(stack, watch)
    listening = stack.enter_context(listening_socket(endpoint))
    _log.info("listening", address=settings.listen, authentication=settings.authentication_enabled)
    opening.start()
    try:
        server.run([listening])
    finally:
        # Brokers that are away with it are the ordinary case: both restart in one pod.
        is_away = watch.missing(_zookeeper(settings))
        seconds = _CLOSING_SECONDS if is_away is None else _CLOSING_WITHOUT_ZOOKEEPER_SECONDS
        _log.info("stopping", at_most_seconds=seconds, missing=is_away)
        deadline.begin(seconds)
        opening.end()


def _open_rooms(
    settings: Settings,
    environment: Mapping[str, str],
    clock: Clock,
    stack: ExitStack,
    steps: Steps | None,
    cluster_name: str,
    authentication: Authenticator,
    draining: threading.Event,
    watch: ClusterWatch,
) -> FastAPI:
    """The app with its rooms, which have started."""
    metrics, service, access = open_service(settings, environment, clock, stack, steps, cluster_name)
    cancelling = _open_cancelling(settings, access, stack)
    acknowledged = _open_ack_states(settings, access, stack)
    reading = open_waiting_messages(access, stack)
    routers = [delayed_delivery.router(cancelling), ack_state.router(acknowledged.states), waiting.router(reading)]
    app = _app(settings, service, metrics, authentication, clock, draining, routers, watch)
    close_at_the_end(stack, service)
    close_at_the_end(stack, cancelling)
    service.start()
    cancelling.start()
    acknowledged.watch.start()
    watch.watch(_zookeeper(settings), lambda: access.store.read(settings.ledgers_root_path))
    _log.info(
        "rooms opened",
        cluster=cluster_name,
        instance=settings.effective_instance_name,
        two_phase_deletion=settings.topic_two_phase_deletion_enabled,
    )
    return app


def _zookeeper(settings: Settings) -> str:
    """Its name in messages."""
    return f"ZooKeeper at {parse_metadata_store_url(settings.metadata_store_url).hosts}"


def _prepare_interpreter() -> None:
    """Suit the interpreter to batches: they make many objects and no cycles, and keep one thread busy for long.

    With the defaults a good part of a drain's processor time goes into looking for cycles, and a thread that brings the
    store's answers or a caller's request waits up to 5 ms for its turn.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 20, 20)
    sys.setswitchinterval(_SWITCH_SECONDS)


def open_service(
    settings: Settings,
    environment: Mapping[str, str],
    clock: Clock,
    stack: ExitStack,
    steps: Steps | None,
    cluster_name: str,
) -> tuple[DeletionMetrics, LedgerDeletion, ClusterAccess]:
    """The room with its adapters, not started yet, and what it opened; ``stack`` closes that."""
    credentials, tls = credentials_of(settings), tls_of(settings)
    limit = _adaptive_limit(settings, clock, stack)
    store = _open_store(settings, clock, stack, limit)
    rest = AdminRest([settings.web_service_url], credentials, tls, store=store)
    registry = CollectorRegistry()
    metrics = _metrics(settings, cluster_name, registry)
    client = open_client(settings.broker_service_url, credentials, tls)
    close_at_the_end(stack, client)
    bookies = BookieConnections(RegisteredBookies(store, settings.ledgers_root_path).address)
    entries = BookieEntries(bookies)
    close_at_the_end(stack, entries)
    world = World(
        clock=clock,
        store=store,
        entries=entries,
        owners=BrokerLiveOwners(rest, store),
        admin=BrokerTopicAdmin(rest),
        shadow_admin=BrokerShadowAdmin(rest),
        shadows=BrokerShadows(rest, store),
        topics=PulsarDeletionTopics(
            client,
            rest,
            clock,
            topics=topics_settings_of(settings),
            consumer=consumer_settings_of(settings),
            brokers_clock=StoreTime(store, clock),
        ),
        offloaded=ObjectStoreOffloadedLedgers(
            settings.offload_allowed_locations, cluster_name, offload_credentials_of(settings, environment)
        ),
        brokers_metadata=AdminBrokersMetadata(rest, store, settings.metadata_store_url, settings.ledgers_root_path),
        direct=_direct_deletion(settings, stack),
        limit=limit,
    )
    access = ClusterAccess(
        store=store,
        rest=rest,
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
    service = LedgerDeletion(configuration_of(settings), world, instance_of(settings, clock), metrics, steps)
    return metrics, service, access


def _open_cancelling(settings: Settings, access: ClusterAccess, stack: ExitStack) -> DelayedDelivery:
    return open_delayed_delivery(access, cancelling_configuration_of(settings), stack)


def _open_ack_states(settings: Settings, access: ClusterAccess, stack: ExitStack) -> AckStateRoom:
    watched = [parse_topic_name(name) for name in settings.ack_state_watched_topics]
    every_seconds = settings.ack_state_watch_interval_in_seconds
    return open_ack_states(access, watched, every_seconds, stack)


def _app(
    settings: Settings,
    service: LedgerDeletion,
    metrics: DeletionMetrics,
    authentication: Authenticator,
    clock: Clock,
    draining: threading.Event,
    routers: Sequence[APIRouter],
    watch: ClusterWatch,
) -> FastAPI:
    return create_app(
        service,
        metrics,
        authentication,
        clock=clock,
        draining=draining,
        own_hosts=_own_hosts(settings),
        routers=routers,
        docs=settings.api_docs_enabled,
        version=_version(),
        missing=watch.missing,
    )


def _metrics(settings: Settings, cluster_name: str, registry: CollectorRegistry) -> DeletionMetrics:
    ProcessCollector(registry=registry)
    return DeletionMetrics(
        registry, cluster=cluster_name, instance=settings.effective_instance_name, version=_version()
    )


def _adaptive_limit(settings: Settings, clock: Clock, stack: ExitStack) -> AdaptiveLimit | None:
    """The limit with the probe that it goes by; None when it is switched off, or nothing is deleted anyway."""
    if not settings.topic_two_phase_deletion_enabled or settings.two_phase_deletion_latency_factor == 0:
        return None
    limit = AdaptiveLimit(clock, settings.two_phase_deletion_latency_factor)
    servers = parse_metadata_store_url(settings.metadata_store_url).servers
    credential = store_credential_of(settings)
    probe = LatencyProbe(servers, credential, clock, limit, after_seconds=_STARTING_SECONDS)
    probe.start()
    close_at_the_end(stack, probe)
    return limit


def _open_store(
    settings: Settings, clock: Clock, stack: ExitStack, limit: AdaptiveLimit | None
) -> ZooKeeperMetadataStore:
    store = open_metadata_store(
        settings.metadata_store_url,
        clock,
        session_timeout_ms=settings.metadata_store_session_timeout_millis,
        credential=store_credential_of(settings),
        limit=limit,
    )
    close_at_the_end(stack, store)
    return store


def _direct_deletion(settings: Settings, stack: ExitStack) -> BookieHttp | None:
    if not settings.bookie_http_urls:
        return None
    direct = BookieHttp(settings.bookie_http_urls)
    close_at_the_end(stack, direct)
    return direct


def _cluster_name(rest: AdminRest, clock: Clock, stop: StopSignal, note: Callable[[str], None]) -> str | None:
    """What the brokers call their cluster; they may still be starting, or be away."""
    note(f"the brokers at {rest.addresses} have not said yet which cluster they are")
    told = ""
    while not stop.is_set():
        try:
            document = rest.get("/admin/v2/brokers/configuration/runtime")
        except TemporaryError as error:
            note(str(error))
            if str(error) != told:
                told = str(error)
                _log.warning("the brokers do not say yet which cluster they are", error=told)
            clock.wait_seconds(1.0, stop)
            continue
        name = document.get("clusterName") if isinstance(document, dict) else None
        if not isinstance(name, str) or not name:
            raise InvalidInputError("the brokers do not say their clusterName; set clusterName")
        return name
    return None


def _own_hosts(settings: Settings) -> tuple[str, str]:
    return urlsplit(settings.effective_advertised_url).hostname or "", settings.listen_host


def _version() -> str:
    try:
        return importlib.metadata.version("pulsar-sidecar")
    except importlib.metadata.PackageNotFoundError:
        return "source"
