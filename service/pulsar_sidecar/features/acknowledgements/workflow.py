"""Acknowledgement states (PIP-299), for server, dashboard and the metrics of watched topics."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from cachetools import TTLCache

from pulsar_sidecar.features.acknowledgements.limits import PauseSettings
from pulsar_sidecar.features.acknowledgements.ports import PausePolicies, StoredCursors, SubscriptionStats
from pulsar_sidecar.features.acknowledgements.results import AckState, PauseRemoval, TopicPolicy
from pulsar_sidecar.features.acknowledgements.states import DetailOptions, ack_state_of
from pulsar_sidecar.features.acknowledgements.survey import AckStateSurvey, AckStateSurveyor
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, TemporaryError
from pulsar_sidecar.model.names import TopicName

MOST_SUBSCRIPTIONS: Final = 1_000
REMEMBERED_SECONDS: Final = 300.0
SURVEYED_SECONDS: Final = 10.0
_MOST_SURVEYS: Final = 32
_TRIES: Final = 3
_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class Ports:
    """Reads and requests that the feature needs.

    Attributes:
        endangered_source: function that returns the source whose ledgers brokers may delete when they load this topic,
            or None if loading it is harmless. A shadow topic (PIP-180) trims its source's ledgers unless its retention
            is infinite.
    """

    subscriptions: SubscriptionStats
    stored: StoredCursors
    policies: PausePolicies
    endangered_source: Callable[[TopicName], str | None]


class AckStateService:
    """Reads of acknowledgement states, and changes of the policy; thread-safe.

    For the metrics, it keeps a bounded number of recently requested states, each for a bounded time.
    """

    def __init__(self, ports: Ports, clock: Clock) -> None:
        self._ports = ports
        self._recent: TTLCache[tuple[str, str], AckState] = TTLCache(
            MOST_SUBSCRIPTIONS, REMEMBERED_SECONDS, timer=clock.monotonic_seconds
        )
        self._recent_lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, "ack-states")

    def ack_states(self, topic: TopicName, subscription: str | None, options: DetailOptions) -> Sequence[AckState]:
        """Return the states of one subscription, or of all: one for each partition.

        Raises:
            NotFoundError: there is no such topic, or no such subscription.
            TemporaryError: the state could not be read.
        """
        parts = self._parts(topic)
        found = [
            state
            for states in self._threads.map(lambda part: self._of(part, subscription, options), parts)
            for state in states
        ]
        if not found and subscription is not None:
            raise NotFoundError(f"{topic} has no durable subscription {subscription}")
        with self._recent_lock:
            for state in found:
                self._recent[state.topic, state.subscription] = state
        return found

    def recent(self) -> list[AckState]:
        """Return the states that were requested in the last `REMEMBERED_SECONDS`."""
        with self._recent_lock:
            return list(self._recent.values())

    def topic_pause(self, topic: TopicName) -> PauseSettings:
        part = self._parts(topic)[0]
        return self._ports.policies.policies(topic, self._ports.subscriptions.stats(part).broker)

    def enable_topic_pause(self, topic: TopicName) -> None:
        """Let brokers pause dispatch of the topic's subscriptions when their state no longer fits."""
        self._ports.policies.enable_for_topic(topic)

    def remove_topic_pause(self, topic: TopicName, *, force: bool) -> PauseRemoval:
        """Remove the topic's own policy.

        Raises:
            ConflictError: the broker would store false, and so override a true of the namespace or the broker; not
                raised with ``force``.
        """
        policies = self.topic_pause(topic)
        inherited = PauseSettings(TopicPolicy.FALSE_OR_UNSET, policies.namespace, policies.broker).enabled is not False
        if policies.topic is not TopicPolicy.TRUE and not force:
            return PauseRemoval(removed=False, in_effect=policies.enabled, remark=_NOTHING_TO_REMOVE)
        if inherited and not force:
            raise ConflictError(_WOULD_OVERRIDE)
        self._ports.policies.remove_from_topic(topic)
        return PauseRemoval(removed=False, in_effect=False, remark=_OVERRIDES if inherited else _STORES_FALSE)

    def namespace_pause(self, namespace: str) -> bool | None:
        """Return the namespace's policy, None if it has none."""
        return self._ports.policies.of_namespace(namespace)

    def enable_namespace_pause(self, namespace: str) -> None:
        """Let brokers pause dispatch on the namespace's topics, unless their own policies differ."""
        self._ports.policies.enable_for_namespace(namespace)

    def remove_namespace_pause(self, namespace: str) -> PauseRemoval:
        """Remove the namespace's policy."""
        left = self._ports.policies.remove_from_namespace(namespace)
        if left is not None:
            return PauseRemoval(removed=False, in_effect=left, remark=_CHANGED_MEANWHILE)
        return PauseRemoval(removed=True, in_effect=self._ports.subscriptions.limits(None).pause_enabled)

    def close(self) -> None:
        """Release the threads; idempotent."""
        self._threads.shutdown(cancel_futures=True)

    def _parts(self, topic: TopicName) -> list[TopicName]:
        source = self._ports.endangered_source(topic)
        if source is not None:
            raise ConflictError(
                f"{topic} is a shadow of {source} without infinite retention: brokers that load it, as this request "
                "makes them do, may delete the source's ledgers; set infinite retention on it first: "
                f"pulsar-admin topicPolicies set-retention --size -1 --time -1 {topic.base}"
            )
        partitions = self._ports.subscriptions.partitions(topic)
        if partitions is None:
            raise NotFoundError(f"there is no topic {topic}")
        return [topic.partition(index) for index in range(partitions)] or [topic]

    def _of(self, topic: TopicName, subscription: str | None, options: DetailOptions) -> list[AckState]:
        """Read the states, and again if a cursor moved to another ledger between the two reads."""
        failure = TemporaryError(f"the cursors of {topic} cannot be read; try again")
        for _ in range(_TRIES):
            try:
                return self._once(topic, subscription, options)
            except TemporaryError as error:
                failure = error
            except NotFoundError:
                if topic.partition_index is None:
                    raise
                return []  # a partition that no client has used yet
        raise failure

    def _once(self, topic: TopicName, subscription: str | None, options: DetailOptions) -> list[AckState]:
        ports = self._ports
        stats = ports.subscriptions.stats(topic)
        # Read after the subscriptions, so that no subscription is newer than the cursors.
        internal = ports.subscriptions.internal_stats(topic)
        wanted = [one for one in stats.subscriptions.values() if one.durable and subscription in (None, one.name)]
        if not wanted:
            return []
        policies = ports.policies.policies(topic, stats.broker)
        limits = ports.subscriptions.limits(stats.broker)
        states = []
        for one in wanted:
            stored = ports.stored.stored(topic, one.name, internal.ledgers, internal.cursor(one.name))
            states.append(ack_state_of(topic, one, stats.broker, internal, stored, limits, policies, options))
        return states


