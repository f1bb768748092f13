"""Repairs delayed indexes: a plan with a hash, and its execution once the hash is approved.

Invariants: what is executed is what was approved, found anew. A cursor is changed only while no broker has the topic
loaded, by compare-and-set (`attach.BucketPointers`). No ledger is deleted here: a record asks the deletion service to,
which proves again that nothing references the ledger; it is durable before the cursor forgets the bucket, so nothing
leaks. A bucket is attached only if every bit is an index and every index is what its message says: a broker does not
dispatch what a bit hides, so a wrong bucket loses messages, and a dropped one costs time.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Final, NamedTuple

from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.maintenance.attach import BucketPointers, PointerChange, PointerOutcome
from pulsar_sidecar.delayed_delivery.index.maintenance.checking import (
    CheckOptions,
    CheckPorts,
    IndexChecker,
    Look,
    read_segments,
)
from pulsar_sidecar.delayed_delivery.index.maintenance.findings import Checked, Finding, FindingKind
from pulsar_sidecar.delayed_delivery.index.maintenance.fsck import OrphanedBucket, contradictions, message_difference
from pulsar_sidecar.delayed_delivery.index.ports import PendingBucketDeletions, UnusableBucket
from pulsar_sidecar.delayed_delivery.index.settings import BUCKET_TRACKER_FACTORY
from pulsar_sidecar.delayed_delivery.index.snapshot import SnapshotMetadata, decode_metadata
from pulsar_sidecar.delayed_delivery.index.stored import METADATA_ENTRY, StoredIndex
from pulsar_sidecar.ledger_ownership.ledger_metadata import ledger_length
from pulsar_sidecar.ledger_ownership.paths import ledger_path
from pulsar_sidecar.ledger_ownership.ports import LoadedTopics
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, SidecarError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId, NodeVersion, Position
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import TopicStats

_VERSION: Final = "pulsar-sidecar delayed-index repair 1"
_MESSAGES_AT_ONCE: Final = 10_000


class _Place(NamedTuple):
    topic: str
    subscription: str
    bucket: str
    ledger_id: LedgerId


class RepairStep(Enum):
    """What is done about a bucket."""

    DROP_POINTER = "drop-pointer"
    """The cursor forgets the bucket; there is no ledger, or it is none of the subscription's."""
    RETIRE = "retire"
    """The deletion service gets the ledger, and the cursor forgets the bucket."""
    HAND_OVER = "hand-over"
    """The deletion service gets a ledger that no cursor points to."""
    ATTACH = "attach"
    """The cursor points to the bucket again: all of it is right."""

    @property
    def changes_cursor(self) -> bool:
        """Whether no broker may have the topic loaded meanwhile."""
        return self is not RepairStep.HAND_OVER


_STEPS: Final[Mapping[FindingKind, RepairStep]] = {
    FindingKind.DANGLING_POINTER: RepairStep.DROP_POINTER,
    FindingKind.FOREIGN_LEDGER: RepairStep.DROP_POINTER,
    FindingKind.BAD_KEY: RepairStep.RETIRE,
    FindingKind.UNREADABLE_SNAPSHOT: RepairStep.RETIRE,
    FindingKind.WRONG_BITMAP: RepairStep.RETIRE,
    FindingKind.WRONG_DELIVER_AT: RepairStep.RETIRE,
    FindingKind.OUTSIDE_TOPIC: RepairStep.RETIRE,
    FindingKind.OVERLAP: RepairStep.RETIRE,
    FindingKind.DEAD_BUCKET: RepairStep.RETIRE,
    FindingKind.TRACKER_DOWNGRADE: RepairStep.RETIRE,
    FindingKind.ORPHANED_BUCKET: RepairStep.HAND_OVER,
}
"""Kinds that are not here cannot be repaired here."""

ON_DEMAND: Final = frozenset({FindingKind.TRACKER_DOWNGRADE})
"""Sound buckets, which are repaired only if their kind is asked for."""


_PROBLEMS: Final[Mapping[PointerOutcome, str]] = {
    PointerOutcome.LOADED_MEANWHILE: (
        "a broker has loaded the topic meanwhile, perhaps before the change: stop its clients and unload it once more"
    ),
    PointerOutcome.OVERWRITTEN: (
        "a broker that had loaded the topic has undone the change: stop its clients, unload it and plan again"
    ),
}


