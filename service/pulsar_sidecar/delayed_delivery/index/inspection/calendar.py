"""How many messages are due when, out of buckets and out of the entries that no bucket has.

Invariants: a message is counted once for each subscription that has not acknowledged it, as exactly one of delayed,
due, undelayed, unreadable and unread. A segment's metadata has only the first and the last due time of its messages:
they are counted at the first, and ``resolution_ms`` is how much later they may be due.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from pyroaring import BitMap

from pulsar_sidecar.delayed_delivery.backlog import MessageCounts, round_step
from pulsar_sidecar.delayed_delivery.index.snapshot import DelayedIndexes, Flags, SegmentMetadata, bitmaps_of
from pulsar_sidecar.delayed_delivery.index.stored import AcknowledgedEntries
from pulsar_sidecar.model.ids import LedgerId

_MS: Final = 1000


@dataclass(slots=True)
class DueCounts(MessageCounts):
    """One subscription of one topic, or of one partition.

    ``unreadable`` counts messages of buckets' segments as well.

    Attributes:
        unread: entries beyond the limit of a call.
        from_buckets: how many of ``delayed`` and ``due`` are counted in buckets.
        resolution_ms: by how much later messages may be due than they are counted.
        problem: why the subscription is not counted at all; None if it is.
    """

    topic: str
    subscription: str
    now_ms: int
    unread: int = 0
    from_buckets: int = 0
    resolution_ms: int = 0
    problem: str | None = None

    @property
    def first_due_ms(self) -> int | None:
        """The second in which the first delayed message is due."""
        return min(self.by_due_second) * _MS if self.by_due_second else None

    @property
    def last_due_ms(self) -> int | None:
        return max(self.by_due_second) * _MS if self.by_due_second else None

    def add_metadata(self, segment: SegmentMetadata, acknowledged: AcknowledgedEntries) -> None:
        """Count a segment by its metadata in entry 0."""
        left = acknowledged.count_left(segment.bitmaps)
        first, last = segment.min_schedule_timestamp, segment.max_schedule_timestamp
        self.from_buckets += left
        if last <= self.now_ms:
            self.due += left
        elif left:
            self.delay(max(first, self.now_ms + 1), left)
            self.resolution_ms = max(self.resolution_ms, last - max(first, self.now_ms + 1))

    def add_indexes(self, segment: DelayedIndexes, acknowledged: AcknowledgedEntries) -> None:
        """Count a segment by its indexes."""
        left = segment[_left_rows(segment, acknowledged)].deliver_at_ms
        later = left[left > self.now_ms]
        self.from_buckets += len(left)
        self.due += len(left) - len(later)
        seconds, counts = np.unique(later // _MS, return_counts=True)
        self.delayed += len(later)
        self.by_due_second.update(dict(zip(seconds.tolist(), counts.tolist(), strict=True)))


def _left_rows(segment: DelayedIndexes, acknowledged: AcknowledgedEntries) -> Flags:
    entries = bitmaps_of(segment.ledgers, segment.entries)
    return segment.within({ledger_id: acknowledged.left(ledger_id, each) for ledger_id, each in entries.items()})


@dataclass(frozen=True, slots=True)
class DueTime:
    """Messages that are due within one step; ``from_ms`` is its beginning."""

    from_ms: int
    messages: int


@dataclass(frozen=True, slots=True)
class Calendar:
    """When the delayed messages of one or many topics are due.

    Attributes:
        exact: whether segments were read, and not only their metadata.
        step_seconds: how long each of ``times`` is.
        resolution_ms: how much later messages may be due than in ``times``.
        times: those with messages, ascending.
    """

    now_ms: int
    exact: bool
    step_seconds: int
    resolution_ms: int
    times: tuple[DueTime, ...]
    subscriptions: tuple[DueCounts, ...]

    @property
    def delayed(self) -> int:
        return sum(counts.delayed for counts in self.subscriptions)

    @property
    def due(self) -> int:
        return sum(counts.due for counts in self.subscriptions)

    @property
    def undelayed(self) -> int:
        return sum(counts.undelayed for counts in self.subscriptions)

    @property
    def unreadable(self) -> int:
        return sum(counts.unreadable for counts in self.subscriptions)

    @property
    def unread(self) -> int:
        return sum(counts.unread for counts in self.subscriptions)

    @property
    def from_buckets(self) -> int:
        return sum(counts.from_buckets for counts in self.subscriptions)


def calendar_of(
    now_ms: int, found: tuple[DueCounts, ...], *, exact: bool, step_seconds: int | None, rows: int
) -> Calendar:
    """All of it together, in steps of the given length, or of a round one that makes at most so many rows."""
    seconds: Counter[int] = Counter()
    for counts in found:
        seconds.update(counts.by_due_second)
    span = max(seconds) - min(seconds) + 1 if seconds else 1
    step = step_seconds or round_step(span, rows)
    steps: Counter[int] = Counter()
    for second, messages in seconds.items():
        steps[second // step * step] += messages
    times = tuple(DueTime(second * _MS, steps[second]) for second in sorted(steps))
    resolution = max((counts.resolution_ms for counts in found), default=0)
    return Calendar(now_ms, exact, step, resolution, times, found)


def without_a_bucket(
    lengths: Mapping[LedgerId, int], indexed: Mapping[LedgerId, BitMap], acknowledged: AcknowledgedEntries
) -> Iterator[tuple[LedgerId, BitMap]]:
    """Entries of each ledger that are neither acknowledged nor in a bucket: due times are in their own metadata.

    Args:
        lengths: the entries of each of the topic's ledgers.
        indexed: the entries that the subscription's buckets hold.
        acknowledged: by the subscription.
    """
    for ledger_id, length in lengths.items():
        entries = BitMap()
        entries.add_range(0, length)
        rest = acknowledged.left(ledger_id, entries) - indexed.get(ledger_id, BitMap())
        if rest:
            yield ledger_id, rest
