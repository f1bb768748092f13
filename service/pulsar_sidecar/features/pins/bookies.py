"""Contents of bookies' disks: their ledgers, the owners of these, and the bytes not collected yet.

A bookie collects in two steps. Every ``gcWaitTime`` it removes the ledgers whose metadata is gone from its index, and
the entry logs without any ledger. Compaction rewrites the other entry logs once they are empty enough.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from pulsar_sidecar.features.pins.causes import collecting, starting
from pulsar_sidecar.features.pins.ports import Bookies
from pulsar_sidecar.features.pins.reading import topic_of
from pulsar_sidecar.features.pins.results import LISTED, BookieFigures, BookiePins, Remedy, Share
from pulsar_sidecar.model.clocks import Clock, rest_seconds
from pulsar_sidecar.model.errors import NotFoundError, UndecodableError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.claims import Claim, read_claim
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.ports import EveryLedger
from pulsar_sidecar.ownership.registrations import BookieState

_KEPT_SECONDS: Final = 60.0


@dataclass(slots=True)
class LedgersOnBookie:
    """Ledgers on a bookie, by their own metadata.

    Attributes:
        ledgers: number of ledgers with entries there.
        open_ledgers: number of these whose length is not in their metadata.
        size_bytes: size of the others.
    """

    ledgers: int = 0
    open_ledgers: int = 0
    size_bytes: int = 0
    sizes: Counter[TopicName | None] = field(default_factory=Counter)
    counts: Counter[TopicName | None] = field(default_factory=Counter)

    def add(self, topic: TopicName | None, size_bytes: int, *, is_open: bool) -> None:
        self.ledgers += 1
        self.open_ledgers += is_open
        self.size_bytes += size_bytes
        self.sizes[topic] += size_bytes
        self.counts[topic] += 1


class BookiesReader:
    """Reader of all ledgers' metadata, at most once a minute and a tenth of the time; callers share one reading."""

    def __init__(self, every: EveryLedger, bookies: Bookies, clock: Clock) -> None:
        self._every, self._bookies, self._clock = every, bookies, clock
        self._reading = threading.Lock()
        self._read: tuple[float, _Ledgers] | None = None

    def bookies(self) -> list[BookiePins]:
        """Return the bookies that are registered, have a cookie, or are named by a ledger, without owners.

        Raises:
            TemporaryError: the metadata store could not be read.
        """
        ledgers, states = self._ledgers(), self._bookies.known()
        figures = self._bookies.figures(sorted({*states, *ledgers.by_bookie}))
        return [_pins(bookie, states, ledgers, read) for bookie, read in figures.items()]

    def bookie(self, bookie: BookieId, *, by_topic: bool, offset: int, limit: int) -> BookiePins:
        """Return one bookie, with its largest owners.

        Raises:
            NotFoundError: no such bookie is known, and no ledger has entries there.
            TemporaryError: the metadata store could not be read.
        """
        ledgers, states = self._ledgers(), self._bookies.known()
        if bookie not in ledgers.by_bookie and bookie not in states:
            raise NotFoundError(f"there is no bookie {bookie}; list them with: pulsar-sidecar pins bookies")
        shares = _shares(ledgers.on(bookie), by_topic=by_topic)
        found = _pins(bookie, states, ledgers, self._bookies.figures([bookie])[bookie])
        return replace(found, owners=len(shares), shares=tuple(shares[offset : offset + limit]))

    def _ledgers(self) -> "_Ledgers":
        with self._reading:
            began = self._clock.monotonic_seconds()
            if self._read is None or began > self._read[0]:
                read = ledgers_by_bookie(self._clock.now_ms(), self._every())
                ended = self._clock.monotonic_seconds()
                self._read = ended + rest_seconds(_KEPT_SECONDS, ended - began), read
            return self._read[1]


@dataclass(frozen=True, slots=True)
class _Ledgers:
    """All ledgers as of ``read_ms``, with the ids of those whose metadata cannot be read."""

    read_ms: int
    by_bookie: Mapping[BookieId, LedgersOnBookie]
    unreadable: tuple[LedgerId, ...] = ()

    def on(self, bookie: BookieId) -> LedgersOnBookie:
        return self.by_bookie.get(bookie, LedgersOnBookie())


