"""Sidecars beside a cluster: processes of ``pulsar-sidecar serve`` that tests call, freeze and kill.

Most are forked from a process that has imported everything (`nursery`). Those with their own environment, log or
network run ``python -m pulsar_sidecar serve`` like operators do.

Invariant: every process started here ends with the test session at the latest, and signals reach no other process.
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import requests
from pulsar_sidecar.local_cluster.processes import (
    LOOPBACK,
    ProcessIdentity,
    end,
    exit_code,
    free_ports,
    is_running,
    send_signal,
    spawn,
    wait_until_gone,
)
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.settings.sources import environment_variable

from tests.cluster.choosing import PROJECT
from tests.cluster.freezing import wait_until_frozen
from tests.cluster.links import SidecarNetwork
from tests.cluster.nursery import nursery
from tests.cluster.patience import OPERATION_SECONDS, PATIENCE_SECONDS, NotInTime, until

_GAVE_UP = "closing failed"
DELETING: Mapping[str, object] = {
    "topic_two_phase_deletion_enabled": "true",
    "bookkeeper_exclusive_to_cluster": "true",
}
QUICK: Mapping[str, object] = {
    **DELETING,
    "two_phase_deletion_reconsume_later_in_seconds": 1,
    "two_phase_deletion_postpone_in_seconds": 1,
    "two_phase_deletion_in_use_settle_in_seconds": 3,
    "two_phase_deletion_open_ledger_min_age_in_seconds": 3,
    "two_phase_deletion_unlinked_ledger_min_age_in_seconds": 3,
    "two_phase_deletion_undelete_protection_in_seconds": 5,
    # A second is the brokers' tick, so they deliver a retry at once: 240 tries would end after a minute.
    "two_phase_deletion_max_retry_delete_count": 10_000,
    "two_phase_deletion_topic_deletion_wait_in_seconds": 20,
    "metadata_store_session_timeout_millis": 4000,
    "log_format": "text",
}
"""Settings with seconds instead of minutes and hours."""

BASE = "/admin/v2/ledger-deletion"
WATCH = f"{BASE}/watch"
_SERVE = (sys.executable, "-m", "pulsar_sidecar", "serve")
_LINES_OF_A_LOG = 60
_CLOCK = SystemClock()
_numbers = itertools.count(1)
_logs: list[Path] = []


def sidecars_logs() -> Sequence[Path]:
    """Return the logs of all sidecars that this process has started."""
    return tuple(_logs)


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """Outcome of a command."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


class SidecarClient:
    """Calls to a sidecar, wherever it runs."""

    def __init__(self, name: str, url: str, token: str | None = None) -> None:
        """Initialise; every call sends ``token``."""
        self.name = name
        self.url = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def log(self) -> str:
        """Return the end of the log, if it is readable."""
        return ""

    @property
    def is_ready(self) -> bool:
        try:
            return requests.get(f"{self.url}/readyz", timeout=30).status_code == 200
        except requests.RequestException:
            return False

    def request(
        self, method: str, path: str, body: object = None, *, seconds: float = OPERATION_SECONDS, **params: str
    ) -> requests.Response:
        """Return any response, without following redirects."""
        return requests.request(
            method, self.url + path, json=body, params=params, headers=self._headers, timeout=seconds,
            allow_redirects=False,
        )  # fmt: skip

    def call(self, method: str, path: str, body: object = None, **params: str) -> Any:
        """Make a call that must succeed; return its JSON, None for an empty response."""
        answer = self.request(method, path, body, **params)
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text[:500]}\n{self.log()}"
        return answer.json() if answer.content else None

    def status(self) -> dict[str, Any]:
        return self.call("GET", f"{BASE}/status")

    def inflight(self) -> int:
        """Return the estimated number of pending records."""
        return int(self.call("GET", f"{BASE}/inflight")["count"])

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Record ledgers, all of which the sidecar must accept."""
        answer = self.call("POST", f"{BASE}/pending", {"ledgers": list(records)})
        assert answer == {"sent": [each["ledgerId"] for each in records], "notSent": []}

    def metrics(self) -> dict[str, float]:
        """Return the metrics' sums over all labels, by name of the sample."""
        sums: dict[str, float] = {}
        for line in requests.get(f"{self.url}/metrics", timeout=OPERATION_SECONDS).text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def command(self, *arguments: str) -> CommandAnswer:
        """Run ``pulsar-sidecar --admin-url <this one> ...``."""
        return run_command("--admin-url", self.url, *arguments)


