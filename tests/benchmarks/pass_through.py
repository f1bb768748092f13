"""Cost of passing a request to a broker, and a sidecar's memory during large uploads.

The same request goes to the broker, through the sidecar, and through a proxy that does nothing else (`bare_proxy`);
they take turns. Uploads go to a server in a broker's place that reads them and forgets them.
"""

import argparse
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests
from pulsar_sidecar.local_cluster.processes import LOOPBACK, free_ports

from tests.benchmarks.closed_loop import Load, load
from tests.benchmarks.clusters import add_cluster_argument, benchmark_sidecars, resident_mb
from tests.cluster.patience import until
from tests.cluster.sidecars import SidecarProcess
from tests.reporting import Table

NAME = "pass-through"
_PATH = "/admin/v2/clusters"
_CONNECTIONS = (1, 10, 100)
_UPLOADS_AT_ONCE = 4
_PIECE_BYTES = 64 * 1024
_SIDECAR, _CONTROL = "the sidecar", "a bare proxy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of each contender's turn")
    parser.add_argument("--uploads", type=int, default=1_000)
    parser.add_argument("--megabytes", type=int, default=10, help="of each upload")
    add_cluster_argument(parser)


def run(arguments: argparse.Namespace) -> Iterator[Table]:
    with ExitStack() as stack:
        addresses, sidecars = stack.enter_context(benchmark_sidecars(arguments.cluster))
        broker = addresses.web_service_urls[0]
        sidecar = sidecars.start_with_defaults(web_service_url=broker)
        contenders = {
            "the broker": broker,
            _SIDECAR: sidecar.url,
            _CONTROL: stack.enter_context(_bare_proxy(broker)),
        }
        yield _table(_loads(contenders, arguments), arguments)
        sidecar.terminate()
        sink = stack.enter_context(_server_that_forgets())
        uploading = sidecars.start_with_defaults(
            web_service_url=f"{sink},{broker}", topic_two_phase_deletion_enabled="false"
        )
        yield _memory(uploading, arguments)


def _loads(contenders: dict[str, str], arguments: argparse.Namespace) -> dict[tuple[str, int], list[Load]]:
    for url in contenders.values():
        load(url + _PATH, max(_CONNECTIONS), 2)  # only warms up
    found: dict[tuple[str, int], list[Load]] = {}
    for _ in range(arguments.rounds):
        for connections in _CONNECTIONS:
            for name, url in contenders.items():
                found.setdefault((name, connections), []).append(load(url + _PATH, connections, arguments.seconds))
    return found


def _table(loads: dict[tuple[str, int], list[Load]], arguments: argparse.Namespace) -> Table:
    rows = []
    for (name, connections), found in sorted(loads.items(), key=lambda item: item[0][1]):
        median = [
            statistics.median(values)
            for values in zip(*((x.p50_ms, x.p99_ms, x.per_second) for x in found), strict=True)
        ]
        control = statistics.median(one.per_second for one in loads[_CONTROL, connections])
        share = f"{median[2] / control:.2f}"
        rows.append((str(connections), name, f"{median[0]:.2f} ms", f"{median[1]:.2f} ms", f"{median[2]:,.0f}", share))
    title = f"GET {_PATH}, the median of {arguments.rounds} turns of {arguments.seconds:.0f} s"
    return Table(title, ("connections", "", "p50", "p99", "requests/s", "of the bare proxy's"), rows)


def _memory(sidecar: SidecarProcess, arguments: argparse.Namespace) -> Table:
    body = bytes(arguments.megabytes * 1024 * 1024)

    def upload(_: int) -> None:
        answer = requests.post(f"{sidecar.url}/admin/v3/functions/t/n/f", body, timeout=60)
        answer.raise_for_status()

    rows, done = [("0", f"{resident_mb(sidecar.pid):.0f} MiB")], 0
    with ThreadPoolExecutor(_UPLOADS_AT_ONCE) as threads:
        for share in (0.01, 0.1, 0.5, 1):
            until_now = int(arguments.uploads * share)
            list(threads.map(upload, range(until_now - done)))
            done = until_now
            rows.append((f"{done:,}", f"{resident_mb(sidecar.pid):.0f} MiB"))
    title = f"The sidecar's memory during uploads of {arguments.megabytes} MiB, {_UPLOADS_AT_ONCE} at once"
    return Table(title, ("uploads", "in use"), rows)


@contextmanager
def _bare_proxy(broker: str) -> Iterator[str]:
    (port,) = free_ports(1)
    url = f"http://{LOOPBACK}:{port}"
    with subprocess.Popen([sys.executable, "-m", "tests.benchmarks.bare_proxy", broker, str(port)]) as process:
        try:
            until(lambda: _answers(url), "the bare proxy answers")
            yield url
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return requests.get(url + _PATH, timeout=5).ok
    except requests.ConnectionError:
        return False


class _Forgetting(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        left = int(self.headers["Content-Length"])
        while left > 0:
            left -= len(self.rfile.read(min(left, _PIECE_BYTES)))
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        """A read is for the broker that comes next."""
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _server_that_forgets() -> Iterator[str]:
    server = ThreadingHTTPServer((LOOPBACK, 0), _Forgetting)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
