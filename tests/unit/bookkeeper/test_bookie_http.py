"""BookKeeper's HTTP API, against a server that answers as 4.17.2 does and as it does when it is in trouble."""

import socket
from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.bookkeeper.bookie_http import BookieHttp
from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId

from tests.fakes.bookie_http_servers import BookieHttpServer, bookie_http_server

METADATA, LIST, DELETE = "GET /api/v1/ledger/metadata", "GET /api/v1/ledger/list", "DELETE /api/v1/ledger/delete"


@pytest.fixture
def bookie() -> Iterator[BookieHttpServer]:
    with bookie_http_server() as server:
        yield server


@pytest.fixture
def http(bookie: BookieHttpServer) -> Iterator[BookieHttp]:
    client = BookieHttp([bookie.url + "/"], timeout_seconds=0.3)
    yield client
    client.close()


def _unreachable_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_lists_and_existence(bookie: BookieHttpServer, http: BookieHttp) -> None:
    bookie.ledgers = {20, 3, MAX_LEDGER_ID}
    assert http.ledger_ids() == [3, 20, MAX_LEDGER_ID]
    assert http.ledger_exists(LedgerId(3))
    assert not http.ledger_exists(LedgerId(4))


def test_a_500_alone_is_no_absence(bookie: BookieHttpServer, http: BookieHttp) -> None:
    bookie.ledgers = {3}
    bookie.trouble = {METADATA}
    assert http.ledger_exists(LedgerId(3))
    bookie.trouble = {METADATA, LIST}
    with pytest.raises(TemporaryError):
        http.ledger_exists(LedgerId(3))


@pytest.mark.parametrize("body", [b"", b"[1, 2]", b"null", b"3", b'{"x": null}', b'{"-1": null}', b'{"1": null'])
def test_a_listing_that_is_none(bookie: BookieHttpServer, http: BookieHttp, body: bytes) -> None:
    bookie.answers[LIST] = body
    with pytest.raises(TemporaryError):
        http.ledger_ids()


def test_deleting_twice_is_deleting_once(bookie: BookieHttpServer, http: BookieHttp) -> None:
    bookie.ledgers = {3, 4}
    http.delete(LedgerId(3))
    http.delete(LedgerId(3))
    assert bookie.ledgers == {4}


def test_a_delete_that_failed_is_not_taken_for_done(bookie: BookieHttpServer, http: BookieHttp) -> None:
    bookie.ledgers = {3}
    bookie.trouble = {DELETE}
    with pytest.raises(OutcomeUnknownError, match="still there"):
        http.delete(LedgerId(3))
    bookie.trouble = {DELETE, METADATA, LIST}
    with pytest.raises(OutcomeUnknownError, match="look whether"):
        http.delete(LedgerId(3))


def test_a_delete_without_an_answer_may_have_happened(bookie: BookieHttpServer, http: BookieHttp) -> None:
    bookie.ledgers = {3}
    bookie.delay_seconds = 0.6
    with pytest.raises(OutcomeUnknownError):
        http.delete(LedgerId(3))


def test_the_next_bookie_is_asked(bookie: BookieHttpServer) -> None:
    bookie.ledgers = {3}
    http = BookieHttp([_unreachable_url(), bookie.url], timeout_seconds=2)
    http.delete(LedgerId(3))
    assert bookie.ledgers == set()
    http.close()


@pytest.mark.parametrize("urls", [[], ["unreachable"]])
def test_without_a_server_to_ask_nothing_changes(urls: list[str]) -> None:
    http = BookieHttp([_unreachable_url() for _ in urls], timeout_seconds=2)
    for ask in (http.ledger_exists, http.delete):
        with pytest.raises(TemporaryError):
            ask(LedgerId(3))
    with pytest.raises(TemporaryError):
        http.ledger_ids()
    http.close()
