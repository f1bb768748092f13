"""Asks brokers and stores for acknowledgement states, and remembers a bounded number of them for the metrics."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from pulsar_sidecar.ack_state.judging import AckState, Wishes, judge
from pulsar_sidecar.ack_state.pausing import Policies, TopicPolicy
from pulsar_sidecar.ack_state.ports import PausePolicies, Shadows, StoredCursors, Subscriptions
from pulsar_sidecar.ack_state.service import PauseRemoval
from pulsar_sidecar.ack_state.workflow.remembering import Remembered
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, TemporaryError
from pulsar_sidecar.model.names import TopicName

_TRIES: Final = 3
_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class World:
    """The room's ports."""

    subscriptions: Subscriptions
    stored: StoredCursors
    policies: PausePolicies
    shadows: Shadows


class AckStates:
    """`AckStateService`; safe for use by several threads."""

    def __init__(self, world: World, remembered: Remembered) -> None:
        self._world = world
        self._remembered = remembered
        self._threads = ThreadPoolExecutor(_THREADS, "ack-states")

    def ack_states(self, topic: TopicName, subscription: str | None, wishes: Wishes) -> Sequence[AckState]:
        """See `AckStateService.ack_states`."""
        parts = self._parts(topic)
        found = [
            state
            for states in self._threads.map(lambda part: self._of(part, subscription, wishes), parts)
            for state in states
        ]
        if not found and subscription is not None:
            raise NotFoundError(f"{topic} has no durable subscription {subscription}")
        self._remembered.remember(found)
        return found

    def topic_pause(self, topic: TopicName) -> Policies:
        """See `AckStateService.topic_pause`."""
        part = self._parts(topic)[0]
        return self._world.policies.policies(topic, self._world.subscriptions.stats(part).broker)

    def enable_topic_pause(self, topic: TopicName) -> None:
        """See `AckStateService.enable_topic_pause`."""
        self._world.policies.enable_for_topic(topic)

    def remove_topic_pause(self, topic: TopicName, *, force: bool) -> PauseRemoval:
        """See `AckStateService.remove_topic_pause`."""
        policies = self.topic_pause(topic)
        inherited = Policies(TopicPolicy.FALSE_OR_UNSET, policies.namespace, policies.broker).enabled is not False
        if policies.topic is not TopicPolicy.TRUE and not force:
            return PauseRemoval(removed=False, in_effect=policies.enabled, remark=_NOTHING_TO_REMOVE)
        if inherited and not force:
            raise ConflictError(_WOULD_OVERRIDE)
        self._world.policies.remove_from_topic(topic)
        return PauseRemoval(removed=False, in_effect=False, remark=_OVERRIDES if inherited else _STORES_FALSE)

    def namespace_pause(self, namespace: str) -> bool | None:
        """See `AckStateService.namespace_pause`."""
        return self._world.policies.of_namespace(namespace)

    def enable_namespace_pause(self, namespace: str) -> None:
        """See `AckStateService.enable_namespace_pause`."""
        self._world.policies.enable_for_namespace(namespace)

    def remove_namespace_pause(self, namespace: str) -> PauseRemoval:
        """See `AckStateService.remove_namespace_pause`."""
        says = self._world.policies.remove_from_namespace(namespace)
        if says is not None:
            return PauseRemoval(removed=False, in_effect=says, remark=_CHANGED_MEANWHILE)
        return PauseRemoval(removed=True, in_effect=self._world.subscriptions.limits(None).pause_enabled)

    def close(self) -> None:
        """Let the threads go; idempotent."""
        self._threads.shutdown(cancel_futures=True)

    def _parts(self, topic: TopicName) -> list[TopicName]:
        self._refuse_to_endanger(topic)
        partitions = self._world.subscriptions.partitions(topic)
        if partitions is None:
            raise NotFoundError(f"there is no topic {topic}")
        return [topic.partition(index) for index in range(partitions)] or [topic]

    def _refuse_to_endanger(self, topic: TopicName) -> None:
        source = self._world.shadows.endangered_source(topic)
        if source is not None:
            raise ConflictError(
                f"{topic} is a shadow of {source} without infinite retention: brokers that load it, as this question "
                "makes them do, may delete the source's ledgers; set infinite retention on it first: "
                f"pulsar-admin topicPolicies set-retention --size -1 --time -1 {topic.base}"
            )

    def _of(self, topic: TopicName, subscription: str | None, wishes: Wishes) -> list[AckState]:
        """Look again when a cursor moved to another ledger between the two looks."""
        failure = TemporaryError(f"the cursors of {topic} cannot be read; try again")
        for _ in range(_TRIES):
            try:
                return self._once(topic, subscription, wishes)
            except TemporaryError as error:
                failure = error
            except NotFoundError:
                if topic.partition_index is None:
                    raise
                return []  # a partition that nobody has used yet
        raise failure

    def _once(self, topic: TopicName, subscription: str | None, wishes: Wishes) -> list[AckState]:
        world = self._world
        stats = world.subscriptions.stats(topic)
        # Asked for after the subscriptions, so that no subscription is newer than the cursors.
        internal = world.subscriptions.internal_stats(topic)
        wanted = [one for one in stats.subscriptions.values() if one.durable and subscription in (None, one.name)]
        if not wanted:
            return []
        policies = world.policies.policies(topic, stats.broker)
        limits = world.subscriptions.limits(stats.broker)
        states = []
        for one in wanted:
            stored = world.stored.stored(topic, one.name, internal.ledgers, internal.cursor(one.name))
            states.append(judge(topic, one, stats.broker, internal, stored, limits, policies, wishes))
        return states


_NOTHING_TO_REMOVE = "the topic's own policy is not true, so nothing was changed; brokers do not tell false from unset"
_WOULD_OVERRIDE = (
    "the broker would store false instead of removing the topic's policy, and so switch off what its namespace or its "
    "broker say; leave it, or use force to switch the topic off"
)
_OVERRIDES = "the broker stores false instead, which overrides its namespace's and its broker's true"
_STORES_FALSE = (
    "the broker stores false instead; as long as neither namespace nor broker say true, that is the same as nothing"
)
_CHANGED_MEANWHILE = "the namespace's policies were changed again and again meanwhile; remove it again"
