"""Repair of delayed indexes: a plan with a hash, and its execution once the hash is approved.

Invariants: execution finds everything anew and proceeds only if the result is what was approved. A cursor is changed
only while no broker has the topic loaded, by compare-and-set (`attach.BucketPointers`). No ledger is deleted here: a
record requests its deletion, which proves again that nothing references the ledger; the record is
durable before the property is removed from the cursor, so nothing leaks. `orphans` decides
which buckets are attached: a wrong bucket loses messages, and a dropped one costs time.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple

from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.maintenance.attach import BucketPointers, PointerChange
from pulsar_sidecar.features.delayed_index.maintenance.checking import CheckOptions, CheckPass, CheckPorts, IndexChecker
from pulsar_sidecar.features.delayed_index.maintenance.fsck import OrphanedBucket
from pulsar_sidecar.features.delayed_index.maintenance.orphans import OrphanJudge
from pulsar_sidecar.features.delayed_index.ports import PendingBucketDeletions, UnusableBucket
from pulsar_sidecar.features.delayed_index.results.maintenance import (
    CheckScope,
    Finding,
    FindingKind,
    LoadedTopic,
    PointerOutcome,
    RepairAction,
    RepairReport,
    RepairResult,
    RepairStep,
)
from pulsar_sidecar.features.delayed_index.stored import StoredIndex
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import UNKNOWN_BIRTH
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import TopicStats
from pulsar_sidecar.ownership.ledger_metadata import ledger_length
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.ownership.ports import LoadedTopics

_VERSION: Final = "pulsar-sidecar delayed-index repair 1"


class _Place(NamedTuple):
    topic: str
    subscription: str
    bucket: str
    ledger_id: LedgerId


ON_DEMAND: Final = frozenset({FindingKind.TRACKER_DOWNGRADE})
"""Kinds of findings on sound buckets, which are repaired only on request."""


_PROBLEMS: Final[Mapping[PointerOutcome, str]] = {
    PointerOutcome.LOADED_MEANWHILE: (
        "a broker has loaded the topic meanwhile, perhaps before the change: stop its clients and unload it once more"
    ),
    PointerOutcome.OVERWRITTEN: (
        "a broker that had loaded the topic has undone the change: stop its clients, unload it and plan again"
    ),
}


@dataclass(frozen=True, slots=True)
class PlannedAction(UnusableBucket):
    """Repair of one bucket. Its approval excludes the cursor's version, which changes when the topic is unloaded.

    Attributes:
        bucket: name of the cursor property.
        reason: findings on the bucket.
    """

    step: RepairStep
    bucket: str
    reason: str

    def result(self) -> RepairAction:
        return RepairAction(self.step, str(self.topic), self.subscription, self.bucket, self.ledger_id, self.reason)

    def repaired(
        self, outcome: PointerOutcome | None, problem: str | None = None, *, handed_over: bool
    ) -> RepairResult:
        """Return the result after execution."""
        return RepairResult(self.result(), problem is None, outcome, handed_over, problem)


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Repairs to approve by their hash; plans with the same hash make the same changes."""

    hash: str
    actions: tuple[PlannedAction, ...]
    left: tuple[Finding, ...]
    loaded: tuple[LoadedTopic, ...]
    checked: CheckScope

    def result(self) -> RepairReport:
        actions = tuple(each.result() for each in self.actions)
        return RepairReport(self.hash, actions, self.left, self.loaded, self.checked)


Execute = Callable[[Sequence[PlannedAction]], list[RepairResult]]
"""Function that executes the actions on one cursor."""


@dataclass(frozen=True, slots=True)
class RepairPorts:
    """Clients that a repair needs beyond those of a check.

    Attributes:
        stats: returns a loaded topic's statistics, for its clients.
        concurrently: maps a function over actions concurrently, and returns results in order.
    """

    check: CheckPorts
    loaded: LoadedTopics
    pointers: BucketPointers
    deletions: PendingBucketDeletions
    stats: Callable[[TopicName], TopicStats]
    concurrently: Callable[[Execute, Iterable[Sequence[PlannedAction]]], Iterable[list[RepairResult]]]