def _pins(
    bookie: BookieId,
    states: Mapping[BookieId, BookieState],
    ledgers: _Ledgers,
    read: BookieFigures | Unreadable,
) -> BookiePins:
    there, state = ledgers.on(bookie), states.get(bookie, BookieState.DOWN)
    figures, problem = (None, read.reason) if isinstance(read, Unreadable) else (read, None)
    return BookiePins(
        bookie=bookie,
        state=state,
        read_ms=ledgers.read_ms,
        ledgers=there.ledgers,
        open_ledgers=there.open_ledgers,
        size_bytes=there.size_bytes,
        figures=figures,
        problem=problem,
        uncollected_at_most_bytes=None if figures is None else _at_most(figures),
        uncollected_ledgers=None if figures is None else max(0, figures.ledgers - there.ledgers),
        unreadable_ledgers=len(ledgers.unreadable),
        unreadable_ledger_ids=ledgers.unreadable[:LISTED],
        remedies=_remedies(bookie, state, figures),
    )


def ledgers_by_bookie(now_ms: int, ledgers: Iterable[tuple[LedgerId, bytes]]) -> _Ledgers:
    """Return the ledgers on each bookie, by their metadata."""
    found: dict[BookieId, LedgersOnBookie] = defaultdict(LedgersOnBookie)
    unreadable = []
    for ledger_id, data in ledgers:
        try:
            metadata = decode_ledger_metadata(data)
        except UndecodableError:
            unreadable.append(ledger_id)
            continue
        claim = read_claim(metadata.custom_metadata)
        topic = topic_of(claim) if isinstance(claim, Claim) else None
        is_open = metadata.state is not LedgerState.CLOSED
        for bookie, size_bytes in bytes_by_bookie(metadata).items():
            found[bookie].add(topic, size_bytes, is_open=is_open)
    return _Ledgers(now_ms, dict(found), tuple(sorted(unreadable)))


def bytes_by_bookie(metadata: LedgerMetadata) -> dict[BookieId, int]:
    """Return the bytes on each bookie of the ensembles, as if all entries had one size; 0 for an open ledger."""
    entries = metadata.last_entry_id + 1
    sizes: dict[BookieId, float] = defaultdict(float)
    for first, end, ensemble in _stretches(metadata, entries):
        size = metadata.length_bytes * (end - first) / entries if entries else 0.0
        for bookie in ensemble:
            sizes[bookie] += size * metadata.write_quorum_size / len(ensemble)
    return {bookie: round(size) for bookie, size in sizes.items()}


def _stretches(metadata: LedgerMetadata, entries: int) -> Iterator[tuple[int, int, tuple[BookieId, ...]]]:
    starts = [segment.first_entry_id for segment in metadata.segments]
    bounds = pairwise([*starts, EntryId(max(entries, starts[-1]))])
    for (first, end), segment in zip(bounds, metadata.segments, strict=True):
        yield first, end, segment.ensemble


def _shares(there: LedgersOnBookie, *, by_topic: bool) -> list[Share]:
    sizes: Counter[str | None] = Counter()
    counts: Counter[str | None] = Counter()
    for topic, size in there.sizes.items():
        owner = None if topic is None else str(topic) if by_topic else topic.namespace
        sizes[owner] += size
        counts[owner] += there.counts[topic]
    largest = sorted(sizes, key=lambda owner: (-sizes[owner], owner or ""))
    return [Share(owner, counts[owner], sizes[owner]) for owner in largest]


def _remedies(bookie: BookieId, state: BookieState, figures: BookieFigures | None) -> tuple[Remedy, ...]:
    if state is BookieState.DOWN:
        return starting(bookie)
    return () if figures is None else collecting(figures)


def _at_most(figures: BookieFigures) -> int:
    return max(0, (figures.entry_logs + 1) * figures.entry_log_limit_bytes - figures.live_bytes)
