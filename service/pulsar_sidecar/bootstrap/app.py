"""The process of the service: the door answers at once, and the rooms are opened behind it when the cluster is there.

Invariants: only this package names concrete adapters; whatever is opened here is closed in the opposite order, however
the process ends short of a kill.
"""

import gc
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from fastapi import FastAPI

from pulsar_sidecar.adapters.metadata.url import parse_metadata_store_url
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.http_sessions import HttpTimeouts
from pulsar_sidecar.adapters.pulsar.rest.runtime_configuration import RuntimeConfiguration
from pulsar_sidecar.api.app import Front, create_app, create_starting_app
from pulsar_sidecar.api.connections import Limits
from pulsar_sidecar.api.server import listening_socket, server_for
from pulsar_sidecar.bootstrap.closing import ClosingDeadline, close_at_the_end
from pulsar_sidecar.bootstrap.cluster_access import open_cluster_access
from pulsar_sidecar.bootstrap.cluster_watch import ClusterWatch
from pulsar_sidecar.bootstrap.process import connections_for_callers, tool_version
from pulsar_sidecar.bootstrap.rooms import ROOMS, missing_in
from pulsar_sidecar.bootstrap.settings_map import (
    authenticator_of,
    credentials_of,
    endpoint_of,
    store_credential_of,
    tls_of,
    warnings_of,
)
from pulsar_sidecar.ledger_deletion.steps import Steps
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, PermanentError, SidecarError, TemporaryError
from pulsar_sidecar.observability.logging import configure_logging
from pulsar_sidecar.observability.metrics import process_registry
from pulsar_sidecar.settings.fields import Settings
from pulsar_sidecar.settings.loading import load_settings

_CLOSING_SECONDS = 25.0
_CLOSING_WITHOUT_ZOOKEEPER_SECONDS = 5.0
_QUICK = HttpTimeouts(connect_seconds=3.0, read_seconds=5.0)
log = structlog.get_logger("pulsar-sidecar")


def serve(
    flags: Mapping[str, str | None], environment: Mapping[str, str], config: Path | None, steps: Steps | None = None
) -> int:
    """Run the service until SIGTERM or SIGINT; 0 when it ended in order.

    Args:
        flags: the settings on the command line.
        environment: the environment's variables.
        config: a properties file.
        steps: told of each step of ledger deletion; None in production.

    Raises:
        InvalidInputError: a setting is wrong, or the address is taken.
        PermanentError: the brokers refuse to say which cluster they are.
    """
    warnings: list[str] = []
    settings = load_settings(flags, environment, config, warnings.append)
    configure_logging(settings.log_level, settings.log_format)
    for warning in warnings:
        log.warning(warning)
    # What is imported lasts as long as the process; looking for garbage in it cost a sixth of decoding a batch.
    gc.freeze()
    with ExitStack() as stack:
        _Process(settings, environment, steps, stack).run()
    log.info("stopped")
    return 0


