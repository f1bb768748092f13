"""The state of deduplication as the doors ask for it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pulsar_sidecar.deduplication.inspection.policy_changes import Policies, RunningDeduplication
from pulsar_sidecar.deduplication.inspection.replay import Replay, published_at, replay
from pulsar_sidecar.deduplication.inspection.show import (
    SYSTEM_TOPIC,
    DeduplicationDecision,
    DeduplicationView,
    SnapshotLimits,
    view_of,
)
from pulsar_sidecar.deduplication.policies import BrokerDeduplication, DeduplicationPolicy
from pulsar_sidecar.deduplication.ports import StoredMessages
from pulsar_sidecar.deduplication.snapshots import Snapshot
from pulsar_sidecar.deduplication.stored import StoredDeduplication, StoredDeduplications
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, SidecarError
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName

ShowPartition = Callable[[TopicName], list[DeduplicationView]]


@dataclass(frozen=True, slots=True)
class DeduplicationService:
    """Answers questions about deduplication; safe for use by several threads.

    Attributes:
        at_once: calls the first for each of the second, several at a time, and answers in their order.
    """

    stored: StoredDeduplications
    messages: StoredMessages
    policies: Policies
    running: RunningDeduplication
    clock: Clock
    at_once: Callable[[ShowPartition, Iterable[TopicName]], Iterable[list[DeduplicationView]]]

    def show(self, topic: TopicName, *, ask_broker: bool = False, replay_at_most: int = 0) -> list[DeduplicationView]:
        """What is stored of a topic's deduplication, one answer for each partition; loads nothing.

        Args:
            topic: a partitioned topic, a partition, or a topic without partitions.
            ask_broker: ask the broker that has the topic loaded for its status.
            replay_at_most: replay so many entries after the snapshot; 0 for no replay.

        Raises:
            NotFoundError: there is no such topic.
            TemporaryError: the metadata store could not be asked.
        """
        places = self.stored.topics.places_of(topic)
        decision, broker = self._decision(topic)
        statuses = self.running.statuses(places, len(places)) if ask_broker else {}

        def views(place: TopicName) -> list[DeduplicationView]:
            return [
                self._view(place, stored, decision, broker, statuses.get(place), replay_at_most)
                for _, stored in self.stored.read([place])
            ]

        # Each partition waits for bookies, and a replay for thousands of entries: the slowest decides, not their sum.
        found = [view for part in self.at_once(views, places) for view in part]
        if not found:
            raise NotFoundError(f"{topic} has no partition that was ever loaded, or it was deleted just now")
        return found

    def _decision(self, topic: TopicName) -> tuple[DeduplicationDecision, BrokerDeduplication | None]:
        try:
            broker = self.policies.configured(topic)
            if topic.is_system_topic:
                return SYSTEM_TOPIC, broker
            return DeduplicationDecision.of(self.policies.of_topic(DeduplicationPolicy.ENABLED, topic)), broker
        except SidecarError as error:
            if topic.is_system_topic:
                return SYSTEM_TOPIC, None
            return DeduplicationDecision(None, f"brokers could not be asked for the policies: {error}"), None

    def _view(
        self,
        place: TopicName,
        stored: StoredDeduplication | Unreadable,
        decision: DeduplicationDecision,
        broker: BrokerDeduplication | None,
        status: str | None,
        replay_at_most: int,
    ) -> DeduplicationView:
        if isinstance(stored, Unreadable):
            return DeduplicationView(place, decision, status, None, SnapshotLimits(None, None), problem=stored.reason)
        snapshot = stored.snapshot
        covered_until_ms: int | None = None
        replayed: Replay | Unreadable | None = None
        if isinstance(snapshot, Snapshot):
            covered_until_ms = published_at(self.messages, place, snapshot.position)
            try:
                replayed = replay(self.messages, place, snapshot, replay_at_most) if replay_at_most else None
            except NotFoundError:
                replayed = Unreadable(f"{place} was deleted while it was read")
        return view_of(
            stored,
            decision,
            broker,
            status=status,
            covered_until_ms=covered_until_ms,
            now_ms=self.clock.now_ms(),
            held_alone=self.stored.held_alone(stored),
            replayed=replayed,
        )
