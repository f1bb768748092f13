"""Checks delayed indexes of a topic, a namespace or a tenant: reads what is stored and compares it.

Invariant: what is found was found twice, of the same bucket, `BETWEEN_SECONDS` apart: brokers write and delete buckets
in several steps, and what changed meanwhile is not a finding. Nothing loads a topic.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeVar

import numpy as np

from pulsar_sidecar.delayed_delivery.backlog import answered
from pulsar_sidecar.delayed_delivery.index.maintenance.findings import Checked, Finding, FindingKind
from pulsar_sidecar.delayed_delivery.index.maintenance.fsck import (
    OrphanedBucket,
    check_downgrade,
    check_messages,
    check_segments,
    check_settings,
    check_topic,
    is_bucket_of,
    of_bucket,
    orphan_finding,
    readable_indexes,
)
from pulsar_sidecar.delayed_delivery.index.ports import BrokerTrackers, BucketEntries, EntryPayload
from pulsar_sidecar.delayed_delivery.index.settings import BrokerTracker
from pulsar_sidecar.delayed_delivery.index.snapshot import (
    DelayedIndexes,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
    joined,
)
from pulsar_sidecar.delayed_delivery.index.stored import (
    METADATA_ENTRY,
    AcknowledgedEntries,
    StoredBucket,
    StoredIndex,
    StoredIndexes,
    StoredTopic,
)
from pulsar_sidecar.delayed_delivery.ports import DelayedEntries, EntryAnswer
from pulsar_sidecar.ledger_ownership.claims import BucketClaim, owner_path, read_claim
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import ledger_path
from pulsar_sidecar.ledger_ownership.ports import EveryLedger
from pulsar_sidecar.ledger_ownership.references import cursor_references
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, UndecodableError, UnknownFieldError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges

_Entry = TypeVar("_Entry")

BETWEEN_SECONDS: Final = 2.0
_SEGMENTS_AT_ONCE: Final = 16
_BUCKET_STAMP: Final = b"delayed-index-bucket"


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How much is looked at.

    Attributes:
        sample: so many messages of each bucket are compared with their index; None for all.
        orphans: whether the metadata of every ledger in BookKeeper is read in search of buckets nothing points to.
        min_age_ms: a younger ledger may be pointed to yet, and what was due later may be deleted yet.
    """

    sample: int | None = 1_000
    orphans: bool = False
    min_age_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class CheckPorts:
    """What a check reads.

    Attributes:
        messages: from bookies alone: a topic that a broker loads for one cannot be repaired.
    """

    clock: Clock
    store: MetadataStore
    stored: StoredIndexes
    buckets: BucketEntries
    messages: DelayedEntries
    ledgers: EveryLedger
    brokers: BrokerTrackers
    ledgers_root: str


@dataclass(frozen=True, slots=True)
class CheckPass:
    """What was read of everything, and found.

    Attributes:
        topics: those with a finding, as they were read.
        orphans: by ledger.
        seconds: how long the check took.
    """

    findings: tuple[Finding, ...]
    topics: Mapping[TopicName, StoredTopic]
    orphans: Mapping[LedgerId, OrphanedBucket]
    checked: Checked
    seconds: float = 0.0


