"""Compares what is stored of a delayed index with itself, with the topic and with the messages; nothing is read here.

Invariant: a finding follows from what was read. What could not be read is a finding of its own, which nothing else
follows from. The same bytes give the same findings in the same words.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from pyroaring import BitMap

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.maintenance.findings import Finding, FindingKind
from pulsar_sidecar.delayed_delivery.index.settings import BUCKET_TRACKER_FACTORY, BrokerTracker
from pulsar_sidecar.delayed_delivery.index.snapshot import (
    DelayedIndexes,
    SegmentMetadata,
    SnapshotMetadata,
    segment_metadata_of,
)
from pulsar_sidecar.delayed_delivery.index.stored import AcknowledgedEntries, StoredBucket, StoredIndex, StoredTopic
from pulsar_sidecar.delayed_delivery.index.tracker.position_bits import PositionBits
from pulsar_sidecar.delayed_delivery.ports import EntryAnswer, EntryFacts
from pulsar_sidecar.ledger_ownership.claims import BucketClaim, UnknownClaim, read_claim
from pulsar_sidecar.ledger_ownership.references import LedgerReference
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges

_NAMED = 3


@dataclass(frozen=True, slots=True)
class OrphanedBucket:
    """A bucket's ledger that no cursor was seen to point to."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    claim: BucketClaim


def check_settings(trackers: Mapping[str, BrokerTracker]) -> Iterator[Finding]:
    """Settings that stop dispatch, one finding a broker."""
    for broker, tracker in sorted(trackers.items()):
        if tracker.factory == BUCKET_TRACKER_FACTORY and tracker.settings.breaks_dispatch:
            cause = f"{broker} has delayedDeliveryMaxNumBuckets={tracker.settings.max_num_buckets}"
            yield Finding(FindingKind.UNUSABLE_SETTING, cause)


def check_downgrade(topic: StoredTopic, trackers: Mapping[str, BrokerTracker]) -> Iterator[Finding]:
    """Every bucket, if a broker runs another tracker."""
    others = sorted(
        (broker, each.factory) for broker, each in trackers.items() if each.factory != BUCKET_TRACKER_FACTORY
    )
    for index in readable_indexes(topic) if others else ():
        for bucket in index.buckets:
            cause = f"{others[0][0]} runs {others[0][1].rpartition('.')[2]}"
            yield of_bucket(index, bucket, FindingKind.TRACKER_DOWNGRADE, cause)


def check_topic(topic: StoredTopic, due_by_ms: int) -> Iterator[Finding]:
    """What follows from nodes and entry 0 of each bucket.

    Args:
        topic: what is stored.
        due_by_ms: what is due by then and acknowledged is dead; earlier than now, so that brokers had time.
    """
    for subscription, index in topic.subscriptions.items():
        if isinstance(index, Unreadable):
            yield Finding(FindingKind.UNREADABLE_NODE, index.reason, topic.topic, subscription)
            continue
        if index.buckets and isinstance(index.acknowledged, Unreadable):
            yield Finding(FindingKind.UNREADABLE_NODE, index.acknowledged.reason, topic.topic, subscription)
        for bucket in index.buckets:
            yield from _check_bucket(topic, index, bucket, due_by_ms)
        yield from _overlaps(index)


def readable_indexes(topic: StoredTopic) -> Iterator[StoredIndex]:
    """The topic's subscriptions, without those whose cursors cannot be read."""
    return (index for index in topic.subscriptions.values() if isinstance(index, StoredIndex))


def of_bucket(index: StoredIndex, bucket: StoredBucket, kind: FindingKind, cause: str) -> Finding:
    """A finding about a bucket that a cursor names."""
    return Finding(kind, cause, index.topic, index.subscription, bucket.name, bucket.ledger_id)


def _check_bucket(topic: StoredTopic, index: StoredIndex, bucket: StoredBucket, due_by_ms: int) -> Iterator[Finding]:
    if isinstance(bucket.key, Unreadable):
        yield of_bucket(index, bucket, FindingKind.BAD_KEY, bucket.key.reason)
    match bucket.ledger:
        case Absent():
            yield of_bucket(index, bucket, FindingKind.DANGLING_POINTER, f"there is no ledger {bucket.ledger_id}")
            return
        case Unreadable(reason):
            yield of_bucket(index, bucket, FindingKind.UNREADABLE_NODE, f"ledger {bucket.ledger_id}: {reason}")
            return
        case LedgerMetadata() as ledger:
            claim = read_claim(ledger.custom_metadata)
            if isinstance(claim, UnknownClaim):
                yield of_bucket(
                    index, bucket, FindingKind.UNREADABLE_NODE, f"ledger {bucket.ledger_id}: {claim.reason}"
                )
                return
            if not is_bucket_of(ledger, index.topic, index.subscription):
                cause = f"ledger {bucket.ledger_id} is {claim}"
                yield of_bucket(index, bucket, FindingKind.FOREIGN_LEDGER, cause)
                return
    if isinstance(bucket.snapshot, tuple):
        yield from _check_snapshot(topic, index, bucket, bucket.snapshot, due_by_ms)


