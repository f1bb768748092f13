"""Client of bookies that reads and adds entries by version 2 of their protocol (BookKeeper ``BookieProtoEncoding``).

Requests carry no flag, so a read never fences a ledger's writer, and needs no password. One connection serves one
reader at a time, with pipelined requests; the pool keeps idle connections per bookie.

A bookie of BookKeeper 4.17 returns for one request a run of entries (``BookieProtocol.BATCH_READ_ENTRY``, BP-62),
several times as fast as one by one; an older one closes the connection at such a request.

Invariants: the bookie sent each returned entry as the requested one, and reported that it lacks each omitted one.
An entry counts as added only after the bookie confirmed that it stored it.
"""

import hashlib
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

from pulsar_sidecar.adapters.bookkeeper.bookie_addresses import bookie_address
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.errors import TemporaryError, UnreachableError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT
from pulsar_sidecar.reports.formatting import format_count

LAST_STORED = EntryId(-1)
"""Id that requests the last entry of the ledger that the bookie holds (``BookieProtocol.LAST_ADD_CONFIRMED``)."""

_PROTOCOL_VERSION: Final = 2
_ADD_ENTRY: Final = 1
_READ_ENTRY: Final = 2
_BATCH_READ_ENTRY: Final = 7
_EOK, _ENOLEDGER, _ENOENTRY, _EUA, _EREADONLY = 0, 1, 2, 102, 105
_MAX_FRAME_BYTES = 64 * 1024 * 1024

_LENGTH = struct.Struct(">i")
_REQUEST = struct.Struct(">iiqq")
_BATCH_REQUEST = struct.Struct(">iiqqqiq")
_ADD_REQUEST = struct.Struct(">ii20s")
_RESPONSE = struct.Struct(">iiqq")
_NO_PASSWORD_KEY: Final = hashlib.sha1(b"ledger", usedforsecurity=False).digest()
"""The master key of ledgers with an empty password (``DigestManager.generateMasterKey``)."""
_REQUEST_ID_BYTES = 8
_PIECE_BYTES = 1 << 20

_LONGEST_RUN = 512
_RUN_BYTES = 512 * 1024
_MOST_IN_FLIGHT_BYTES = 2 * 1024 * 1024
_MOST_IN_FLIGHT = 256
_FIRST_GUESS_BYTES = 1024
"""Assumed size of entries until it is known."""
_GAP_BYTES = 4096
"""Largest gap of unneeded bytes that a run reads too, because another request would cost bookies more."""
_MOST_CACHED = 10_000
_SILENT_SECONDS = 15.0
"""Time for which a bookie that timed out (a stopped process, a host that drops packets) gets no further request."""
_SINGLE_READS = 64
"""Number of reads without batches after a batch that broke the connection; an older bookie breaks one in 65."""


T = TypeVar("T")


class BrokenConnectionError(UnreachableError):
    """Raised when the connection ended, or no response arrived in time."""


