"""The process of the service: the door answers at once, and the rooms are opened behind it when the cluster is there.

Invariants: only this package names concrete adapters; whatever is opened here is closed in the opposite order, however
the process ends short of a kill.
"""

import gc
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from pulsar_sidecar.ack_state.stats_answers import PausesInStats
from pulsar_sidecar.adapters.metadata.addressing import parse_metadata_store_url
from pulsar_sidecar.adapters.metadata.tenant_policies import StoredTenantPolicies
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.broker_configuration import RuntimeConfiguration
from pulsar_sidecar.adapters.pulsar.rest.pass_through import PassThrough
from pulsar_sidecar.api import pass_through
from pulsar_sidecar.api.app import create_app
from pulsar_sidecar.api.gate import Gate
from pulsar_sidecar.api.request_ids import RequestIds
from pulsar_sidecar.api.rooms.ack_state_in_stats import BrokersWithPauses
from pulsar_sidecar.api.server import DrainingServer, Limits, listening_socket
from pulsar_sidecar.bootstrap.broker_versions import BrokerVersions
from pulsar_sidecar.bootstrap.callers import authentication_of, listener_tls_of, rights_of, sign_in_issuer_of
from pulsar_sidecar.bootstrap.cluster_access import (
    ClusterAccess,
    broker_identity_of,
    close_at_the_end,
    store_credential_of,
    store_tls_of,
)
from pulsar_sidecar.bootstrap.doctor import log_examination
from pulsar_sidecar.bootstrap.process import connections_for_callers, tool_version
from pulsar_sidecar.bootstrap.proxy_identity import proxy_identity_of
from pulsar_sidecar.bootstrap.room import Room, missing_in
from pulsar_sidecar.bootstrap.rooms import ROOMS
from pulsar_sidecar.bootstrap.telemetry import traces_sent
from pulsar_sidecar.ledger_deletion.steps import Steps
from pulsar_sidecar.model.addresses import is_loopback
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, PermanentError, SidecarError, TemporaryError
from pulsar_sidecar.model.passed_requests import Brokers
from pulsar_sidecar.observability.logging import configure_logging
from pulsar_sidecar.observability.metrics import process_registry
from pulsar_sidecar.settings.fields import Settings, load_settings
from pulsar_sidecar.web.app import Dashboard
from pulsar_sidecar.web.elsewhere import OtherSidecars

_CLOSING_SECONDS = 25.0
_CLOSING_WITHOUT_ZOOKEEPER_SECONDS = 5.0
_WHILE_THERE_SECONDS = 5.0
_WHILE_AWAY_SECONDS = 1.0
log = structlog.get_logger("pulsar-sidecar")