def is_bucket_of(ledger: LedgerMetadata, topic: TopicName, subscription: str) -> bool:
    """Whether the ledger's metadata name it a bucket of this subscription."""
    claim = read_claim(ledger.custom_metadata)
    return isinstance(claim, BucketClaim) and (claim.topic, claim.subscription) == (topic, subscription)


def _check_snapshot(
    topic: StoredTopic, index: StoredIndex, bucket: StoredBucket, snapshot: SnapshotMetadata, due_by_ms: int
) -> Iterator[Finding]:
    ledger = bucket.ledger
    if isinstance(ledger, LedgerMetadata) and ledger.state is LedgerState.CLOSED:
        segments = ledger.last_entry_id
        if segments != len(snapshot):
            cause = f"entry 0 names {format_count(len(snapshot), 'segment')}, and the ledger has {segments}"
            yield of_bucket(index, bucket, FindingKind.WRONG_BITMAP, cause)
    if isinstance(bucket.key, BucketKey):
        strangers = {id_ for segment in snapshot for id_ in segment.bitmaps if id_ not in bucket.key}
        if strangers:
            cause = f"entry 0 has indexes of ledgers outside {bucket.name}: {_some(strangers)}"
            yield of_bucket(index, bucket, FindingKind.WRONG_BITMAP, cause)
    if isinstance(index.acknowledged, PositionRanges):
        acknowledged = AcknowledgedEntries(index.acknowledged)
        outside = sorted(_outside(topic.ledgers, snapshot, acknowledged))
        if outside:
            cause = f"the topic has no such entries: {_some(outside)}"
            yield of_bucket(index, bucket, FindingKind.OUTSIDE_TOPIC, cause)
        elif all(segment.max_schedule_timestamp <= due_by_ms for segment in snapshot) and not any(
            acknowledged.count_left(segment.bitmaps) for segment in snapshot
        ):
            cause = "every message in it is due and acknowledged"
            yield of_bucket(index, bucket, FindingKind.DEAD_BUCKET, cause)


def _outside(
    listed: Mapping[LedgerId, LedgerReference], snapshot: SnapshotMetadata, acknowledged: AcknowledgedEntries
) -> set[str]:
    """Ledgers, or last entries beyond the end of one, that have an index, are not acknowledged and do not exist."""
    found = set()
    # Ledgers are trimmed from the first on, and the stored position of a loaded topic's cursor is up to a minute old.
    first = min(listed, default=MAX_LEDGER_ID)
    for segment in snapshot:
        for ledger_id, bitmap in segment.bitmaps.items():
            left = acknowledged.left(ledger_id, bitmap)
            reference = listed.get(ledger_id)
            if left and reference is None and ledger_id > first:
                found.add(f"ledger {ledger_id}")
            # The last ledger is still written to, and its list entry does not have its length.
            elif left and reference is not None and 0 < reference.entries <= left.max():
                found.add(f"{ledger_id}:{left.max()}")
    return found


def _some(things: Iterable[object]) -> str:
    named = sorted(map(str, things))
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return ", ".join(named[:_NAMED]) + more


def _overlaps(index: StoredIndex) -> Iterator[Finding]:
    """Of buckets that overlap the one with the most indexes is kept; the others are findings."""
    sized = [
        (sum(segment.count for segment in bucket.snapshot), bucket.key, bucket)
        for bucket in index.buckets
        if isinstance(bucket.key, BucketKey) and isinstance(bucket.snapshot, tuple)
    ]
    kept: list[BucketKey] = []
    for _, key, bucket in sorted(sized, key=lambda one: (-one[0], one[1], one[2].ledger_id)):
        other = next(filter(key.overlaps, kept), None)
        if other is None:
            kept.append(key)
        else:
            yield of_bucket(
                index, bucket, FindingKind.OVERLAP, f"{other} covers some of its ledgers, with more indexes"
            )


