"""A broker that keeps acknowledgements in memory and stores as many of them as its limit allows (PIP-299).

One object implements every port of the feature of acknowledgement states; it follows ``ManagedCursorImpl`` of 4.0.8.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits, PauseSettings, persisted_ranges
from pulsar_sidecar.features.acknowledgements.results import AckState, StoredPlace, TopicPolicy
from pulsar_sidecar.features.acknowledgements.states import DetailOptions
from pulsar_sidecar.features.acknowledgements.stored import StoredCursor
from pulsar_sidecar.features.acknowledgements.workflow import AckStateService, Ports
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import (
    ConnectedConsumer,
    Cursor,
    Subscription,
    SubscriptionType,
    TopicInternalStats,
    TopicStats,
)

from tests.fakes.clock import FakeClock
from tests.fakes.positions import with_positions

LEDGER, CURSOR_LEDGER = LedgerId(6), LedgerId(7)
FIRST_ENTRY = EntryId(0)
BUSY: Mapping[str, Any] = {
    "consumers": tuple(ConnectedConsumer(f"consumer-{number}", "/127.0.0.1:1", None) for number in range(2)),
    "unacked_messages": 4,
    "delayed_messages": 3,
    "backlog": 30,
}
"""Fields of the statistics of a subscription with consumers."""


@dataclass(slots=True)
class FakeCursor:
    memory: PositionRanges = field(default_factory=lambda: PositionRanges(Position(LEDGER, EntryId(-1))))
    written: PositionRanges = field(default_factory=lambda: PositionRanges(Position(LEDGER, EntryId(-1))))
    ledger: LedgerId = CURSOR_LEDGER
    entry: EntryId = FIRST_ENTRY
    type: str = "Shared"
    stats: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class FakeTopic:
    entries: int = 0
    subscriptions: dict[str, FakeCursor] = field(default_factory=dict)
    pause: bool | None = None


class FakeAcknowledgingBroker:
    """A broker with topics by name; ``partitioned`` has the numbers of partitions of partitioned topics."""

    def __init__(self, limits: AckStateLimits | None = None) -> None:
        self.limits_ = limits or AckStateLimits()
        self.topics: dict[TopicName, FakeTopic] = {}
        self.partitioned: dict[TopicName, int] = {}
        self.endangered: dict[TopicName, str] = {}
        """Sources that shadows trim, by shadow."""
        self.namespaces: dict[str, bool | None] = {"public/default": None}
        self.removes = True
        """False if a namespace's policies change before every write."""
        self.before: Callable[[str], None] = lambda call: None

    def endangered_source(self, topic: TopicName) -> str | None:
        return self.endangered.get(topic)

    def service(self, clock: FakeClock | None = None) -> AckStateService:
        return AckStateService(Ports(self, self, self, self.endangered_source), clock or FakeClock())

    # --- actions of tests ------------------------------------------------------------------------------------------

    def dig(self, topic: TopicName, subscription: str, holes: int) -> None:
        """Add a busy subscription of a topic, which has acknowledged and stored every other entry."""
        found = self.topics.setdefault(topic, FakeTopic(2 * holes))
        found.subscriptions[subscription] = FakeCursor(stats=BUSY)
        self.namespaces.setdefault(topic.namespace, None)
        self.acknowledge(topic, subscription, *range(1, 2 * holes, 2))
        self.store(topic, subscription)

    def acknowledge(self, topic: TopicName, subscription: str, *entries: int) -> None:
        cursor = self.topics[topic].subscriptions[subscription]
        cursor.memory = with_positions(cursor.memory, (Position(LEDGER, EntryId(entry)) for entry in entries))

    def store(self, topic: TopicName, subscription: str) -> None:
        """Store the ranges that fit in a new entry."""
        cursor = self.topics[topic].subscriptions[subscription]
        cursor.written, cursor.entry = persisted_ranges(cursor.memory, self.limits_), EntryId(cursor.entry + 1)

    def crash(self) -> None:
        for topic in self.topics.values():
            for cursor in topic.subscriptions.values():
                cursor.memory = cursor.written

    # --- SubscriptionStats ----------------------------------------------------------------------------------------

    def partitions(self, topic: TopicName) -> int | None:
        self.before("partitions")
        return self.partitioned.get(topic, 0 if topic in self.topics else None)

    def stats(self, topic: TopicName) -> TopicStats:
        self.before("stats")
        found = self._existing(topic).subscriptions
        return TopicStats(
            "127.0.0.1:8080",
            {name: Subscription(name, SubscriptionType(each.type), **each.stats) for name, each in found.items()},
        )

    def internal_stats(self, topic: TopicName) -> TopicInternalStats:
        self.before("internal stats")
        found = self._existing(topic)
        return TopicInternalStats(
            ledgers={LEDGER: found.entries},
            last_confirmed=Position(LEDGER, EntryId(found.entries - 1)),
            cursors={name: _in_memory(cursor, found.entries) for name, cursor in found.subscriptions.items()},
        )

    def limits(self, broker: str | None) -> AckStateLimits:
        return self.limits_

    # --- StoredCursors ---------------------------------------------------------------------------------------------

    def stored(
        self,
        topic: TopicName,
        subscription: str,
        lengths: Mapping[LedgerId, int],
        cursor: Cursor,
    ) -> StoredCursor | None:
        self.before("stored")
        found = self._existing(topic).subscriptions.get(subscription)
        if found is None:
            return None
        return StoredCursor(
            StoredPlace.CURSOR_LEDGER, found.written, found.written.range_count, 0, 1, found.ledger, found.entry
        )

    # --- PausePolicies ---------------------------------------------------------------------------------------------

    def policies(self, topic: TopicName, broker: str | None) -> PauseSettings:
        pause = self._existing(topic).pause
        own = TopicPolicy.TRUE if pause else TopicPolicy.FALSE_OR_UNSET
        return PauseSettings(own, self.of_namespace(topic.namespace), self.limits_.pause_enabled)

    def of_namespace(self, namespace: str) -> bool | None:
        if namespace not in self.namespaces:
            raise NotFoundError(f"there is no namespace {namespace}")
        return self.namespaces[namespace]

    def enable_for_namespace(self, namespace: str) -> None:
        self.of_namespace(namespace)
        self.namespaces[namespace] = True

    def remove_from_namespace(self, namespace: str) -> bool | None:
        self.of_namespace(namespace)
        self.namespaces[namespace] = None if self.removes else False
        return self.namespaces[namespace]

    def enable_for_topic(self, topic: TopicName) -> None:
        self._existing(topic).pause = True

    def remove_from_topic(self, topic: TopicName) -> None:
        self._existing(topic).pause = False

    def _existing(self, topic: TopicName) -> FakeTopic:
        if topic not in self.topics:
            raise NotFoundError(f"there is no topic {topic}")
        return self.topics[topic]


def _in_memory(cursor: FakeCursor, entries: int) -> Cursor:
    return Cursor(
        acknowledged=cursor.memory,
        ranges=cursor.memory.range_count,
        read_position=Position(LEDGER, EntryId(entries)),
        ledger=cursor.ledger,
        ledger_last_entry=cursor.entry,
        properties=cursor.properties,
    )


def state_of(topic: TopicName, subscription: str = "s", *, is_told: bool = True) -> AckState:
    """Return a subscription with 30 holes, of which 20 fit; it is paused, or might be unless ``is_told``."""
    broker = FakeAcknowledgingBroker(AckStateLimits(max_unacked_ranges=20, pause_enabled=not is_told))
    broker.dig(topic, subscription, 30)
    broker.topics[topic].pause = is_told
    with closing(broker.service()) as states:
        (state,) = states.ack_states(topic, subscription, DetailOptions())
    return state
