"""Checks of the stored delayed indexes of a topic, a namespace or a tenant.

Invariant: each finding was made twice, on the same bucket, `BETWEEN_SECONDS` apart: brokers write and delete buckets in
several steps, and a bucket that changed meanwhile is not a finding. No check loads a topic.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeVar

import numpy as np

from pulsar_sidecar.backlog.ports import DelayedEntries, EntryAnswer
from pulsar_sidecar.backlog.waiting import with_metadata
from pulsar_sidecar.features.delayed_index.maintenance.fsck import (
    OrphanedBucket,
    check_downgrade,
    check_messages,
    check_segments,
    check_settings,
    check_topic,
    finding,
    is_bucket_of,
    of_bucket,
    orphan_finding,
    readable_indexes,
)
from pulsar_sidecar.features.delayed_index.ports import BrokerTrackers, BucketEntries, EntryPayload
from pulsar_sidecar.features.delayed_index.results.maintenance import CheckReport, CheckScope, Finding, FindingKind
from pulsar_sidecar.features.delayed_index.settings import BrokerTracker
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
    joined,
)
from pulsar_sidecar.features.delayed_index.stored import (
    METADATA_ENTRY,
    AcknowledgedEntries,
    StoredBucket,
    StoredIndex,
    StoredIndexes,
    StoredTopic,
)
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, UndecodableError, UnknownFieldError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.ownership.claims import BucketClaim, owner_path, read_claim
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.ownership.ports import EveryLedger
from pulsar_sidecar.ownership.references import cursor_references

_Entry = TypeVar("_Entry")

BETWEEN_SECONDS: Final = 2.0
_SEGMENTS_AT_ONCE: Final = 16
_BUCKET_STAMP: Final = b"delayed-index-bucket"
_MISSED: Final = 0.05
"""Probability that a sample misses a larger share of wrong messages than reported."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Scope of a check.

    Attributes:
        sample: number of messages per bucket to compare with their index; None for all.
        orphans: True to read the metadata of every ledger in BookKeeper in search of orphaned buckets.
        min_age_ms: minimum age of an orphan or a dead bucket, milliseconds; a broker may still attach or delete a
            younger one.
    """

    sample: int | None = 1_000
    orphans: bool = False
    min_age_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class CheckPorts:
    """Readers of stored data and of brokers that a check needs.

    Attributes:
        messages: reader of messages from bookies alone: a topic that a broker loaded for a read could not be repaired.
    """

    clock: Clock
    store: MetadataStore
    stored: StoredIndexes
    buckets: BucketEntries
    messages: DelayedEntries
    ledgers: EveryLedger
    brokers: BrokerTrackers
    ledgers_root: str


@dataclass(slots=True)
class CheckProgress:
    """Counts of a check in progress; `CheckScope` describes the fields.

    Attributes:
        thinnest: largest number of messages per compared message among the sampled buckets.
    """

    topics: int = 0
    subscriptions: int = 0
    buckets: int = 0
    indexes: int = 0
    entries: int = 0
    entries_left: int = 0
    unread: int = 0
    thinnest: float = 0.0

    def compare(self, left: int, sample: int, compared: int) -> None:
        """Add a bucket: its unacknowledged messages, the size of the sample, and the messages compared."""
        self.entries_left += left
        self.entries += compared
        self.unread += sample - compared
        if compared < left:
            self.thinnest = max(self.thinnest, left / compared if compared else math.inf)

    def result(self) -> CheckScope:
        return CheckScope(
            self.topics,
            self.subscriptions,
            self.buckets,
            self.indexes,
            self.entries,
            self.entries_left,
            self.unread,
            None,
            self._wrong_share_bound(),
        )

    def _wrong_share_bound(self) -> float:
        if self.unread:
            return 1.0
        # A sample of n of a bucket's N messages misses a share p with a probability of at most exp(-p*n). The total of
        # wrong messages is largest if all of them are in the bucket with the largest N/n.
        return min(1.0, math.log(1 / _MISSED) * self.thinnest / self.entries_left) if self.thinnest else 0.0


@dataclass(frozen=True, slots=True)
class CheckPass:
    """Data read in one pass of a check, and its findings.

    Attributes:
        topics: topics with a finding, by name, as they were read.
        orphans: orphaned buckets by ledger.
        seconds: duration of the check.
    """

    findings: tuple[Finding, ...]
    topics: Mapping[str, StoredTopic]
    orphans: Mapping[LedgerId, OrphanedBucket]
    checked: CheckScope
    seconds: float = 0.0

    def result(self) -> CheckReport:
        return CheckReport(self.findings, self.checked, round(self.seconds, 3))


class IndexChecker:
    """Checker of indexes; stateless and thread-safe."""

    def __init__(self, ports: CheckPorts) -> None:
        self._ports = ports

    def check(self, scope: TopicName | str, options: CheckOptions) -> CheckPass:
        """Check a topic, namespace or tenant, and return the findings made twice, as of the second check.

        Raises:
            NotFoundError: there is no such topic, namespace or tenant.
            TemporaryError: the metadata store or the brokers are unreachable.
        """
        ports = self._ports
        started = ports.clock.monotonic_seconds()
        trackers = ports.brokers.trackers()
        findings = tuple(check_settings(trackers))
        candidates, ledgers = self._bucket_ledgers(scope) if options.orphans else ([], None)
        first = look = self._check_pass(self._places(scope, options), trackers, options, candidates)
        if first.findings:
            ports.clock.wait_seconds(BETWEEN_SECONDS)
            places = [first.topics[name].topic for name in sorted(first.topics)]
            look = self._check_pass(places, trackers, options, list(first.orphans))
            before = set(map(_identity, first.findings))
            findings += tuple(each for each in look.findings if _identity(each) in before)
        checked = replace(first.checked, ledgers=ledgers)
        return replace(look, findings=findings, checked=checked, seconds=ports.clock.monotonic_seconds() - started)

    def _places(self, scope: TopicName | str, options: CheckOptions) -> Iterable[TopicName]:
        if isinstance(scope, str):
            return self._ports.stored.topics.places_below(scope)
        try:
            return self._ports.stored.topics.places_of(scope)
        except NotFoundError:
            if options.orphans:  # of a deleted topic
                return ()
            raise

    def _check_pass(
        self,
        places: Iterable[TopicName],
        trackers: Mapping[str, BrokerTracker],
        options: CheckOptions,
        candidates: Iterable[LedgerId],
    ) -> CheckPass:
        findings: list[Finding] = []
        topics: dict[str, StoredTopic] = {}
        extent = CheckProgress()
        due_by_ms = self._ports.store.now_ms() - options.min_age_ms
        for place, topic in self._ports.stored.read(places):
            if isinstance(topic, Unreadable):
                found = [finding(FindingKind.UNREADABLE_NODE, topic.reason, place)]
                topics[str(place)] = StoredTopic(place, {}, {})
            else:
                found = [*check_topic(topic, due_by_ms), *check_downgrade(topic, trackers)]
                found += list(self._contents(topic, found, options, extent))
                if found:
                    topics[str(place)] = topic
            findings += found
        orphans = self._orphans(candidates, due_by_ms)
        findings += map(orphan_finding, orphans.values())
        return CheckPass(tuple(findings), topics, orphans, extent.result())

    # --- contents of buckets ---------------------------------------------------------------------------------------

    def _contents(
        self, topic: StoredTopic, so_far: Iterable[Finding], options: CheckOptions, extent: CheckProgress
    ) -> Iterator[Finding]:
        extent.topics += 1
        extent.subscriptions += len(topic.subscriptions)
        useless = {(each.subscription, each.bucket) for each in so_far if each.kind is FindingKind.OUTSIDE_TOPIC}
        for index in readable_indexes(topic):
            for bucket in index.buckets:
                extent.buckets += 1
                if not isinstance(bucket.ledger, LedgerMetadata):
                    continue
                if not is_bucket_of(bucket.ledger, index.topic, index.subscription):
                    continue
                read = read_segments(self._ports.buckets, bucket.ledger_id, bucket.ledger, bucket.snapshot)
                if isinstance(read, MissingSegments):
                    yield of_bucket(index, bucket, read.kind, read.reason)
                    continue
                assert isinstance(bucket.snapshot, tuple)
                wrong = list(check_segments(index, bucket, bucket.snapshot, read))
                yield from wrong
                extent.indexes += sum(map(len, read))
                if not wrong and (index.subscription, bucket.name) not in useless:
                    yield from self._messages(topic, index, bucket, read, options.sample, extent)

    def _messages(
        self,
        topic: StoredTopic,
        index: StoredIndex,
        bucket: StoredBucket,
        segments: Sequence[DelayedIndexes],
        sample: int | None,
        extent: CheckProgress,
    ) -> Iterator[Finding]:
        assert isinstance(bucket.snapshot, tuple)
        if not isinstance(index.acknowledged, PositionRanges) or not topic.ledgers:
            return
        acknowledged = AcknowledgedEntries(index.acknowledged)
        left = sum(acknowledged.count_left(segment.bitmaps) for segment in bucket.snapshot)
        first = min(topic.ledgers)
        chosen = {
            position: at_ms
            for position, at_ms in islice(_shuffled(segments, bucket.ledger_id, index.acknowledged), sample)
            if position.ledger_id >= first
        }
        answers = self._read(index.topic, list(chosen))
        known = {position: at_ms for position, at_ms in chosen.items() if position in answers}
        extent.compare(left, len(chosen), len(known))
        yield from check_messages(index, bucket, known, answers)

    def _read(self, topic: TopicName, positions: Sequence[Position]) -> dict[Position, EntryAnswer]:
        answers: dict[Position, EntryAnswer] = {}
        # The topic was deleted meanwhile with its buckets, or is unreadable now: the rest does not count as compared,
        # and the check continues with other topics.
        with suppress(SidecarError):
            answers.update(with_metadata(self._ports.messages, topic, positions))
        return {position: answer for position, answer in answers.items() if not isinstance(answer, Unreadable)}

    # --- orphans ---------------------------------------------------------------------------------------------------

    def _bucket_ledgers(self, scope: TopicName | str) -> tuple[list[LedgerId], int]:
        """Return the ledgers whose own metadata name a bucket in scope, and the number of ledgers read."""
        found: list[LedgerId] = []
        count = 0
        for ledger_id, data in self._ports.ledgers():
            count += 1
            claim = _bucket_claim(data) if _BUCKET_STAMP in data else None
            if claim is not None and _is_within(claim.topic, scope):
                found.append(ledger_id)
        return found, count

    def _orphans(self, candidates: Iterable[LedgerId], before_ms: int) -> dict[LedgerId, OrphanedBucket]:
        """Return the candidates that exist, are old enough, and are not named by their cursor, read last."""
        ids = list(candidates)
        ledgers = self._ports.store.read_many([ledger_path(id_, self._ports.ledgers_root) for id_ in ids])
        old = [
            OrphanedBucket(id_, decode_ledger_metadata(node.data), claim)
            for id_, node in zip(ids, ledgers, strict=True)
            if node is not None and node.created_ms <= before_ms and (claim := _bucket_claim(node.data)) is not None
        ]
        cursors = self._ports.store.read_many([owner_path(each.claim) for each in old])
        return {
            each.ledger_id: each
            for each, cursor in zip(old, cursors, strict=True)
            if cursor is None or _names_other_ledgers(cursor, each.ledger_id)
        }


@dataclass(frozen=True, slots=True)
class MissingSegments:
    """Reason why a bucket's segments cannot be compared."""

    kind: FindingKind
    reason: str


