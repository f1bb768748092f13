"""BookKeeper's HTTP API, against a server that answers as 4.17.2 does and as it does when it is in trouble."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from service.adapters.bookkeeper.bookie_http import BookieHttp
from service.model.errors import OutcomeUnknownError, TemporaryError
from service.model.ids import MAX_LEDGER_ID, LedgerId


class Bookie(ThreadingHTTPServer):
    """``trouble`` holds verbs and paths that answer 500; ``answers`` overrides bodies of whole paths."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.ledgers: set[int] = set()
        self.trouble: set[str] = set()
        self.answers: dict[str, bytes] = {}
        self.delay_seconds = 0.0
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Bookie

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
        self.end_headers()
        self.wfile.write(b"Internal Server Error" if body is None else body)

    def _body(self, what: str, ledger_id: int) -> bytes | None:
        if what in self.server.answers:
            return self.server.answers[what]
        match what:
            case "GET /heartbeat":
                return b"OK\n"
            case "GET /api/v1/ledger/list":
                return json.dumps(dict.fromkeys(map(str, self.server.ledgers))).encode()
            case "GET /api/v1/ledger/metadata" if ledger_id in self.server.ledgers:
                return b"{}"
            case "DELETE /api/v1/ledger/delete" if ledger_id in self.server.ledgers:
                self.server.ledgers.remove(ledger_id)
                return f'"Deleted ledger: {ledger_id}"'.encode()
            case _:
                return None


METADATA, LIST, DELETE = "GET /api/v1/ledger/metadata", "GET /api/v1/ledger/list", "DELETE /api/v1/ledger/delete"


@pytest.fixture
def bookie() -> Iterator[Bookie]:
    with Bookie() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def http(bookie: Bookie) -> Iterator[BookieHttp]:
    client = BookieHttp([bookie.url + "/"], timeout_seconds=0.3)
    yield client
    client.close()


def _nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_lists_existence_and_heartbeat(bookie: Bookie, http: BookieHttp) -> None:
    bookie.ledgers = {20, 3, MAX_LEDGER_ID}
    assert http.heartbeat()
    assert http.ledger_ids() == [3, 20, MAX_LEDGER_ID]
    assert http.ledger_exists(LedgerId(3))
    assert not http.ledger_exists(LedgerId(4))


def test_a_500_alone_is_no_absence(bookie: Bookie, http: BookieHttp) -> None:
    bookie.ledgers = {3}
    bookie.trouble = {METADATA}
    assert http.ledger_exists(LedgerId(3))
    bookie.trouble = {METADATA, LIST}
    with pytest.raises(TemporaryError):
        http.ledger_exists(LedgerId(3))


@pytest.mark.parametrize("body", [b"", b"[1, 2]", b"null", b"3", b'{"x": null}', b'{"-1": null}', b'{"1": null'])
def test_a_listing_that_is_none(bookie: Bookie, http: BookieHttp, body: bytes) -> None:
    bookie.answers[LIST] = body
    with pytest.raises(TemporaryError):
        http.ledger_ids()


def test_deleting_twice_is_deleting_once(bookie: Bookie, http: BookieHttp) -> None:
    bookie.ledgers = {3, 4}
    http.delete(LedgerId(3))
    http.delete(LedgerId(3))
    assert bookie.ledgers == {4}


def test_a_delete_that_failed_is_not_taken_for_done(bookie: Bookie, http: BookieHttp) -> None:
    bookie.ledgers = {3}
    bookie.trouble = {DELETE}
    with pytest.raises(OutcomeUnknownError, match="still there"):
        http.delete(LedgerId(3))
    bookie.trouble = {DELETE, METADATA, LIST}
    with pytest.raises(OutcomeUnknownError, match="look whether"):
        http.delete(LedgerId(3))


def test_a_delete_without_an_answer_may_have_happened(bookie: Bookie, http: BookieHttp) -> None:
    bookie.ledgers = {3}
    bookie.delay_seconds = 0.6
    with pytest.raises(OutcomeUnknownError):
        http.delete(LedgerId(3))


def test_the_next_bookie_is_asked(bookie: Bookie) -> None:
    bookie.ledgers = {3}
    http = BookieHttp([_nobody(), bookie.url], timeout_seconds=2)
    assert http.heartbeat()
    http.delete(LedgerId(3))
    assert bookie.ledgers == set()
    http.close()


@pytest.mark.parametrize("urls", [[], ["unreachable"]])
def test_nobody_to_ask_changes_nothing(urls: list[str]) -> None:
    http = BookieHttp([_nobody() for _ in urls], timeout_seconds=2)
    assert not http.heartbeat()
    for ask in (http.ledger_exists, http.delete):
        with pytest.raises(TemporaryError):
            ask(LedgerId(3))
    with pytest.raises(TemporaryError):
        http.ledger_ids()
    http.close()