class IndexRepair:
    """Plans and executes repairs; stateless.

    Attributes:
        checker: checker, which changes nothing.
    """

    def __init__(self, ports: RepairPorts) -> None:
        self._ports = ports
        self.checker = IndexChecker(ports.check)

    def plan(self, scope: TopicName | str, options: CheckOptions, kinds: Collection[FindingKind] = ()) -> RepairPlan:
        """Plan the repair of a topic, a namespace or a tenant, of these kinds of findings, or of all but `ON_DEMAND`.

        Raises:
            InvalidInputError: ``kinds`` includes orphans, but ``options`` does not search for them.
            NotFoundError: there is no such topic, namespace or tenant.
            TemporaryError: the cluster is unreachable.
        """
        if FindingKind.ORPHANED_BUCKET in kinds and not options.orphans:
            raise InvalidInputError("--kind orphaned-bucket needs --orphans (over REST: orphans=true)")
        look = self.checker.check(scope, options)
        chosen = frozenset(kinds) or frozenset(FindingKind) - ON_DEMAND
        wanted = {each for each in look.findings if each.kind in chosen and each.kind.step is not None}
        decided = list(self._decided(look, wanted))
        actions = tuple(each for each in decided if isinstance(each, PlannedAction))
        undecided = (each for each in decided if isinstance(each, Finding))
        left = (*(each for each in look.findings if each not in wanted), *undecided)
        topics = sorted({each.topic for each in actions if each.step.changes_cursor}, key=str)
        brokers = {topic: self._ports.loaded.loaded_by(topic) for topic in topics}
        loaded = tuple(self._loaded(topic, broker) for topic, broker in brokers.items() if broker is not None)
        return RepairPlan(_hash(actions), actions, left, loaded, look.checked)

    def execute(
        self, scope: TopicName | str, options: CheckOptions, kinds: Collection[FindingKind], approved: str
    ) -> list[RepairResult]:
        """Check again, and execute the plan, per subscription, if it still has the approved hash.

        A failed action is reported and does not stop the others.

        Raises:
            ConflictError: the plan has changed, or a broker has one of its topics loaded; nothing was changed.
            DisabledError: the deletion service is required but disabled; nothing was changed.
            TemporaryError: the cluster could not be read; nothing was changed.
        """
        plan = self.plan(scope, options, kinds)
        if not plan.actions:
            raise ConflictError("there is nothing to repair, or no longer; nothing was changed")
        if plan.hash != approved:
            raise ConflictError(f"the plan is now {plan.hash}, not the approved one; review it")
        for topic in {action.topic for action in plan.actions if action.step.changes_cursor}:
            self._ports.pointers.demand_unloaded(topic)
        if any(action.step in (RepairStep.RETIRE, RepairStep.HAND_OVER) for action in plan.actions):
            self._ports.deletions.demand_ready()
        by_cursor = groupby(plan.actions, key=lambda each: (each.topic, each.subscription))
        # Each change waits some seconds to verify that no broker undoes it.
        repaired = self._ports.concurrently(self._execute, [list(group) for _, group in by_cursor])
        return [one for cursor in repaired for one in cursor]

    def _loaded(self, topic: TopicName, broker: str) -> LoadedTopic:
        try:
            stats = self._ports.stats(topic)
        except SidecarError:
            return LoadedTopic(str(topic), broker, None)
        consumers = (
            f"consumer {consumer.name or 'without a name'} of {name} at {consumer.address or 'an unknown address'}"
            for name, subscription in stats.subscriptions.items()
            for consumer in subscription.consumers
        )
        return LoadedTopic(str(topic), broker, (*(f"producer {name}" for name in stats.producers), *consumers))

    # --- planning --------------------------------------------------------------------------------------------------

    def _decided(self, look: CheckPass, wanted: set[Finding]) -> Iterator[PlannedAction | Finding]:
        """Yield one action per bucket, in order, from all its findings; or a finding if it is undecided."""
        everything: dict[_Place, list[Finding]] = {}
        for each in look.findings:
            if each.topic and each.subscription and each.bucket and each.ledger_id is not None and each.kind.step:
                place = _Place(each.topic, each.subscription, each.bucket, LedgerId(each.ledger_id))
                everything.setdefault(place, []).append(each)
        chosen = sorted(place for place, found in everything.items() if not wanted.isdisjoint(found))
        root = self._ports.check.ledgers_root
        nodes = self._ports.check.store.read_many([ledger_path(place.ledger_id, root) for place in chosen])
        orphans, attached = OrphanJudge(self._ports.check), list[OrphanedBucket]()
        for place, node in zip(chosen, nodes, strict=True):
            found = everything[place]
            stored = look.topics.get(place.topic)
            index = None if stored is None else stored.subscriptions.get(place.subscription)
            step = _step(found)
            if step is RepairStep.HAND_OVER:
                orphan = look.orphans[place.ledger_id]
                index = orphans.index_of(orphan) if index is None else index
                judged = orphans.judge(orphan, index, attached)
                if isinstance(judged, Unreadable):
                    yield replace(found[0], cause=f"{found[0].cause}; the repair is undecided: {judged.reason}")
                    continue
                step = judged
                if step is RepairStep.ATTACH:
                    attached.append(orphan)
            yield PlannedAction(
                step=step,
                topic=look.orphans[place.ledger_id].claim.topic if stored is None else stored.topic,
                subscription=place.subscription,
                bucket=place.bucket,
                ledger_id=place.ledger_id,
                birth=UNKNOWN_BIRTH if node is None else node.birth,
                length_bytes=None if node is None else ledger_length(node.data),
                version=index.version if isinstance(index, StoredIndex) and step.changes_cursor else None,
                reason="; ".join(f"{each.kind.value}: {each.cause}" for each in found),
            )

    # --- execution -------------------------------------------------------------------------------------------------

    def _execute(self, actions: Sequence[PlannedAction]) -> list[RepairResult]:
        unusable = [each for each in actions if each.step in (RepairStep.RETIRE, RepairStep.HAND_OVER)]
        refused = self._enqueue(unusable)
        sent = [each for each in unusable if each not in refused]
        pointing = [each for each in actions if each.step.changes_cursor and each not in refused]
        outcome, problem = self._change(pointing) if pointing else (None, None)
        repaired = []
        for action in actions:
            if action in refused:
                repaired.append(action.repaired(None, refused[action], handed_over=False))
            elif not action.step.changes_cursor:
                repaired.append(action.repaired(None, handed_over=True))
            else:
                repaired.append(action.repaired(outcome, problem, handed_over=action in sent))
        return repaired

    def _enqueue(self, actions: Sequence[PlannedAction]) -> dict[PlannedAction, str]:
        """Enqueue the ledgers for deletion; return those that the deletion service refused, with the reason."""
        try:
            answers = self._ports.deletions.enqueue_for_deletion(actions) if actions else ()
        except SidecarError as error:
            return dict.fromkeys(actions, f"the deletion service has no record of it: {error}")
        return {each: why for each, why in zip(actions, answers, strict=True) if why is not None}

    def _change(self, actions: Sequence[PlannedAction]) -> tuple[PointerOutcome | None, str | None]:
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
    # A ledger that does not exist, or is not the subscription's bucket, is never enqueued for deletion, whatever
    # the other findings.
    return RepairStep.DROP_POINTER if RepairStep.DROP_POINTER in steps else steps.pop()


def _hash(actions: Sequence[PlannedAction]) -> str:
    rows = [
        [each.step.value, str(each.topic), each.subscription, each.bucket, each.ledger_id, each.birth.number]
        for each in actions
    ]
    return hashlib.sha256(json.dumps([_VERSION, rows]).encode()).hexdigest()