class SidecarProcess(SidecarClient):
    """A running sidecar on this machine."""

    def __init__(self, name: str, url: str, start: Callable[[], ProcessIdentity], log: Path) -> None:
        super().__init__(name, url)
        self._start = start
        self._log = log
        _logs.append(log)
        self._process = start()

    # --- its process -----------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return is_running(self._process)

    def wait_until_ready(self) -> None:
        def ready_or_ended() -> bool:
            return self.is_ready or not self.is_running

        until(ready_or_ended, f"{self.name} is ready\n{self.log()}")
        assert self.is_running, f"{self.name} ended\n{self.log()}"

    @property
    def exit_code(self) -> int | None:
        """Exit code of an ended process."""
        own = exit_code(self._process)
        return nursery().exit_code(self._process) if own is None else own

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it has ended."""
        end([self._process], _CLOCK)

    def restart(self) -> None:
        """Start the same sidecar in a new process after the end of the old one, without waiting until it is ready."""
        assert not self.is_running
        self._process = self._start()

    def terminate(self, seconds: float = PATIENCE_SECONDS) -> int | None:
        """Send SIGTERM and return the exit code; raise `NotInTime` if the sidecar gave up on a hanging cluster."""
        send_signal(self._process, signal.SIGTERM)
        assert wait_until_gone(self._process, _CLOCK, seconds), f"{self.name} does not end\n{self.log()}"
        code = self.exit_code  # the nursery returns it only once
        if code and _GAVE_UP in self.log():
            raise NotInTime(f"{self.name} waited for its cluster to close, and gave up\n{self.log()}")
        return code

    def freeze(self) -> None:
        send_signal(self._process, signal.SIGSTOP)
        wait_until_frozen(self._process.pid)

    def thaw(self) -> None:
        send_signal(self._process, signal.SIGCONT)

    @property
    def whole_log(self) -> str:
        """Whole log, empty for a sidecar whose output goes elsewhere."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def changes(self) -> list[dict[str, Any]]:
        """Return the `admin request` lines of the log, which must be JSON."""
        lines = [json.loads(line) for line in self.whole_log.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == "admin request"]

    def log(self, lines: int = _LINES_OF_A_LOG) -> str:
        """Return the end of the log."""
        return "\n".join(self.whole_log.splitlines()[-lines:])


def run_command(*arguments: str, **environment: str) -> CommandAnswer:
    """Run ``pulsar-sidecar ...`` in a process, with these additional environment variables."""
    ended = nursery().run("pulsar_sidecar", *arguments, environment=inherited_environment() | environment)
    return CommandAnswer(ended.returncode, ended.stdout, ended.stderr)