class CachedSurveys:
    """Cache of surveys: one runs at a time, and its result serves all pages and readers for some seconds."""

    def __init__(self, surveyor: AckStateSurveyor, clock: Clock) -> None:
        self._surveyor = surveyor
        self._lock = threading.Lock()
        self._known: TTLCache[TopicName | str | None, AckStateSurvey] = TTLCache(
            _MOST_SURVEYS, SURVEYED_SECONDS, timer=clock.monotonic_seconds
        )

    def survey(self, scope: TopicName | str | None) -> AckStateSurvey:
        """Return a survey like `AckStateSurveyor.survey`; ``as_of_ms`` is the time of its reading."""
        with self._lock:
            known = self._known.get(scope)
            if known is None:
                known = self._known[scope] = self._surveyor.survey(scope)
            return known


_NOTHING_TO_REMOVE = (
    "the topic's own policy is not true, so nothing was changed; brokers do not distinguish false from unset"
)
_WOULD_OVERRIDE = (
    "the broker would store false instead of removing the topic's policy, and so override the true of its namespace or "
    "its broker; leave it, or use force to switch the topic off"
)
_OVERRIDES = "the broker stores false instead, which overrides its namespace's and its broker's true"
_STORES_FALSE = (
    "the broker stores false instead; as long as neither namespace nor broker has true, that is the same as no policy"
)
_CHANGED_MEANWHILE = "other clients kept changing the namespace's policies meanwhile; remove the policy again"
