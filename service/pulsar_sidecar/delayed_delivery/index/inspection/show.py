"""What a subscription's delayed index holds, and which tracker a broker runs on it, out of what is stored.

Invariants: a number is known or None, never a guess; a tracker is named only if nothing else is possible, as far as the
buckets' entries 0 show: `fsck` reads the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.inspection.broker_queues import (
    EMPTY_QUEUE_BYTES,
    INDEX_BYTES,
    Queues,
    queues_of,
)
from pulsar_sidecar.delayed_delivery.index.settings import (
    BUCKET_TRACKER_FACTORY,
    IN_MEMORY_TRACKER_FACTORY,
    BrokerTracker,
)
from pulsar_sidecar.delayed_delivery.index.snapshot import SegmentMetadata
from pulsar_sidecar.delayed_delivery.index.stored import AcknowledgedEntries, StoredBucket, StoredIndex
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import Subscription


class Tracker(Enum):
    """What holds a subscription's delayed messages back."""

    BUCKETS = "buckets"
    IN_MEMORY = "in-memory"
    NONE = "none"
    """The topic is not loaded, or no delayed message has come since."""
    BROKEN = "broken"
    """A broker of 4.0.8 can recover these buckets only in part, or not at all, and stops delivering."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TrackerState:
    """A tracker, and why it is known or why not."""

    tracker: Tracker
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment by its metadata; times in milliseconds since the epoch.

    Attributes:
        entry: its entry in the bucket's ledger, from 1 on.
        left: indexes of messages that are not acknowledged; None if the acknowledgements are unknown.
    """

    entry: int
    first_due_ms: int
    last_due_ms: int
    indexes: int
    left: int | None


@dataclass(frozen=True, slots=True)
class BucketView:
    """One bucket.

    Attributes:
        name: the cursor property.
        key: the ledgers it covers, None if the name has none.
        ledger_id: where it is stored.
        state: the ledger's; None if it is gone or unreadable.
        size_bytes: of the ledger; None while that is not known.
        segments: None if entry 0 could not be read.
        problem: why something of it is not known, or missing; None if nothing is.
    """

    name: str
    key: BucketKey | None
    ledger_id: LedgerId
    state: LedgerState | None
    size_bytes: int | None
    segments: Sequence[SegmentView] | None
    problem: str | None

    @property
    def start_ledger_id(self) -> LedgerId | None:
        return None if self.key is None else self.key.start

    @property
    def end_ledger_id(self) -> LedgerId | None:
        return None if self.key is None else self.key.end

    @property
    def indexes(self) -> int | None:
        """In all segments."""
        return None if self.segments is None else sum(segment.indexes for segment in self.segments)

    @property
    def left(self) -> int | None:
        """Of them, messages that are not acknowledged."""
        return None if self.segments is None else _sum([segment.left for segment in self.segments])

    @property
    def done(self) -> int | None:
        """Of them, messages that are acknowledged."""
        return None if self.indexes is None or self.left is None else self.indexes - self.left

    @property
    def first_due_ms(self) -> int | None:
        return min((segment.first_due_ms for segment in self.segments or ()), default=None)

    @property
    def last_due_ms(self) -> int | None:
        return max((segment.last_due_ms for segment in self.segments or ()), default=None)


@dataclass(frozen=True, slots=True)
class IndexView:
    """One subscription of one topic, or of one partition.

    Attributes:
        mark_delete: as stored; None if it is unknown.
        configured: the tracker of the broker that owns the topic, or of any broker if none does.
        running: what the subscription runs on now.
        next_load: what it will run on when the topic is loaded next.
        buckets: None if the cursor could not be read, and all counts with them.
        problem: why the subscription, or what it has acknowledged, could not be read; None if it could.
    """

    topic: TopicName
    subscription: str
    mark_delete: Position | None
    configured: TrackerState
    running: TrackerState
    next_load: TrackerState
    buckets: Sequence[BucketView] | None
    problem: str | None = None

    @property
    def unreadable(self) -> int | None:
        """Buckets that are in none of the counts, because their entry 0 could not be read."""
        return None if self.buckets is None else sum(bucket.segments is None for bucket in self.buckets)

    @property
    def indexes(self) -> int | None:
        return self._sum(lambda bucket: bucket.indexes)

    @property
    def left(self) -> int | None:
        return self._sum(lambda bucket: bucket.left)

    @property
    def done(self) -> int | None:
        return self._sum(lambda bucket: bucket.done)

    @property
    def size_bytes(self) -> int | None:
        """Of the buckets whose size is known."""
        return None if self.buckets is None else sum(bucket.size_bytes or 0 for bucket in self.buckets)

    def _sum(self, number_of: Callable[[BucketView], int | None]) -> int | None:
        if self.buckets is None:
            return None
        return _sum([number_of(bucket) for bucket in self.buckets if bucket.segments is not None])


