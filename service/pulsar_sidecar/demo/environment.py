"""The demo's environment: a local cluster with two brokers, and a sidecar in its own process.

Invariant: the demo records everything that it starts in its directory before it uses it, so that `tear_down` can end
it from any process, and leave nothing behind.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from pulsar_sidecar.features.audit.reference_scan import ReferenceScan
from pulsar_sidecar.local_cluster.cluster import LocalCluster, last_lines
from pulsar_sidecar.local_cluster.processes import ProcessIdentity, end, free_ports, is_free, is_running, spawn
from pulsar_sidecar.local_cluster.spec import ClusterSpec, Role, cache_directory
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import Clock, attempts
from pulsar_sidecar.model.errors import ConflictError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.progress import Report

PREFERRED_PORT = 8750
_READY_SECONDS = 60.0
_BROKERS = ("broker-1", "broker-2")

BROKER_CONF = {
    # Five small ledgers per topic within a second, instead of fifty thousand messages each.
    "managedLedgerMaxEntriesPerLedger": "2",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}

SETTLE_SECONDS = "30"
"""Settle time; the default is 200, after which a living broker has used up its own retries."""

SIDECAR_ENVIRONMENT = {
    "PULSAR_SIDECAR_DELAYED_MESSAGE_CANCELLING_ENABLED": "true",
    "PULSAR_SIDECAR_TOPIC_TWO_PHASE_DELETION_ENABLED": "true",
    "PULSAR_SIDECAR_BOOKKEEPER_EXCLUSIVE_TO_CLUSTER": "true",
    # Waits of minutes and hours, shortened so that the demo takes minutes.
    "PULSAR_SIDECAR_TWO_PHASE_DELETION_RECONSUME_LATER_IN_SECONDS": "2",
    "PULSAR_SIDECAR_TWO_PHASE_DELETION_POSTPONE_IN_SECONDS": "2",
    "PULSAR_SIDECAR_TWO_PHASE_DELETION_OPEN_LEDGER_MIN_AGE_IN_SECONDS": "5",
    "PULSAR_SIDECAR_TWO_PHASE_DELETION_UNLINKED_LEDGER_MIN_AGE_IN_SECONDS": "5",
    "PULSAR_SIDECAR_TWO_PHASE_DELETION_MAX_RETRY_DELETE_COUNT": "30",
    "PULSAR_SIDECAR_METADATA_STORE_SESSION_TIMEOUT_MILLIS": "10000",
    "PULSAR_SIDECAR_LEDGER_DELETION_WATCH": "append",
    "PULSAR_SIDECAR_LEDGER_DELETION_WATCH_SETTLE_IN_SECONDS": SETTLE_SECONDS,
}


@dataclass(frozen=True, slots=True)
class ClusterInspector:
    """The demo's own view of the cluster, independent of the sidecar.

    ``count`` scans the references of the whole cluster, ``client`` is a ``pulsar.Client``, ``shared`` the
    ``pulsar.ConsumerType`` of consumers that share a subscription.
    """

    store: MetadataStore
    count: Callable[[], ReferenceScan]
    client: Any
    shared: Any


class DemoEnvironment:
    """The demo's cluster and sidecar, with the clock and the report of every step.

    Attributes:
        cluster: cluster of two bookies and two brokers.
        metadata_store: one of `METADATA_STORES`.
        audits: directory of the demo's listings, dumps and audits.
    """

    def __init__(
        self, directory: Path | None, clock: Clock, report: Report, metadata_store: Role = Role.ZOOKEEPER
    ) -> None:
        self.clock = clock
        self.metadata_store = metadata_store
        self.report = report
        self._directory = directory or cache_directory() / "demo"
        self._state_file = self._directory / "demo.json"
        self.audits = self._directory / "audits"
        self.cluster = LocalCluster(self._directory / "cluster", clock, report)

    def start(self) -> ClusterAddresses:
        """Remove an earlier demo and start the cluster.

        Raises:
            ConflictError: the directory holds anything but a demo.
        """
        if self._directory.exists() and any(self._directory.iterdir()) and not self._state_file.exists():
            raise ConflictError(f"{self._directory} is not empty and holds no demo; remove it or name another --dir")
        self.tear_down()
        self._directory.mkdir(parents=True)
        self._write({})
        spec = ClusterSpec(
            directory=self._directory / "cluster", broker_conf=BROKER_CONF, metadata_store=self.metadata_store
        )
        return LocalCluster.up(spec, self.report, self.clock).addresses()

    def kill_brokers(self) -> None:
        """Kill both brokers at once and restart them."""
        for broker in _BROKERS:
            self.cluster.kill(broker)
        self.report("   both brokers are dead; starting them again")
        with ThreadPoolExecutor(len(_BROKERS)) as restarts:
            list(restarts.map(self.cluster.restart, _BROKERS))

    def start_sidecar(self, addresses: ClusterAddresses) -> str:
        """Start ``pulsar-sidecar serve`` beside the cluster, wait until it is ready, and return its URL."""
        port = PREFERRED_PORT if is_free(PREFERRED_PORT) else free_ports(1)[0]
        url = f"http://127.0.0.1:{port}"
        log = self._directory / "sidecar.log"
        command = [sys.executable, "-m", "pulsar_sidecar", "serve"]
        self.audits.mkdir(exist_ok=True)
        process = spawn(command, _environment(addresses, port, self.audits), self._directory, log)
        self._write({"pid": process.pid, "started": process.started, "url": url})
        for _ in attempts(self.clock, _READY_SECONDS, 0.2):
            if _answers_ready(url):
                return url
            if not is_running(process):
                break
        raise TemporaryError(f"the sidecar did not become ready; the end of its log:\n{last_lines(log, 20)}")

    def tear_down(self) -> None:
        """End every process of the demo and remove its files; idempotent."""
        if not self._state_file.exists():
            return
        state = json.loads(self._state_file.read_text())
        if state:
            end([ProcessIdentity(state["pid"], state["started"])], self.clock)
        self.cluster.down()
        shutil.rmtree(self._directory)

    def _write(self, state: Mapping[str, object]) -> None:
        self._state_file.write_text(json.dumps(dict(state)))


def _answers_ready(url: str) -> bool:
    try:
        return requests.get(f"{url}/readyz", timeout=5).status_code == 200
    except requests.RequestException:
        return False


def _environment(addresses: ClusterAddresses, port: int, audits: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PULSAR_")}
    return inherited | {
        **SIDECAR_ENVIRONMENT,
        "PULSAR_SIDECAR_AUDITS_DIRECTORY": str(audits),
        "PULSAR_SIDECAR_LISTEN": f"127.0.0.1:{port}",
        "PULSAR_SIDECAR_WEB_SERVICE_URL": ",".join(addresses.web_service_urls),
        "PULSAR_SIDECAR_BROKER_SERVICE_URL": addresses.broker_service_url,
        "PULSAR_SIDECAR_METADATA_STORE_URL": addresses.metadata_store_url,
    }
