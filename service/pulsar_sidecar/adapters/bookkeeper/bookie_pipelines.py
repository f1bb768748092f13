"""Many entries of one ledger from one bookie over one connection, with requests sent ahead of their answers.

A bookie of BookKeeper 4.17 answers a run of entries to one request (``BookieProtocol.BATCH_READ_ENTRY``, BP-62),
several times as fast as one by one; an older one closes the connection at such a request. No request carries a flag, so
nothing fences a ledger's writer out.

Invariant: what is answered was sent by the bookie as the entry asked for; whatever is left out may exist elsewhere.
"""

import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId

PROTOCOL_VERSION: Final = 2
READ_ENTRY: Final = 2
BATCH_READ_ENTRY: Final = 7
EOK: Final = 0
ENOLEDGER: Final = 1
ENOENTRY: Final = 2
EUA: Final = 102
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024

_LENGTH = struct.Struct(">i")
_REQUEST = struct.Struct(">iiqq")
_BATCH_REQUEST = struct.Struct(">iiqqqiq")
_RESPONSE = struct.Struct(">iiqq")
_REQUEST_ID = struct.Struct(">q")
_PIECE_BYTES = 1 << 20

_LONGEST_RUN = 512
_RUN_BYTES = 512 * 1024
_MOST_IN_FLIGHT_BYTES = 2 * 1024 * 1024
_MOST_IN_FLIGHT = 256
FIRST_GUESS_BYTES: Final = 1024
"""How large entries are taken to be while nobody knows."""
_GAP_BYTES = 4096
"""So much that nobody wants is read along with its neighbours, because a request costs bookies more than that."""


class EntryRun(NamedTuple):
    """``length`` entries from ``first`` on."""

    first: int
    length: int


def runs_of(wanted: Sequence[EntryId], *, longest: int, widest_gap: int) -> Iterator[EntryRun]:
    """Ascending entries as runs, each at most so long, with at most so many unwanted entries at a time inside."""
    start = last = wanted[0]
    for entry_id in wanted[1:]:
        if entry_id - last > widest_gap + 1 or entry_id - start >= longest:
            yield EntryRun(start, last - start + 1)
            start = entry_id
        last = entry_id
    yield EntryRun(start, last - start + 1)


def read_entries(
    connection: socket.socket,
    ledger_id: LedgerId,
    wanted: Sequence[EntryId],
    *,
    batches: bool,
    entry_bytes: float = FIRST_GUESS_BYTES,
) -> dict[EntryId, bytes]:
    """The wanted entries that the bookie has, as stored; ``wanted`` is ascending, each once, and not empty.

    ``entry_bytes`` is how large the ledger's entries are taken to be.

    Raises:
        OSError: the connection broke, or no answer came in time.
        TemporaryError: the bookie refuses, or answers something else.
    """
    longest, widest_gap = (_LONGEST_RUN, int(_GAP_BYTES / max(1.0, entry_bytes))) if batches else (1, 0)
    waiting = deque(runs_of(wanted, longest=longest, widest_gap=widest_gap))
    return _Pipeline(connection, ledger_id, frozenset(wanted), waiting, batches, entry_bytes).read()