def view_of(index: StoredIndex, configured: TrackerState, running: TrackerState, next_load: TrackerState) -> IndexView:
    """What is stored of a subscription, counted."""
    stored, buckets = index.acknowledged, index.buckets
    mark_delete, acknowledged, problem = None, None, None
    if isinstance(stored, Unreadable):
        problem = f"what is acknowledged is unknown: {stored.reason}"
    else:
        mark_delete, acknowledged = stored.mark_delete, AcknowledgedEntries(stored)
    views = [_bucket(bucket, acknowledged) for bucket in buckets]
    return IndexView(index.topic, index.subscription, mark_delete, configured, running, next_load, views, problem)


def _bucket(bucket: StoredBucket, acknowledged: AcknowledgedEntries | None) -> BucketView:
    ledger = bucket.ledger if isinstance(bucket.ledger, LedgerMetadata) else None
    closed = ledger is not None and ledger.state is LedgerState.CLOSED
    segments = None
    if isinstance(bucket.snapshot, tuple):
        segments = [_segment(entry, segment, acknowledged) for entry, segment in enumerate(bucket.snapshot, 1)]
    return BucketView(
        name=bucket.name,
        key=bucket.key if isinstance(bucket.key, BucketKey) else None,
        ledger_id=bucket.ledger_id,
        state=None if ledger is None else ledger.state,
        size_bytes=ledger.length_bytes if ledger is not None and closed else None,
        segments=segments,
        problem=_problem(bucket),
    )


def _segment(entry: int, segment: SegmentMetadata, acknowledged: AcknowledgedEntries | None) -> SegmentView:
    left = None if acknowledged is None else acknowledged.count_left(segment.bitmaps)
    first, last = segment.min_schedule_timestamp, segment.max_schedule_timestamp
    return SegmentView(entry, first, last, segment.count, left)


def _problem(bucket: StoredBucket) -> str | None:
    if isinstance(bucket.ledger, Absent):
        return f"ledger {bucket.ledger_id} does not exist"
    if isinstance(bucket.snapshot, Absent):
        return f"ledger {bucket.ledger_id} has no entry 0"
    for part in (bucket.ledger, bucket.snapshot, bucket.key):
        if isinstance(part, Unreadable):
            return part.reason
    return None


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


# --- which tracker -------------------------------------------------------------------------------------------------


_NOT_ASKED: Final = TrackerState(
    Tracker.UNKNOWN,
    "buckets, unless the topic is not loaded, or one could not be read when it was: brokers do not report that; ask "
    "the owner for the size of the tracker's queues with askBroker=true (--ask-broker)",
)


def configured_state(broker: str, configured: BrokerTracker) -> TrackerState:
    """What that broker's configuration names."""
    names = {BUCKET_TRACKER_FACTORY: Tracker.BUCKETS, IN_MEMORY_TRACKER_FACTORY: Tracker.IN_MEMORY}
    tracker = names.get(configured.factory, Tracker.UNKNOWN)
    return TrackerState(tracker, f"{broker} is configured with {configured.factory.rpartition('.')[2]}")


def next_load(configured: TrackerState, buckets: Sequence[StoredBucket] | Unreadable) -> TrackerState:
    """What a broker of 4.0.8 with this configuration runs on these buckets when it loads the topic."""
    return recovery_of(buckets) if configured.tracker is Tracker.BUCKETS else configured


