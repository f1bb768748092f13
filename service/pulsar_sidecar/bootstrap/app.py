"""The process of the service: the server responds at once; the process opens the features once the cluster responds.

Invariants: only this package names concrete adapters; the process closes in reverse order everything that it opens
here, unless it is killed.
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

from pulsar_sidecar.adapters.metadata_stores import store_address
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import RuntimeConfiguration
from pulsar_sidecar.adapters.pulsar_rest.pass_through import PassThrough
from pulsar_sidecar.adapters.zookeeper.tenant_policies import StoredTenantPolicies
from pulsar_sidecar.bootstrap.broker_versions import BrokerVersions
from pulsar_sidecar.bootstrap.callers import (
    authentication_of,
    listener_tls_of,
    proxy_identity_of,
    rights_of,
    sign_in_issuer_of,
)
from pulsar_sidecar.bootstrap.cluster_access import (
    ClusterAccess,
    broker_identity_of,
    close_at_the_end,
    store_credential_of,
    store_tls_of,
)
from pulsar_sidecar.bootstrap.doctor import examine_cluster, log_examination
from pulsar_sidecar.bootstrap.feature import Feature, missing_in
from pulsar_sidecar.bootstrap.features import FEATURES, PAGES
from pulsar_sidecar.bootstrap.process import connections_for_callers, tool_version
from pulsar_sidecar.bootstrap.telemetry import traces_sent
from pulsar_sidecar.features.acknowledgements.http import BrokersWithPauses
from pulsar_sidecar.features.acknowledgements.stats_answers import PausesInStats
from pulsar_sidecar.features.doctor.findings import Finding
from pulsar_sidecar.features.ledger_deletion.steps import Steps
from pulsar_sidecar.model.addresses import is_loopback
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, PermanentError, SidecarError, TemporaryError
from pulsar_sidecar.model.passed_requests import Brokers
from pulsar_sidecar.observability.logging import configure_logging
from pulsar_sidecar.observability.metrics import process_registry
from pulsar_sidecar.server import pass_through
from pulsar_sidecar.server.app import create_app
from pulsar_sidecar.server.gate import Gate
from pulsar_sidecar.server.request_ids import RequestIds
from pulsar_sidecar.server.server import DrainingServer, Limits, listening_socket
from pulsar_sidecar.settings.fields import Settings, load_settings
from pulsar_sidecar.web.app import Dashboard
from pulsar_sidecar.web.peer_client import PeerClient

_CLOSING_SECONDS = 25.0
_CLOSING_WITHOUT_ZOOKEEPER_SECONDS = 5.0
_POLL_WHILE_UP_SECONDS = 5.0
_POLL_WHILE_DOWN_SECONDS = 1.0
log = structlog.get_logger("pulsar-sidecar")


def serve(
    flags: Mapping[str, str | None], environment: Mapping[str, str], config: Path | None, steps: Steps | None = None
) -> int:
    """Run the service until SIGTERM or SIGINT; return 0 after a graceful shutdown.

    ``steps`` is notified of each step of ledger deletion; None in production.

    Raises:
        InvalidInputError: a setting is wrong, or the address is taken.
        PermanentError: the brokers refuse to report their cluster.
    """
    warnings: list[str] = []
    settings = load_settings(flags, environment, config, warnings.append)
    configure_logging(settings.log_level, settings.log_format)
    for warning in warnings:
        log.warning(warning)
    # Imported objects live as long as the process; looking for garbage among them cost a sixth of decoding a batch.
    gc.freeze()
    with ExitStack() as stack:
        stack.enter_context(traces_sent(environment, settings.effective_instance_name, tool_version()))
        _Process(settings, environment, steps, stack).run()
    log.info("stopped")
    return 0


def run_doctor(flags: Mapping[str, str | None], config: Path | None) -> list[Finding]:
    """Examine the cluster with the settings that `serve` would have; raise `InvalidInputError` if one is wrong."""
    warnings: list[str] = []
    settings = load_settings(flags, os.environ, config, warnings.append)
    # The findings contain what adapters log.
    configure_logging("CRITICAL", "text")
    with ExitStack() as stack:
        cluster = ClusterAccess(settings, os.environ, SystemClock(), stack, None, settings.cluster_name or "")
        return examine_cluster(cluster, [*warnings, *warnings_of(settings)])


class _Process:
    """The service's process: the main thread runs the server, a second one waits for brokers and opens the features.

    Invariant: after the end of the server no feature opens, and ``stack`` closes everything that was opened.
    """

    def __init__(
        self, settings: Settings, environment: Mapping[str, str], steps: Steps | None, stack: ExitStack
    ) -> None:
        """Check all that needs no cluster; raise `InvalidInputError` if a setting cannot be used."""
        self._settings, self._clock = settings, SystemClock()
        proxy_identity_of(settings)  # an unusable file or format aborts the start
        self._access = partial(ClusterAccess, settings, environment, self._clock, stack, steps)
        credentials, tls = broker_identity_of(settings)
        self._asking = partial(
            AdminRest, [settings.web_service_url], credentials, tls, connect_seconds=3, read_seconds=5
        )
        self._rest = self._asking()
        store_credential_of(settings)
        for warning in warnings_of(settings):
            log.warning(warning)
        address = store_address(settings.metadata_store_url)
        self._metadata_store = f"{address.product} at {address.text.partition(':')[2]}"
        self._watch = ClusterWatch(self._clock)
        self._waits_for = "its features are being opened"
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
        served = RequestIds(self._dashboard() if settings.dashboard_enabled else self._gate)
        self._server = DrainingServer(served, self._draining, self._limits, listener_tls_of(settings))
        close_at_the_end(stack, self._watch.close)
        self._listening = stack.enter_context(listening_socket(settings.listen_host, settings.listen_port))
        log.info("listening", address=settings.listen, authentication=settings.authentication_enabled)

    def _dashboard(self) -> Dashboard:
        others = PeerClient(self._settings.tls_trust_certs_file_path)
        return Dashboard(
            self._gate,
            self._clock,
            others,
            pages=PAGES,
            sign_in=self._settings.authentication_enabled,
            issuer=sign_in_issuer_of(self._settings),
            behind_tls=(self._settings.dashboard_url or "").startswith("https://"),
        )

    def run(self) -> None:
        """Serve until a signal stops the process, or the features cannot be opened for a permanent reason."""
        threading.Thread(target=self._open, name="opening", daemon=True).start()
        try:
            self._server.run([self._listening])
        finally:
            # Brokers are usually down at the same time: both restart in one pod.
            is_away = self._watch.missing(self._metadata_store)
            seconds = _CLOSING_SECONDS if is_away is None else _CLOSING_WITHOUT_ZOOKEEPER_SECONDS
            log.info("stopping", at_most_seconds=seconds, missing=is_away)
            threading.Thread(target=self._end_unless_closed, args=(seconds,), daemon=True).start()
            self._ended.set()
            with self._opening:
                if self._failure is not None:
                    raise self._failure

    def _end_unless_closed(self, seconds: float) -> None:
        """End the process if closing takes too long, because a cluster hangs."""
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
                    self._open_features(name)
                    brokers = f"the brokers at {self._rest.addresses}"
                    self._watch.watch(brokers, BrokerVersions(self._rest).ask)
        except SidecarError as error:
            self._failure = error
            self._server.end()
        except Exception:
            log.exception("opening the features failed")
            self._failure = PermanentError("the features could not be opened; see the log")
            self._server.end()

    def _cluster_name(self) -> str | None:
        """Wait for the brokers to report their cluster's name; return None if the process ends meanwhile."""
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

    def _open_features(self, cluster_name: str) -> None:
        """Open and start every feature, and put the app with their routes behind the gate."""
        settings = self._settings
        cluster = self._access(cluster_name)
        features: list[Feature] = []
        routers = []

        def missing() -> str | None:
            return self._watch.missing() or missing_in(features)

        registry = process_registry(
            cluster=cluster_name,
            instance=settings.effective_instance_name,
            version=tool_version(),
            ready=lambda: missing() is None,
        )
        for entry in FEATURES:
            feature = cluster.closing(entry.open(cluster))
            for collector in feature.collectors:
                registry.register(collector)
            features.append(feature)
            routers += entry.routes(feature.services)
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
        self._rest = self._asking(store=cluster.store)  # the store names other brokers while the configured ones hang
        for feature in features:
            feature.start()
        self._watch.watch(self._metadata_store, lambda: cluster.store.read(settings.ledgers_root_path))
        threading.Thread(target=log_examination, args=(cluster, self._ended), name="doctor", daemon=True).start()
        log.info(
            "features opened",
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
    """A watch that polls ZooKeeper and the brokers, so that readiness is known at once.

    Each part of the cluster has a thread that ends with the process. Invariant: `missing` never waits for the cluster;
    its result was true a few seconds ago.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stop = threading.Event()
        self._missing: dict[str, str | None] = {}

    def watch(self, part: str, ask: Callable[[], object]) -> None:
        """Watch a part of the cluster from now on; ``part`` is its name in messages.

        ``ask`` raises a `SidecarError` that names the host while the part is down, and takes seconds at most.
        """
        self._missing[part] = f"{part} has not answered yet"
        threading.Thread(target=self._keep_asking, args=(part, ask), name=f"watch {part}", daemon=True).start()

    def missing(self, part: str | None = None) -> str | None:
        """Return which part is down and why, of all parts or of one; None while it responds or is not watched."""
        if part is not None:
            return self._missing.get(part)
        return next((reason for reason in list(self._missing.values()) if reason is not None), None)

    def close(self) -> None:
        """Stop polling, without waiting for a pending query."""
        self._stop.set()

    def _keep_asking(self, part: str, ask: Callable[[], object]) -> None:
        while not self._stop.is_set():
            try:
                ask()
            except SidecarError as error:
                self._note(part, str(error))
            except Exception:  # a defect must not keep the last result forever
                self._note(part, f"the sidecar could not query {part}; see the log")
                log.exception("dependency query failed unexpectedly", dependency=part)
            else:
                self._note(part, None)
            is_down = self._missing[part] is not None
            self._clock.wait_seconds(_POLL_WHILE_DOWN_SECONDS if is_down else _POLL_WHILE_UP_SECONDS, self._stop)

    def _note(self, part: str, reason: str | None) -> None:
        before, self._missing[part] = self._missing[part], reason
        if reason is not None and reason != before and not self._stop.is_set():
            log.warning("dependency unavailable", dependency=part, error=reason)
        elif reason is None and before is not None:
            log.info("dependency recovered", dependency=part)


def warnings_of(settings: Settings) -> list[str]:
    """Return warnings of settings that work but expose a credential to the network."""
    found = []
    if broker_identity_of(settings)[0].is_secret:
        found += [
            f"the sidecar's credentials are sent to brokers unencrypted: {name} names {hosts}; use {secure}"
            for name, url, plain, secure in (
                ("webServiceUrl", settings.web_service_url, "http://", "https://"),
                ("brokerServiceUrl", settings.broker_service_url, "pulsar://", "pulsar+ssl://"),
            )
            if url.startswith(plain) and (hosts := _hosts_beyond_loopback(url.removeprefix(plain)))
        ]
    servers = store_address(settings.metadata_store_url).servers
    is_unencrypted = store_tls_of(settings) is None and settings.metadata_store_auth is not None
    if is_unencrypted and (hosts := _hosts_beyond_loopback(",".join(servers))):
        found.append(f"metadataStoreAuth is sent unencrypted to {hosts}; use metadataStoreTlsTrustCertsFilePath")
    if settings.authentication_enabled and not (
        settings.listens_on_loopback or settings.listen_tls_certificate_file_path
    ):
        found.append(
            f"callers send their tokens unencrypted to {settings.listen}; set listenTlsCertificateFilePath and "
            "listenTlsKeyFilePath, or listen on 127.0.0.1 behind a proxy on this machine that terminates TLS"
        )
    return found


def _hosts_beyond_loopback(addresses: str) -> str:
    hosts = [urlsplit(f"//{address.rpartition('://')[2]}").hostname or "" for address in addresses.split(",")]
    return ", ".join(host for host in hosts if host and not is_loopback(host))
