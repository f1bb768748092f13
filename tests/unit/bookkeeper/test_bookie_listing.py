"""A listing over bookies' HTTP APIs that lie, lag and change meanwhile: every ledger, or an error."""

from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.bookkeeper.bookie_listing import BookieListing
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID

from tests.fakes.bookie_http_servers import BookieHttpServer, bookie_http_server
from tests.fakes.clock import FakeClock

LEDGERS = {1, 2, 9, 10, 11, 100, MAX_LEDGER_ID}


@pytest.fixture
def bookie() -> Iterator[BookieHttpServer]:
    with bookie_http_server() as server:
        server.ledgers = set(LEDGERS)
        yield server


@pytest.fixture
def other_bookie() -> Iterator[BookieHttpServer]:
    with bookie_http_server() as server:
        server.ledgers = set(LEDGERS)
        yield server


def listing(*bookies: BookieHttpServer, with_metadata: bool = False, rate: float | None = None) -> BookieListing:
    urls = [bookie.url for bookie in bookies]
    return BookieListing(urls, FakeClock(), with_metadata=with_metadata, ledgers_per_second=rate)


def rows_of(source: BookieListing) -> list[dict[str, object]]:
    try:
        return [row for batch in source.batches() for row in batch.to_pylist()]
    finally:
        source.close()


def ids_of(source: BookieListing) -> list[object]:
    return [row["ledger_id"] for row in rows_of(source)]


def test_every_id_once_in_numeric_order(bookie: BookieHttpServer, other_bookie: BookieHttpServer) -> None:
    source = listing(bookie, other_bookie)
    assert ids_of(source) == sorted(LEDGERS)
    assert source.ending().proof.checks["idsInBothListings"] == len(LEDGERS)
    assert source.ending().zxids.first is None
    assert (len(bookie.requests), len(other_bookie.requests)) == (1, 1)


def test_metadata_comes_as_the_bookie_returns_it(bookie: BookieHttpServer) -> None:
    rows = rows_of(listing(bookie, with_metadata=True))
    assert [row["ctime_ms"] for row in rows][:2] == [1_700_000_000_001, 1_700_000_000_002]
    assert '"state": "CLOSED"' in str(rows[0]["metadata_json"])
    assert {row["metadata"] for row in rows} == {None}


@pytest.mark.parametrize("short", [set(), {1, 2}, LEDGERS - {9}])
def test_a_short_listing_never_makes_a_short_result(
    bookie: BookieHttpServer, other_bookie: BookieHttpServer, short: set[int]
) -> None:
    other_bookie.ledgers = short
    with pytest.raises(TemporaryError):
        ids_of(listing(bookie, other_bookie))
    try:
        # Where only the newest are lacking at first, it looks as if they had been created since.
        assert ids_of(listing(other_bookie, bookie)) == sorted(LEDGERS)
    except TemporaryError:
        assert short != {1, 2}


def test_a_listing_that_was_short_once_is_asked_for_again(bookie: BookieHttpServer) -> None:
    bookie.listings = [{1, 2, 100}, LEDGERS]
    assert ids_of(listing(bookie)) == sorted(LEDGERS)


def test_an_empty_listing_fails(bookie: BookieHttpServer) -> None:
    bookie.ledgers = set()
    with pytest.raises(TemporaryError, match="empty listing is a failed listing"):
        ids_of(listing(bookie))


@pytest.mark.parametrize("body", [b"", b"{", b'{"1": null, "2"', b"[]x", b'{"x": null}', b'{"-1": null}', b"null"])
def test_what_is_no_listing_fails(bookie: BookieHttpServer, body: bytes) -> None:
    bookie.answers["GET /api/v1/ledger/list"] = body
    with pytest.raises(TemporaryError):
        ids_of(listing(bookie))


def test_a_body_that_breaks_off_fails(bookie: BookieHttpServer) -> None:
    bookie.cut_bytes = 3
    with pytest.raises(TemporaryError):
        ids_of(listing(bookie))


def test_ledgers_created_and_deleted_meanwhile_are_no_contradiction(bookie: BookieHttpServer) -> None:
    bookie.ledgers = {1, 2, 3, 12}
    bookie.listings = [{1, 2, 3, 7}, {1, 2, 3, 12}]
    assert ids_of(listing(bookie)) == [1, 2, 3, 12]


def test_a_ledger_that_stays_listed_without_metadata_is_an_unreadable_row(bookie: BookieHttpServer) -> None:
    bookie.ledgers = {1, 2}
    bookie.listings = [{1, 2, 3}, {1, 2, 3}, {1, 2, 3}]
    rows = rows_of(listing(bookie, with_metadata=True))
    assert [(row["ledger_id"], row["unreadable"] is None) for row in rows] == [(1, True), (2, True), (3, False)]


def test_a_ledger_that_goes_while_its_metadata_is_read_is_left_out(bookie: BookieHttpServer) -> None:
    bookie.ledgers = {1, 2}
    bookie.listings = [{1, 2, 3}, {1, 2, 3}]
    source = listing(bookie, with_metadata=True)
    assert ids_of(source) == [1, 2]
    assert source.ending().proof.checks["goneMeanwhile"] == 1


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"2": {"ctime": 1}}', b"no json", b"[" * 100_000])
def test_metadata_of_something_else_fails(bookie: BookieHttpServer, body: bytes) -> None:
    bookie.ledgers = {1}
    bookie.answers["GET /api/v1/ledger/metadata"] = body
    with pytest.raises(TemporaryError, match="is not its metadata"):
        ids_of(listing(bookie, with_metadata=True))


def test_a_rate_is_kept(bookie: BookieHttpServer) -> None:
    clock = FakeClock()
    source = BookieListing([bookie.url], clock, with_metadata=True, ledgers_per_second=2)
    assert len(rows_of(source)) == len(LEDGERS)
    assert clock.monotonic_seconds() >= (len(LEDGERS) - 1) / 2
