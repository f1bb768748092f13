"""Due times of messages, counted from buckets (metadata or segments) and from entries that no bucket has.

Invariants: a message counts once for each subscription that has not acknowledged it, as exactly one of delayed, due,
undelayed, unreadable and unread. A segment's metadata has only the first and the last due time of its messages: they
count at the first, or from now on if that is past, and ``resolution_ms`` is the longest time by which they may be due
later. A bucket has an index for each chunk of a chunked message, so each chunk counts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pulsar_sidecar.backlog.ports import DelayedEntries
from pulsar_sidecar.backlog.waiting import (
    MessageCounts,
    positions_of,
    round_step,
    waiting_entries,
    with_metadata,
)
from pulsar_sidecar.features.delayed_index.ports import BucketEntries
from pulsar_sidecar.features.delayed_index.results.inspection import Calendar, DueCounts, DueTime
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes, SegmentMetadata, bitmaps_of
from pulsar_sidecar.features.delayed_index.stored import (
    StoredBucket,
    StoredIndex,
    StoredIndexes,
    StoredTopic,
    decode_stored_segment,
)
from pulsar_sidecar.features.delayed_index.tracker.position_bits import PositionBits
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, SidecarError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.ports import LedgerLengths

_MS: Final = 1000
_SYSTEM_PREFIX: Final = "__"
"""Prefix of brokers' own topics (``SystemTopicNames``)."""

_SUMMED: Final = ("delayed", "due", "undelayed", "unreadable", "unread", "from_buckets")


