"""HTTP servers with a test's responses and a record of requests."""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.fakes.metadata import FakeMetadataStore

NO_CLIENTS: dict[str, object] = {"publishers": [], "subscriptions": {}}
"""What every response to ``stats`` has, of a topic without clients."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """One request as it reached a server."""

    method: str
    target: str
    body: bytes
    authorization: str | None
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """Response to send; status 0 breaks the connection instead."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def json_answer(document: object, status: int = 200) -> Answer:
    return Answer(status, json.dumps(document).encode())


def refusing(status: int, reason: str) -> Answer:
    return json_answer({"reason": reason}, status)


def register_broker(store: FakeMetadataStore, url: str) -> None:
    """Register a broker with this URL as brokers do."""
    address = url.removeprefix("http://")
    store.put(f"/loadbalance/brokers/{address}", json.dumps({"webServiceUrl": url}).encode())


@dataclass(slots=True)
class HttpServer:
    """A server on a free port of this machine."""

    url: str
    arrived: list[Arrived]
    answer: Callable[[Arrived], Answer]

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")


@contextmanager
def http_server(answer: Callable[[Arrived], Answer] = lambda _: Answer(200)) -> Iterator[HttpServer]:
    """A running server; ``answer`` may be replaced while it runs."""
    running = HttpServer("", [], answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # A head and a body in two packets would wait for the client's delayed acknowledgement.

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            arrived = Arrived(self.command, self.path, body, self.headers.get("Authorization"), dict(self.headers))
            running.arrived.append(arrived)
            answered = running.answer(arrived)
            if answered.status == 0:
                self.close_connection = True
                return
            self.send_response(answered.status)
            for name, value in answered.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answered.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answered.body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            # A client may leave before its response.
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(request, client_address)  # type: ignore[arg-type]

    server = Server(("127.0.0.1", 0), Handler)
    running.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