# --- segments ------------------------------------------------------------------------------------------------------


def contradictions(metadata: SegmentMetadata, segment: DelayedIndexes) -> list[str]:
    """How entry 0 and a segment disagree, and what no broker would have written."""
    if not len(segment):
        return ["it is empty"]
    found = []
    written = segment_metadata_of(segment)
    for ledger_id in sorted(written.bitmaps.keys() | metadata.bitmaps.keys()):
        indexes = written.bitmaps.get(ledger_id, BitMap())
        bits = metadata.bitmaps.get(ledger_id, BitMap())
        for these, those, one, other in ((bits, indexes, "bit", "an index"), (indexes, bits, "index", "a bit")):
            if surplus := these - those:
                found.append(f"{format_count(len(surplus), one)} without {other}, such as {ledger_id}:{surplus.min()}")
    if written.count != len(segment):
        found.append(f"{format_count(len(segment) - written.count, 'index')} twice")
    if np.any(np.diff(segment.deliver_at_ms) < 0):
        found.append("its times do not ascend")
    if (written.min_schedule_timestamp, written.max_schedule_timestamp) != (
        metadata.min_schedule_timestamp,
        metadata.max_schedule_timestamp,
    ):
        found.append("its first and last time are not those in entry 0")
    return found


def contradictions_of_segments(snapshot: SnapshotMetadata) -> Iterator[str]:
    """How the segments of a bucket disagree with each other.

    An index in two of them may have two times. A broker loads one segment after the other, and holds back what has a
    bit: so what is due before the segment that is loaded comes late.
    """
    distinct = PositionBits.union(segment.bitmaps for segment in snapshot).ledgers.values()
    if twice := sum(segment.count for segment in snapshot) - sum(map(len, distinct)):
        yield f"in two segments: {format_count(twice, 'index')}"
    for number, (before, after) in enumerate(pairwise(snapshot), 1):
        if after.min_schedule_timestamp < before.max_schedule_timestamp:
            yield f"segment {number + 1} begins before the end of segment {number}"
            return


def check_segments(
    index: StoredIndex, bucket: StoredBucket, snapshot: SnapshotMetadata, segments: Iterable[DelayedIndexes]
) -> Iterator[Finding]:
    """Whether each segment agrees with entry 0, and all of them with each other."""
    for cause in contradictions_of_segments(snapshot):
        yield of_bucket(index, bucket, FindingKind.WRONG_BITMAP, cause)
    for number, (metadata, segment) in enumerate(zip(snapshot, segments, strict=True), 1):
        for contradiction in contradictions(metadata, segment):
            cause = f"segment {number}: {contradiction}"
            yield of_bucket(index, bucket, FindingKind.WRONG_BITMAP, cause)


# --- messages ------------------------------------------------------------------------------------------------------


def check_messages(
    index: StoredIndex, bucket: StoredBucket, due_ms: Mapping[Position, int], answers: Mapping[Position, EntryAnswer]
) -> Iterator[Finding]:
    """Whether messages are due at their index's time; what cannot be read is not a finding."""
    wrong = {
        position: difference
        for position, at_ms in due_ms.items()
        if (difference := message_difference(at_ms, answers[position])) is not None
    }
    if wrong:
        first = min(wrong)
        cause = f"{len(wrong):,} of {format_count(len(due_ms), 'index')} compared, such as {first}: {wrong[first]}"
        yield of_bucket(index, bucket, FindingKind.WRONG_DELIVER_AT, cause)


def message_difference(at_ms: int, answer: EntryAnswer) -> str | None:
    """How an index differs from its message; None if it does not, or the message cannot be read."""
    match answer:
        case Absent():
            return "the topic has no such entry"
        case Unreadable():
            return None
        case EntryFacts(deliver_at_ms=None):
            return f"the index has {at_ms}, the message is not delayed"
        case EntryFacts(deliver_at_ms=due) if due != at_ms:
            return f"the index has {at_ms}, the message {due}"
        case EntryFacts():
            return None


# --- orphans -------------------------------------------------------------------------------------------------------


def orphan_finding(orphan: OrphanedBucket) -> Finding:
    """A ledger that nothing points to."""
    claim = orphan.claim
    cause = f"no property of the cursor names ledger {orphan.ledger_id}"
    key, ledger_id = claim.bucket_key, orphan.ledger_id
    return Finding(FindingKind.ORPHANED_BUCKET, cause, claim.topic, claim.subscription, key, ledger_id)