def recovery_of(buckets: Sequence[StoredBucket] | Unreadable) -> TrackerState:
    """What the bucket tracker makes of them (``recoverBucketSnapshot``)."""
    if isinstance(buckets, Unreadable):
        return TrackerState(Tracker.UNKNOWN, buckets.reason)
    if not buckets:
        return TrackerState(Tracker.BUCKETS, "there is no bucket to recover")
    for bucket in buckets:
        if isinstance(bucket.key, Unreadable):
            return TrackerState(Tracker.BROKEN, bucket.key.reason)
    ordered = sorted((bucket.key, bucket.name) for bucket in buckets if isinstance(bucket.key, BucketKey))
    for (before, name), (after, other) in pairwise(ordered):
        if after.start <= before.end:
            return TrackerState(Tracker.BROKEN, f"{name} and {other} overlap, and a broker deletes one of them")
    lost = [_problem(bucket) for bucket in buckets if Absent() in (bucket.ledger, bucket.snapshot)]
    if lost:
        return TrackerState(Tracker.IN_MEMORY, f"{lost[0]}, so a broker falls back to the in-memory tracker")
    for bucket in buckets:
        if isinstance(bucket.ledger, Unreadable) or isinstance(bucket.snapshot, Unreadable):
            reason = f"{bucket.name} could not be read; if a broker cannot either, it falls back to memory"
            return TrackerState(Tracker.UNKNOWN, reason)
    return TrackerState(Tracker.BUCKETS, "entry 0 of every bucket can be read")


def unasked_tracker(configured: TrackerState, buckets: Sequence[StoredBucket] | Unreadable) -> TrackerState:
    """What a subscription runs on if the topic is loaded, as far as that is known without asking its broker."""
    match configured.tracker:
        case Tracker.IN_MEMORY:
            return TrackerState(Tracker.IN_MEMORY, f"{configured.reason}; none if it has not loaded the topic")
        case Tracker.BUCKETS if not buckets:
            # What a broker could not recover stays, and nothing else lets it fall back.
            reason = "there is no bucket that a broker could not have recovered; none if it has not loaded the topic"
            return TrackerState(Tracker.BUCKETS, reason)
        case Tracker.BUCKETS:
            return TrackerState(Tracker.UNKNOWN, buckets.reason) if isinstance(buckets, Unreadable) else _NOT_ASKED
        case _:
            return configured


_LOOK_IN_LOG: Final = "look for 'fallback to InMemoryDelayedDeliveryTracker' in the log of the broker"


def running_tracker(configured: TrackerState, found: Subscription | None, *, in_queue: bool = True) -> TrackerState:
    """What a loaded topic's subscription runs on, by the size of its queues; brokers do not report it.

    The bucket tracker has two queues. The in-memory tracker has one, which holds every index, or (not ``in_queue``)
    bitmaps, which may take as much as two queues do.
    """
    if found is None:
        return TrackerState(Tracker.NONE, "the broker does not show the subscription")
    if configured.tracker is Tracker.UNKNOWN:
        return configured
    size, delayed = found.delayed_index_bytes, found.delayed_messages
    if size == 0:
        return TrackerState(Tracker.NONE, "no delayed message has arrived since the topic was loaded, or none waits")
    if configured.tracker is Tracker.IN_MEMORY:
        return configured
    sizes = f"its tracker takes {format_count(size, 'byte')} for {format_count(delayed, 'delayed message')}"
    if size < 2 * EMPTY_QUEUE_BYTES:
        return TrackerState(Tracker.IN_MEMORY, f"{sizes}, too few for the two queues of the bucket tracker")
    if not in_queue:
        return TrackerState(Tracker.UNKNOWN, f"{sizes}, which either one of its version may take; {_LOOK_IN_LOG}")
    if size < delayed * INDEX_BYTES:
        return TrackerState(Tracker.BUCKETS, f"{sizes}, too few to hold them all")
    return _tracker_of_queues(queues_of(size), sizes)


def _tracker_of_queues(queues: Queues, sizes: str) -> TrackerState:
    match queues:
        case Queues.ONE:
            return TrackerState(Tracker.IN_MEMORY, f"{sizes}, a size of one queue and not of two")
        case Queues.TWO:
            return TrackerState(Tracker.BUCKETS, f"{sizes}, a size of two queues and not of one")
        case Queues.UNKNOWN:
            return TrackerState(Tracker.UNKNOWN, f"{sizes}, a size of either tracker; {_LOOK_IN_LOG}")
