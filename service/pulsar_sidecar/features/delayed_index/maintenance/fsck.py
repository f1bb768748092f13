"""Pure comparison of a stored delayed index with itself, with the topic and with the messages.

Invariant: a finding follows from data that was read. Unreadable data is a finding of its own, and implies no other. The
same bytes give the same findings in the same words.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from pyroaring import BitMap

from pulsar_sidecar.backlog.ports import EntryAnswer, EntryFacts
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.results.maintenance import Finding, FindingKind
from pulsar_sidecar.features.delayed_index.settings import BrokerTracker
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    SegmentMetadata,
    SnapshotMetadata,
    segment_metadata_of,
)
from pulsar_sidecar.features.delayed_index.stored import AcknowledgedEntries, StoredBucket, StoredIndex, StoredTopic
from pulsar_sidecar.features.delayed_index.tracker.position_bits import PositionBits
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.ownership.claims import BucketClaim, UnknownClaim, read_claim
from pulsar_sidecar.ownership.references import LedgerReference
from pulsar_sidecar.reports.formatting import format_count

_NAMED = 3


@dataclass(frozen=True, slots=True)
class OrphanedBucket:
    """Bucket ledger that no cursor was seen to point to."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    claim: BucketClaim


def finding(
    kind: FindingKind,
    cause: str,
    topic: TopicName | None = None,
    subscription: str | None = None,
    bucket: str | None = None,
    ledger_id: LedgerId | None = None,
) -> Finding:
    """Return a finding with the consequence and the remedy of its kind."""
    name = None if topic is None else str(topic)
    return Finding(kind, name, subscription, bucket, ledger_id, cause, kind.consequence, kind.remedy)


def check_settings(trackers: Mapping[str, BrokerTracker]) -> Iterator[Finding]:
    """Yield settings that stop dispatch, one finding per broker."""
    for broker, tracker in sorted(trackers.items()):
        if tracker.keeps_buckets and tracker.settings.breaks_dispatch:
            cause = f"{broker} has delayedDeliveryMaxNumBuckets={tracker.settings.max_num_buckets}"
            yield finding(FindingKind.UNUSABLE_SETTING, cause)


def check_downgrade(topic: StoredTopic, trackers: Mapping[str, BrokerTracker]) -> Iterator[Finding]:
    """Yield a finding for every bucket if a broker runs another tracker."""
    others = sorted((broker, each.factory) for broker, each in trackers.items() if not each.keeps_buckets)
    for index in readable_indexes(topic) if others else ():
        for bucket in index.buckets:
            cause = f"{others[0][0]} runs {others[0][1].rpartition('.')[2]}"
            yield of_bucket(index, bucket, FindingKind.TRACKER_DOWNGRADE, cause)


def check_topic(topic: StoredTopic, due_by_ms: int) -> Iterator[Finding]:
    """Yield the findings that follow from the nodes and from entry 0 of each bucket.

    ``due_by_ms`` is the latest due time of a dead bucket: earlier than now, so that brokers had time to delete it.
    """
    for subscription, index in topic.subscriptions.items():
        if isinstance(index, Unreadable):
            yield finding(FindingKind.UNREADABLE_NODE, index.reason, topic.topic, subscription)
            continue
        if index.buckets and isinstance(index.acknowledged, Unreadable):
            yield finding(FindingKind.UNREADABLE_NODE, index.acknowledged.reason, topic.topic, subscription)
        for bucket in index.buckets:
            problems = _problems(topic, index, bucket, due_by_ms)
            yield from (of_bucket(index, bucket, kind, cause) for kind, cause in problems)
        yield from _overlaps(index)


def readable_indexes(topic: StoredTopic) -> Iterator[StoredIndex]:
    """Yield the topic's indexes whose cursors are readable."""
    return (index for index in topic.subscriptions.values() if isinstance(index, StoredIndex))


def of_bucket(index: StoredIndex, bucket: StoredBucket, kind: FindingKind, cause: str) -> Finding:
    """Return a finding on a bucket that a cursor names."""
    return finding(kind, cause, index.topic, index.subscription, bucket.name, bucket.ledger_id)


def _problems(
    topic: StoredTopic, index: StoredIndex, bucket: StoredBucket, due_by_ms: int
) -> Iterator[tuple[FindingKind, str]]:
    if isinstance(bucket.key, Unreadable):
        yield FindingKind.BAD_KEY, bucket.key.reason
    match bucket.ledger:
        case Absent():
            yield FindingKind.DANGLING_POINTER, f"there is no ledger {bucket.ledger_id}"
        case Unreadable(reason):
            yield FindingKind.UNREADABLE_NODE, f"ledger {bucket.ledger_id}: {reason}"
        case LedgerMetadata() as ledger:
            claim = read_claim(ledger.custom_metadata)
            if isinstance(claim, UnknownClaim):
                yield FindingKind.UNREADABLE_NODE, f"ledger {bucket.ledger_id}: {claim.reason}"
            elif not is_bucket_of(ledger, index.topic, index.subscription):
                yield FindingKind.FOREIGN_LEDGER, f"ledger {bucket.ledger_id} is {claim}"
            elif isinstance(bucket.snapshot, tuple):
                yield from _problems_of_snapshot(topic, index, bucket, ledger, bucket.snapshot, due_by_ms)


