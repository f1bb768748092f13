"""Counts what waits by due time: buckets by their metadata or their segments, every other entry by its own metadata."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pyroaring import BitMap

from pulsar_sidecar.delayed_delivery.backlog import positions_of
from pulsar_sidecar.delayed_delivery.index.inspection.calendar import Calendar, DueCounts, calendar_of, without_a_bucket
from pulsar_sidecar.delayed_delivery.index.ports import BucketEntries
from pulsar_sidecar.delayed_delivery.index.snapshot import decode_segment
from pulsar_sidecar.delayed_delivery.index.stored import (
    AcknowledgedEntries,
    StoredBucket,
    StoredIndex,
    StoredIndexes,
    StoredTopic,
)
from pulsar_sidecar.delayed_delivery.index.tracker.position_bits import PositionBits
from pulsar_sidecar.delayed_delivery.ports import DelayedEntries
from pulsar_sidecar.ledger_ownership.ports import LedgerLengths
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName

_READ_AT_ONCE: Final = 10_000
_SYSTEM_PREFIX: Final = "__"
"""Topics of brokers' own begin so (``SystemTopicNames``)."""

_Rest = dict[LedgerId, BitMap]


@dataclass(frozen=True, slots=True)
class CalendarOptions:
    """How to count.

    Attributes:
        subscription: only this one.
        exact: read buckets' segments, not only their metadata.
        step_seconds: the length of a row; None for a round one that makes at most ``rows``.
        limit: entries that are read one by one at most, of all topics together.
    """

    subscription: str | None = None
    exact: bool = False
    step_seconds: int | None = None
    rows: int = 20
    limit: int = 200_000


@dataclass(frozen=True, slots=True)
class CalendarReader:
    """Counts; asks no broker except for entries that only tiered storage has."""

    stored: StoredIndexes
    buckets: BucketEntries
    lengths: LedgerLengths
    entries: DelayedEntries
    clock: Clock

    def of_topic(self, topic: TopicName, options: CalendarOptions) -> Calendar:
        """A topic's calendar, its partitions together.

        Raises:
            NotFoundError: there is no such topic, or no such subscription.
            TemporaryError: the metadata store could not be asked.
        """
        found = self._of(self.stored.topics.places_of(topic), options)
        if options.subscription is not None and not found.subscriptions:
            raise NotFoundError(f"{topic} has no durable subscription {options.subscription}")
        return found

    def below(self, scope: str, options: CalendarOptions) -> Calendar:
        """The calendar of a namespace's or a tenant's topics, but for brokers' own.

        Raises:
            NotFoundError: there is no such namespace or tenant.
            TemporaryError: the metadata store could not be asked.
        """
        places = self.stored.topics.places_below(scope)
        return self._of((place for place in places if not place.local_name.startswith(_SYSTEM_PREFIX)), options)

    def _of(self, places: Iterable[TopicName], options: CalendarOptions) -> Calendar:
        now_ms, left = self.clock.now_ms(), options.limit
        found: list[DueCounts] = []
        for place, stored in self.stored.read(places, options.subscription):
            if isinstance(stored, Unreadable):
                found.append(DueCounts(str(place), "", now_ms, problem=stored.reason))
                continue
            lengths = self.lengths.lengths(stored.ledgers)
            if isinstance(lengths, Unreadable):
                found.append(DueCounts(str(place), options.subscription or "", now_ms, problem=lengths.reason))
                continue
            try:
                counted = _Counting(stored, lengths, now_ms)
                self._count_buckets(counted, exact=options.exact)
                for read in self._count_entries(counted, left):
                    left -= read
                found += counted.counts.values()
            except SidecarError as error:
                found.append(DueCounts(str(place), options.subscription or "", now_ms, problem=str(error)))
        return calendar_of(
            now_ms, tuple(found), exact=options.exact, step_seconds=options.step_seconds, rows=options.rows
        )

    def _count_buckets(self, counting: "_Counting", *, exact: bool) -> None:
        for counts, acknowledged, buckets in counting.indexes:
            for bucket in buckets:
                if not isinstance(bucket.snapshot, tuple):
                    continue  # its messages are read one by one, like those of no bucket
                if not exact:
                    for segment in bucket.snapshot:
                        counts.add_metadata(segment, acknowledged)
                elif isinstance(bucket.ledger, LedgerMetadata):
                    self._count_segments(counts, acknowledged, bucket, bucket.ledger)

    def _count_segments(
        self, counts: DueCounts, acknowledged: AcknowledgedEntries, bucket: StoredBucket, ledger: LedgerMetadata
    ) -> None:
        assert isinstance(bucket.snapshot, tuple)
        positions = [Position(bucket.ledger_id, EntryId(entry)) for entry in range(1, len(bucket.snapshot) + 1)]
        payloads = self.buckets.read({bucket.ledger_id: ledger}, positions)
        for position, metadata in zip(positions, bucket.snapshot, strict=True):
            payload = payloads[position]
            try:
                if isinstance(payload, bytes):
                    counts.add_indexes(decode_segment(payload), acknowledged)
                    continue
            except UndecodableError:
                pass  # counted like one that no bookie delivers
            counts.unreadable += acknowledged.count_left(metadata.bitmaps)

    def _count_entries(self, counting: "_Counting", limit: int) -> Iterator[int]:
        """Read what no bucket has, at most so many entries; how many, before each reading, for it may fail."""
        positions = islice(counting.positions(), limit)
        while portion := list(islice(positions, _READ_AT_ONCE)):
            yield len(portion)
            answers = self.entries.read(counting.topic, portion)
            for position in portion:
                for name in counting.waiting_at(position):
                    counting.counts[name].unread -= 1
                    counting.counts[name].add(answers[position], counting.now_ms)


class _Counting:
    """One topic without partitions, or one partition, while it is counted."""

    def __init__(self, stored: StoredTopic, lengths: Mapping[LedgerId, int], now_ms: int) -> None:
        self.topic = stored.topic
        self.now_ms = now_ms
        self.counts: dict[str, DueCounts] = {}
        self.indexes: list[tuple[DueCounts, AcknowledgedEntries, tuple[StoredBucket, ...]]] = []
        self._rest: dict[str, _Rest] = {}
        for name, index in stored.subscriptions.items():
            counts = self.counts[name] = DueCounts(str(stored.topic), name, now_ms)
            acknowledged = index.acknowledged if isinstance(index, StoredIndex) else index
            if not isinstance(index, StoredIndex) or isinstance(acknowledged, Unreadable):
                assert isinstance(acknowledged, Unreadable)
                counts.problem = acknowledged.reason
                continue
            done = AcknowledgedEntries(acknowledged)
            self.indexes.append((counts, done, index.buckets))
            rest = self._rest[name] = dict(without_a_bucket(lengths, _indexed(index.buckets), done))
            counts.unread = sum(map(len, rest.values()))

    def positions(self) -> Iterator[Position]:
        """Those that at least one subscription waits for and has in no bucket, oldest first."""
        union = PositionBits.union(self._rest.values()).ledgers
        return positions_of(dict(sorted(union.items())))

    def waiting_at(self, position: Position) -> Iterator[str]:
        """The subscriptions that wait for the position and have it in no bucket."""
        for name, rest in self._rest.items():
            if position.entry_id in rest.get(position.ledger_id, ()):
                yield name


def _indexed(buckets: Iterable[StoredBucket]) -> Mapping[LedgerId, BitMap]:
    snapshots = (bucket.snapshot for bucket in buckets if isinstance(bucket.snapshot, tuple))
    return PositionBits.union(segment.bitmaps for snapshot in snapshots for segment in snapshot).ledgers