def read_segments(
    entries: BucketEntries,
    ledger_id: LedgerId,
    ledger: LedgerMetadata,
    snapshot: SnapshotMetadata | Absent | Unreadable,
) -> list[DelayedIndexes] | MissingSegments:
    """Return all segments of a bucket, in order, or the reason why they are missing."""
    if not isinstance(snapshot, tuple):
        position = Position(ledger_id, METADATA_ENTRY)
        again = _decoded(position, entries.read({ledger_id: ledger}, [position])[position], decode_metadata)
        if isinstance(again, MissingSegments):
            return again
        reason = f"entry {position} could not be read at first; check again"
        return MissingSegments(FindingKind.UNREAD_SNAPSHOT, reason)
    segments: list[DelayedIndexes] = []
    numbers = iter(range(1, len(snapshot) + 1))
    while some := [Position(ledger_id, EntryId(number)) for number in islice(numbers, _SEGMENTS_AT_ONCE)]:
        payloads = entries.read({ledger_id: ledger}, some)
        for position in some:
            segment = _decoded(position, payloads[position], decode_segment)
            if isinstance(segment, MissingSegments):
                return segment
            segments.append(segment)
    return segments


def _decoded(position: Position, payload: EntryPayload, decode: Callable[[bytes], _Entry]) -> _Entry | MissingSegments:
    if isinstance(payload, Unreadable):
        return MissingSegments(FindingKind.UNREAD_SNAPSHOT, f"entry {position}: {payload.reason}")
    if isinstance(payload, Absent):
        return MissingSegments(FindingKind.UNREADABLE_SNAPSHOT, f"entry {position}: no bookie has it")
    try:
        return decode(payload)
    except UnknownFieldError as error:
        return MissingSegments(FindingKind.UNREAD_SNAPSHOT, f"entry {position}: {error}")
    except UndecodableError as error:
        return MissingSegments(FindingKind.UNREADABLE_SNAPSHOT, f"entry {position}: {error}")


