"""Bookies' reports of their disks: over HTTP where they have registered a service, and by their entries."""

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from pulsar_sidecar.adapters.bookkeeper import bookie_disks
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_disks import RegisteredBookies
from pulsar_sidecar.features.ledger_deletion.ports import Collected, ReclaimedSpace
from pulsar_sidecar.features.pins.ports import StoredCopies
from pulsar_sidecar.features.pins.results import BookieFigures, Compaction
from pulsar_sidecar.model.ids import BookieId, LedgerId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT
from pulsar_sidecar.ownership.registrations import BookieState
from pulsar_sidecar.protobuf import DataFormats_pb2 as bookkeeper

from tests.fakes.bookie_http_servers import BookieHttpServer, bookie_http_server
from tests.fakes.bookie_servers import FakeBookie
from tests.fakes.metadata import FakeMetadataStore

BOOKIE, FULL = BookieId("10.0.0.7:3181"), BookieId("full:3181")
AVAILABLE = f"{DEFAULT_LEDGERS_ROOT}/available"
METRICS = """# TYPE bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES gauge
bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES{indexDir="/a",ledgerDir="/a"} 1000
bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES{indexDir="/b",ledgerDir="/b"} 2.5E3
bookie_ACTIVE_ENTRY_LOG_TOTAL{indexDir="/a",ledgerDir="/a"} 2
bookie_ACTIVE_LEDGER_TOTAL{indexDir="/a",ledgerDir="/a"} 3
bookie_ACTIVE_LEDGER_TOTAL{indexDir="/b",ledgerDir="/b"} 4
"""
SUSPENDED = b'{"isMinorGcSuspended": "false", "isMajorGcSuspended": "true"}'
CONFIGURATION = {"gcWaitTime": "300000", "majorCompactionThreshold": "0.5", "minorCompactionInterval": "x"}


@pytest.fixture
def server() -> Iterator[BookieHttpServer]:
    with bookie_http_server() as server:
        server.answers = {
            "GET /metrics": METRICS.encode(),
            "GET /api/v1/config/server_config": json.dumps(CONFIGURATION).encode(),
            "GET /api/v1/bookie/gc": b'{"is_in_force_gc": "true"}',
            "GET /api/v1/bookie/info": b'{"freeSpace": 30, "totalSpace": 100}',
            "GET /api/v1/bookie/gc/suspend_compaction": SUSPENDED,
        }
        yield server


@pytest.fixture
def store() -> FakeMetadataStore:
    return FakeMetadataStore()


@pytest.fixture
def bookies(store: FakeMetadataStore, server: BookieHttpServer) -> Iterator[RegisteredBookies]:
    store.put(f"{AVAILABLE}/{BOOKIE}", registration(int(server.url.rpartition(":")[2])))
    store.put(f"{AVAILABLE}/readonly")
    store.put(f"{AVAILABLE}/readonly/full:3181", b"")
    with (
        ThreadPoolExecutor(2) as threads,
        closing(RegisteredBookies(store, BookieConnections(store), threads, DEFAULT_LEDGERS_ROOT)) as bookies,
    ):
        yield bookies


def registration(port: int) -> bytes:
    found = bookkeeper.BookieServiceInfoFormat()
    found.endpoints.add(id="bookie", protocol="bookie-rpc", host="10.0.0.7", port=3181)
    found.endpoints.add(id="httpserver", protocol="http", host="127.0.0.1", port=port)
    return found.SerializeToString()


def test_figures_are_summed_over_directories_with_bookkeepers_defaults(
    bookies: RegisteredBookies, server: BookieHttpServer
) -> None:
    figures = bookies.figures([BOOKIE])
    assert figures[BOOKIE] == BookieFigures(
        http_url=server.url,
        live_bytes=3_500,
        entry_logs=2,
        ledgers=7,
        disk_used_bytes=70,
        disk_total_bytes=100,
        gc_wait_seconds=300.0,
        entry_log_limit_bytes=1 << 30,
        minor=Compaction(0.2, 3_600),
        major=Compaction(0.5, 86_400, is_suspended=True),
        is_collecting=True,
    )


def test_a_bookie_without_a_service_names_the_setting(bookies: RegisteredBookies) -> None:
    found = bookies.figures([FULL])[FULL]
    assert isinstance(found, Unreadable)
    assert "httpServerEnabled" in found.reason


@pytest.mark.parametrize(
    ("trouble", "answers", "reason"),
    [
        ("GET /metrics", {}, "answered 500"),
        ("", {"GET /metrics": b"# nothing"}, "statsProviderClass"),
        ("", {"GET /api/v1/config/server_config": b"<html>"}, "returned no JSON"),
        ("", {"GET /api/v1/bookie/info": b"{}"}, "totalSpace"),
    ],
)
def test_figures_that_cannot_be_read_are_not_zero(
    bookies: RegisteredBookies, server: BookieHttpServer, trouble: str, answers: dict[str, bytes], reason: str
) -> None:
    server.trouble = {trouble}
    server.answers |= answers
    found = bookies.figures([BOOKIE])[BOOKIE]
    assert isinstance(found, Unreadable)
    assert reason in found.reason


