"""Deduplication state of topics, from stored state and the policies that brokers report."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pulsar_sidecar.features.deduplication.inspection.policy_changes import Policies, RunningDeduplication
from pulsar_sidecar.features.deduplication.inspection.replay import published_at, replay
from pulsar_sidecar.features.deduplication.policies import BrokerDeduplication, DeduplicationPolicy
from pulsar_sidecar.features.deduplication.ports import StoredMessages
from pulsar_sidecar.features.deduplication.replay_cost import ASSUMPTION, replay_seconds
from pulsar_sidecar.features.deduplication.results import (
    DeduplicationDecision,
    DeduplicationView,
    HeldLedgers,
    PolicyLevel,
    PolicyValues,
    ProducerSequence,
    Replay,
    SnapshotLimits,
    SnapshotView,
)
from pulsar_sidecar.features.deduplication.snapshots import Snapshot, replicated_positions
from pulsar_sidecar.features.deduplication.stored import StoredDeduplication, StoredDeduplications
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.reports.formatting import format_count

_NEARLY_FULL: Final = 0.9
_LEVEL_NAMES: Final = {
    PolicyLevel.TOPIC: "the topic's own policy",
    PolicyLevel.TOPIC_GLOBAL: "the topic's global policy",
    PolicyLevel.NAMESPACE: "the namespace's policy",
    PolicyLevel.BROKER: "the broker's configuration (brokerDeduplicationEnabled)",
}
_SYSTEM_TOPIC: Final = DeduplicationDecision(
    False, None, "brokers never deduplicate a system topic, whatever its policies are"
)

ShowPartition = Callable[[TopicName], list[DeduplicationView]]


@dataclass(frozen=True, slots=True)
class DeduplicationService:
    """Reader of topics' deduplication state; thread-safe.

    Attributes:
        at_once: function that calls the first argument for each of the second, several at a time; results are in order.
    """

    stored: StoredDeduplications
    messages: StoredMessages
    policies: Policies
    running: RunningDeduplication
    clock: Clock
    at_once: Callable[[ShowPartition, Iterable[TopicName]], Iterable[list[DeduplicationView]]]

    def show(self, topic: TopicName, *, ask_broker: bool = False, replay_at_most: int = 0) -> list[DeduplicationView]:
        """Return the stored deduplication state of a topic, one view for each partition; loads nothing.

        Args:
            topic: a partitioned topic, a partition, or a topic without partitions.
            ask_broker: True to read the status from the broker that has the topic loaded.
            replay_at_most: number of entries to replay after the snapshot; 0 for no replay.

        Raises:
            NotFoundError: there is no such topic.
            TemporaryError: the metadata store could not be read.
        """
        places = self.stored.topics.places_of(topic)
        decision, broker = self._decision(topic)
        statuses = self.running.statuses(places, len(places)) if ask_broker else {}

        def views(place: TopicName) -> list[DeduplicationView]:
            return [
                unreadable_view(place, decision, stored.reason, statuses.get(place))
                if isinstance(stored, Unreadable)
                else self._view(stored, decision, broker, statuses.get(place), replay_at_most)
                for _, stored in self.stored.read([place])
            ]

        # Each partition waits for bookies, and a replay for thousands of entries, so partitions are read in parallel.
        found = [view for part in self.at_once(views, places) for view in part]
        if not found:
            raise NotFoundError(f"{topic} has no partition that was ever loaded, or it was deleted just now")
        return found

    def _decision(self, topic: TopicName) -> tuple[DeduplicationDecision, BrokerDeduplication | None]:
        try:
            broker = self.policies.configured(topic)
            if topic.is_system_topic:
                return _SYSTEM_TOPIC, broker
            return _decided(self.policies.of_topic(DeduplicationPolicy.ENABLED, topic)), broker
        except SidecarError as error:
            if topic.is_system_topic:
                return _SYSTEM_TOPIC, None
            return DeduplicationDecision(None, None, f"brokers could not be asked for the policies: {error}"), None

    def _view(
        self,
        stored: StoredDeduplication,
        decision: DeduplicationDecision,
        broker: BrokerDeduplication | None,
        status: str | None,
        replay_at_most: int,
    ) -> DeduplicationView:
        topic, snapshot, since = stored.topic, stored.snapshot, stored.since
        shown: SnapshotView | None = None
        replayed: Replay | Unreadable | None = None
        if isinstance(snapshot, Snapshot):
            covered_until_ms = published_at(self.messages, topic, snapshot.position)
            shown = _shown(snapshot, covered_until_ms, self.clock.now_ms())
            try:
                replayed = replay(self.messages, topic, snapshot, replay_at_most) if replay_at_most else None
            except NotFoundError:
                replayed = Unreadable(f"{topic} was deleted while it was read")
        held_alone = self.stored.held_alone(stored)
        unknown = (each.reason for each in (snapshot, held_alone, replayed) if isinstance(each, Unreadable))
        limits = SnapshotLimits(*((None, None) if broker is None else (broker.max_producers, broker.max_entry_bytes)))
        load_seconds = None if since is None else replay_seconds(since)
        return DeduplicationView(
            topic=str(topic),
            decision=decision,
            status=status,
            snapshot=shown,
            limits=limits,
            since=since,
            # A topic load deletes the cursor of a topic that is not deduplicated.
            replay_seconds=0.0 if load_seconds is not None and decision.enabled is False else load_seconds,
            replay_seconds_by=ASSUMPTION,
            held=_held(stored, stored.held),
            held_alone=_held(stored, None if isinstance(held_alone, Unreadable) else held_alone),
            replay=None if isinstance(replayed, Unreadable) else replayed,
            remarks=(*_remarks(stored, decision, limits, broker), *_remarks_on_replay(replayed)),
            problem="; ".join(dict.fromkeys(filter(None, [*unknown, stored.unmeasured]))) or None,
        )


def unreadable_view(
    topic: TopicName, decision: DeduplicationDecision, problem: str, status: str | None = None
) -> DeduplicationView:
    """Return the view of a topic whose stored state could not be read."""
    return DeduplicationView(
        topic=str(topic),
        decision=decision,
        status=status,
        snapshot=None,
        limits=SnapshotLimits(None, None),
        since=None,
        replay_seconds=None,
        replay_seconds_by=ASSUMPTION,
        held=None,
        held_alone=None,
        replay=None,
        remarks=(),
        problem=problem,
    )


def _decided(values: PolicyValues) -> DeduplicationDecision:
    enabled, level = bool(values.applied), values.decided_by
    return DeduplicationDecision(enabled, level, f"{'enabled' if enabled else 'disabled'} by {_LEVEL_NAMES[level]}")


def _held(stored: StoredDeduplication, ledgers: Sequence[LedgerId] | None) -> HeldLedgers | None:
    return None if ledgers is None else HeldLedgers(tuple(ledgers), stored.size_of(ledgers))


def _shown(snapshot: Snapshot, covered_until_ms: int | None, now_ms: int) -> SnapshotView:
    replicators = tuple(replicated_positions(snapshot.sequences))
    theirs = {name for each in replicators for name in each.names}
    named = sorted(snapshot.sequences.items())
    return SnapshotView(
        position=str(snapshot.position),
        covered_until_ms=covered_until_ms,
        age_ms=None if covered_until_ms is None else max(0, now_ms - covered_until_ms),
        names=len(snapshot.sequences),
        size_bytes=snapshot.size_bytes,
        ledger_id=snapshot.ledger_id,
        entry_id=snapshot.entry_id,
        lost=snapshot.lost,
        producers=tuple(ProducerSequence(*pair) for pair in named if pair[0] not in theirs),
        replicators=replicators,
    )


def _remarks(
    stored: StoredDeduplication,
    decision: DeduplicationDecision,
    limits: SnapshotLimits,
    broker: BrokerDeduplication | None,
) -> Iterator[str]:
    snapshot, since = stored.snapshot, stored.since
    if isinstance(snapshot, Absent):
        if decision.enabled:
            yield (
                "there is no deduplication cursor: the topic has not been loaded since deduplication was enabled, or "
                "its broker could not create one; a topic load begins with an empty map and replays nothing"
            )
        return
    if decision.enabled is False:
        yield (
            "deduplication is off and its cursor still exists: the next topic load deletes the cursor, "
            "and until then no ledger from its position on is trimmed"
        )
    if isinstance(snapshot, Snapshot):
        yield from _remarks_on(snapshot, limits)
    if since is None or broker is None or not decision.enabled:
        return
    if replay_seconds(since) > broker.load_timeout_seconds:
        yield (
            f"a topic load may take longer than brokers allow, {broker.load_timeout_seconds} s "
            "(topicLoadTimeoutSeconds), and then it fails"
        )


def _remarks_on_replay(replayed: Replay | Unreadable | None) -> Iterator[str]:
    rows = replayed.rows if isinstance(replayed, Replay) else ()
    foreign = [row for row in rows if row.replicated_from is not None]
    if foreign:
        names = ", ".join(f"{row.name} ({row.replicated_from})" for row in foreign[:3])
        yield (
            f"replicated entries were replayed, of {format_count(len(foreign), 'producer')} elsewhere: {names}. A "
            "topic load counts them for these names, and then refuses ids up to theirs of producers here with the same "
            "names; a replicator's position stays as in the snapshot"
        )


def _remarks_on(snapshot: Snapshot, limits: SnapshotLimits) -> Iterator[str]:
    if snapshot.lost is not None:
        yield (
            f"{snapshot.lost}: a broker that loads the topic begins at {snapshot.position} with an empty map, "
            "and forgets what was stored before"
        )
    most, names = limits.max_producers, len(snapshot.sequences)
    if most is not None and names >= most:
        yield (
            f"the snapshot is full: it has {format_count(names, 'name')}, and brokers store {most:,} at most "
            "(brokerDeduplicationMaxNumberOfProducers); a topic load drops other producers that published nothing since"
        )
    elif most is not None and names > most * _NEARLY_FULL:
        yield f"the snapshot is nearly full: brokers store {format_count(most, 'name')} at most"
    if limits.max_entry_bytes is not None and snapshot.size_bytes > limits.max_entry_bytes * _NEARLY_FULL:
        most_bytes = limits.max_entry_bytes
        yield (
            f"the snapshot nearly fills an entry of the cursor's ledger: {format_count(most_bytes, 'byte')} "
            "(maxMessageSize)"
        )
    if snapshot.size_bytes > limits.max_node_bytes * _NEARLY_FULL:
        yield (
            "brokers write the snapshot to the metadata store when they unload the topic, and when they change the "
            f"cursor's ledger: check that jute.maxbuffer, {limits.max_node_bytes:,} in a stock ZooKeeper and "
            "10,485,760 bytes with bin/pulsar, is larger"
        )
    negative = sorted(name for name, sequence_id in snapshot.sequences.items() if sequence_id < -1)
    if negative:
        yield (
            f"negative sequence ids, of {', '.join(negative[:3])}: ids from 2^63 on are negative for brokers, "
            "and lower than all others"
        )
