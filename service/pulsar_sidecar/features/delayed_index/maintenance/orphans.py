"""Decision on an orphaned bucket: attach it to its cursor again, or enqueue it for deletion.

Invariant: a bucket is attached only if every bit has an index and every index has its message's due time, because a
broker does not dispatch a message that only has a bit. Temporarily unreadable data decides nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property

from pulsar_sidecar.backlog.waiting import with_metadata
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.maintenance.checking import CheckPorts, MissingSegments, read_segments
from pulsar_sidecar.features.delayed_index.maintenance.fsck import (
    OrphanedBucket,
    contradictions,
    contradictions_of_segments,
    message_difference,
)
from pulsar_sidecar.features.delayed_index.results.maintenance import FindingKind, RepairStep
from pulsar_sidecar.features.delayed_index.settings import BrokerTracker
from pulsar_sidecar.features.delayed_index.stored import METADATA_ENTRY, StoredIndex, StoredTopic, decode_snapshot
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, UndecodableError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.claims import BucketClaim


class OrphanJudge:
    """Judge of the orphans of one plan; changes nothing. Reads brokers, and each subscription, once."""

    def __init__(self, ports: CheckPorts) -> None:
        self._ports = ports
        self._indexes: dict[tuple[TopicName, str], StoredIndex | Unreadable | None] = {}

    def index_of(self, orphan: OrphanedBucket) -> StoredIndex | Unreadable | None:
        """Return the orphan's subscription, as it was at the first request for one of its orphans."""
        claim, owner = orphan.claim, _owner(orphan.claim)
        if owner not in self._indexes:
            topic = dict(self._ports.stored.read([claim.topic], claim.subscription)).get(claim.topic)
            found = topic.subscriptions.get(claim.subscription) if isinstance(topic, StoredTopic) else topic
            self._indexes[owner] = found
        return self._indexes[owner]

    def judge(
        self, orphan: OrphanedBucket, index: StoredIndex | Unreadable | None, attached: Iterable[OrphanedBucket]
    ) -> RepairStep | Unreadable:
        """Attach if brokers would use the bucket and all of it is correct; `Unreadable` if that is unknown."""
        if not isinstance(index, StoredIndex):
            return RepairStep.HAND_OVER if index is None else index
        keys: list[BucketKey] = []
        for bucket in index.buckets:
            if isinstance(bucket.key, Unreadable):
                return bucket.key
            keys.append(bucket.key)
        same = (each.claim for each in attached)
        keys += [BucketKey.parse(each.bucket_key) for each in same if _owner(each) == _owner(orphan.claim)]
        judged = self._by_brokers(len(keys) + 1)
        if judged is not RepairStep.ATTACH:
            return judged
        try:
            key = BucketKey.parse(orphan.claim.bucket_key)
        except UndecodableError:
            return RepairStep.HAND_OVER
        if orphan.metadata.state is not LedgerState.CLOSED or any(map(key.overlaps, keys)):
            return RepairStep.HAND_OVER
        return self._by_content(orphan, key)

    @cached_property
    def _trackers(self) -> Collection[BrokerTracker]:
        return self._ports.brokers.trackers().values()

    def _by_brokers(self, count: int) -> RepairStep | Unreadable:
        settings = [each.settings for each in self._trackers if each.keeps_buckets]
        if not settings:
            return RepairStep.HAND_OVER
        if len(settings) < len(self._trackers):
            return Unreadable("brokers run different trackers")
        if any(each.breaks_dispatch for each in settings):
            return Unreadable("a broker has a delayedDeliveryMaxNumBuckets of 1, 2 or 3, which stops dispatch")
        merge = any(each.merges_at_next_seal(count) for each in settings)
        return RepairStep.HAND_OVER if merge else RepairStep.ATTACH

    def _by_content(self, orphan: OrphanedBucket, key: BucketKey) -> RepairStep | Unreadable:
        entries, ledger_id, ledger = self._ports.buckets, orphan.ledger_id, orphan.metadata
        position = Position(ledger_id, METADATA_ENTRY)
        snapshot = decode_snapshot(entries.read({ledger_id: ledger}, [position])[position])
        segments = read_segments(entries, ledger_id, ledger, snapshot)
        if isinstance(segments, MissingSegments):
            return Unreadable(segments.reason) if segments.kind is FindingKind.UNREAD_SNAPSHOT else RepairStep.HAND_OVER
        assert isinstance(snapshot, tuple)
        if not snapshot or len(snapshot) != ledger.last_entry_id or any(map(contradictions, snapshot, segments)):
            return RepairStep.HAND_OVER
        if any(contradictions_of_segments(snapshot)):
            return RepairStep.HAND_OVER
        due_ms = {
            position: at_ms
            for segment in segments
            for position, at_ms in zip(segment.positions(), segment.deliver_at_ms.tolist(), strict=True)
        }
        if any(position.ledger_id not in key for position in due_ms):
            return RepairStep.HAND_OVER
        return self._by_messages(orphan.claim.topic, due_ms)

    def _by_messages(self, topic: TopicName, due_ms: Mapping[Position, int]) -> RepairStep | Unreadable:
        unread: Unreadable | None = None
        try:
            for position, answer in with_metadata(self._ports.messages, topic, due_ms):
                if isinstance(answer, Unreadable):
                    unread = Unreadable(f"message {position}: {answer.reason}")
                elif message_difference(due_ms[position], answer) is not None:
                    return RepairStep.HAND_OVER
        except NotFoundError:
            return RepairStep.HAND_OVER
        except SidecarError as error:
            return Unreadable(f"the messages of {topic} cannot be read: {error}")
        return unread or RepairStep.ATTACH


def _owner(claim: BucketClaim) -> tuple[TopicName, str]:
    return claim.topic, claim.subscription