class _Process:
    """The server runs in the main thread; another thread waits for the brokers and opens the rooms.

    Invariant: once the server has ended no room is opened any more, and whatever was opened stands in ``stack``.
    """

    def __init__(
        self, settings: Settings, environment: Mapping[str, str], steps: Steps | None, stack: ExitStack
    ) -> None:
        """Check what can be checked without the cluster.

        Raises:
            InvalidInputError: a setting cannot be used.
        """
        self._settings = settings
        self._environment = environment
        self._steps = steps
        self._stack = stack
        self._clock = SystemClock()
        self._authentication = authenticator_of(settings, self._clock)
        self._own_hosts = (urlsplit(settings.effective_advertised_url).hostname or "", settings.listen_host)
        endpoint = endpoint_of(settings)
        self._rest = AdminRest([settings.web_service_url], credentials_of(settings), tls_of(settings), timeouts=_QUICK)
        store_credential_of(settings)
        for warning in warnings_of(settings):
            log.warning(warning)
        self._zookeeper = f"ZooKeeper at {parse_metadata_store_url(settings.metadata_store_url).hosts}"
        self._watch = ClusterWatch(self._clock)
        self._deadline = ClosingDeadline(stack)
        self._waits_for = "its rooms are being opened"
        self._failure: SidecarError | None = None
        self._ended = threading.Event()
        self._opening = threading.Lock()
        self._draining = threading.Event()
        starting = create_starting_app(
            self._authentication, clock=self._clock, own_hosts=self._own_hosts, missing=lambda: self._waits_for
        )
        self._front = Front(starting)
        limits = Limits(connections_for_callers(settings.max_http_server_connections))
        self._server = server_for(self._front, endpoint, self._draining, limits)
        close_at_the_end(stack, self._watch)
        self._listening = stack.enter_context(listening_socket(endpoint))
        log.info("listening", address=settings.listen, authentication=settings.authentication_enabled)

    def run(self) -> None:
        """Serve until the process is told to stop.

        Raises:
            SidecarError: the rooms cannot be opened, and waiting longer changes nothing.
        """
        threading.Thread(target=self._open, name="opening", daemon=True).start()
        try:
            self._server.run([self._listening])
        finally:
            # Brokers that are away with it are the ordinary case: both restart in one pod.
            is_away = self._watch.missing(self._zookeeper)
            seconds = _CLOSING_SECONDS if is_away is None else _CLOSING_WITHOUT_ZOOKEEPER_SECONDS
            log.info("stopping", at_most_seconds=seconds, missing=is_away)
            self._deadline.begin(seconds)
            self._ended.set()
            with self._opening:
                if self._failure is not None:
                    raise self._failure

    def _open(self) -> None:
        try:
            name = self._settings.cluster_name or self._cluster_name()
            with self._opening:
                if name is not None and not self._ended.is_set():
                    self._front.app = self._open_rooms(name)
                    brokers = f"the brokers at {self._rest.addresses}"
                    self._watch.watch(brokers, lambda: self._rest.headers("/admin/v2/brokers/version"))
        except SidecarError as error:
            self._failure = error
            self._server.end()
        except Exception:
            log.exception("the rooms could not be opened")
            self._failure = PermanentError("the rooms could not be opened; the log has the details")
            self._server.end()

    def _cluster_name(self) -> str | None:
        """What the brokers call their cluster; they may still be starting, or be away. None when the process ends."""
        self._waits_for = f"the brokers at {self._rest.addresses} have not said yet which cluster they are"
        while not self._ended.is_set():
            try:
                name = RuntimeConfiguration.of(self._rest).text("clusterName")
            except TemporaryError as error:
                if str(error) != self._waits_for:
                    self._waits_for = str(error)
                    log.warning("the brokers do not say yet which cluster they are", error=self._waits_for)
                self._clock.wait_seconds(1.0, self._ended)
                continue
            if not name:
                raise InvalidInputError("the brokers do not say their clusterName; set clusterName")
            return name
        return None

    def _open_rooms(self, cluster_name: str) -> FastAPI:
        """Open every room, start it, and answer the app with their routes."""
        settings = self._settings
        cluster = open_cluster_access(settings, self._environment, self._clock, self._stack, self._steps, cluster_name)
        registry = process_registry(
            cluster=cluster_name, instance=settings.effective_instance_name, version=tool_version()
        )
        rooms = []
        routers = []
        for entry in ROOMS:
            room, router = entry.open(cluster)
            close_at_the_end(self._stack, room, type(room.service).__name__)
            for collector in room.collectors:
                registry.register(collector)
            rooms.append(room)
            routers.append(router)

        app = create_app(
            routers,
            lambda: self._watch.missing() or missing_in(rooms),
            registry,
            self._authentication,
            clock=self._clock,
            draining=self._draining,
            own_hosts=self._own_hosts,
            docs=settings.api_docs_enabled,
            version=tool_version(),
        )
        for room in rooms:
            room.start()
        self._watch.watch(self._zookeeper, lambda: cluster.store.read(settings.ledgers_root_path))
        log.info(
            "rooms opened",
            cluster=cluster_name,
            instance=settings.effective_instance_name,
            two_phase_deletion=settings.topic_two_phase_deletion_enabled,
        )
        return app