class IndexChecker:
    """Checks; keeps nothing, and is safe for use by several threads."""

    def __init__(self, ports: CheckPorts) -> None:
        self._ports = ports

    def check(self, scope: TopicName | str, options: CheckOptions) -> CheckPass:
        """Check a topic, or a namespace or a tenant by its name: what was found twice, as it was at the second look.

        Raises:
            NotFoundError: there is no such topic, namespace or tenant.
            TemporaryError: the metadata store or the brokers could not be asked.
        """
        ports = self._ports
        started = ports.clock.monotonic_seconds()
        trackers = ports.brokers.trackers()
        findings = tuple(check_settings(trackers))
        candidates, ledgers = self._bucket_ledgers(scope) if options.orphans else ([], None)
        first = look = self._look(self._places(scope, options), trackers, options, candidates)
        if first.findings:
            ports.clock.wait_seconds(BETWEEN_SECONDS)
            look = self._look(sorted(first.topics, key=str), trackers, options, list(first.orphans))
            before = {each.place for each in first.findings}
            findings += tuple(each for each in look.findings if each.place in before)
        checked = replace(first.checked, ledgers=ledgers)
        return replace(look, findings=findings, checked=checked, seconds=ports.clock.monotonic_seconds() - started)

    def _places(self, scope: TopicName | str, options: CheckOptions) -> Iterable[TopicName]:
        if isinstance(scope, str):
            return self._ports.stored.topics.places_below(scope)
        try:
            return self._ports.stored.topics.places_of(scope)
        except NotFoundError:
            if options.orphans:  # of a topic that was deleted
                return ()
            raise

    def _look(
        self,
        places: Iterable[TopicName],
        trackers: Mapping[str, BrokerTracker],
        options: CheckOptions,
        candidates: Iterable[LedgerId],
    ) -> CheckPass:
        findings: list[Finding] = []
        topics: dict[TopicName, StoredTopic] = {}
        checked = Checked()
        due_by_ms = self._ports.store.now_ms() - options.min_age_ms
        for place, topic in self._ports.stored.read(places):
            if isinstance(topic, Unreadable):
                found = [Finding(FindingKind.UNREADABLE_NODE, topic.reason, place)]
                topics[place] = StoredTopic(place, {}, {})
            else:
                found = [*check_topic(topic, due_by_ms), *check_downgrade(topic, trackers)]
                found += list(self._contents(topic, found, options, checked))
                if found:
                    topics[place] = topic
            findings += found
        orphans = self._orphans(candidates, due_by_ms)
        findings += map(orphan_finding, orphans.values())
        return CheckPass(tuple(findings), topics, orphans, checked)

    # --- contents of buckets ---------------------------------------------------------------------------------------

    def _contents(
        self, topic: StoredTopic, so_far: Iterable[Finding], options: CheckOptions, checked: Checked
    ) -> Iterator[Finding]:
        """Segments against entry 0 and messages, of every bucket of which that is not known to be useless."""
        checked.topics += 1
        checked.subscriptions += len(topic.subscriptions)
        useless = {(each.subscription, each.bucket) for each in so_far if each.kind is FindingKind.OUTSIDE_TOPIC}
        for index in readable_indexes(topic):
            for bucket in index.buckets:
                checked.buckets += 1
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
                checked.indexes += sum(map(len, read))
                if not wrong and (index.subscription, bucket.name) not in useless:
                    yield from self._messages(topic, index, bucket, read, options.sample, checked)

    def _messages(
        self,
        topic: StoredTopic,
        index: StoredIndex,
        bucket: StoredBucket,
        segments: Sequence[DelayedIndexes],
        sample: int | None,
        checked: Checked,
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
        checked.compare(left, len(chosen), len(known))
        yield from check_messages(index, bucket, known, answers)

    def _read(self, topic: TopicName, positions: Sequence[Position]) -> dict[Position, EntryAnswer]:
        """The messages' own metadata, without those that cannot be read."""
        answers: dict[Position, EntryAnswer] = {}
        # It was deleted meanwhile, and its buckets with it, or it cannot be read now: the rest is not counted as
        # compared, and other topics are checked all the same.
        with suppress(SidecarError):
            answers.update(answered(self._ports.messages, topic, positions))
        return {position: answer for position, answer in answers.items() if not isinstance(answer, Unreadable)}

    # --- orphans ---------------------------------------------------------------------------------------------------

    def _bucket_ledgers(self, scope: TopicName | str) -> tuple[list[LedgerId], int]:
        """The ledgers whose own metadata name a bucket of this scope, and how many ledgers were read."""
        found: list[LedgerId] = []
        count = 0
        for ledger_id, data in self._ports.ledgers():
            count += 1
            claim = _bucket_claim(data) if _BUCKET_STAMP in data else None
            if claim is not None and _is_within(claim.topic, scope):
                found.append(ledger_id)
        return found, count

    def _orphans(self, candidates: Iterable[LedgerId], before_ms: int) -> dict[LedgerId, OrphanedBucket]:
        """Those that exist, are old enough, and that their cursor's node does not name; the node is read last."""
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
    """Why a bucket's segments are not there to be compared."""

    kind: FindingKind
    reason: str


def read_segments(
    entries: BucketEntries,
    ledger_id: LedgerId,
    ledger: LedgerMetadata,
    snapshot: SnapshotMetadata | Absent | Unreadable,
) -> list[DelayedIndexes] | MissingSegments:
    """All segments of a bucket, in order, or why there are none."""
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


def _shuffled(
    segments: Sequence[DelayedIndexes], seed: int, acknowledged: PositionRanges
) -> Iterator[tuple[Position, int]]:
    """Indexes that are not acknowledged, with their due times, in an order that is random and always the same."""
    rows = joined(segments)
    for row in np.random.default_rng(seed).permutation(len(rows)).tolist():
        position = Position(LedgerId(int(rows.ledgers[row])), EntryId(int(rows.entries[row])))
        if position not in acknowledged:
            yield position, int(rows.deliver_at_ms[row])


def _bucket_claim(data: bytes) -> BucketClaim | None:
    """The bucket that the ledger's metadata names; None if that is none, or cannot be read, so that nothing follows."""
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
    """Whether the cursor certainly does not name the ledger."""
    try:
        return ledger_id not in cursor_references(cursor.data).buckets.values()
    except UndecodableError:
        return False
