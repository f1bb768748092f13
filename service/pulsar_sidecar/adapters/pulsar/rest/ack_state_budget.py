"""The room left in a cursor's acknowledgement state, for those who are about to acknowledge much."""

import threading
from typing import Final

from pulsar_sidecar.ack_state.pausing import PauseState, Policies, pause_state
from pulsar_sidecar.adapters.pulsar.rest.pause_policies import BrokerPausePolicies
from pulsar_sidecar.adapters.pulsar.rest.subscription_cursors import BrokerSubscriptions
from pulsar_sidecar.delayed_delivery.ports import AckStateRoom
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.names import TopicName

_REMEMBERED_SECONDS: Final = 10.0
_MOST_REMEMBERED: Final = 10_000


class BrokerAckStateBudget:
    """`delayed_delivery.ports.AckStateBudget`; policies may be some seconds old."""

    def __init__(self, subscriptions: BrokerSubscriptions, policies: BrokerPausePolicies, clock: Clock) -> None:
        self._subscriptions = subscriptions
        self._policies = policies
        self._clock = clock
        self._known: dict[TopicName, tuple[float, Policies]] = {}
        self._lock = threading.Lock()

    def room(self, topic: TopicName, subscription: str, *, ranges: int | None = None) -> AckStateRoom:
        """See `AckStateBudget.room`; what a caller counted himself says nothing about a pause."""
        if ranges is not None:
            return AckStateRoom(ranges, self._subscriptions.limits(None).max_unacked_ranges)
        stats = self._subscriptions.stats(topic)
        found = stats.subscriptions.get(subscription)
        if found is None or not found.durable:
            raise NotFoundError(f"{topic} has no durable subscription {subscription}")
        cursor = self._subscriptions.internal_stats(topic).cursor(subscription)
        limits = self._subscriptions.limits(stats.broker)
        paused = False
        if cursor.ranges > limits.max_unacked_ranges:
            state = pause_state(found.type, cursor.ranges, self._of(topic, stats.broker), limits)
            paused = state in (PauseState.IN_FORCE, PauseState.UNKNOWN)
        return AckStateRoom(cursor.ranges, limits.max_unacked_ranges, paused)

    def _of(self, topic: TopicName, broker: str | None) -> Policies:
        now = self._clock.monotonic_seconds()
        with self._lock:
            read, policies = self._known.get(topic, (float("-inf"), None))
        if policies is None or now - read > _REMEMBERED_SECONDS:
            policies = self._policies.policies(topic, broker)
            with self._lock:
                if len(self._known) >= _MOST_REMEMBERED:
                    self._known.clear()
                self._known[topic] = (now, policies)
        return policies