@dataclass(slots=True)
class _Counts(MessageCounts):
    """Unacknowledged messages of one subscription of a topic, or of a partition; see `DueCounts`.

    Attributes:
        resolution_ms: longest time by which messages may be due later than counted, milliseconds.
    """

    topic: str
    subscription: str
    now_ms: int
    unread: int = 0
    from_buckets: int = 0
    resolution_ms: int = 0
    problem: str | None = None

    def result(self) -> DueCounts:
        return DueCounts(
            topic=self.topic,
            subscription=self.subscription,
            problem=self.problem,
            delayed=self.delayed,
            due=self.due,
            undelayed=self.undelayed,
            unreadable=self.unreadable,
            unread=self.unread,
            first_due_ms=min(self.by_due_second) * _MS if self.by_due_second else None,
            last_due_ms=max(self.by_due_second) * _MS if self.by_due_second else None,
            from_buckets=self.from_buckets,
        )

    def take_metadata(self, segment: SegmentMetadata, waiting: PositionBits) -> None:
        """Count the waiting messages of a segment by its metadata, and remove them from ``waiting``."""
        left = sum(len(waiting.remove_all(ledger_id, entries)) for ledger_id, entries in segment.bitmaps.items())
        first, last = segment.min_schedule_timestamp, segment.max_schedule_timestamp
        self.from_buckets += left
        if last <= self.now_ms:
            self.due += left
        elif left:
            self.delay(max(first, self.now_ms + 1), left)
            self.resolution_ms = max(self.resolution_ms, last - max(first, self.now_ms + 1))

    def take_indexes(self, segment: DelayedIndexes, waiting: PositionBits) -> None:
        """Count the waiting messages of a segment by its indexes, and remove them from ``waiting``."""
        entries = bitmaps_of(segment.ledgers, segment.entries)
        taken = {ledger_id: waiting.remove_all(ledger_id, each) for ledger_id, each in entries.items()}
        left = segment[segment.within(taken)].deliver_at_ms
        later = left[left > self.now_ms]
        self.from_buckets += len(left)
        self.due += len(left) - len(later)
        seconds, counts = np.unique(later // _MS, return_counts=True)
        self.delayed += len(later)
        self.by_due_second.update(dict(zip(seconds.tolist(), counts.tolist(), strict=True)))


@dataclass(frozen=True, slots=True)
class CalendarOptions:
    """Options of counting.

    Attributes:
        subscription: only subscription to count; None for all.
        exact: True to read buckets' segments, not only their metadata.
        step_seconds: length of a row, seconds; None for a round length that gives at most ``rows``.
        limit: maximum number of entries read one by one, of all topics together.
    """

    subscription: str | None = None
    exact: bool = False
    step_seconds: int | None = None
    rows: int = 20
    limit: int = 200_000


@dataclass(frozen=True, slots=True)
class CalendarReader:
    """Counts due times; queries no broker except for entries that only tiered storage has."""

    stored: StoredIndexes
    buckets: BucketEntries
    lengths: LedgerLengths
    entries: DelayedEntries
    clock: Clock

    def of_topic(self, topic: TopicName, options: CalendarOptions) -> Calendar:
        """Return a topic's calendar, its partitions together.

        Raises:
            NotFoundError: there is no such topic, or no such subscription.
            TemporaryError: the metadata store could not be read.
        """
        found = self._of(self.stored.topics.places_of(topic), options)
        if options.subscription is not None and not found.subscriptions:
            raise NotFoundError(f"{topic} has no durable subscription {options.subscription}")
        return found

    def below(self, scope: str | None, options: CalendarOptions) -> Calendar:
        """Return the calendar of a namespace's or tenant's topics, or of all, without brokers' own.

        Raises:
            NotFoundError: there is no such namespace or tenant.
            TemporaryError: the metadata store could not be read.
        """
        topics = self.stored.topics
        places = topics.all_places() if scope is None else topics.places_below(scope)
        return self._of((place for place in places if not place.local_name.startswith(_SYSTEM_PREFIX)), options)

    def _of(self, places: Iterable[TopicName], options: CalendarOptions) -> Calendar:
        now_ms, limit = self.clock.now_ms(), iter(range(options.limit))
        found: list[_Counts] = []
        for place, stored in self.stored.read(places, options.subscription):
            if isinstance(stored, Unreadable):
                found.append(_Counts(str(place), "", now_ms, problem=stored.reason))
                continue
            lengths = self.lengths.lengths(stored.ledgers)
            if isinstance(lengths, Unreadable):
                found.append(_Counts(str(place), options.subscription or "", now_ms, problem=lengths.reason))
                continue
            try:
                found += self._counted(stored, lengths, now_ms, limit, exact=options.exact)
            except SidecarError as error:
                found.append(_Counts(str(place), options.subscription or "", now_ms, problem=str(error)))
        return _calendar(now_ms, found, options)

    def _counted(
        self, stored: StoredTopic, lengths: Mapping[LedgerId, int], now_ms: int, limit: Iterator[int], *, exact: bool
    ) -> Iterable[_Counts]:
        """Count each subscription of a partition, or of a topic without; each entry read uses up ``limit``."""
        counted = {name: _Counts(str(stored.topic), name, now_ms) for name in stored.subscriptions}
        rests: dict[str, PositionBits] = {}
        for name, index in stored.subscriptions.items():
            acknowledged = index.acknowledged if isinstance(index, StoredIndex) else index
            if not isinstance(index, StoredIndex) or isinstance(acknowledged, Unreadable):
                assert isinstance(acknowledged, Unreadable)
                counted[name].problem = acknowledged.reason
                continue
            rests[name] = PositionBits(waiting_entries(lengths, [acknowledged]))
            self._take_buckets(counted[name], rests[name], index.buckets, exact=exact)
            counted[name].unread = sum(map(len, rests[name].ledgers.values()))
        united = PositionBits.union(rest.ledgers for rest in rests.values())
        every = positions_of(dict(sorted(united.ledgers.items())))
        positions = (position for position, _ in zip(every, limit, strict=False))
        for position, answer in with_metadata(self.entries, stored.topic, positions):
            for name, rest in rests.items():
                if rest.contains(*position):
                    counted[name].unread -= 1
                    counted[name].add(answer, now_ms)
        return counted.values()

    def _take_buckets(
        self, counts: _Counts, waiting: PositionBits, buckets: Iterable[StoredBucket], *, exact: bool
    ) -> None:
        """Count the messages in buckets; unreadable ones stay in ``waiting`` and are read one by one."""
        for bucket in buckets:
            if not isinstance(bucket.snapshot, tuple):
                continue
            if not exact:
                for segment in bucket.snapshot:
                    counts.take_metadata(segment, waiting)
            elif isinstance(bucket.ledger, LedgerMetadata):
                positions = [Position(bucket.ledger_id, EntryId(entry)) for entry in range(1, len(bucket.snapshot) + 1)]
                payloads = self.buckets.read({bucket.ledger_id: bucket.ledger}, positions)
                for position in positions:
                    indexes = decode_stored_segment(payloads[position])
                    if isinstance(indexes, DelayedIndexes):
                        counts.take_indexes(indexes, waiting)


def _calendar(now_ms: int, found: Sequence[_Counts], options: CalendarOptions) -> Calendar:
    seconds: Counter[int] = Counter()
    for counts in found:
        seconds.update(counts.by_due_second)
    span = max(seconds) - min(seconds) + 1 if seconds else 1
    step = options.step_seconds or round_step(span, options.rows)
    steps: Counter[int] = Counter()
    for second, messages in seconds.items():
        steps[second // step * step] += messages
    times = tuple(DueTime(second * _MS, steps[second]) for second in sorted(steps))
    resolution = max((counts.resolution_ms for counts in found), default=0)
    subscriptions = tuple(counts.result() for counts in found)
    totals = {name: sum(getattr(counts, name) for counts in subscriptions) for name in _SUMMED}
    return Calendar(
        **totals,
        now_ms=now_ms,
        exact=options.exact,
        step_seconds=step,
        resolution_ms=resolution,
        times=times,
        subscriptions=subscriptions,
    )
