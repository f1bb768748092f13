"""`AckStateService` in memory, for tests of its doors, and states as a broker and a store would show them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from pulsar_sidecar.ack_state.limits import AckStateLimits, PauseSettings, TopicPolicy, persisted_ranges
from pulsar_sidecar.ack_state.states import AckState, DetailOptions, ack_state_of
from pulsar_sidecar.ack_state.stored import StoredCursor, StoredPlace
from pulsar_sidecar.ack_state.workflow import PauseRemoval
from pulsar_sidecar.model.errors import NotFoundError, SidecarError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges
from pulsar_sidecar.model.topic_stats import (
    ConnectedConsumer,
    Cursor,
    Subscription,
    SubscriptionType,
    TopicInternalStats,
)

LEDGER, CURSOR_LEDGER = LedgerId(6), LedgerId(7)


def holes(count: int) -> PositionRanges:
    """Every other entry of a ledger, from entry 1 on."""
    ranges = (EntryRange(LEDGER, EntryId(2 * n + 1), EntryId(2 * n + 1)) for n in range(count))
    return PositionRanges(Position(LEDGER, EntryId(-1)), ranges)


def state_of(
    topic: TopicName,
    subscription: str,
    count: int = 30,
    *,
    limit: int = 20,
    policies: PauseSettings | None = None,
    options: DetailOptions | None = None,
) -> AckState:
    """A Shared subscription with so many holes, stored as a broker with that limit stores it."""
    limits = AckStateLimits(max_unacked_ranges=limit)
    memory = holes(count)
    written = persisted_ranges(memory, limits)
    stored = StoredCursor(
        StoredPlace.CURSOR_LEDGER, written, written.range_count, 0, 12 * written.range_count, CURSOR_LEDGER, EntryId(5)
    )
    cursor = Cursor(memory, count, Position(LEDGER, EntryId(2 * count)), CURSOR_LEDGER, EntryId(5))
    internal = TopicInternalStats({LEDGER: 2 * count}, Position(LEDGER, EntryId(2 * count - 1)), {subscription: cursor})
    consumers = tuple(ConnectedConsumer(f"consumer-{number}", "/127.0.0.1:1", None) for number in range(2))
    found = Subscription(
        subscription,
        SubscriptionType.SHARED,
        consumers,
        unacked_messages=4,
        delayed_messages=3,
        backlog=count,
    )
    settings = policies or PauseSettings(TopicPolicy.TRUE, None, False)
    return ack_state_of(topic, found, "127.0.0.1:8080", internal, stored, limits, settings, options or DetailOptions())


@dataclass(slots=True)
class FakeAckStates:
    """Set the public fields, call through a door, look at ``asked``."""

    subscriptions: dict[str, int] = field(default_factory=lambda: {"billing": 30})
    failure: SidecarError | None = None
    policies: PauseSettings = field(default_factory=lambda: PauseSettings(TopicPolicy.TRUE, None, False))
    namespace: bool | None = None
    removal: PauseRemoval = field(default_factory=lambda: PauseRemoval(removed=True, in_effect=False))
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def reset(self) -> None:
        """As new."""
        fresh = FakeAckStates()
        for each in fields(self):
            setattr(self, each.name, getattr(fresh, each.name))

    def ack_states(self, topic: TopicName, subscription: str | None, options: DetailOptions) -> Sequence[AckState]:
        self._ask("ack_states", topic, subscription, options)
        found = [name for name in self.subscriptions if subscription in (None, name)]
        if subscription is not None and not found:
            raise NotFoundError(f"{topic} has no durable subscription {subscription}")
        return [
            state_of(topic, name, self.subscriptions[name], policies=self.policies, options=options) for name in found
        ]

    def topic_pause(self, topic: TopicName) -> PauseSettings:
        self._ask("topic_pause", topic)
        return self.policies

    def enable_topic_pause(self, topic: TopicName) -> None:
        self._ask("enable_topic_pause", topic)

    def remove_topic_pause(self, topic: TopicName, *, force: bool) -> PauseRemoval:
        self._ask("remove_topic_pause", topic, force)
        return self.removal

    def namespace_pause(self, namespace: str) -> bool | None:
        self._ask("namespace_pause", namespace)
        return self.namespace

    def enable_namespace_pause(self, namespace: str) -> None:
        self._ask("enable_namespace_pause", namespace)

    def remove_namespace_pause(self, namespace: str) -> PauseRemoval:
        self._ask("remove_namespace_pause", namespace)
        return self.removal

    def _ask(self, *call: object) -> None:
        self.asked.append(call)
        if self.failure is not None:
            raise self.failure
