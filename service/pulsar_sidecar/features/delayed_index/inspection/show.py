"""View of a subscription's delayed index, and of the tracker that a broker runs on it, from stored data.

Invariants: a number is known or None, never a guess; a tracker is reported only if no other is possible according to
the buckets' entries 0; `fsck` reads the other entries.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.inspection.broker_queues import EMPTY_QUEUE_BYTES, INDEX_BYTES, queues_of
from pulsar_sidecar.features.delayed_index.results.inspection import (
    BucketView,
    IndexView,
    SegmentView,
    Tracker,
    TrackerState,
)
from pulsar_sidecar.features.delayed_index.settings import (
    BUCKET_TRACKER_FACTORY,
    IN_MEMORY_TRACKER_FACTORY,
    BrokerTracker,
)
from pulsar_sidecar.features.delayed_index.snapshot import SegmentMetadata
from pulsar_sidecar.features.delayed_index.stored import AcknowledgedEntries, StoredBucket, StoredIndex
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import Subscription
from pulsar_sidecar.reports.formatting import format_count


def view_of(
    topic: TopicName,
    subscription: str,
    index: StoredIndex | Unreadable,
    configured: TrackerState,
    running: TrackerState,
    next_load: TrackerState,
) -> IndexView:
    """Return the view of a subscription's stored index."""
    buckets, acknowledged, problem = None, None, None
    if isinstance(index, Unreadable):
        problem = index.reason
    else:
        if isinstance(index.acknowledged, Unreadable):
            problem = f"the acknowledgements are unknown: {index.acknowledged.reason}"
        else:
            acknowledged = AcknowledgedEntries(index.acknowledged)
        buckets = tuple(_bucket(bucket, acknowledged) for bucket in index.buckets)
    known = None if buckets is None else [bucket for bucket in buckets if bucket.segments is not None]
    return IndexView(
        topic=str(topic),
        subscription=subscription,
        mark_delete_position=None if acknowledged is None else str(acknowledged.mark_delete),
        configured=configured,
        running=running,
        next_load=next_load,
        unreadable=None if buckets is None or known is None else len(buckets) - len(known),
        indexes=None if known is None else _sum(bucket.indexes for bucket in known),
        left=None if known is None else _sum(bucket.left for bucket in known),
        done=None if known is None else _sum(bucket.done for bucket in known),
        size_bytes=None if buckets is None else sum(bucket.size_bytes or 0 for bucket in buckets),
        problem=problem,
        buckets=buckets,
    )


def _bucket(bucket: StoredBucket, acknowledged: AcknowledgedEntries | None) -> BucketView:
    ledger = bucket.ledger if isinstance(bucket.ledger, LedgerMetadata) else None
    closed = ledger is not None and ledger.state is LedgerState.CLOSED
    key = bucket.key if isinstance(bucket.key, BucketKey) else None
    segments, indexes, left = None, None, None
    if isinstance(bucket.snapshot, tuple):
        segments = tuple(_segment(entry, segment, acknowledged) for entry, segment in enumerate(bucket.snapshot, 1))
        indexes, left = sum(segment.indexes for segment in segments), _sum(segment.left for segment in segments)
    return BucketView(
        name=bucket.name,
        start_ledger_id=None if key is None else key.start,
        end_ledger_id=None if key is None else key.end,
        ledger_id=bucket.ledger_id,
        state=None if ledger is None else ledger.state.name,
        size_bytes=ledger.length_bytes if ledger is not None and closed else None,
        indexes=indexes,
        left=left,
        done=None if indexes is None or left is None else indexes - left,
        first_due_ms=min((segment.first_due_ms for segment in segments or ()), default=None),
        last_due_ms=max((segment.last_due_ms for segment in segments or ()), default=None),
        problem=_problem(bucket),
        segments=segments,
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


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


# --- trackers ------------------------------------------------------------------------------------------------------


_NOT_ASKED: Final = TrackerState(
    Tracker.UNKNOWN,
    "buckets, unless the topic is not loaded, or a bucket could not be read at the topic load: brokers do not report "
    "the tracker; ask the owner for the size of its queues with askBroker=true (--ask-broker)",
)


def configured_state(broker: str, configured: BrokerTracker) -> TrackerState:
    """Return the tracker that the broker's configuration selects."""
    names = {BUCKET_TRACKER_FACTORY: Tracker.BUCKETS, IN_MEMORY_TRACKER_FACTORY: Tracker.IN_MEMORY}
    tracker = names.get(configured.factory, Tracker.UNKNOWN)
    return TrackerState(tracker, f"{broker} is configured with {configured.factory.rpartition('.')[2]}")


def next_load(configured: TrackerState, buckets: Sequence[StoredBucket] | Unreadable) -> TrackerState:
    """Return the tracker that a 4.0.8 broker with this configuration runs after it loads the topic."""
    return recovery_of(buckets) if configured.tracker is Tracker.BUCKETS else configured


def recovery_of(buckets: Sequence[StoredBucket] | Unreadable) -> TrackerState:
    """Return the result of the bucket tracker's recovery (``recoverBucketSnapshot``)."""
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
            reason = f"{bucket.name} could not be read; a broker that cannot either falls back to the in-memory tracker"
            return TrackerState(Tracker.UNKNOWN, reason)
    return TrackerState(Tracker.BUCKETS, "entry 0 of every bucket can be read")


def inferred_tracker(configured: TrackerState, buckets: Sequence[StoredBucket] | Unreadable) -> TrackerState:
    """Return the tracker of a loaded topic's subscription, as far as known without its broker."""
    match configured.tracker:
        case Tracker.IN_MEMORY:
            return TrackerState(Tracker.IN_MEMORY, f"{configured.reason}; none if the broker has not loaded the topic")
        case Tracker.BUCKETS if not buckets:
            # An unrecoverable bucket stays stored, and a broker falls back only because of one.
            reason = "there is no bucket whose recovery could have failed; none if the broker has not loaded the topic"
            return TrackerState(Tracker.BUCKETS, reason)
        case Tracker.BUCKETS:
            return TrackerState(Tracker.UNKNOWN, buckets.reason) if isinstance(buckets, Unreadable) else _NOT_ASKED
        case _:
            return configured


_LOOK_IN_LOG: Final = "look for 'fallback to InMemoryDelayedDeliveryTracker' in the log of the broker"


def running_tracker(configured: TrackerState, found: Subscription | None, *, in_queue: bool = True) -> TrackerState:
    """Return the tracker of a loaded topic's subscription, by the size of its queues.

    Brokers do not report the tracker. The bucket tracker has two queues. The in-memory tracker has one, which holds
    every index, or (not ``in_queue``) bitmaps, which may take as many bytes as two queues.
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
        return TrackerState(Tracker.UNKNOWN, f"{sizes}, which either tracker of this version may take; {_LOOK_IN_LOG}")
    if size < delayed * INDEX_BYTES:
        return TrackerState(Tracker.BUCKETS, f"{sizes}, too few to hold them all")
    return _tracker_of_queues(size, sizes)


def _tracker_of_queues(size: int, sizes: str) -> TrackerState:
    match queues_of(size):
        case 1:
            return TrackerState(Tracker.IN_MEMORY, f"{sizes}, which one queue takes, but not two")
        case 2:
            return TrackerState(Tracker.BUCKETS, f"{sizes}, which two queues take, but not one")
        case None:
            return TrackerState(Tracker.UNKNOWN, f"{sizes}, which either tracker may take; {_LOOK_IN_LOG}")
