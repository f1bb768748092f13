"""Processor time of a synchronous call to a broker: the admin client, its urllib3 pool alone, and requests instead.

A server on the loopback interface answers at once; only the calling thread's time counts.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import requests
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.http_sessions import HttpSessions
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions

from tests.reporting import Table

NAME = "http-clients"
_PATH = "/admin/v2/persistent/public/default/orders/stats"
_PARAMETERS = {"excludePublishers": "true"}
_ANSWER = json.dumps({"publishers": [], "subscriptions": {"s": {"consumers": [], "msgOutCounter": 1}}}).encode()
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_ANSWER)


class _Server(ThreadingTCPServer):
    daemon_threads = True


class _Answering(StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            if line == b"\r\n":
                self.wfile.write(_HEAD + _ANSWER)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=int, default=1_000, help="of each client in a round")
    parser.add_argument("--rounds", type=int, default=7)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with _Server(("127.0.0.1", 0), _Answering) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        rest = AdminRest([url])
        pool = HttpSessions(ClientCredentials(), TlsOptions(), 5.0, 60.0)
        session = requests.Session()
        session.trust_env = False
        options = {"params": _PARAMETERS, "headers": {"Accept": "application/json"}, "timeout": (5.0, 60.0)}
        calls: dict[str, Callable[[], object]] = {
            "the admin client": lambda: rest.get(_PATH, _PARAMETERS),
            "urllib3's pool": lambda: json.loads(pool.send("GET", url + _PATH, params=_PARAMETERS).data),
            "requests": lambda: session.get(url + _PATH, allow_redirects=False, **options).json(),
        }
        rounds = [
            [_microseconds(call, arguments.calls) for call in calls.values()] for _ in range(arguments.rounds + 1)
        ][1:]
        server.shutdown()
    medians = [statistics.median(found) for found in zip(*rounds, strict=True)]
    rows = [(name, f"{median:.0f} µs") for name, median in zip(calls, medians, strict=True)]
    return [Table(f"One of {arguments.calls:,} calls, {arguments.rounds} rounds", ("client", "processor time"), rows)]


def _microseconds(call: Callable[[], object], calls: int) -> float:
    begin = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - begin) / 1e3 / calls