def is_bucket_of(ledger: LedgerMetadata, topic: TopicName, subscription: str) -> bool:
    """Return True if the ledger's metadata name a bucket of this subscription."""
    claim = read_claim(ledger.custom_metadata)
    return isinstance(claim, BucketClaim) and (claim.topic, claim.subscription) == (topic, subscription)


def _problems_of_snapshot(
    topic: StoredTopic,
    index: StoredIndex,
    bucket: StoredBucket,
    ledger: LedgerMetadata,
    snapshot: SnapshotMetadata,
    due_by_ms: int,
) -> Iterator[tuple[FindingKind, str]]:
    if ledger.state is LedgerState.CLOSED and ledger.last_entry_id != len(snapshot):
        segments = format_count(len(snapshot), "segment")
        yield FindingKind.WRONG_BITMAP, f"entry 0 names {segments}, but the ledger has {ledger.last_entry_id}"
    if isinstance(bucket.key, BucketKey):
        strangers = {id_ for segment in snapshot for id_ in segment.bitmaps if id_ not in bucket.key}
        if strangers:
            cause = f"entry 0 has indexes of ledgers outside {bucket.name}: {_some(strangers)}"
            yield FindingKind.WRONG_BITMAP, cause
    if isinstance(index.acknowledged, PositionRanges):
        acknowledged = AcknowledgedEntries(index.acknowledged)
        outside = _outside(topic.ledgers, snapshot, acknowledged)
        if outside:
            yield FindingKind.OUTSIDE_TOPIC, f"the topic has no such entries: {_some(outside)}"
        elif all(segment.max_schedule_timestamp <= due_by_ms for segment in snapshot) and not any(
            acknowledged.count_left(segment.bitmaps) for segment in snapshot
        ):
            yield FindingKind.DEAD_BUCKET, "every message in it is due and acknowledged"


def _outside(
    listed: Mapping[LedgerId, LedgerReference], snapshot: SnapshotMetadata, acknowledged: AcknowledgedEntries
) -> set[str]:
    """Return the unacknowledged ledgers and last entries that have an index but do not exist in the topic."""
    found = set()
    # Brokers trim ledgers from the first on, and the stored position of a loaded topic's cursor is up to a minute old.
    first = min(listed, default=MAX_LEDGER_ID)
    for segment in snapshot:
        for ledger_id, bitmap in segment.bitmaps.items():
            left = acknowledged.left(ledger_id, bitmap)
            reference = listed.get(ledger_id)
            if left and reference is None and ledger_id > first:
                found.add(f"ledger {ledger_id}")
            # The last ledger is still open, and its list entry lacks the length.
            elif left and reference is not None and 0 < reference.entries <= left.max():
                found.add(f"{ledger_id}:{left.max()}")
    return found


def _some(things: Iterable[object]) -> str:
    named = sorted(map(str, things))
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return ", ".join(named[:_NAMED]) + more


def _overlaps(index: StoredIndex) -> Iterator[Finding]:
    """Yield findings for overlapping buckets, except the bucket with the most indexes."""
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
            cause = f"{other} covers some of its ledgers, with more indexes"
            yield of_bucket(index, bucket, FindingKind.OVERLAP, cause)


# --- segments ------------------------------------------------------------------------------------------------------


def contradictions(metadata: SegmentMetadata, segment: DelayedIndexes) -> list[str]:
    """Return the differences between entry 0 and a segment, and contents that no broker would have written."""
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
        found.append("its first and last times differ from those in entry 0")
    return found


def contradictions_of_segments(snapshot: SnapshotMetadata) -> Iterator[str]:
    """Yield the contradictions between the segments of a bucket.

    An index in two segments may have two due times. A broker loads one segment after the other and holds back entries
    with a bit, so it dispatches late any message that is due before the loaded segment.
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
    """Yield the contradictions between segments and entry 0, and between the segments."""
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
    """Yield a finding if messages are not due at their index's time; unreadable messages yield none."""
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
    """Return the difference between an index and its message; None if equal or the message is unreadable."""
    match answer:
        case Absent():
            return "the topic has no such entry"
        case Unreadable():
            return None
        case EntryFacts(deliver_at_ms=None):
            return f"the index has {at_ms}, but the message is not delayed"
        case EntryFacts(deliver_at_ms=due) if due != at_ms:
            return f"the index has {at_ms}, but the message {due}"
        case EntryFacts():
            return None


# --- orphans -------------------------------------------------------------------------------------------------------


def orphan_finding(orphan: OrphanedBucket) -> Finding:
    """Return the finding on a bucket that no cursor names."""
    claim = orphan.claim
    cause = f"no property of the cursor names ledger {orphan.ledger_id}"
    key, ledger_id = claim.bucket_key, orphan.ledger_id
    return finding(FindingKind.ORPHANED_BUCKET, cause, claim.topic, claim.subscription, key, ledger_id)