def test_all_that_a_slow_bookie_is_asked_has_one_deadline(
    bookies: RegisteredBookies, server: BookieHttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie_disks, "_DEADLINE_SECONDS", 0.3)
    server.delay_seconds = 0.15
    found = bookies.figures([BOOKIE])[BOOKIE]
    assert isinstance(found, Unreadable)
    assert "did not respond" in found.reason


def test_bookies_that_are_read_only_or_down_are_known_too(store: FakeMetadataStore, bookies: RegisteredBookies) -> None:
    gone = BookieId("gone:3181")
    for each in (BOOKIE, FULL, gone):
        store.put(f"{DEFAULT_LEDGERS_ROOT}/cookies/{each}", b"")
    assert bookies.known() == {BOOKIE: BookieState.WRITABLE, FULL: BookieState.READ_ONLY, gone: BookieState.DOWN}
    found = bookies.figures([gone])[gone]
    assert isinstance(found, Unreadable)
    assert "it is down" in found.reason


def test_bookies_are_asked_side_by_side() -> None:
    both = threading.Barrier(2)

    class Meeting(FakeMetadataStore):
        def read_many(self, paths: Sequence[str]) -> list[Node | None]:
            both.wait(timeout=10)
            return super().read_many(paths)

    store = Meeting()
    with ThreadPoolExecutor(2) as threads:
        bookies = RegisteredBookies(store, BookieConnections(store), threads, DEFAULT_LEDGERS_ROOT)
        assert list(bookies.figures([FULL, BOOKIE])) == [FULL, BOOKIE]


def test_every_bookie_is_asked_for_a_ledger_that_has_no_metadata() -> None:
    store = FakeMetadataStore()
    down = BookieId("127.0.0.1:1")
    with FakeBookie() as one, FakeBookie() as other, FakeBookie() as without, ThreadPoolExecutor(2) as threads:
        one.store(7, 0, b"x", ledger_bytes=1)
        for bookie in (one, other):
            bookie.store(7, 1, b"y" * 99, ledger_bytes=100)
        for each in (one.bookie_id, other.bookie_id, without.bookie_id, down):
            store.put(f"{AVAILABLE}/{each}", b"")
        with closing(BookieConnections(store)) as connections:
            bookies = RegisteredBookies(store, connections, threads, DEFAULT_LEDGERS_ROOT)
            found, gone = (bookies.copies(LedgerId(ledger_id)) for ledger_id in (7, 8))
    held = tuple(sorted((one.bookie_id, other.bookie_id)))
    assert (found, gone) == (StoredCopies(100, held, (down,)), StoredCopies(0, (), (down,)))


RECLAIMED = """bookie_RECLAIMED_DELETION_SPACE_BYTES{ledgerDir="/a"} 1000
bookie_RECLAIMED_DELETION_SPACE_BYTES{ledgerDir="/b"} 500
bookie_RECLAIMED_COMPACTION_SPACE_BYTES{ledgerDir="/a"} 20
process_start_time_seconds{} 1.7E9
"""


def test_space_is_given_back_by_deleted_and_by_compacted_entry_logs(
    bookies: RegisteredBookies, server: BookieHttpServer
) -> None:
    server.answers["GET /metrics"] = RECLAIMED.encode()
    found = bookies.collected([])
    assert found[BOOKIE] == Collected({}, ReclaimedSpace(1_520, 1_700_000_000_000))
    assert isinstance(found[FULL].space, Unreadable)
    server.answers["GET /metrics"] = RECLAIMED.replace("COMPACTION", "NO").encode()
    assert isinstance(bookies.collected([])[BOOKIE].space, Unreadable)


def test_ledgers_wait_on_each_bookie_for_itself_and_a_silent_one_is_not_one_that_has_collected() -> None:
    store, down = FakeMetadataStore(), BookieId("127.0.0.1:1")
    with FakeBookie() as one, FakeBookie() as without, ThreadPoolExecutor(2) as threads:
        one.store(7, 0, b"x", ledger_bytes=100)
        for each in (one.bookie_id, without.bookie_id, down):
            store.put(f"{AVAILABLE}/{each}", b"")
        with closing(BookieConnections(store)) as connections:
            bookies = RegisteredBookies(store, connections, threads, DEFAULT_LEDGERS_ROOT)
            found = bookies.collected([LedgerId(7), LedgerId(8)])
    assert (found[one.bookie_id].waiting, found[without.bookie_id].waiting) == ({7: 100}, {})
    assert isinstance(found[down].waiting, Unreadable)
