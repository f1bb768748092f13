"""Reads entries from bookies by their protocol's version 2 (BookKeeper ``BookieProtoEncoding``).

Requests carry no flag, so a read never fences a ledger's writer out, and needs no password. One connection serves one
reader at a time; idle connections are kept per bookie.
"""

import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from pulsar_sidecar.adapters.bookkeeper.bookie_addresses import BookieAddress
from pulsar_sidecar.adapters.bookkeeper.bookie_pipelines import (
    EOK,
    FIRST_GUESS_BYTES,
    MAX_FRAME_BYTES,
    READ_ENTRY,
    header_of,
    opened,
    read_entries,
)
from pulsar_sidecar.model.errors import TemporaryError, UnreachableError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId

LAST_STORED = EntryId(-1)
"""Asks for the last entry of the ledger that the bookie holds (``BookieProtocol.LAST_ADD_CONFIRMED``)."""

_MOST_REMEMBERED = 10_000
_REQUEST = struct.Struct(">iiqq")
_LENGTH = struct.Struct(">i")
_RESPONSE = struct.Struct(">iiqq")

_Answer = TypeVar("_Answer")


class BrokenConnectionError(UnreachableError):
    """The connection ended, or no answer came in time."""


class BookieConnections:
    """A pool of connections to bookies; safe for use by several threads."""

    def __init__(
        self,
        address_of: Callable[[BookieId], BookieAddress],
        *,
        connect_timeout_seconds: float = 3.0,
        read_timeout_seconds: float = 10.0,
        idle_per_bookie: int = 4,
    ) -> None:
        self._address_of = address_of
        self._connect_timeout_seconds = connect_timeout_seconds
        self._read_timeout_seconds = read_timeout_seconds
        self._idle_per_bookie = idle_per_bookie
        self._lock = threading.Lock()
        self._idle: dict[BookieId, list[socket.socket]] = defaultdict(list)
        self._without_batches: set[BookieId] = set()
        self._entry_bytes: dict[LedgerId, float] = {}
        self._closed = False

    def read(self, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """The entry as stored, digest and all, or None when the bookie says that it has no such ledger or entry.

        Raises:
            TemporaryError: the bookie cannot be reached, refuses, or answers something else.
        """
        return self._asked(bookie, partial(_exchange, ledger_id=ledger_id, entry_id=entry_id))

    def read_many(self, bookie: BookieId, ledger_id: LedgerId, wanted: Sequence[EntryId]) -> dict[EntryId, bytes]:
        """The wanted entries that the bookie has, as stored, digest and all; ``wanted`` ascends, each entry once.

        Raises:
            TemporaryError: the bookie cannot be reached, refuses, or answers something else.
        """
        if not wanted:
            return {}
        expected = self._entry_bytes.get(ledger_id, FIRST_GUESS_BYTES)
        found = self._read_many(bookie, partial(read_entries, ledger_id=ledger_id, wanted=wanted, entry_bytes=expected))
        if found:
            if len(self._entry_bytes) >= _MOST_REMEMBERED:
                self._entry_bytes.clear()
            self._entry_bytes[ledger_id] = sum(map(len, found.values())) / len(found)
        return found

    def _read_many(self, bookie: BookieId, pipeline: "partial[dict[EntryId, bytes]]") -> dict[EntryId, bytes]:
        if bookie in self._without_batches:
            return self._asked(bookie, partial(pipeline, batches=False))
        try:
            return self._asked(bookie, partial(pipeline, batches=True))
        except BrokenConnectionError:
            # A bookie before BookKeeper 4.17 closes the connection at a request for a batch.
            found = self._asked(bookie, partial(pipeline, batches=False))
            self._without_batches.add(bookie)
            return found

    def close(self) -> None:
        """Close every idle connection; those in use close when their request ends. Idempotent."""
        with self._lock:
            self._closed = True
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def _asked(self, bookie: BookieId, ask: Callable[[socket.socket], _Answer]) -> _Answer:
        kept = self._take_idle(bookie)
        if kept is not None:
            try:
                return self._ask(kept, bookie, ask)
            except TemporaryError:
                # The bookie may have restarted since the connection was last used; a fresh one decides.
                self._discard_idle(bookie)
        return self._ask(self._connect(bookie), bookie, ask)

    def _ask(self, connection: socket.socket, bookie: BookieId, ask: Callable[[socket.socket], _Answer]) -> _Answer:
        try:
            answer = ask(connection)
        except OSError as error:
            connection.close()
            raise BrokenConnectionError(f"bookie {bookie} did not answer ({error}); try again") from error
        except TemporaryError:
            connection.close()
            raise
        self._keep(bookie, connection)
        return answer

    def _connect(self, bookie: BookieId) -> socket.socket:
        if self._closed:
            raise TemporaryError("connections to bookies are closed; the process is stopping")
        address = self._address_of(bookie)
        try:
            connection = socket.create_connection(address, self._connect_timeout_seconds)
            connection.settimeout(self._read_timeout_seconds)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, UnicodeError) as error:
            raise UnreachableError(f"bookie {bookie} cannot be reached ({error}); try again") from error
        return connection

    def _take_idle(self, bookie: BookieId) -> socket.socket | None:
        with self._lock:
            idle = self._idle[bookie]
            return idle.pop() if idle else None

    def _discard_idle(self, bookie: BookieId) -> None:
        with self._lock:
            stale = self._idle.pop(bookie, [])
        for connection in stale:
            connection.close()

    def _keep(self, bookie: BookieId, connection: socket.socket) -> None:
        with self._lock:
            idle = self._idle[bookie]
            if not self._closed and len(idle) < self._idle_per_bookie:
                idle.append(connection)
                return
        connection.close()


def _exchange(connection: socket.socket, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
    connection.sendall(_REQUEST.pack(_REQUEST.size - _LENGTH.size, header_of(READ_ENTRY), ledger_id, entry_id))
    (frame_bytes,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    if not _RESPONSE.size <= frame_bytes <= MAX_FRAME_BYTES:
        raise TemporaryError(f"a bookie announced {frame_bytes} bytes, which is no answer to a read")
    frame = _receive(connection, frame_bytes)
    code, _, body = opened(frame, READ_ENTRY, ledger_id)
    return frame[body:] if code == EOK else None


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        piece = connection.recv(min(size_bytes - len(received), 1 << 20))
        if not piece:
            raise ConnectionResetError("the bookie closed the connection")
        received += piece
    return bytes(received)