@dataclass(frozen=True, slots=True)
class RepairAction:
    """What is done about one bucket.

    Attributes:
        bucket: the cursor property.
        created_ms: of the ledger's node; None if there is none.
        version: of the cursor's node when it was read; None if there is no cursor. Not part of what is approved:
            unloading a topic changes it.
        reason: the findings.
    """

    step: RepairStep
    topic: TopicName
    subscription: str
    bucket: str
    ledger_id: LedgerId
    created_ms: int | None
    length_bytes: int | None
    version: NodeVersion | None
    reason: str


@dataclass(frozen=True, slots=True)
class LoadedTopic:
    """A topic whose cursors would be changed and that a broker has loaded.

    Attributes:
        clients: who is connected and would have it loaded again at once; None if the broker did not say.
    """

    broker: str
    clients: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What would be done.

    Attributes:
        hash: of the actions; two plans with one hash ask for the same changes.
        left: findings that nothing here is done about.
        loaded: topics whose clients must stop, and that must be unloaded, before the plan is executed.
    """

    hash: str
    actions: tuple[RepairAction, ...]
    left: tuple[Finding, ...]
    loaded: Mapping[TopicName, LoadedTopic]
    checked: Checked


@dataclass(frozen=True, slots=True)
class Repaired:
    """What became of one action.

    Attributes:
        outcome: None when nothing was changed.
        handed_over: whether the deletion service has its record.
        problem: why it is not done, or what is to be done yet.
    """

    action: RepairAction
    outcome: PointerOutcome | None
    handed_over: bool
    problem: str | None = None

    @property
    def done(self) -> bool:
        """Whether nothing is left to do about it."""
        return self.problem is None


CarryOut = Callable[[Sequence[RepairAction]], list[Repaired]]
"""Carries out what is to be done about one cursor."""


@dataclass(frozen=True, slots=True)
class RepairPorts:
    """What a repair needs beyond what a check reads.

    Attributes:
        stats: a loaded topic's clients.
        at_once: calls the first for each of the second, several at a time, and answers in their order.
    """

    check: CheckPorts
    loaded: LoadedTopics
    pointers: BucketPointers
    deletions: PendingBucketDeletions
    stats: Callable[[TopicName], TopicStats]
    at_once: Callable[[CarryOut, Iterable[Sequence[RepairAction]]], Iterable[list[Repaired]]]


class IndexRepair:
    """Plans and executes; keeps nothing between calls.

    Attributes:
        checker: checks, and changes nothing.
    """

    def __init__(self, ports: RepairPorts) -> None:
        self._ports = ports
        self.checker = IndexChecker(ports.check)

    def plan(self, scope: TopicName | str, options: CheckOptions, kinds: Collection[FindingKind] = ()) -> RepairPlan:
        """What would be done about a topic, or about a namespace or a tenant by its name.

        Args:
            scope: what to check.
            options: how to check it.
            kinds: only findings of these kinds; without any, all but those `ON_DEMAND`.

        Raises:
            NotFoundError: there is no such topic, namespace or tenant.
            TemporaryError: the cluster could not be asked.
        """
        look = self.checker.confirmed(scope, options)
        chosen = frozenset(kinds) or frozenset(FindingKind) - ON_DEMAND
        wanted = [each for each in look.findings if each.kind in chosen and each.kind in _STEPS]
        actions = tuple(self._actions(look, wanted))
        left = tuple(each for each in look.findings if each not in wanted)
        topics = sorted({each.topic for each in actions if each.step.changes_cursor}, key=str)
        brokers = {topic: self._ports.loaded.loaded_by(topic) for topic in topics}
        loaded = {topic: self._loaded(topic, broker) for topic, broker in brokers.items() if broker is not None}
        return RepairPlan(_hash(actions), actions, left, loaded, look.checked)

    def execute(
        self, scope: TopicName | str, options: CheckOptions, kinds: Collection[FindingKind], approved: str
    ) -> list[Repaired]:
        """Find everything anew and carry the plan out if it is still the approved one, subscription by subscription.

        What fails is told and keeps nothing else from being done.

        Raises:
            ConflictError: the plan is another one now, or a broker has one of its topics loaded; nothing was changed.
            DisabledError: the deletion service is needed and switched off; nothing was changed.
            TemporaryError: the cluster could not be asked; nothing was changed.
        """
        plan = self.plan(scope, options, kinds)
        if not plan.actions:
            raise ConflictError("there is nothing to repair (any more); nothing was changed")
        if plan.hash != approved:
            raise ConflictError(f"the plan is {plan.hash} now, not the approved one; look at it again")
        for topic in {action.topic for action in plan.actions if action.step.changes_cursor}:
            self._ports.pointers.demand_unloaded(topic)
        if any(action.step in (RepairStep.RETIRE, RepairStep.HAND_OVER) for action in plan.actions):
            self._ports.deletions.demand_ready()
        by_cursor = groupby(plan.actions, key=lambda each: (each.topic, each.subscription))
        # Each waits some seconds to see that no broker undoes it.
        repaired = self._ports.at_once(self._carried_out, [list(group) for _, group in by_cursor])
        return [one for cursor in repaired for one in cursor]

    def _loaded(self, topic: TopicName, broker: str) -> LoadedTopic:
        try:
            stats = self._ports.stats(topic)
        except SidecarError:
            return LoadedTopic(broker, None)
        consumers = (
            f"consumer {consumer.name or ''} of {name} at {consumer.address or 'an unknown address'}"
            for name, subscription in stats.subscriptions.items()
            for consumer in subscription.consumers
        )
        return LoadedTopic(broker, (*(f"producer {name}" for name in stats.producers), *consumers))

    # --- planning --------------------------------------------------------------------------------------------------

    def _actions(self, look: Look, findings: Sequence[Finding]) -> Iterator[RepairAction]:
        """One action a bucket, in order; what is done follows from everything that was found of it."""
        everything: dict[_Place, list[Finding]] = {}
        for each in look.findings:
            if each.topic and each.subscription and each.bucket and each.ledger_id is not None and each.kind in _STEPS:
                place = _Place(str(each.topic), each.subscription, each.bucket, each.ledger_id)
                everything.setdefault(place, []).append(each)
        chosen = sorted(place for place, found in everything.items() if any(each in findings for each in found))
        root = self._ports.check.ledgers_root
        nodes = self._ports.check.store.read_many([ledger_path(place.ledger_id, root) for place in chosen])
        attached: set[LedgerId] = set()
        for place, node in zip(chosen, nodes, strict=True):
            found = everything[place]
            topic = found[0].topic
            assert topic is not None
            index = look.topics[topic].subscriptions.get(place.subscription) if topic in look.topics else None
            step = _step(found)
            if step is RepairStep.HAND_OVER:
                others = [look.orphans[ledger_id] for ledger_id in attached]
                index, step = self._of_orphan(look.orphans[place.ledger_id], index, others)
                if step is RepairStep.ATTACH:
                    attached.add(place.ledger_id)
            yield RepairAction(
                step=step,
                topic=topic,
                subscription=place.subscription,
                bucket=place.bucket,
                ledger_id=place.ledger_id,
                created_ms=None if node is None else node.created_ms,
                length_bytes=None if node is None else ledger_length(node.data),
                version=index.version if isinstance(index, StoredIndex) else None,
                reason="; ".join(f"{each.kind.value}: {each.cause}" for each in found),
            )

    def _of_orphan(
        self, orphan: OrphanedBucket, index: StoredIndex | Unreadable | None, others: Collection[OrphanedBucket]
    ) -> tuple[StoredIndex | Unreadable | None, RepairStep]:
        """Its cursor as it is now, and whether it may be attached there."""
        claim = orphan.claim
        if index is None:
            for _, topic in self._ports.check.stored.read([claim.topic], claim.subscription):
                index = None if isinstance(topic, Unreadable) else topic.subscriptions.get(claim.subscription)
        same = {other.claim.bucket_key for other in others if _owner(other) == _owner(orphan)}
        attachable = isinstance(index, StoredIndex) and self._is_whole(orphan, index, same)
        return index, RepairStep.ATTACH if attachable else RepairStep.HAND_OVER

    def _is_whole(self, orphan: OrphanedBucket, index: StoredIndex, attached: Collection[str]) -> bool:
        """Whether the brokers would use it, it overlaps no other, and every bit and every index in it is right."""
        check = self._ports.check
        if any(each.factory != BUCKET_TRACKER_FACTORY for each in check.brokers.trackers().values()):
            return False
        if orphan.metadata.state is not LedgerState.CLOSED:
            return False
        try:
            key = BucketKey.parse(orphan.claim.bucket_key)
            snapshot = self._snapshot(orphan)
        except UndecodableError:
            return False
        others = [*(bucket.key for bucket in index.buckets), *map(BucketKey.parse, attached)]
        if any(isinstance(other, Unreadable) or key.overlaps(other) for other in others):
            return False
        if snapshot is None or not snapshot or len(snapshot) != orphan.metadata.last_entry_id:
            return False
        segments = read_segments(check.buckets, orphan.ledger_id, orphan.metadata, snapshot)
        if not isinstance(segments, list) or any(map(contradictions, snapshot, segments)):
            return False
        due_ms = {
            position: at_ms
            for segment in segments
            for position, at_ms in zip(segment.positions(), segment.deliver_at_ms.tolist(), strict=True)
        }
        return all(position.ledger_id in key for position in due_ms) and self._agree_with_messages(index.topic, due_ms)

    def _snapshot(self, orphan: OrphanedBucket) -> SnapshotMetadata | None:
        position = Position(orphan.ledger_id, METADATA_ENTRY)
        payload = self._ports.check.buckets.read({orphan.ledger_id: orphan.metadata}, [position])[position]
        return decode_metadata(payload) if isinstance(payload, bytes) else None

    def _agree_with_messages(self, topic: TopicName, due_ms: Mapping[Position, int]) -> bool:
        positions = list(due_ms)
        for start in range(0, len(positions), _MESSAGES_AT_ONCE):
            some = positions[start : start + _MESSAGES_AT_ONCE]
            try:
                answers = self._ports.check.messages.read(topic, some)
            except NotFoundError:
                return False
            for position in some:
                answer = answers[position]
                if isinstance(answer, Unreadable) or message_difference(due_ms[position], answer) is not None:
                    return False
        return True

    # --- executing -------------------------------------------------------------------------------------------------

    def _carried_out(self, actions: Sequence[RepairAction]) -> list[Repaired]:
        """All actions of one subscription."""
        over = [each for each in actions if each.step in (RepairStep.RETIRE, RepairStep.HAND_OVER)]
        refused = self._hand_over(over)
        sent = [each for each in over if each not in refused]
        pointing = [each for each in actions if each.step.changes_cursor and each not in refused]
        outcome, problem = self._change(pointing) if pointing else (None, None)
        repaired = []
        for action in actions:
            if action in refused:
                repaired.append(Repaired(action, None, handed_over=False, problem=refused[action]))
            elif not action.step.changes_cursor:
                repaired.append(Repaired(action, None, handed_over=True))
            else:
                repaired.append(Repaired(action, outcome, action in sent, problem))
        return repaired

    def _hand_over(self, actions: Sequence[RepairAction]) -> dict[RepairAction, str]:
        """Give the ledgers to the deletion service; those that it did not take, with the reason."""
        buckets = [
            UnusableBucket(
                each.topic,
                each.subscription,
                each.ledger_id,
                each.created_ms,
                each.length_bytes,
                each.version if each.step is RepairStep.RETIRE else None,
            )
            for each in actions
        ]
        try:
            answers = self._ports.deletions.hand_over(buckets) if buckets else ()
        except SidecarError as error:
            return dict.fromkeys(actions, f"the deletion service has no record of it: {error}")
        return {each: why for each, why in zip(actions, answers, strict=True) if why is not None}

    def _change(self, actions: Sequence[RepairAction]) -> tuple[PointerOutcome | None, str | None]:
        first = actions[0]
        assert first.version is not None
        change = PointerChange(
            first.topic,
            first.subscription,
            first.version,
            {BucketKey.parse(each.bucket): each.ledger_id for each in actions if each.step is RepairStep.ATTACH},
            {each.bucket: each.ledger_id for each in actions if each.step is not RepairStep.ATTACH},
        )
        try:
            outcome = self._ports.pointers.change(change)
        except SidecarError as error:
            return None, str(error)
        return outcome, _PROBLEMS.get(outcome)


def _step(findings: Iterable[Finding]) -> RepairStep:
    steps = {_STEPS[each.kind] for each in findings}
    # A ledger that does not exist, or is somebody else's, is not handed over, whatever else is wrong.
    return RepairStep.DROP_POINTER if RepairStep.DROP_POINTER in steps else steps.pop()


def _owner(orphan: OrphanedBucket) -> tuple[TopicName, str]:
    return orphan.claim.topic, orphan.claim.subscription


def _hash(actions: Sequence[RepairAction]) -> str:
    rows = [
        [each.step.value, str(each.topic), each.subscription, each.bucket, each.ledger_id, each.created_ms]
        for each in actions
    ]
    return hashlib.sha256(json.dumps([_VERSION, rows]).encode()).hexdigest()
