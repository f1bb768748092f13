"""The wire itself, against bookies that really listen."""

import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import LAST_STORED, BookieConnections
from pulsar_sidecar.model.errors import TemporaryError, UnreachableError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId

from tests.fakes.bookie_servers import FakeBookie, response
from tests.fakes.clock import FakeClock

LEDGER = LedgerId(27)


def read(connections: BookieConnections, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
    return connections.read_many(bookie, ledger_id, [entry_id]).get(entry_id)


def test_the_request_is_never_a_fencing_one(bookie: FakeBookie, connections: BookieConnections) -> None:
    bookie.store(LEDGER, 3, b"three")
    assert read(connections, bookie.bookie_id, LEDGER, EntryId(3)) == bookie.entries[LEDGER, 3]
    read(connections, bookie.bookie_id, LEDGER, LAST_STORED)
    assert bookie.requests == [
        bytes.fromhex("00000014 02020000 000000000000001b 0000000000000003"),
        bytes.fromhex("00000014 02020000 000000000000001b ffffffffffffffff"),
    ]


def test_missing_entry_is_a_response(bookie: FakeBookie, connections: BookieConnections) -> None:
    assert read(connections, bookie.bookie_id, LEDGER, EntryId(0)) is None
    bookie.store(LEDGER, 0)
    assert read(connections, bookie.bookie_id, LEDGER, EntryId(1)) is None


def test_one_connection_serves_many_reads(bookie: FakeBookie, connections: BookieConnections) -> None:
    for _ in range(5):
        read(connections, bookie.bookie_id, LEDGER, EntryId(0))
    assert bookie.connections == 1


def test_a_connection_that_went_stale_is_replaced(bookie: FakeBookie, connections: BookieConnections) -> None:
    bookie.store(LEDGER, 0, b"zero")
    read(connections, bookie.bookie_id, LEDGER, EntryId(0))
    bookie.disconnect()
    assert read(connections, bookie.bookie_id, LEDGER, EntryId(0)) == bookie.entries[LEDGER, 0]
    assert bookie.connections == 2


def test_a_silent_bookie_is_waited_for_once(bookie: FakeBookie, connections: BookieConnections) -> None:
    bookie.store(LEDGER, 0, b"zero")
    read(connections, bookie.bookie_id, LEDGER, EntryId(0))
    bookie.answer = lambda ledger_id, entry_id: response(0, ledger_id, entry_id, b"cut short")[:-1]
    with pytest.raises(TemporaryError):
        read(connections, bookie.bookie_id, LEDGER, EntryId(0))
    assert bookie.connections == 1


def test_a_silent_bookie_is_asked_again_after_seconds(
    bookie: FakeBookie, connections: BookieConnections, clock: FakeClock
) -> None:
    bookie.answer_batch = lambda ledger_id, entry_id, count, most_bytes: b""
    with pytest.raises(TemporaryError, match="timed out"):
        connections.read_many(bookie.bookie_id, LEDGER, [EntryId(0), EntryId(1)])
    asked = len(bookie.requests)
    for _ in range(3):
        with pytest.raises(UnreachableError, match="did not respond a moment ago; try again in 15 s"):
            read(connections, bookie.bookie_id, LEDGER, EntryId(0))
    assert len(bookie.requests) == asked == 1
    clock.advance_ms(15_000)
    assert read(connections, bookie.bookie_id, LEDGER, EntryId(0)) is None


def test_many_threads_share_the_pool(bookie: FakeBookie, connections: BookieConnections) -> None:
    for entry_id in range(40):
        bookie.store(LEDGER, entry_id, str(entry_id).encode())
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda number: read(connections, bookie.bookie_id, LEDGER, EntryId(number)), range(40))
    assert list(found) == [bookie.entries[LEDGER, entry_id] for entry_id in range(40)]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        response(101, LEDGER, 0),
        response(102, LEDGER, 0),
        response(104, LEDGER, 0),
        response(107, LEDGER, 0),
        response(0, LEDGER + 1, 0, b"another ledger's"),
        response(0, LEDGER, 0, b"cut short")[:-1],
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 23) + bytes(23),
        response(0, LEDGER, 0).replace(b"\x02\x02\x00\x00", b"\x02\x01\x00\x00"),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_invalid_response_fails_and_drops_the_connection(
    bookie: FakeBookie, connections: BookieConnections, clock: FakeClock, answer: bytes | None
) -> None:
    bookie.answer = lambda ledger_id, entry_id: answer
    with pytest.raises(TemporaryError):
        read(connections, bookie.bookie_id, LEDGER, EntryId(0))
    bookie.answer = lambda ledger_id, entry_id: response(1, ledger_id, entry_id)
    clock.advance_ms(60_000)
    assert read(connections, bookie.bookie_id, LEDGER, EntryId(0)) is None, "a broken connection is not kept"


def test_unreachable_bookie_raises_temporary_error(connections: BookieConnections) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(TemporaryError, match="cannot be reached"):
        read(connections, BookieId(f"127.0.0.1:{port}"), LEDGER, EntryId(0))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 300, "a..b"])
def test_a_host_that_does_not_exist(host: str) -> None:
    connections = BookieConnections()
    with pytest.raises(TemporaryError):
        read(connections, BookieId(f"{host}:3181"), LEDGER, EntryId(0))


def test_after_closing_nothing_is_opened(bookie: FakeBookie, connections: BookieConnections) -> None:
    read(connections, bookie.bookie_id, LEDGER, EntryId(0))
    connections.close()
    connections.close()
    with pytest.raises(TemporaryError):
        read(connections, bookie.bookie_id, LEDGER, EntryId(0))
