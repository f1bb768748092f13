"""Where the demo runs: a local cluster with two brokers, and a sidecar as a process of its own.

Invariant: everything the demo starts is written to its directory before it is used, so that `tear_down` can end it,
whoever started it, and leave nothing behind.
"""

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from pulsar_sidecar.audit.reference_scan import ReferenceScan
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.processes import ProcessIdentity, end, free_ports, is_free, is_running, spawn
from pulsar_sidecar.local_cluster.spec import ClusterSpec, cache_directory
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore

PREFERRED_PORT = 8750
_READY_SECONDS = 60.0
_BROKERS = ("broker-1", "broker-2")

BROKER_CONF = {
    # Five small ledgers to a topic within a second, instead of fifty thousand messages each.
    "managedLedgerMaxEntriesPerLedger": "2",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}

SIDECAR_ENVIRONMENT = {
    "PULSAR_SIDECAR_DELAYED_MESSAGE_CANCELLING_ENABLED": "true",
    "PULSAR_SIDECAR_TOPIC_TWO_PHASE_DELETION_ENABLED": "true",
    "PULSAR_SIDECAR_BOOKKEEPER_EXCLUSIVE_TO_CLUSTER": "true",
    # Waiting times of minutes and hours, cut down to what an audience sits through.
    "PULSAR_SIDECAR_TWO_PHASE_DELETION_RECONSUME_LATER_IN_SECONDS": "2",
    "PULSAR_SIDECAR_TWO_PHASE_DELETION_POSTPONE_IN_SECONDS": "2",
    "PULSAR_SIDECAR_TWO_PHASE_DELETION_OPEN_LEDGER_MIN_AGE_IN_SECONDS": "5",
    "PULSAR_SIDECAR_TWO_PHASE_DELETION_UNLINKED_LEDGER_MIN_AGE_IN_SECONDS": "5",
    "PULSAR_SIDECAR_TWO_PHASE_DELETION_MAX_RETRY_DELETE_COUNT": "30",
    "PULSAR_SIDECAR_METADATA_STORE_SESSION_TIMEOUT_MILLIS": "10000",
}


def demo_directory() -> Path:
    """Where the demo keeps its cluster and its state."""
    return cache_directory() / "demo"


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A sidecar process and where it answers."""

    url: str
    process: ProcessIdentity


@dataclass(frozen=True, slots=True)
class ClusterInspector:
    """The demo's own look at the cluster, independent of the sidecar.

    ``count`` scans the references of the whole cluster, ``client`` is a ``pulsar.Client``, ``shared`` the
    ``pulsar.ConsumerType`` of consumers that share a subscription.
    """

    store: MetadataStore
    count: Callable[[], ReferenceScan]
    client: Any
    shared: Any


class DemoEnvironment:
    """The demo's cluster and sidecar."""

    def __init__(self, directory: Path, clock: Clock, progress: Callable[[str], None]) -> None:
        self._directory = directory
        self._clock = clock
        self._progress = progress

    @property
    def cluster(self) -> LocalCluster:
        """The demo's cluster."""
        return LocalCluster(self._directory / "cluster", self._clock, self._progress)

    @property
    def audits(self) -> Path:
        """Where the demo's listings, dumps and audits are."""
        return self._directory / "audits"

    def start(self) -> ClusterAddresses:
        """Clear away an earlier demo and start the cluster.

        Raises:
            ConflictError: the directory holds something that is no demo.
        """
        if self._directory.exists() and any(self._directory.iterdir()) and not self._state_file.exists():
            raise ConflictError(f"{self._directory} is not empty and holds no demo; remove it or name another --dir")
        self.tear_down()
        self._directory.mkdir(parents=True)
        self._write({})
        spec = ClusterSpec(directory=self._directory / "cluster", broker_conf=BROKER_CONF)
        return LocalCluster.up(spec, self._progress, self._clock).addresses()

    def kill_brokers(self) -> None:
        """Kill both brokers at once, and start them again."""
        for broker in _BROKERS:
            self.cluster.kill(broker)
        self._progress("   both brokers are dead; starting them again")
        with ThreadPoolExecutor(len(_BROKERS)) as restarts:
            list(restarts.map(self.cluster.restart, _BROKERS))

    def start_sidecar(self, addresses: ClusterAddresses) -> Sidecar:
        """Start ``pulsar-sidecar serve`` beside the cluster and wait until it is ready."""
        port = PREFERRED_PORT if is_free(PREFERRED_PORT) else free_ports(1)[0]
        url = f"http://127.0.0.1:{port}"
        log = self._directory / "sidecar.log"
        process = spawn(
            [sys.executable, "-m", "pulsar_sidecar", "serve"], _environment(addresses, port), self._directory, log
        )
        self._write({"pid": process.pid, "started": process.started, "url": url})
        sidecar = Sidecar(url, process)
        self._wait_until_ready(sidecar, log)
        return sidecar

    def tear_down(self) -> None:
        """End every process of the demo and remove its files; doing it twice is no error."""
        if not self._state_file.exists():
            return
        state = json.loads(self._state_file.read_text())
        if state:
            end([ProcessIdentity(state["pid"], state["started"])], self._clock)
        self.cluster.down()
        shutil.rmtree(self._directory)

    @property
    def _state_file(self) -> Path:
        return self._directory / "demo.json"

    def _write(self, state: Mapping[str, object]) -> None:
        self._state_file.write_text(json.dumps(dict(state)))

    def _wait_until_ready(self, sidecar: Sidecar, log: Path) -> None:
        give_up = self._clock.monotonic_seconds() + _READY_SECONDS
        never = threading.Event()
        while not _answers_ready(sidecar.url):
            if not is_running(sidecar.process) or self._clock.monotonic_seconds() > give_up:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
                raise TemporaryError(f"the sidecar did not become ready; the end of its log:\n{tail}")
            self._clock.wait_seconds(0.2, never)


def _answers_ready(url: str) -> bool:
    try:
        return requests.get(f"{url}/readyz", timeout=5).status_code == 200
    except requests.RequestException:
        return False


def _environment(addresses: ClusterAddresses, port: int) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PULSAR_")}
    return (
        inherited
        | SIDECAR_ENVIRONMENT
        | {
            "PULSAR_SIDECAR_LISTEN": f"127.0.0.1:{port}",
            "PULSAR_SIDECAR_WEB_SERVICE_URL": ",".join(addresses.web_service_urls),
            "PULSAR_SIDECAR_BROKER_SERVICE_URL": addresses.broker_service_url,
            "PULSAR_SIDECAR_METADATA_STORE_URL": addresses.metadata_store_url,
        }
    )