def serve(
    flags: Mapping[str, str | None], environment: Mapping[str, str], config: Path | None, steps: Steps | None = None
) -> int:
    """Run the service until SIGTERM or SIGINT; 0 when it ended in order.

    ``steps`` is notified of each step of ledger deletion; None in production. `InvalidInputError` if a setting is wrong
    or the address is taken, `PermanentError` if the brokers refuse to report their cluster.
    """
    warnings: list[str] = []
    settings = load_settings(flags, environment, config, warnings.append)
    configure_logging(settings.log_level, settings.log_format)
    for warning in warnings:
        log.warning(warning)
    # What is imported lasts as long as the process; looking for garbage in it cost a sixth of decoding a batch.
    gc.freeze()
    with ExitStack() as stack:
        stack.enter_context(traces_sent(environment, settings.effective_instance_name, tool_version()))
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
        """Check what can be checked without the cluster; `InvalidInputError` if a setting cannot be used."""
        self._settings, self._clock = settings, SystemClock()
        proxy_identity_of(settings)  # a file or a form that cannot be used ends the start
        self._access = partial(ClusterAccess, settings, environment, self._clock, stack, steps)
        credentials, tls = broker_identity_of(settings)
        self._asking = partial(
            AdminRest, [settings.web_service_url], credentials, tls, connect_seconds=3, read_seconds=5
        )
        self._rest = self._asking()
        store_credential_of(settings)
        for warning in warnings_of(settings):
            log.warning(warning)
        self._zookeeper = f"ZooKeeper at {parse_metadata_store_url(settings.metadata_store_url).hosts}"
        self._watch = ClusterWatch(self._clock)
        self._waits_for = "its rooms are being opened"
        self._failure: SidecarError | None = None
        self._ended, self._closed, self._draining = threading.Event(), threading.Event(), threading.Event()
        self._opening = threading.Lock()
        stack.callback(self._closed.set)
        self._gate = Gate(
            authentication_of(settings, self._clock),
            (urlsplit(settings.effective_advertised_url).hostname or "", settings.listen_host),
            self._clock,
            lambda: self._waits_for,
        )
        self._limits = Limits(connections_for_callers(settings.max_http_server_connections))
        door = RequestIds(self._dashboard() if settings.dashboard_enabled else self._gate)
        self._server = DrainingServer(door, self._draining, self._limits, listener_tls_of(settings))
        close_at_the_end(stack, self._watch.close)
        self._listening = stack.enter_context(listening_socket(settings.listen_host, settings.listen_port))
        log.info("listening", address=settings.listen, authentication=settings.authentication_enabled)

    def _dashboard(self) -> Dashboard:
        others = OtherSidecars(self._settings.tls_trust_certs_file_path)
        return Dashboard(
            self._gate,
            self._clock,
            others,
            sign_in=self._settings.authentication_enabled,
            issuer=sign_in_issuer_of(self._settings),
            behind_tls=(self._settings.dashboard_url or "").startswith("https://"),
        )

    def run(self) -> None:
        """Serve until the process is asked to stop, or the rooms cannot be opened and waiting changes nothing."""
        threading.Thread(target=self._open, name="opening", daemon=True).start()
        try:
            self._server.run([self._listening])
        finally:
            # Brokers that are away with it are the ordinary case: both restart in one pod.
            is_away = self._watch.missing(self._zookeeper)
            seconds = _CLOSING_SECONDS if is_away is None else _CLOSING_WITHOUT_ZOOKEEPER_SECONDS
            log.info("stopping", at_most_seconds=seconds, missing=is_away)
            threading.Thread(target=self._end_unless_closed, args=(seconds,), daemon=True).start()
            self._ended.set()
            with self._opening:
                if self._failure is not None:
                    raise self._failure

    def _end_unless_closed(self, seconds: float) -> None:
        """End the process when closing takes too long: a cluster that hangs must not keep it."""
        if not self._closed.wait(seconds):
            log.error(
                "closing failed; other sidecars resume the unfinished work",
                seconds=seconds,
            )
            os._exit(1)

    def _open(self) -> None:
        try:
            name = self._settings.cluster_name or self._cluster_name()
            with self._opening:
                if name is not None and not self._ended.is_set():
                    self._open_rooms(name)
                    brokers = f"the brokers at {self._rest.addresses}"
                    self._watch.watch(brokers, BrokerVersions(self._rest).ask)
        except SidecarError as error:
            self._failure = error
            self._server.end()
        except Exception:
            log.exception("the rooms could not be opened")
            self._failure = PermanentError("the rooms could not be opened; the log has the details")
            self._server.end()

    def _cluster_name(self) -> str | None:
        """What the brokers call their cluster; they may still be starting, or be away. None when the process ends."""
        self._waits_for = f"the brokers at {self._rest.addresses} have not reported their clusterName yet"
        while not self._ended.is_set():
            try:
                name = RuntimeConfiguration.of(self._rest).text("clusterName")
            except TemporaryError as error:
                if str(error) != self._waits_for:
                    self._waits_for = str(error)
                    log.warning("the brokers do not report their clusterName yet", error=self._waits_for)
                self._clock.wait_seconds(1.0, self._ended)
                continue
            if not name:
                raise InvalidInputError("the brokers do not report their clusterName; set clusterName")
            return name
        return None

    def _open_rooms(self, cluster_name: str) -> None:
        """Open every room, start it, and put the app with their routes behind the gate."""
        settings = self._settings
        cluster = self._access(cluster_name)
        rooms: list[Room] = []
        routers = []

        def missing() -> str | None:
            return self._watch.missing() or missing_in(rooms)

        registry = process_registry(
            cluster=cluster_name,
            instance=settings.effective_instance_name,
            version=tool_version(),
            ready=lambda: missing() is None,
        )
        for entry in ROOMS:
            room = cluster.closing(entry.open(cluster))
            for collector in room.collectors:
                registry.register(collector)
            rooms.append(room)
            routers += entry.routes(room.services)
        app = create_app(
            routers,
            missing,
            registry,
            self._draining,
            rights_of(settings, StoredTenantPolicies(cluster.store, self._clock)),
            token_required=settings.authentication_enabled,
            docs=settings.api_docs_enabled,
            version=tool_version(),
            cluster=cluster_name,
        )
        self._rest = self._asking(store=cluster.store)  # which names others while the configured brokers hang
        for room in rooms:
            room.start()
        self._watch.watch(self._zookeeper, lambda: cluster.store.read(settings.ledgers_root_path))
        threading.Thread(target=log_examination, args=(cluster, self._ended), name="doctor", daemon=True).start()
        log.info(
            "rooms opened",
            cluster=cluster_name,
            instance=settings.effective_instance_name,
            two_phase_deletion=settings.topic_two_phase_deletion_enabled,
        )
        if settings.admin_pass_through_enabled:
            brokers: Brokers = PassThrough(cluster.rest, cluster.tls, cluster.store, proxy_identity_of(settings))
            if settings.ack_state_in_stats_enabled:
                brokers = BrokersWithPauses(brokers, PausesInStats(cluster.ack_states, cluster.ack_states))
            self._server.closing.append(brokers.close)
            at_once = max(1, self._limits.connections // 2)
            self._gate.passing = pass_through.PassThrough(brokers, app.routes, app.state.rights, at_once)
        self._gate.app = app


class ClusterWatch:
    """Asks ZooKeeper and the brokers again and again whether they answer, so that readiness is known at once.

    One thread for each part of the cluster; they end with the process. Invariant: `missing` never waits for the
    cluster; its answer was true a few seconds ago.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stop = threading.Event()
        self._missing: dict[str, str | None] = {}

    def watch(self, part: str, ask: Callable[[], object]) -> None:
        """Watch a part of the cluster from now on; ``part`` is its name in messages.

        ``ask`` raises a `SidecarError` that names the host while the part is away, and takes seconds at most.
        """
        self._missing[part] = f"{part} has not answered yet"
        threading.Thread(target=self._keep_asking, args=(part, ask), name=f"watch {part}", daemon=True).start()

    def missing(self, part: str | None = None) -> str | None:
        """What is away and why, of everything or of one part; None while that answers, or is not watched."""
        if part is not None:
            return self._missing.get(part)
        return next((reason for reason in list(self._missing.values()) if reason is not None), None)

    def close(self) -> None:
        """Ask no more; does not wait for a question that is on its way."""
        self._stop.set()

    def _keep_asking(self, part: str, ask: Callable[[], object]) -> None:
        while not self._stop.is_set():
            try:
                ask()
            except SidecarError as error:
                self._note(part, str(error))
            except Exception:  # a defect must not leave the last answer standing for good
                self._note(part, f"the sidecar could not query {part}; see the log")
                log.exception("a part of the cluster could not be queried", part=part)
            else:
                self._note(part, None)
            away = self._missing[part] is not None
            self._clock.wait_seconds(_WHILE_AWAY_SECONDS if away else _WHILE_THERE_SECONDS, self._stop)

    def _note(self, part: str, reason: str | None) -> None:
        before, self._missing[part] = self._missing[part], reason
        if reason is not None and reason != before and not self._stop.is_set():
            log.warning("not ready", missing=reason)
        elif reason is None and before is not None:
            log.info("answers", part=part)


def warnings_of(settings: Settings) -> list[str]:
    """What works and lets others on the network read a credential."""
    found = []
    if broker_identity_of(settings)[0].is_secret:
        found += [
            f"the sidecar's credentials for brokers travel in clear: {name} names {hosts}; use {secure}"
            for name, url, plain, secure in (
                ("webServiceUrl", settings.web_service_url, "http://", "https://"),
                ("brokerServiceUrl", settings.broker_service_url, "pulsar://", "pulsar+ssl://"),
            )
            if url.startswith(plain) and (hosts := _hosts_beyond_loopback(url.removeprefix(plain)))
        ]
    servers = parse_metadata_store_url(settings.metadata_store_url).servers
    in_clear = store_tls_of(settings) is None and settings.metadata_store_auth is not None
    if in_clear and (hosts := _hosts_beyond_loopback(",".join(servers))):
        found.append(f"metadataStoreAuth travels in clear to {hosts}; use metadataStoreTlsTrustCertsFilePath")
    if settings.authentication_enabled and not (
        settings.listens_on_loopback or settings.listen_tls_certificate_file_path
    ):
        found.append(
            f"callers' tokens travel in clear to {settings.listen}; set listenTlsCertificateFilePath and "
            "listenTlsKeyFilePath, or let something on this machine that speaks TLS pass calls on to 127.0.0.1"
        )
    return found


def _hosts_beyond_loopback(addresses: str) -> str:
    hosts = [urlsplit(f"//{address.rpartition('://')[2]}").hostname or "" for address in addresses.split(",")]
    return ", ".join(host for host in hosts if host and not is_loopback(host))
