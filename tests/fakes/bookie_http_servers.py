"""A bookie's HTTP admin API in this process: it answers as 4.17.2 does, and as it does when it is in trouble."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class BookieHttpServer(ThreadingHTTPServer):
    """A bookie's HTTP server.

    Attributes:
        ledgers: what exists.
        listings: what the next listings answer instead of ``ledgers``, in turn.
        trouble: verbs and paths that answer 500.
        answers: overrides bodies of whole paths.
        cut_bytes: so many bytes at the end of each body are announced and never sent.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.ledgers: set[int] = set()
        self.trouble: set[str] = set()
        self.listings: list[set[int]] = []
        self.answers: dict[str, bytes] = {}
        self.cut_bytes = 0
        self.delay_seconds = 0.0
        self.requests: list[str] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """Tests are quiet: a client may leave before its answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: BookieHttpServer

    def do_GET(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""

    def _serve(self) -> None:
        place = urlsplit(self.path)
        what = f"{self.command} {place.path}"
        self.server.requests.append(what)
        time.sleep(self.server.delay_seconds)
        ledger_id = int(parse_qs(place.query).get("ledger_id", ["-1"])[0])
        body = None if what in self.server.trouble else self._body(what, ledger_id)
        self.send_response(500 if body is None else 200)
        text = b"Internal Server Error" if body is None else body
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text[: len(text) - self.server.cut_bytes])

    def _body(self, what: str, ledger_id: int) -> bytes | None:
        if what in self.server.answers:
            return self.server.answers[what]
        match what:
            case "GET /api/v1/ledger/list":
                found = self.server.listings.pop(0) if self.server.listings else self.server.ledgers
                return json.dumps(dict.fromkeys(map(str, found))).encode()
            case "GET /api/v1/ledger/metadata" if ledger_id in self.server.ledgers:
                metadata = {"ledgerId": ledger_id, "ctime": 1_700_000_000_000 + ledger_id % 1000, "state": "CLOSED"}
                return json.dumps({str(ledger_id): metadata}).encode()
            case "DELETE /api/v1/ledger/delete" if ledger_id in self.server.ledgers:
                self.server.ledgers.remove(ledger_id)
                return f'"Deleted ledger: {ledger_id}"'.encode()
            case _:
                return None


@contextmanager
def bookie_http_server() -> Iterator[BookieHttpServer]:
    """One that runs."""
    with BookieHttpServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
