"""What is on a bookie's disks: what ledgers put there, whose they are, and what is still to be collected.

A bookie collects in two steps. Every ``gcWaitTime`` it drops the ledgers whose metadata is gone from its index, and the
entry logs in which no ledger is left. What is left of other entry logs goes once compaction finds them empty enough.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from pulsar_sidecar.ledger_ownership.claims import Claim, read_claim
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.pins.causes import Remedy, collecting, starting
from pulsar_sidecar.ledger_ownership.pins.ports import BookieFigures, Bookies, BookieState
from pulsar_sidecar.ledger_ownership.pins.reading import topic_of
from pulsar_sidecar.ledger_ownership.ports import EveryLedger
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, UndecodableError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName

_KEPT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Share:
    """What one owner's ledgers have on a bookie; ``owner`` is None for ledgers that name no topic."""

    owner: str | None
    ledgers: int
    size_bytes: int


@dataclass(slots=True)
class LedgersOnBookie:
    """By ledgers' own metadata.

    Attributes:
        ledgers: that keep entries there.
        open_ledgers: of these, the ones whose length is not in their metadata.
        size_bytes: of the others.
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


@dataclass(frozen=True, slots=True)
class BookiePins:
    """What a bookie keeps, and why it still does.

    Attributes:
        read_ms: when all ledgers were read.
        state: of the bookie; all its ledgers' bytes are there, too, while it is down.
        figures: the bookie's own; None, and then there is a ``problem``, if they cannot be read.
        uncollected_at_most_bytes: what its last collection may have left of deleted ledgers, if all entry logs, the one
            that it writes to included, were full; how large they are a bookie does not tell. None without figures.
        uncollected_ledgers: that its index knew and that no longer exist.
        unreadable_ledgers: whose metadata cannot be read, of all bookies: this one may hold entries of them.
        shares: of topics, or of namespaces, from the ``offset``-th largest on.
        owners: how many of them there are.
    """

    bookie: BookieId
    state: BookieState
    read_ms: int
    ledgers: int
    open_ledgers: int
    size_bytes: int
    figures: BookieFigures | None
    problem: str | None
    uncollected_at_most_bytes: int | None
    uncollected_ledgers: int | None
    unreadable_ledgers: tuple[LedgerId, ...]
    remedies: tuple[Remedy, ...]
    owners: int
    shares: tuple[Share, ...]


class BookiesReader:
    """Reads all ledgers' metadata at most once a minute, whatever it is asked; callers who wait share one reading."""

    def __init__(self, every: EveryLedger, bookies: Bookies, clock: Clock) -> None:
        self._every, self._bookies, self._clock = every, bookies, clock
        self._reading = threading.Lock()
        self._read: tuple[float, _Ledgers] | None = None

    def bookies(self) -> list[BookiePins]:
        """Each bookie that is registered, has a cookie, or is named by a ledger, without what owners have there.

        Raises:
            TemporaryError: the metadata store could not be read.
        """
        ledgers, states = self._ledgers(), self._bookies.known()
        figures = self._bookies.figures(sorted({*states, *ledgers.by_bookie}))
        return [_pins(bookie, states, ledgers, read) for bookie, read in figures.items()]

    def bookie(self, bookie: BookieId, *, by_topic: bool, offset: int, limit: int) -> BookiePins:
        """One bookie, with the largest owners.

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
            if self._read is None or self._clock.monotonic_seconds() - self._read[0] > _KEPT_SECONDS:
                read = ledgers_by_bookie(self._clock.now_ms(), self._every())
                # Kept from the end of the reading on: it may take longer than a minute, and others wait for it.
                self._read = self._clock.monotonic_seconds(), read
            return self._read[1]


@dataclass(frozen=True, slots=True)
class _Ledgers:
    """All of them, as of ``read_ms``, but those whose metadata cannot be read."""

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
    """Without owners."""
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
        unreadable_ledgers=ledgers.unreadable,
        remedies=_remedies(bookie, state, figures),
        owners=0,
        shares=(),
    )


def ledgers_by_bookie(now_ms: int, ledgers: Iterable[tuple[LedgerId, bytes]]) -> _Ledgers:
    """What each bookie keeps of ledgers, by their metadata."""
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
    """What each bookie of its ensembles holds, as if all entries were of one size; nothing of one that is open."""
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