def _identity(each: Finding) -> tuple[object, ...]:
    """Return the identity of a finding across checks, between which numbers in the cause may change."""
    return each.kind, each.topic, each.subscription, each.bucket, each.ledger_id


def _shuffled(
    segments: Sequence[DelayedIndexes], seed: int, acknowledged: PositionRanges
) -> Iterator[tuple[Position, int]]:
    """Yield unacknowledged indexes with their due times, in an order that is random but reproducible."""
    rows = joined(segments)
    for row in np.random.default_rng(seed).permutation(len(rows)).tolist():
        position = Position(LedgerId(int(rows.ledgers[row])), EntryId(int(rows.entries[row])))
        if position not in acknowledged:
            yield position, int(rows.deliver_at_ms[row])


def _bucket_claim(data: bytes) -> BucketClaim | None:
    try:
        claim = read_claim(decode_ledger_metadata(data).custom_metadata)
    except UndecodableError:
        return None
    return claim if isinstance(claim, BucketClaim) else None


def _is_within(topic: TopicName, scope: TopicName | str) -> bool:
    if isinstance(scope, TopicName):
        return scope in (topic, topic.base)
    return topic.namespace == scope or topic.namespace.startswith(f"{scope}/")


def _names_other_ledgers(cursor: Node, ledger_id: LedgerId) -> bool:
    """Return True if the cursor certainly does not name the ledger."""
    try:
        return ledger_id not in cursor_references(cursor.data).buckets.values()
    except UndecodableError:
        return False