@dataclass(slots=True)
class _Pipeline:
    connection: socket.socket
    ledger_id: LedgerId
    wanted: frozenset[EntryId]
    waiting: deque[EntryRun]
    batches: bool
    entry_bytes: float
    in_flight: dict[int, EntryRun] = field(default_factory=dict)
    found: dict[EntryId, bytes] = field(default_factory=dict)

    def read(self) -> dict[EntryId, bytes]:
        received = bytearray()
        while self.waiting or self.in_flight:
            self._send()
            piece = self.connection.recv(_PIECE_BYTES)
            if not piece:
                raise ConnectionResetError("the bookie closed the connection")
            received += piece
            done = 0
            for start, end in _frames(received):
                self._take(bytes(received[start:end]))
                done = end
            del received[:done]
        return self.found

    def _send(self) -> None:
        requests = []
        room = max(2, min(_MOST_IN_FLIGHT, int(_MOST_IN_FLIGHT_BYTES / self._expected_bytes())))
        while self.waiting and len(self.in_flight) < room:
            run = self.waiting.popleft()
            self.in_flight[run.first] = run
            requests.append(self._request(run))
        if requests:
            self.connection.sendall(b"".join(requests))

    def _expected_bytes(self) -> float:
        longest = self.waiting[0].length if self.waiting else 1
        return min(longest * self.entry_bytes, max(_RUN_BYTES, self.entry_bytes))

    def _request(self, run: EntryRun) -> bytes:
        if not self.batches:
            length = _REQUEST.size - _LENGTH.size
            return _REQUEST.pack(length, header_of(READ_ENTRY), self.ledger_id, run.first)
        length = _BATCH_REQUEST.size - _LENGTH.size
        header = header_of(BATCH_READ_ENTRY)
        # The first entry's number is as good a request id as any: no two runs in flight begin at the same entry.
        return _BATCH_REQUEST.pack(length, header, self.ledger_id, run.first, run.first, run.length, _RUN_BYTES)

    def _take(self, frame: bytes) -> None:
        code, entry_id, body = opened(frame, BATCH_READ_ENTRY if self.batches else READ_ENTRY, self.ledger_id)
        run = self.in_flight.pop(entry_id, None)
        if run is None:
            raise TemporaryError("a bookie answered a request that was not sent; try again")
        if code != EOK:
            return
        entries = _batch(frame, body) if self.batches else [frame[body:]]
        if len(entries) > run.length:
            raise TemporaryError("a bookie answered with more entries than were asked for; try again")
        self._keep(run, entries)
        if entries and len(entries) < run.length:
            self.waiting.appendleft(EntryRun(run.first + len(entries), run.length - len(entries)))

    def _keep(self, run: EntryRun, entries: Sequence[bytes]) -> None:
        for number, entry in enumerate(entries, run.first):
            if number in self.wanted:
                self.found[EntryId(number)] = entry
        if entries:
            mean = sum(map(len, entries)) / len(entries)
            self.entry_bytes += (mean - self.entry_bytes) / 4


def header_of(operation: int) -> int:
    """The header of a request without flags."""
    return (PROTOCOL_VERSION << 24) | (operation << 16)


def opened(frame: bytes, operation: int, ledger_id: LedgerId) -> tuple[int, int, int]:
    """An answer's code (`EOK`, or nothing there), the entry it is about, and where its body begins.

    Raises:
        TemporaryError: the bookie refuses, or this answers something else.
    """
    if len(frame) < _RESPONSE.size:
        raise TemporaryError(f"a bookie announced {len(frame)} bytes, which is no answer to a read")
    header, code, answered_ledger_id, entry_id = _RESPONSE.unpack_from(frame)
    if header >> 16 != header_of(operation) >> 16 or answered_ledger_id != ledger_id:
        raise TemporaryError("a bookie answered another request than the one that was sent; try again")
    if code == EUA:
        raise TemporaryError("a bookie demands authentication, which reading entries does not support yet")
    if code not in (EOK, ENOLEDGER, ENOENTRY):
        raise TemporaryError(f"a bookie refused to read, with its code {code}; try again")
    return code, entry_id, _RESPONSE.size


def _frames(received: bytearray) -> Iterator[tuple[int, int]]:
    """Where each whole frame in the buffer begins and ends."""
    position = 0
    while len(received) - position >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(received, position)
        if not _RESPONSE.size <= length <= MAX_FRAME_BYTES:
            raise TemporaryError(f"a bookie announced {length} bytes, which is no answer to a read")
        start = position + _LENGTH.size
        position = start + length
        if position > len(received):
            return
        yield start, position


def _batch(frame: bytes, body: int) -> list[bytes]:
    entries = []
    position = body + _REQUEST_ID.size
    while position + _LENGTH.size <= len(frame):
        (length,) = _LENGTH.unpack_from(frame, position)
        position += _LENGTH.size
        if not 0 <= length <= len(frame) - position:
            raise TemporaryError("a bookie's batch of entries ends in the middle of one; try again")
        entries.append(frame[position : position + length])
        position += length
    if position != len(frame):
        raise TemporaryError("a bookie's batch of entries ends in the middle of one; try again")
    return entries
