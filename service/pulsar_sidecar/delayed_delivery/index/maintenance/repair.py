"""Repairs delayed indexes: a plan with a hash, and its execution once the hash is approved.

Invariants: what is executed is what was approved, found anew. A cursor is changed only while no broker has the topic
loaded, by compare-and-set (`attach.BucketPointers`). No ledger is deleted here: a record asks the deletion service to,
which proves again that nothing references the ledger; it is durable before the cursor forgets the bucket, so nothing
leaks. A bucket is attached only if every bit is an index and every index has its message's due time: a broker does not
dispatch what a bit hides, so a wrong bucket loses messages, and a dropped one costs time.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple

from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.maintenance.attach import BucketPointers, PointerChange, PointerOutcome
from pulsar_sidecar.delayed_delivery.index.maintenance.checking import (
    CheckOptions,
    CheckPass,
    CheckPorts,
    IndexChecker,
)
from pulsar_sidecar.delayed_delivery.index.maintenance.findings import Checked, Finding, FindingKind, RepairStep
from pulsar_sidecar.delayed_delivery.index.maintenance.fsck import OrphanedBucket
from pulsar_sidecar.delayed_delivery.index.maintenance.orphans import OrphanJudge
from pulsar_sidecar.delayed_delivery.index.ports import PendingBucketDeletions, UnusableBucket
from pulsar_sidecar.delayed_delivery.index.stored import StoredIndex
from pulsar_sidecar.ledger_ownership.ledger_metadata import ledger_length
from pulsar_sidecar.ledger_ownership.paths import ledger_path
from pulsar_sidecar.ledger_ownership.ports import LoadedTopics
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import TopicStats

_VERSION: Final = "pulsar-sidecar delayed-index repair 1"


class _Place(NamedTuple):
    topic: str
    subscription: str
    bucket: str
    ledger_id: LedgerId


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
class RepairAction(UnusableBucket):
    """What is done about one bucket. The cursor's version is not approved with it: unloading a topic changes it.

    Attributes:
        bucket: the cursor property.
        reason: the findings.
    """

    step: RepairStep
    bucket: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoadedTopic:
    """A topic whose cursors would be changed and that a broker has loaded.

    Attributes:
        clients: who is connected and would have it loaded again at once; None if the broker did not report it.
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
        outcome: None when nothing was changed, or that is not known; the problem has the reason.
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
            InvalidInputError: orphans are to be repaired and not looked for.
            NotFoundError: there is no such topic, namespace or tenant.
            TemporaryError: the cluster could not be asked.
        """
        if FindingKind.ORPHANED_BUCKET in kinds and not options.orphans:
            raise InvalidInputError("--kind orphaned-bucket needs --orphans (over REST: orphans=true)")
        look = self.checker.check(scope, options)
        chosen = frozenset(kinds) or frozenset(FindingKind) - ON_DEMAND
        wanted = {each for each in look.findings if each.kind in chosen and each.kind.step is not None}
        decided = list(self._decided(look, wanted))
        actions = tuple(each for each in decided if isinstance(each, RepairAction))
        undecided = (each for each in decided if isinstance(each, Finding))
        left = (*(each for each in look.findings if each not in wanted), *undecided)
        topics = sorted({each.topic for each in actions if each.step.changes_cursor}, key=str)
        brokers = {topic: self._ports.loaded.loaded_by(topic) for topic in topics}
        loaded = {topic: self._loaded(topic, broker) for topic, broker in brokers.items() if broker is not None}
        return RepairPlan(_hash(actions), actions, left, loaded, look.checked)

    def execute(
        self, scope: TopicName | str, options: CheckOptions, kinds: Collection[FindingKind], approved: str
    ) -> list[Repaired]:
        """Find everything anew and carry the plan out if it is still the approved one, subscription by subscription.

        An action that fails is reported and does not stop the others.

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
            f"consumer {consumer.name or 'without a name'} of {name} at {consumer.address or 'an unknown address'}"
            for name, subscription in stats.subscriptions.items()
            for consumer in subscription.consumers
        )
        return LoadedTopic(broker, (*(f"producer {name}" for name in stats.producers), *consumers))

    # --- planning --------------------------------------------------------------------------------------------------

    def _decided(self, look: CheckPass, wanted: set[Finding]) -> Iterator[RepairAction | Finding]:
        """One action a bucket, in order, following from everything that was found of it; or why there is none."""
        everything: dict[_Place, list[Finding]] = {}
        for each in look.findings:
            if each.topic and each.subscription and each.bucket and each.ledger_id is not None and each.kind.step:
                place = _Place(str(each.topic), each.subscription, each.bucket, each.ledger_id)
                everything.setdefault(place, []).append(each)
        chosen = sorted(place for place, found in everything.items() if not wanted.isdisjoint(found))
        root = self._ports.check.ledgers_root
        nodes = self._ports.check.store.read_many([ledger_path(place.ledger_id, root) for place in chosen])
        orphans, attached = OrphanJudge(self._ports.check), list[OrphanedBucket]()
        for place, node in zip(chosen, nodes, strict=True):
            found = everything[place]
            topic = found[0].topic
            assert topic is not None
            index = look.topics[topic].subscriptions.get(place.subscription) if topic in look.topics else None
            step = _step(found)
            if step is RepairStep.HAND_OVER:
                orphan = look.orphans[place.ledger_id]
                index = orphans.index_of(orphan) if index is None else index
                judged = orphans.judge(orphan, index, attached)
                if isinstance(judged, Unreadable):
                    yield replace(found[0], cause=f"{found[0].cause}; it is not known what to do: {judged.reason}")
                    continue
                step = judged
                if step is RepairStep.ATTACH:
                    attached.append(orphan)
            yield RepairAction(
                step=step,
                topic=topic,
                subscription=place.subscription,
                bucket=place.bucket,
                ledger_id=place.ledger_id,
                created_ms=None if node is None else node.created_ms,
                length_bytes=None if node is None else ledger_length(node.data),
                version=index.version if isinstance(index, StoredIndex) and step.changes_cursor else None,
                reason="; ".join(f"{each.kind.value}: {each.cause}" for each in found),
            )

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
        try:
            answers = self._ports.deletions.hand_over(actions) if actions else ()
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
    steps = {each.kind.step for each in findings if each.kind.step is not None}
    # A ledger that does not exist, or is not a bucket of the subscription, is not handed over, whatever else is wrong.
    return RepairStep.DROP_POINTER if RepairStep.DROP_POINTER in steps else steps.pop()


def _hash(actions: Sequence[RepairAction]) -> str:
    rows = [
        [each.step.value, str(each.topic), each.subscription, each.bucket, each.ledger_id, each.created_ms]
        for each in actions
    ]
    return hashlib.sha256(json.dumps([_VERSION, rows]).encode()).hexdigest()
