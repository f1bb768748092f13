"""Bookies that listen on TCP: reads and additions of protocol version 2, with faults on request."""

import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from pulsar_sidecar.adapters.bookkeeper.bookie_entries import digest
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import DigestType

_REQUEST = struct.Struct(">iiqq")
_BATCH_REQUEST = struct.Struct(">iiqqqiq")
_RESPONSE = struct.Struct(">iiiqq")
_ADD_REQUEST = struct.Struct(">ii20s")
_ENTRY_HEADER = struct.Struct(">qqqq")
_ADD_ENTRY = 1

EOK, ENOLEDGER, ENOENTRY, EREADONLY = 0, 1, 2, 105


def stored_entry(
    ledger_id: int,
    entry_id: int,
    payload: bytes,
    *,
    last_confirmed: int = -1,
    digest_type: DigestType = DigestType.CRC32C,
    password: bytes = b"",
    ledger_bytes: int | None = None,
) -> bytes:
    """Return an entry as a bookie stores it, the first one of its ledger unless ``ledger_bytes`` is given."""
    length = len(payload) if ledger_bytes is None else ledger_bytes
    header = _ENTRY_HEADER.pack(ledger_id, entry_id, last_confirmed, length)
    return header + digest(digest_type, header + payload, password) + payload


def response(code: int, ledger_id: int, entry_id: int, entry: bytes = b"") -> bytes:
    """Return a framed response to a read."""
    return _RESPONSE.pack(_RESPONSE.size - 4 + len(entry), 0x02020000, code, ledger_id, entry_id) + entry


def batch_response(code: int, ledger_id: int, entry_id: int, entries: Sequence[bytes] = ()) -> bytes:
    """Return a framed response to a read of a batch from entry ``entry_id`` on."""
    body = struct.pack(">q", entry_id) + b"".join(struct.pack(">i", len(entry)) + entry for entry in entries)
    return _RESPONSE.pack(_RESPONSE.size - 4 + len(body), 0x02070000, code, ledger_id, entry_id) + body


def addition_response(code: int, ledger_id: int, entry_id: int) -> bytes:
    """Return a framed response to an addition."""
    return _RESPONSE.pack(_RESPONSE.size - 4, 0x02010000, code, ledger_id, entry_id)


class FakeBookie:
    """A bookie on a free port of this machine.

    A test may replace ``answer``, which maps ledger and entry to the bytes to send, or None to close the connection;
    ``answer_batch`` likewise for batches, with the most entries and bytes that the reader takes; and
    ``answer_addition`` for a whole entry to store. With ``batches`` False the bookie is older than BookKeeper 4.17.
    """

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int], bytes] = {}
        self.requests: list[bytes] = []
        self.connections = 0
        self.answer: Callable[[int, int], bytes | None] = self._from_entries
        self.answer_batch: Callable[[int, int, int, int], bytes | None] = self._batch_from_entries
        self.answer_addition: Callable[[int, int, bytes], bytes | None] = self._added
        self.batches = True
        self._open: list[socketserver.BaseRequestHandler] = []
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def bookie_id(self) -> BookieId:
        return BookieId(f"127.0.0.1:{self._server.server_address[1]}")

    def store(
        self,
        ledger_id: int,
        entry_id: int,
        payload: bytes = b"",
        *,
        last_confirmed: int = -1,
        ledger_bytes: int | None = None,
    ) -> None:
        """Store an entry like a writer."""
        self.entries[ledger_id, entry_id] = stored_entry(
            ledger_id, entry_id, payload, last_confirmed=last_confirmed, ledger_bytes=ledger_bytes
        )

    def disconnect(self) -> None:
        while self._open:
            handler = self._open.pop()
            handler.request.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _from_entries(self, ledger_id: int, entry_id: int) -> bytes:
        held = sorted(entry for ledger, entry in self.entries if ledger == ledger_id)
        if not held:
            return response(ENOLEDGER, ledger_id, entry_id)
        entry = self.entries.get((ledger_id, held[-1] if entry_id == -1 else entry_id))
        return response(ENOENTRY if entry is None else EOK, ledger_id, entry_id, entry or b"")

    def _added(self, ledger_id: int, entry_id: int, entry: bytes) -> bytes:
        self.entries[ledger_id, entry_id] = entry
        return addition_response(EOK, ledger_id, entry_id)

    def _batch_from_entries(self, ledger_id: int, entry_id: int, count: int, most_bytes: int) -> bytes | None:
        if not self.batches:
            return None
        taken: list[bytes] = []
        while len(taken) < count and (entry := self.entries.get((ledger_id, entry_id + len(taken)))) is not None:
            if taken and sum(map(len, taken)) + len(entry) > most_bytes:
                break
            taken.append(entry)
        return batch_response(EOK if taken else ENOENTRY, ledger_id, entry_id, taken)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


def _handler_of(bookie: FakeBookie) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            bookie.connections += 1
            bookie._open.append(self)
            while request := self._read_request():
                bookie.requests.append(request)
                answer = self._answered(request)
                if answer is None:
                    return
                self.wfile.write(answer)

        def _answered(self, request: bytes) -> bytes | None:
            if request[5] == _ADD_ENTRY:
                entry = request[_ADD_REQUEST.size :]
                ledger_id, entry_id, _, _ = _ENTRY_HEADER.unpack_from(entry)
                return bookie.answer_addition(ledger_id, entry_id, entry)
            if len(request) == _REQUEST.size:
                _, _, ledger_id, entry_id = _REQUEST.unpack(request)
                return bookie.answer(ledger_id, entry_id)
            _, _, ledger_id, entry_id, _, count, most_bytes = _BATCH_REQUEST.unpack(request)
            return bookie.answer_batch(ledger_id, entry_id, count, most_bytes)

        def _read_request(self) -> bytes:
            try:
                length = self.rfile.read(4)
                return length + self.rfile.read(struct.unpack(">i", length)[0]) if len(length) == 4 else b""
            except (OSError, ValueError):
                return b""

    return Handler


class FakeBookies:
    """Bookies in memory for single reads (`BookieReads`), some of which do not respond."""

    def __init__(self) -> None:
        self.held: dict[BookieId, dict[EntryId, bytes]] = {}
        self.silent: set[BookieId] = set()
        self.silence: Exception | None = None

    def read(self, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        if bookie in self.silent:
            assert self.silence is not None
            raise self.silence
        held = self.held.get(bookie, {})
        if entry_id == -1:
            return held[max(held)] if held else None
        return held.get(entry_id)

    def read_many(self, bookie: BookieId, ledger_id: LedgerId, wanted: Sequence[EntryId]) -> dict[EntryId, bytes]:
        found = ((entry_id, self.read(bookie, ledger_id, entry_id)) for entry_id in wanted)
        return {entry_id: data for entry_id, data in found if data is not None}

    def close(self) -> None:
        """Do nothing."""