class BookieConnections:
    """A pool of connections to bookies; safe for use by several threads.

    Without a store the pool finds only bookies whose ids are addresses.
    """

    def __init__(
        self,
        store: MetadataStore | None = None,
        ledgers_root: str = DEFAULT_LEDGERS_ROOT,
        *,
        connect_timeout_seconds: float = 3.0,
        read_timeout_seconds: float = 5.0,
        idle_per_bookie: int = 4,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._root = ledgers_root
        self._connect_timeout_seconds = connect_timeout_seconds
        self._read_timeout_seconds = read_timeout_seconds
        self._idle_per_bookie = idle_per_bookie
        self._clock = clock or SystemClock()
        self._silent_since: dict[BookieId, float] = {}
        self._lock = threading.Lock()
        self._idle: dict[BookieId, list[socket.socket]] = defaultdict(list)
        self._single_reads: dict[BookieId, int] = {}
        """Remaining number of reads of a bookie without batches."""
        self._entry_bytes: dict[LedgerId, float] = {}
        self._closed = False

    def read_many(self, bookie: BookieId, ledger_id: LedgerId, wanted: Sequence[EntryId]) -> dict[EntryId, bytes]:
        """Return the wanted entries that the bookie has, as stored, with digests; ``wanted`` ascends, each entry once.

        Raises:
            TemporaryError: the bookie cannot be reached, refuses, or returns something else.
        """
        if not wanted:
            return {}
        single_reads = self._single_reads.get(bookie, 0)
        if len(wanted) == 1:
            found = self._read_entries(bookie, ledger_id, wanted, batches=False)
        elif single_reads:
            self._single_reads[bookie] = single_reads - 1
            found = self._read_entries(bookie, ledger_id, wanted, batches=False)
        else:
            try:
                found = self._read_entries(bookie, ledger_id, wanted, batches=True)
            except BrokenConnectionError as error:
                if isinstance(error.__cause__, TimeoutError):
                    raise
                # A bookie before BookKeeper 4.17 closes the connection at a request for a batch. So does a newer one
                # that restarts, and an older one may be upgraded: the pool retries batches after some reads.
                found = self._read_entries(bookie, ledger_id, wanted, batches=False)
                self._single_reads[bookie] = _SINGLE_READS
        if found:
            if len(self._entry_bytes) >= _MOST_CACHED:
                self._entry_bytes.clear()
            self._entry_bytes[ledger_id] = sum(map(len, found.values())) / len(found)
        return found

    def add_all(self, bookie: BookieId, ledger_id: LedgerId, entries: Sequence[tuple[EntryId, bytes]]) -> None:
        """Store entries, whole as `stored_entry` makes them, on the bookie, for a ledger with an empty password.

        Storing is idempotent, so the pool retries after a broken connection, as for reads.

        Raises:
            TemporaryError: at least one is not known to be stored.
        """
        if entries:
            with self._skipping_silent(bookie):
                self._connected(bookie, lambda connection: _Adding(connection, ledger_id, entries).finish())

    def close(self) -> None:
        """Close every idle connection; those in use close when their request ends. Idempotent."""
        with self._lock:
            self._closed = True
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def _read_entries(
        self, bookie: BookieId, ledger_id: LedgerId, wanted: Sequence[EntryId], batches: bool
    ) -> dict[EntryId, bytes]:
        entry_bytes = self._entry_bytes.get(ledger_id, _FIRST_GUESS_BYTES)
        with self._skipping_silent(bookie):
            return self._connected(
                bookie, lambda connection: _Reading(connection, ledger_id, wanted, batches, entry_bytes).read()
            )

    @contextmanager
    def _skipping_silent(self, bookie: BookieId) -> Iterator[None]:
        """Raise `UnreachableError` if the bookie timed out a moment ago; record a timeout inside the context.

        Reading a topic takes many ledgers from the same bookies: a timeout for each would take minutes.
        """
        since = self._silent_since.get(bookie)
        if since is not None and self._clock.monotonic_seconds() - since < _SILENT_SECONDS:
            raise UnreachableError(
                f"bookie {bookie} did not respond a moment ago; try again in {_SILENT_SECONDS:.0f} s"
            )
        try:
            yield
        except UnreachableError as error:
            if isinstance(error.__cause__, TimeoutError):
                self._silent_since[bookie] = self._clock.monotonic_seconds()
            raise
        self._silent_since.pop(bookie, None)

    def _connected(self, bookie: BookieId, converse: Callable[[socket.socket], T]) -> T:
        with self._lock:
            kept = self._idle[bookie].pop() if self._idle[bookie] else None
        if kept is not None:
            try:
                return self._converse(kept, bookie, converse)
            except TemporaryError as error:
                if isinstance(error.__cause__, TimeoutError):
                    raise  # a fresh connection would wait as long again for a silent bookie
                # The bookie may have restarted since the connection was last used; a fresh one decides.
                with self._lock:
                    stale = self._idle.pop(bookie, [])
                for connection in stale:
                    connection.close()
        return self._converse(self._connect(bookie), bookie, converse)

    def _converse(self, connection: socket.socket, bookie: BookieId, converse: Callable[[socket.socket], T]) -> T:
        try:
            found = converse(connection)
        except OSError as error:
            connection.close()
            raise BrokenConnectionError(f"bookie {bookie} did not respond ({error}); try again") from error
        except TemporaryError:
            connection.close()
            raise
        with self._lock:
            idle = self._idle[bookie]
            if not self._closed and len(idle) < self._idle_per_bookie:
                idle.append(connection)
                return found
        connection.close()
        return found

    def _connect(self, bookie: BookieId) -> socket.socket:
        if self._closed:
            raise TemporaryError("connections to bookies are closed; the process is stopping")
        address = bookie_address(bookie, self._store, self._root)
        try:
            connection = socket.create_connection(address, self._connect_timeout_seconds)
            connection.settimeout(self._read_timeout_seconds)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, UnicodeError) as error:
            raise UnreachableError(f"bookie {bookie} cannot be reached ({error}); try again") from error
        return connection


