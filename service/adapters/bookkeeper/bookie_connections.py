"""Reads single entries from bookies by their protocol's version 2 (BookKeeper ``BookieProtoEncoding``).

Requests carry no flag, so a read never fences a ledger's writer out, and needs no password. One connection carries one
request at a time; idle connections are kept per bookie.
"""

import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable
from enum import IntEnum

from service.adapters.bookkeeper.bookie_addresses import BookieAddress
from service.model.errors import TemporaryError
from service.model.ids import BookieId, EntryId, LedgerId

LAST_STORED = EntryId(-1)
"""Asks for the last entry of the ledger that the bookie holds (``BookieProtocol.LAST_ADD_CONFIRMED``)."""

_PROTOCOL_VERSION = 2
_READ_ENTRY = 2
_HEADER = (_PROTOCOL_VERSION << 24) | (_READ_ENTRY << 16)
_REQUEST = struct.Struct(">iiqq")
_LENGTH = struct.Struct(">i")
_RESPONSE = struct.Struct(">iiqq")
_MAX_FRAME_BYTES = 64 * 1024 * 1024


class _Code(IntEnum):
    """``BookieProtocol``'s answers that mean something to a reader."""

    EOK = 0
    ENOLEDGER = 1
    ENOENTRY = 2
    EUA = 102


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
        self._closed = False

    def read(self, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """The entry as stored, digest and all, or None when the bookie says that it has no such ledger or entry.

        Raises:
            TemporaryError: the bookie cannot be reached, refuses, or answers something else.
        """
        kept = self._take_idle(bookie)
        if kept is not None:
            try:
                return self._ask(kept, bookie, ledger_id, entry_id)
            except TemporaryError:
                # The bookie may have restarted since the connection was last used; a fresh one decides.
                self._discard_idle(bookie)
        return self._ask(self._connect(bookie), bookie, ledger_id, entry_id)

    def close(self) -> None:
        """Close every idle connection; those in use close when their request ends. Idempotent."""
        with self._lock:
            self._closed = True
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def _ask(self, connection: socket.socket, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        try:
            answer = _exchange(connection, ledger_id, entry_id)
        except OSError as error:
            connection.close()
            raise TemporaryError(f"bookie {bookie} did not answer ({error}); try again") from error
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
            raise TemporaryError(f"bookie {bookie} cannot be reached ({error}); try again") from error
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
    connection.sendall(_REQUEST.pack(_REQUEST.size - _LENGTH.size, _HEADER, ledger_id, entry_id))
    (frame_bytes,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    if not _RESPONSE.size <= frame_bytes <= _MAX_FRAME_BYTES:
        raise TemporaryError(f"a bookie announced {frame_bytes} bytes, which is no answer to a read")
    frame = _receive(connection, frame_bytes)
    header, code, answered_ledger_id, _ = _RESPONSE.unpack_from(frame)
    if header >> 16 != _HEADER >> 16 or answered_ledger_id != ledger_id:
        raise TemporaryError("a bookie answered another request than the one that was sent; try again")
    match code:
        case _Code.EOK:
            return frame[_RESPONSE.size :]
        case _Code.ENOLEDGER | _Code.ENOENTRY:
            return None
        case _Code.EUA:
            raise TemporaryError("a bookie demands authentication, which reading entries does not support yet")
        case _:
            raise TemporaryError(f"a bookie refused to read, with its code {code}; try again")


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        piece = connection.recv(min(size_bytes - len(received), 1 << 20))
        if not piece:
            raise ConnectionResetError("the bookie closed the connection")
        received += piece
    return bytes(received)
