"""Ledgers on each bookie, with their owners and sizes, by their own metadata.

Very many ledgers share few ensembles, and owners have many ledgers. So the reader of columns finds these fields, and
the exact decoder reads only one ledger for each different content of them, and ledgers of another than the plain form.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from pulsar_sidecar.features.pins.reading import topic_of
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.claims import Claim, read_claim
from pulsar_sidecar.ownership.columnar.ledgers import PlainLedgers, read_plain_ledgers
from pulsar_sidecar.ownership.columnar.protobuf import Numbers, ValueBytes
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata

_AT_ONCE: Final = 4_096
_SEVERAL: Final = -1
_OPEN: Final = -1

_Places = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class OnBookie:
    """Ledgers on a bookie.

    Attributes:
        ledgers: number of ledgers with entries there.
        open_ledgers: number of these whose length is not in their metadata.
        size_bytes: size of the others.
    """

    ledgers: int = 0
    open_ledgers: int = 0
    size_bytes: int = 0

    def __add__(self, other: "OnBookie") -> "OnBookie":
        return OnBookie(
            self.ledgers + other.ledgers,
            self.open_ledgers + other.open_ledgers,
            self.size_bytes + other.size_bytes,
        )


@dataclass(frozen=True, slots=True)
class LedgersOnBookies:
    """All ledgers: a row for each, or for each bookie of one with several ensembles.

    Attributes:
        ensembles: different ensembles.
        topics: different owners; None for all ledgers that name no topic.
        ensemble: places of the rows' ensembles among these.
        topic: places of their owners.
        size_bytes: bytes on each bookie of the ensemble; `_OPEN` if the ledger's length is not known.
        unreadable: ledgers whose metadata cannot be read, ascending.
    """

    ensembles: Sequence[Sequence[BookieId]]
    topics: Sequence[TopicName | None]
    ensemble: _Places
    topic: _Places
    size_bytes: Numbers
    unreadable: tuple[LedgerId, ...]

    def by_bookie(self) -> dict[BookieId, OnBookie]:
        """Return the ledgers on each bookie that an ensemble names."""
        counts, opens, sizes = (each.tolist() for each in self._sums(self.ensemble, self.size_bytes, self.ensembles))
        found: dict[BookieId, OnBookie] = defaultdict(OnBookie)
        for bookies, *sums in zip(self.ensembles, counts, opens, sizes, strict=True):
            for bookie in bookies:
                found[bookie] += OnBookie(*sums)
        return found

    def owners_on(self, bookie: BookieId) -> Iterator[tuple[TopicName | None, OnBookie]]:
        """Yield each owner with its ledgers on the bookie."""
        rows = np.array([bookie in bookies for bookies in self.ensembles], np.bool_)[self.ensemble]
        sums = self._sums(self.topic[rows], self.size_bytes[rows], self.topics)
        there = np.flatnonzero(sums[0])
        for place, *some in zip(there.tolist(), *(each[there].tolist() for each in sums), strict=True):
            yield self.topics[place], OnBookie(*some)

    @staticmethod
    def _sums(places: _Places, size_bytes: Numbers, among: Sequence[object]) -> tuple[Numbers, Numbers, Numbers]:
        is_open = size_bytes == _OPEN
        counts, opens = (np.bincount(each, minlength=len(among)) for each in (places, places[is_open]))
        sizes = np.bincount(places, np.where(is_open, 0, size_bytes), len(among))
        return counts, opens, sizes.astype(np.int64)


def read_ledgers(ledgers: Iterable[tuple[LedgerId, bytes]], progress: Callable[[int], None]) -> LedgersOnBookies:
    """Return the ledgers, by their nodes; ``progress`` receives their number so far."""
    rows, rest, count = _Rows(), iter(ledgers), 0
    while some := list(islice(rest, _AT_ONCE)):
        rows.add(some)
        count += len(some)
        progress(count)
    return rows.all()


class _Rows:
    def __init__(self) -> None:
        self._ensembles: dict[tuple[BookieId, ...], int] = {}
        self._topics: dict[TopicName | None, int] = {}
        # By the fields' bytes; an ensemble may be `_SEVERAL`.
        self._ensembles_read: dict[bytes, int] = {}
        self._topics_read: dict[bytes, int] = {}
        self._columns: list[tuple[_Places, _Places, Numbers]] = []
        self._exact: list[tuple[int, int, int]] = []
        self._unreadable: list[LedgerId] = []

    def add(self, ledgers: Sequence[tuple[LedgerId, bytes]]) -> None:
        content = b"".join([data for _, data in ledgers])
        bounds = np.cumsum([0, *(len(data) for _, data in ledgers)])
        plain = read_plain_ledgers(ValueBytes(content, bounds, np.ones(len(ledgers), np.bool_)))
        ensemble, topic = self._places(plain, content, ledgers)
        whole = ensemble != _SEVERAL
        self._columns.append((ensemble[whole], topic[whole], _size_bytes(plain)[whole]))
        left = np.ones(len(ledgers), np.bool_)
        left[plain.node[whole]] = False
        for node in np.flatnonzero(left).tolist():
            self._add_exactly(*ledgers[node])

    def all(self) -> LedgersOnBookies:
        exact = np.array(self._exact, np.int64).reshape(-1, 3).T
        columns = [*self._columns, (exact[0], exact[1], exact[2])]
        ensemble, topic, size_bytes = map(np.concatenate, zip(*columns, strict=True))
        return LedgersOnBookies(
            tuple(self._ensembles),
            tuple(self._topics),
            ensemble.astype(np.int32),
            topic.astype(np.int32),
            size_bytes,
            tuple(sorted(self._unreadable)),
        )

    def _places(
        self, plain: PlainLedgers, content: bytes, ledgers: Sequence[tuple[LedgerId, bytes]]
    ) -> tuple[_Places, _Places]:
        ensembles, topics = [], []
        spans = (each.tolist() for each in (*plain.segments, *plain.custom_metadata))
        for node, start, end, custom_start, custom_end in zip(plain.node.tolist(), *spans, strict=True):
            segments, custom = content[start:end], content[custom_start:custom_end]
            ensemble, topic = self._ensembles_read.get(segments), self._topics_read.get(custom)
            if ensemble is None or topic is None:
                metadata = decode_ledger_metadata(ledgers[node][1])
                ensemble = self._ensembles_read[segments] = self._ensemble_of(metadata)
                topic = self._topics_read[custom] = self._topic_of(metadata)
            ensembles.append(ensemble)
            topics.append(topic)
        return np.array(ensembles, np.int32), np.array(topics, np.int32)

    def _add_exactly(self, ledger_id: LedgerId, data: bytes) -> None:
        try:
            metadata = decode_ledger_metadata(data)
        except UndecodableError:
            self._unreadable.append(ledger_id)
            return
        topic, is_closed = self._topic_of(metadata), metadata.state is LedgerState.CLOSED
        for bookie, size_bytes in bytes_by_bookie(metadata).items():
            self._exact.append((self._place_of((bookie,)), topic, size_bytes if is_closed else _OPEN))

    def _ensemble_of(self, metadata: LedgerMetadata) -> int:
        first, *others = metadata.segments
        is_one = not others and len(set(first.ensemble)) == len(first.ensemble)
        return self._place_of(first.ensemble) if is_one else _SEVERAL

    def _place_of(self, ensemble: tuple[BookieId, ...]) -> int:
        return self._ensembles.setdefault(ensemble, len(self._ensembles))

    def _topic_of(self, metadata: LedgerMetadata) -> int:
        claim = read_claim(metadata.custom_metadata)
        topic = topic_of(claim) if isinstance(claim, Claim) else None
        return self._topics.setdefault(topic, len(self._topics))


def _size_bytes(plain: PlainLedgers) -> Numbers:
    """Return `bytes_by_bookie` of ledgers with one ensemble; `_OPEN` for open ones."""
    length = np.where(plain.last_entry >= 0, plain.length, 0).astype(np.float64)
    shares = np.rint(length * plain.write_quorum / plain.ensemble_size)
    size_bytes: Numbers = np.where(plain.closed, shares, _OPEN).astype(np.int64)
    return size_bytes


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