class Sidecars:
    """The sidecars of a cluster: one that tests share, and others with special settings."""

    def __init__(self, addresses: ClusterAddresses, directory: Path, network: SidecarNetwork | None = None) -> None:
        """Initialise for this machine's network, or for a namespace whose links to the cluster tests can cut."""
        self._addresses = addresses
        self._directory = directory
        self._network = network
        self._running: list[SidecarProcess] = []
        self._shared: SidecarProcess | None = None

    @property
    def running(self) -> list[SidecarProcess]:
        """Running sidecars."""
        self._running = [sidecar for sidecar in self._running if sidecar.is_running]
        return list(self._running)

    def shared(self) -> SidecarProcess:
        """Return the sidecar with `QUICK` settings, the only running one, started if necessary."""
        if self._shared is None or not self._shared.is_running:
            self.end_all()
            self._shared = self.start()
        for other in self.running:
            if other is not self._shared:
                other.kill()
        return self._shared

    def start(self, **settings: object) -> SidecarProcess:
        """Start another sidecar and wait until it is ready; ``settings`` by Python names override `QUICK`."""
        sidecar = self.launch(**settings)
        sidecar.wait_until_ready()
        return sidecar

    def start_with_defaults(self, **settings: object) -> SidecarProcess:
        """Start another sidecar like operators, without `QUICK`, and wait until it is ready."""
        sidecar = self._launch({**DELETING, **settings})
        sidecar.wait_until_ready()
        return sidecar

    def start_with_defaults_in(self, environment: Mapping[str, str], **settings: object) -> SidecarProcess:
        """Start another sidecar like operators in its own process, which shares no memory with a nursery."""
        sidecar = self._launch({**DELETING, **settings}, partial(_serve, environment))
        sidecar.wait_until_ready()
        return sidecar

    def launch(self, **settings: object) -> SidecarProcess:
        """Start another sidecar without waiting."""
        return self._launch({**QUICK, **settings})

    def launch_failing(self, *faults: str, **settings: object) -> SidecarProcess:
        """Start another sidecar that dies or fails at its steps (`failing_sidecar.Fault`), without waiting."""
        assert self._network is None, "sidecars of the nursery are on this machine's own network"
        return self._launch({**QUICK, **settings}, partial(nursery().start, faults=faults))

    def launch_in(self, environment: Mapping[str, str], log: Path | None = None, **settings: object) -> SidecarProcess:
        """Start another sidecar with other environment variables, or with its output elsewhere, without waiting."""
        return self._launch({**QUICK, **settings}, partial(_serve, environment, elsewhere=log))

    def _launch(
        self,
        settings: Mapping[str, object],
        start: Callable[[Mapping[str, str], Path], ProcessIdentity] | None = None,
    ) -> SidecarProcess:
        number = next(_numbers)
        (port,) = free_ports(1)
        name = f"sidecar-{number}"
        listen = f"{LOOPBACK}:{port}"
        chosen = {"instance_name": name, **self._cluster_settings(), **settings, "listen": listen}
        environment = {environment_variable(setting): str(value) for setting, value in chosen.items()}
        log = self._directory / f"{name}.log"
        if self._network is not None:
            self._network.expose(port)
        begin = partial(start or self._spawn, inherited_environment() | environment, log)
        sidecar = SidecarProcess(name, f"http://{listen}", begin, log)
        self._running.append(sidecar)
        return sidecar

    def _spawn(self, environment: Mapping[str, str], log: Path) -> ProcessIdentity:
        if self._network is None:
            return nursery().start(environment, log)
        return spawn(self._network.command(_SERVE), environment, PROJECT, log)

    def close(self) -> None:
        """End all sidecars."""
        self.end_all()

    def end_all(self) -> None:
        """Send SIGTERM to all, and kill those that do not end."""
        self._shared = None
        running, self._running = self.running, []
        for sidecar in running:
            sidecar.thaw()
            send_signal(sidecar._process, signal.SIGTERM)
        for sidecar in running:
            if not wait_until_gone(sidecar._process, _CLOCK, 30):
                sidecar.kill()
            assert sidecar.exit_code != -signal.SIGABRT, f"{sidecar.name}: see docs/client-aborts-at-exit.md"

    def _cluster_settings(self) -> dict[str, object]:
        return {
            "web_service_url": ",".join(self._addresses.web_service_urls),
            "broker_service_url": self._addresses.broker_service_url,
            "metadata_store_url": self._addresses.metadata_store_url,
        }


def _serve(
    environment: Mapping[str, str], inherited: Mapping[str, str], usual: Path, *, elsewhere: Path | None = None
) -> ProcessIdentity:
    return spawn(_SERVE, {**inherited, **environment}, PROJECT, elsewhere or usual)


def inherited_environment() -> dict[str, str]:
    """Return this process's environment, without settings of Pulsar or of sidecars."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PULSAR_")}
