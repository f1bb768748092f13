"""Any entries of a ledger, read in bulk from its bookies without fencing and without recovery.

Invariants: an entry is delivered only if its digest was right; it is called missing only when every bookie of its write
set said that it has none. Of a ledger that is still written to, an entry may be delivered that its writer has not been
told to be stored.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.digests import checked_payload
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerMetadata

_READ_AT_A_TIME_BYTES = 8 * 1024 * 1024
_MOST_AT_A_TIME = 2048
_FEW_AT_A_TIME = 256
_THREADS = 2

Kept = TypeVar("Kept")


@dataclass(slots=True)
class BulkAnswer(Generic[Kept]):
    """What became of each wanted entry: it is in exactly one of the three.

    Attributes:
        found: what was kept of it.
        missing: every bookie that should have it answered that it does not.
        unreadable: why it is not known.
    """

    found: dict[EntryId, Kept] = field(default_factory=dict)
    missing: set[EntryId] = field(default_factory=set)
    unreadable: dict[EntryId, str] = field(default_factory=dict)


class BulkEntries:
    """Reads entries by the thousand; safe for use by several threads."""

    def __init__(self, bookies: BookieConnections) -> None:
        self._bookies = bookies
        # Kept, because a thread that waits for one bookie lets another bookie work.
        self._threads = ThreadPoolExecutor(_THREADS, "bulk-entries")

    def read(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        wanted: Iterable[EntryId],
        keep: Callable[[bytes], Kept],
    ) -> BulkAnswer[Kept]:
        """Read them, so many at a time that their payloads fit in memory; ``keep`` says what is kept of a payload."""
        answer: BulkAnswer[Kept] = BulkAnswer()
        sizes = _Sizes(_mean_bytes(metadata))
        reading = _Reading(ledger_id, metadata, keep, answer, sizes)
        parts = enumerate(_parts(metadata, sorted(set(wanted)), sizes))
        while some := list(islice(parts, _THREADS)):
            first, *others = some
            busy = [self._threads.submit(self._read_part, reading, part, turn) for turn, part in others]
            self._read_part(reading, first[1], first[0])
            for future in busy:
                future.result()
        return answer

    def close(self) -> None:
        """Let the threads go; idempotent."""
        self._threads.shutdown(cancel_futures=True)

    def _read_part(self, reading: "_Reading[Kept]", part: "_Part", turn: int) -> None:
        """Ask one bookie of the write set after the other, each for what is still missing; they take turns."""
        left, reasons = part.wanted, defaultdict[EntryId, list[str]](list)
        for rank in range(len(part.write_set)):
            bookie = part.write_set[(turn + rank) % len(part.write_set)]
            try:
                stored = self._bookies.read_many(bookie, reading.ledger_id, left)
            except TemporaryError as error:
                for entry_id in left:
                    reasons[entry_id].append(str(error))
                continue
            left = reading.taken(left, stored, reasons)
            if not left:
                return
        reading.given_up(left, reasons)


@dataclass(frozen=True, slots=True)
class _Part:
    """Entries that are on the same bookies."""

    write_set: tuple[BookieId, ...]
    wanted: Sequence[EntryId]


@dataclass(slots=True)
class _Sizes:
    """How large entries are, as far as is known; the first few tell."""

    mean_bytes: float | None

    def seen(self, stored: Mapping[EntryId, bytes]) -> None:
        if stored:
            self.mean_bytes = sum(map(len, stored.values())) / len(stored)

    def at_a_time(self) -> int:
        if self.mean_bytes is None:
            return _FEW_AT_A_TIME
        return max(1, min(_MOST_AT_A_TIME, int(_READ_AT_A_TIME_BYTES / max(1.0, self.mean_bytes))))


@dataclass(frozen=True, slots=True)
class _Reading(Generic[Kept]):
    ledger_id: LedgerId
    metadata: LedgerMetadata
    keep: Callable[[bytes], Kept]
    answer: BulkAnswer[Kept]
    sizes: _Sizes

    def taken(
        self, wanted: Sequence[EntryId], stored: Mapping[EntryId, bytes], reasons: defaultdict[EntryId, list[str]]
    ) -> Sequence[EntryId]:
        """Keep what is right; what is still wanted then."""
        self.sizes.seen(stored)
        digest_type, password = self.metadata.digest_type, self.metadata.password
        left = []
        for entry_id in wanted:
            data = stored.get(entry_id)
            if data is None:
                left.append(entry_id)
                continue
            try:
                payload = checked_payload(data, self.ledger_id, entry_id, digest_type, password)
                self.answer.found[entry_id] = self.keep(payload)
            except TemporaryError as error:
                left.append(entry_id)
                reasons[entry_id].append(str(error))
        return left

    def given_up(self, left: Sequence[EntryId], reasons: Mapping[EntryId, list[str]]) -> None:
        """No bookie has delivered these."""
        for entry_id in left:
            if entry_id in reasons:
                self.answer.unreadable[entry_id] = "; ".join(dict.fromkeys(reasons[entry_id]))
            else:
                self.answer.missing.add(entry_id)


def _parts(metadata: LedgerMetadata, wanted: Sequence[EntryId], sizes: _Sizes) -> Iterator[_Part]:
    for write_set, members in _by_write_set(metadata, wanted).items():
        rest = iter(members)
        while part := list(islice(rest, sizes.at_a_time())):
            yield _Part(write_set, part)


def _by_write_set(
    metadata: LedgerMetadata, wanted: Sequence[EntryId]
) -> Mapping[tuple[BookieId, ...], Sequence[EntryId]]:
    """``RoundRobinDistributionSchedule``; where every bookie of an ensemble has everything, that is one write set."""
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


def _mean_bytes(metadata: LedgerMetadata) -> float | None:
    """None for a ledger that is still written to, whose metadata does not say."""
    closed = metadata.length_bytes > 0 and metadata.last_entry_id >= 0
    return metadata.length_bytes / (metadata.last_entry_id + 1) if closed else None