class EntryRun(NamedTuple):
    """``length`` entries from ``first`` on; a single entry is read alone, several as a batch."""

    first: int
    length: int


def runs_of(wanted: Sequence[EntryId], *, longest: int, widest_gap: int) -> Iterator[EntryRun]:
    """Yield ascending entries as runs of at most ``longest``, with at most ``widest_gap`` unwanted entries in a gap."""
    start = last = wanted[0]
    for entry_id in wanted[1:]:
        if entry_id - last > widest_gap + 1 or entry_id - start >= longest:
            yield EntryRun(start, last - start + 1)
            start = entry_id
        last = entry_id
    yield EntryRun(start, last - start + 1)


class _Exchange(ABC):
    """Requests about entries of one ledger over one connection, several of them in flight."""

    def __init__(self, connection: socket.socket, ledger_id: LedgerId) -> None:
        self._connection = connection
        self._ledger_id = ledger_id

    def finish(self) -> None:
        """Send every request and handle every response.

        Raises:
            OSError: the connection broke, or no response arrived in time.
            TemporaryError: the bookie refuses, or returns something else.
        """
        answers = _received_frames(self._connection)
        while self._send():
            for frame in next(answers):
                self._handle(frame)

    @abstractmethod
    def _send(self) -> bool:
        """Send as many requests as fit; return True while any response is pending."""

    @abstractmethod
    def _handle(self, frame: bytes) -> None:
        """Handle a response."""


class _Reading(_Exchange):
    """Read of some entries; ``entry_bytes`` is their assumed size."""

    def __init__(
        self,
        connection: socket.socket,
        ledger_id: LedgerId,
        wanted: Sequence[EntryId],
        batches: bool,
        entry_bytes: float,
    ) -> None:
        longest, widest_gap = (_LONGEST_RUN, int(_GAP_BYTES / max(1.0, entry_bytes))) if batches else (1, 0)
        super().__init__(connection, ledger_id)
        self._wanted = frozenset(wanted)
        self._waiting = deque(runs_of(wanted, longest=longest, widest_gap=widest_gap))
        self._entry_bytes = entry_bytes
        self._in_flight: dict[int, EntryRun] = {}
        self._found: dict[EntryId, bytes] = {}

    def read(self) -> dict[EntryId, bytes]:
        """Return the wanted entries that the bookie has; raises as `finish`."""
        self.finish()
        return self._found

    def _send(self) -> bool:
        requests = []
        longest = self._waiting[0].length if self._waiting else 1
        expected_bytes = min(longest * self._entry_bytes, max(_RUN_BYTES, self._entry_bytes))
        room = max(2, min(_MOST_IN_FLIGHT, int(_MOST_IN_FLIGHT_BYTES / expected_bytes)))
        while self._waiting and len(self._in_flight) < room:
            run = self._waiting.popleft()
            self._in_flight[run.first] = run
            requests.append(self._request(run))
        if requests:
            self._connection.sendall(b"".join(requests))
        return bool(self._in_flight)

    def _request(self, run: EntryRun) -> bytes:
        header, ledger_id = _header_of(run) << 16, self._ledger_id
        if run.length == 1:
            return _REQUEST.pack(_REQUEST.size - _LENGTH.size, header, ledger_id, run.first)
        length = _BATCH_REQUEST.size - _LENGTH.size
        # The first entry's id serves as request id: no two runs in flight begin at the same entry.
        return _BATCH_REQUEST.pack(length, header, ledger_id, run.first, run.first, run.length, _RUN_BYTES)

    def _handle(self, frame: bytes) -> None:
        header, code, ledger_id, entry_id = _RESPONSE.unpack_from(frame)
        run = self._in_flight.pop(entry_id, None)
        if run is None or header >> 16 != _header_of(run) or ledger_id != self._ledger_id:
            raise TemporaryError("a bookie answered a different request from the one that was sent; try again")
        if code == _EUA:
            raise TemporaryError("a bookie demands authentication, which the sidecar does not support yet")
        if code not in (_EOK, _ENOLEDGER, _ENOENTRY):
            raise TemporaryError(f"a bookie refused the read with code {code}; try again")
        if code == _ENOENTRY:
            # A bookie's batch ends where it lacks an entry, which proves nothing about the later ones.
            behind = range(run.first + run.length - 1, run.first, -1)
            self._waiting.extendleft(EntryRun(number, 1) for number in behind if number in self._wanted)
        if code == _EOK:
            self._keep(run, [frame[_RESPONSE.size :]] if run.length == 1 else _batch(frame))

    def _keep(self, run: EntryRun, entries: Sequence[bytes]) -> None:
        if not 0 < len(entries) <= run.length:
            raise TemporaryError(
                f"a bookie returned {format_count(len(entries), 'entry')} when asked for {run.length}; try again"
            )
        for number, entry in enumerate(entries, run.first):
            if number in self._wanted:
                self._found[EntryId(number)] = entry
        self._entry_bytes += (sum(map(len, entries)) / len(entries) - self._entry_bytes) / 4
        if len(entries) < run.length:
            self._waiting.appendleft(EntryRun(run.first + len(entries), run.length - len(entries)))


