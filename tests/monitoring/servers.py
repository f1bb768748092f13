"""A Prometheus of one's own, and what serves it the newest audit's metrics, as a node exporter would."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import requests
from pulsar_sidecar.local_cluster.processes import LOOPBACK, free_ports
from ruamel.yaml import YAML

from tests.cluster.patience import OPERATION_SECONDS, until

SCRAPE_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Series:
    """Labels of a response, and its values by Unix time in seconds."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running one."""

    url: str

    def over(self, expression: str, start: float, end: float, step_seconds: float) -> list[Series]:
        """A range query; fails with Prometheus' reason if it does not understand the expression."""
        params = {"query": expression, "start": str(start), "end": str(end), "step": str(step_seconds)}
        answer = requests.post(f"{self.url}/api/v1/query_range", data=params, timeout=OPERATION_SECONDS)
        assert answer.ok, f"{expression}: {answer.text[:500]}"
        found = answer.json()["data"]["result"]
        return [Series(one["metric"], [(at, float(value)) for at, value in one["values"]]) for one in found]

    def values_of(self, label: str, selector: str, start: float, end: float) -> list[str]:
        """Return the values that a label has had."""
        params = {"match[]": selector, "start": str(start), "end": str(end)}
        answer = requests.get(f"{self.url}/api/v1/label/{label}/values", params=params, timeout=OPERATION_SECONDS)
        assert answer.ok, f"{selector}: {answer.text[:500]}"
        return list(answer.json()["data"])

    def healthy_targets(self) -> int:
        """Return the number of targets that the last scrape reached."""
        targets = requests.get(f"{self.url}/api/v1/targets", timeout=OPERATION_SECONDS).json()["data"]["activeTargets"]
        return sum(target["health"] == "up" for target in targets)


@contextmanager
def prometheus(
    directory: Path, targets: Mapping[str, Sequence[str]], rules: Sequence[Path] = ()
) -> Iterator[Prometheus]:
    """Start a Prometheus that scrapes every two seconds; ``targets`` are ``host:port`` by the name of their job."""
    program = shutil.which("prometheus")
    assert program, "no Prometheus: install the Debian package `prometheus`, or put its program on the PATH"
    directory.mkdir(parents=True, exist_ok=True)
    configuration: dict[str, Any] = {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": "5s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {"job_name": job, "honor_labels": job == "audits", "static_configs": [{"targets": list(addresses)}]}
            for job, addresses in targets.items()
        ],
    }
    YAML().dump(configuration, directory / "prometheus.yml")
    (port,) = free_ports(1)
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={LOOPBACK}:{port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        running = Prometheus(f"http://{LOOPBACK}:{port}")
        until(lambda: _is_ready(running, process), f"Prometheus is ready; see {directory / 'prometheus.log'}", 60)
        yield running
    finally:
        process.terminate()
        process.wait(60)


def _is_ready(running: Prometheus, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "Prometheus has ended"
    try:
        return requests.get(f"{running.url}/-/ready", timeout=5).ok
    except requests.RequestException:
        return False


@contextmanager
def serving_newest_audit(audits: Path) -> Iterator[str]:
    """``host:port`` at which the newest ``metrics.prom`` below a directory is served; nothing before there is one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            newest = max(audits.glob("*/metrics.prom"), key=lambda path: path.stat().st_mtime, default=None)
            with suppress(ConnectionError):  # a scrape that took too long
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(b"" if newest is None else newest.read_bytes())

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{LOOPBACK}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
