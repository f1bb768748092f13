"""Entries as the bookies hold them, of open ledgers too, read without fencing and without recovery.

Invariants: an entry is delivered only with a correct digest; it is missing only when every bookie of its write set
reported that it has none. A delivered entry of a ledger that is still written to may be one whose writer does not know
yet that it is stored.

Invariant of `BookieEntries.read_tail`: the response holds every entry in the tail that was ever acknowledged to its
writer, or the call raises. An acknowledged entry is on ``ack_quorum_size`` members of its write set, so it is seen as
long as fewer than that many members of every write set fail to respond.
"""

import hashlib
import hmac
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Generic, NamedTuple, TypeVar, assert_never

import google_crc32c

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import LAST_STORED, BookieConnections
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import DigestType, LedgerEntry, LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.reports.formatting import format_count

_READ_AT_A_TIME_BYTES = 8 * 1024 * 1024
_MOST_AT_A_TIME = 2048
_FEW_AT_A_TIME = 256
_THREADS = 2
_FIRST = EntryId(0)
_BEFORE_FIRST = EntryId(-1)
_ENTRY_HEADER = struct.Struct(">qqqq")

Kept = TypeVar("Kept")
Made = TypeVar("Made")


@dataclass(slots=True)
class BulkRead(Generic[Kept]):
    """Result for each wanted entry, which is in exactly one of ``found``, ``missing`` and `unreadable`.

    Attributes:
        found: the kept part of each entry.
        missing: entries that every bookie of the write set reported not to have.
        failures: reasons why bookies could not respond, one each, even for entries that another bookie delivered.
    """

    found: dict[EntryId, Kept] = field(default_factory=dict)
    missing: set[EntryId] = field(default_factory=set)
    failures: defaultdict[EntryId, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def unreadable(self) -> dict[EntryId, str]:
        """Reasons by unreadable entry."""
        return {
            entry_id: "; ".join(dict.fromkeys(reasons))
            for entry_id, reasons in self.failures.items()
            if entry_id not in self.found
        }


class BookieEntries:
    """`LedgerEntries` over the bookies themselves, and entries by the thousand; safe for use by several threads."""

    def __init__(self, bookies: BookieConnections) -> None:
        self._bookies = bookies
        # Threads, because one that waits for one bookie lets another bookie work.
        self._threads = ThreadPoolExecutor(_THREADS, "bulk-entries")

    def read_many(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, wanted: Iterable[EntryId], keep: Callable[[bytes], Kept]
    ) -> BulkRead[Kept]:
        """Read entries, few enough at a time that their payloads fit in memory; ``keep`` reduces a payload."""
        return self._read_many(ledger_id, metadata, wanted, lambda stored: keep(stored.payload))

    def _read_many(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        wanted: Iterable[EntryId],
        keep: "Callable[[StoredEntry], Kept]",
    ) -> BulkRead[Kept]:
        reading = _Reading(self._bookies, ledger_id, metadata, keep)
        parts = enumerate(reading.parts(sorted(set(wanted))))
        while some := list(islice(parts, _THREADS)):
            self._in_parallel([partial(reading.read, turn, *part) for turn, part in some])
        return reading.answer

    def _in_parallel(self, calls: "Sequence[Callable[[], Made]]") -> "list[Made]":
        futures = [self._threads.submit(call) for call in calls[1:]]
        first = calls[0]()
        # Calls that no thread has begun run here instead of waiting behind another caller's parts.
        rest = zip(calls[1:], futures, strict=True)
        return [first, *(call() if future.cancel() else future.result() for call, future in rest)]

    def read(self, ledger_id: LedgerId, metadata: LedgerMetadata, entry_id: EntryId) -> "StoredEntry":
        """Return an entry whose writer knows that it is stored; TemporaryError when no bookie delivers it."""
        return self._demand(ledger_id, metadata, range(entry_id, entry_id + 1))[0]

    def read_last(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> "StoredEntry | None":
        """Return the highest entry, None for a ledger without entries; raises as `LedgerEntries.read_tail`."""
        return next(iter(self._tail(ledger_id, metadata, 1)), None)

    def read_tail(self, ledger_id: LedgerId, metadata: LedgerMetadata, count: int) -> tuple[LedgerEntry, ...]:
        """Return the ``count`` highest entries, ascending; see `LedgerEntries.read_tail`."""
        tail = self._tail(ledger_id, metadata, count)
        return tuple(LedgerEntry(ledger_id, stored.entry_id, stored.payload) for stored in tail)

    def _tail(self, ledger_id: LedgerId, metadata: LedgerMetadata, count: int) -> "tuple[StoredEntry, ...]":
        if metadata.state is LedgerState.CLOSED:
            last = metadata.last_entry_id
            return self._demand(ledger_id, metadata, range(max(_FIRST, last - count + 1), last + 1))
        last_stored = self._last_stored(ledger_id, metadata)
        confirmed, highest = _end(metadata, last_stored)
        wanted = range(max(_FIRST, highest - count + 1), highest + 1)
        known = {stored.entry_id: stored for stored in last_stored}
        return self._demand(ledger_id, metadata, wanted, known, confirmed)

    def end(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> "LedgerEnd":
        """Return the ledger's present end.

        Raises:
            TemporaryError: too few bookies responded to know.
        """
        if metadata.state is LedgerState.CLOSED:
            return LedgerEnd(metadata.last_entry_id, metadata.last_entry_id)
        return _end(metadata, self._last_stored(ledger_id, metadata))

    def readable(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> bool:
        """Return True if the first and last entries are there; see `LedgerEntries.readable`.

        For a ledger that was never closed, only the present end is read.

        Raises:
            TemporaryError: an entry was not found, and a bookie that should hold it did not respond.
        """
        if metadata.state is not LedgerState.CLOSED:
            return bool(self.read_tail(ledger_id, metadata, 1))
        for entry_id in sorted({_FIRST, metadata.last_entry_id}) if metadata.last_entry_id >= _FIRST else ():
            answer = self.read_many(ledger_id, metadata, [entry_id], len)
            if answer.missing:
                return False
            if answer.unreadable:
                raise _undelivered_error(ledger_id, *min(answer.unreadable.items()))
        return True

    def close(self) -> None:
        """Close the connections and end the threads; idempotent."""
        self._threads.shutdown(cancel_futures=True)
        self._bookies.close()

    def _demand(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        wanted: range,
        known: "Mapping[EntryId, StoredEntry] | None" = None,
        confirmed: int | None = None,
    ) -> "tuple[StoredEntry, ...]":
        """Return all wanted entries but those above ``confirmed`` that were certainly never acknowledged."""
        entries = dict(known or {})
        # One by one: a bookie that cannot read one entry may be the only one that has the next.
        for entry_id in (EntryId(each) for each in wanted if each not in entries):
            answer = self._read_many(ledger_id, metadata, [entry_id], lambda stored: stored)
            entries.update(answer.found)
            is_confirmed = confirmed is None or entry_id <= confirmed
            failures = answer.failures.get(entry_id, [])
            if entry_id not in entries and (is_confirmed or len(failures) >= metadata.ack_quorum_size):
                reason = "; ".join(failures) or "no bookie has the entry"
                raise _undelivered_error(ledger_id, entry_id, reason)
        return tuple(entries[EntryId(entry_id)] for entry_id in wanted if entry_id in entries)

    def _last_stored(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> "list[StoredEntry]":
        """Return the last entry of each bookie of the last ensemble; enough of them to see every acknowledged entry."""
        ensemble = metadata.segments[-1].ensemble
        # Concurrently, so that the timeouts of several silent bookies overlap.
        answers = self._in_parallel([partial(self._last_of, bookie, ledger_id, metadata) for bookie in ensemble])
        failures = {index: answer.reason for index, answer in enumerate(answers) if isinstance(answer, Unreadable)}
        # In every write set fewer than ``ack_quorum_size`` members may fail (``RoundRobinDistributionSchedule``).
        size = metadata.ensemble_size
        for start in range(size):
            write_set = [(start + rank) % size for rank in range(metadata.write_quorum_size)]
            if sum(index in failures for index in write_set) >= metadata.ack_quorum_size:
                reasons = "; ".join(failures.values())
                raise TemporaryError(
                    f"too few bookies responded to determine the end of ledger {ledger_id}: {reasons}; try again"
                )
        return [answer for answer in answers if isinstance(answer, StoredEntry)]

    def _last_of(
        self, bookie: BookieId, ledger_id: LedgerId, metadata: LedgerMetadata
    ) -> "StoredEntry | Unreadable | None":
        try:
            data = self._bookies.read_many(bookie, ledger_id, [LAST_STORED]).get(LAST_STORED)
            return None if data is None else _checked(data, ledger_id, None, metadata)
        except TemporaryError as error:
            return Unreadable(str(error))


class LedgerEnd(NamedTuple):
    """Last entries of a ledger, as its bookies report them.

    Attributes:
        confirmed: the entry up to which all were acknowledged to the writer; later ones may have been too.
        highest: the highest entry that a bookie has; no entry above it was ever acknowledged.
    """

    confirmed: EntryId
    highest: EntryId


def _end(metadata: LedgerMetadata, last_stored: "Sequence[StoredEntry]") -> LedgerEnd:
    # An ensemble is replaced only after everything before its first entry was acknowledged.
    confirmed = max([metadata.segments[-1].first_entry_id - 1, *(stored.last_confirmed for stored in last_stored)])
    highest = max([confirmed, *(stored.entry_id for stored in last_stored)])
    return LedgerEnd(EntryId(confirmed), EntryId(highest))


class _Reading(Generic[Kept]):
    def __init__(
        self,
        bookies: BookieConnections,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        keep: "Callable[[StoredEntry], Kept]",
    ) -> None:
        self.answer: BulkRead[Kept] = BulkRead()
        self._bookies = bookies
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._keep = keep
        # An open ledger's metadata lacks the size of its entries; the first few show it.
        closed = metadata.length_bytes > 0 and metadata.last_entry_id >= 0
        self._mean_bytes = metadata.length_bytes / (metadata.last_entry_id + 1) if closed else None

    def parts(self, wanted: Sequence[EntryId]) -> Iterator[tuple[Sequence[BookieId], Sequence[EntryId]]]:
        """Yield the wanted entries by write set, in pieces that fit in memory."""
        for write_set, members in _group_by_write_set(self._metadata, wanted).items():
            rest = iter(members)
            while part := list(islice(rest, self._batch_size())):
                yield write_set, part

    def read(self, turn: int, write_set: Sequence[BookieId], wanted: Sequence[EntryId]) -> None:
        """Read missing entries from one bookie of the write set after the other; ``turn`` rotates the first."""
        left = wanted
        for rank in range(len(write_set)):
            bookie = write_set[(turn + rank) % len(write_set)]
            try:
                stored = self._bookies.read_many(bookie, self._ledger_id, left)
            except TemporaryError as error:
                for entry_id in left:
                    self.answer.failures[entry_id].append(str(error))
                continue
            left = self._keep_valid(left, stored)
            if not left:
                return
        self.answer.missing.update(entry_id for entry_id in left if entry_id not in self.answer.failures)

    def _batch_size(self) -> int:
        if self._mean_bytes is None:
            return _FEW_AT_A_TIME
        return max(1, min(_MOST_AT_A_TIME, int(_READ_AT_A_TIME_BYTES / max(1.0, self._mean_bytes))))

    def _keep_valid(self, wanted: Sequence[EntryId], stored: Mapping[EntryId, bytes]) -> Sequence[EntryId]:
        """Keep entries with correct digests; return those still wanted."""
        if stored:
            self._mean_bytes = sum(map(len, stored.values())) / len(stored)
        left = []
        for entry_id in wanted:
            data = stored.get(entry_id)
            try:
                if data is not None:
                    entry = _checked(data, self._ledger_id, entry_id, self._metadata)
                    self.answer.found[entry_id] = self._keep(entry)
                    continue
            except TemporaryError as error:
                self.answer.failures[entry_id].append(str(error))
            left.append(entry_id)
        return left


def _checked(data: bytes, ledger_id: LedgerId, entry_id: EntryId | None, metadata: LedgerMetadata) -> "StoredEntry":
    """Return the entry in a bookie's response, which must be ``entry_id``; any of the ledger for None."""
    stored = checked_entry(data, metadata.digest_type, metadata.password)
    if stored.ledger_id != ledger_id or entry_id not in (None, stored.entry_id):
        asked_for = f"{ledger_id}:{'the last' if entry_id is None else entry_id}"
        raise TemporaryError(f"a bookie returned a different entry from {asked_for}; try again")
    return stored


def _group_by_write_set(
    metadata: LedgerMetadata, wanted: Sequence[EntryId]
) -> Mapping[tuple[BookieId, ...], Sequence[EntryId]]:
    """Group entries by ``RoundRobinDistributionSchedule``; one write set where every bookie of an ensemble has all."""
    striped = metadata.write_quorum_size < metadata.ensemble_size
    found: dict[tuple[BookieId, ...], list[EntryId]] = {}
    ends = [segment.first_entry_id for segment in metadata.segments[1:]]
    for segment, end in zip(metadata.segments, [*ends, None], strict=True):
        for entry_id in wanted:
            if entry_id >= segment.first_entry_id and (end is None or entry_id < end):
                start = entry_id % metadata.ensemble_size if striped else 0
                turned = segment.ensemble[start:] + segment.ensemble[:start]
                found.setdefault(turned[: metadata.write_quorum_size], []).append(entry_id)
    return found


def _undelivered_error(ledger_id: LedgerId, entry_id: EntryId, reason: str) -> TemporaryError:
    return TemporaryError(f"no bookie returned entry {ledger_id}:{entry_id} ({reason}); try again")


class StoredEntry(NamedTuple):
    """An entry with a correct digest, and its header (BookKeeper ``DigestManager``).

    As stored: ledger id, entry id, last confirmed id, cumulative length (four big-endian int64), digest, payload; the
    digest covers the 32 bytes before it and the payload.

    ``last_confirmed`` is the last entry that the writer knew to be acknowledged when it wrote this one;
    ``ledger_bytes`` is the cumulative length.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    last_confirmed: EntryId
    payload: bytes
    ledger_bytes: int


def cumulative_bytes(data: bytes) -> int:
    """Return the length of the ledger up to this entry, by the entry's header, bytes."""
    length: int = _ENTRY_HEADER.unpack_from(data)[3]
    return length


def checked_entry(data: bytes, digest_type: DigestType | None, password: bytes) -> StoredEntry:
    """Return the entry in a bookie's response.

    Raises:
        UndecodableError: too short, damaged, or of a digest that the ledger's metadata does not name.
    """
    if digest_type is None:
        raise UndecodableError("the ledger's metadata names no digest, so its entries cannot be checked")
    digest_end = _ENTRY_HEADER.size + _DIGEST_BYTES[digest_type]
    if len(data) < digest_end:
        raise UndecodableError(
            f"a bookie returned {format_count(len(data), 'byte')} that are not an entry; read it again"
        )
    header, payload = data[: _ENTRY_HEADER.size], data[digest_end:]
    # Unpacked numbers have no type: making ids of them takes a fifth of this check, for each of very many entries.
    ledger_id, entry_id, last_confirmed, ledger_bytes = _ENTRY_HEADER.unpack(header)
    stored_digest = data[_ENTRY_HEADER.size : digest_end]
    if not hmac.compare_digest(stored_digest, digest(digest_type, header + payload, password)):
        raise UndecodableError(f"entry {ledger_id}:{entry_id} is damaged on this bookie; read another copy")
    return StoredEntry(ledger_id, entry_id, last_confirmed, payload, ledger_bytes)


def stored_entry(ledger_id: LedgerId, entry_id: EntryId, payload: bytes, *, length_bytes: int) -> bytes:
    """Return an entry as its writer sends it to a bookie, with digest CRC32C (inverse of `checked_entry`).

    ``length_bytes`` counts the payloads of the ledger up to this one. The header confirms no entry, which is always
    correct: a reader of a closed ledger ignores it, and a recovery then reads every entry itself.
    """
    header = _ENTRY_HEADER.pack(ledger_id, entry_id, _BEFORE_FIRST, length_bytes)
    return header + digest(DigestType.CRC32C, header + payload, b"") + payload


def digest(digest_type: DigestType, data: bytes, password: bytes) -> bytes:
    """Return the digest as BookKeeper stores it."""
    match digest_type:
        case DigestType.CRC32C:
            return struct.pack(">I", google_crc32c.value(data))
        case DigestType.CRC32:
            return struct.pack(">Q", zlib.crc32(data))
        case DigestType.HMAC:
            key = hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()
            return hmac.digest(key, data, "sha1")
        case DigestType.DUMMY:
            return b""
        case _ as unreachable:
            assert_never(unreachable)


_DIGEST_BYTES = {digest_type: len(digest(digest_type, b"", b"")) for digest_type in DigestType}