class _Adding(_Exchange):
    def __init__(
        self, connection: socket.socket, ledger_id: LedgerId, entries: Sequence[tuple[EntryId, bytes]]
    ) -> None:
        super().__init__(connection, ledger_id)
        self._waiting = deque(entries)
        self._in_flight: dict[int, int] = {}

    def _send(self) -> bool:
        # At least one is in flight, however large it is. A bookie responds while it reads, so this cannot deadlock.
        while self._waiting and (not self._in_flight or self._fits(len(self._waiting[0][1]))):
            entry_id, entry = self._waiting.popleft()
            self._in_flight[entry_id] = len(entry)
            length = _ADD_REQUEST.size - _LENGTH.size + len(entry)
            header = (_PROTOCOL_VERSION << 8 | _ADD_ENTRY) << 16
            self._connection.sendall(_ADD_REQUEST.pack(length, header, _NO_PASSWORD_KEY) + entry)
        return bool(self._in_flight)

    def _fits(self, entry_bytes: int) -> bool:
        full = len(self._in_flight) >= _MOST_IN_FLIGHT
        return not full and sum(self._in_flight.values()) + entry_bytes <= _MOST_IN_FLIGHT_BYTES

    def _handle(self, frame: bytes) -> None:
        header, code, ledger_id, entry_id = _RESPONSE.unpack_from(frame)
        known = self._in_flight.pop(entry_id, None) is not None
        if not known or header >> 16 != _PROTOCOL_VERSION << 8 | _ADD_ENTRY or ledger_id != self._ledger_id:
            raise TemporaryError("a bookie answered a different request from the one that was sent; try again")
        if code == _EUA:
            raise TemporaryError("a bookie demands authentication, which the sidecar does not support yet")
        if code == _EREADONLY:
            raise TemporaryError("a bookie has become read-only; free space on its disks or start another one")
        if code != _EOK:
            raise TemporaryError(f"a bookie refused to store an entry, with code {code}; check the bookie's log")


def _received_frames(connection: socket.socket) -> Iterator[list[bytes]]:
    """Yield the whole frames received since the last time; wait for at least a piece of one."""
    received = bytearray()
    while True:
        piece = connection.recv(_PIECE_BYTES)
        if not piece:
            raise ConnectionResetError("the bookie closed the connection")
        received += piece
        frames = list(_frames(received))
        yield [bytes(received[start:end]) for start, end in frames]
        del received[: frames[-1][1] if frames else 0]


def _header_of(run: EntryRun) -> int:
    """Return version and operation, the upper half of a header; a request's lower half, its flags, is zero."""
    return _PROTOCOL_VERSION << 8 | (_READ_ENTRY if run.length == 1 else _BATCH_READ_ENTRY)


def _frames(received: bytearray) -> Iterator[tuple[int, int]]:
    """Yield the beginning and end of each whole frame in the buffer."""
    position = 0
    while len(received) - position >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(received, position)
        if not _RESPONSE.size <= length <= _MAX_FRAME_BYTES:
            raise TemporaryError(f"a bookie announced {format_count(length, 'byte')}, which is not a bookie's response")
        start = position + _LENGTH.size
        position = start + length
        if position > len(received):
            return
        yield start, position


def _batch(frame: bytes) -> list[bytes]:
    entries = []
    position = _RESPONSE.size + _REQUEST_ID_BYTES
    while position < len(frame):
        start = position + _LENGTH.size
        length = _LENGTH.unpack_from(frame, position)[0] if start <= len(frame) else -1
        if not 0 <= length <= len(frame) - start:
            raise TemporaryError("a bookie's batch of entries ends in the middle of one; try again")
        position = start + length
        entries.append(frame[start:position])
    return entries
