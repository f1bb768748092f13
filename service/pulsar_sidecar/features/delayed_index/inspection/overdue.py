"""Messages that are due and unacknowledged, with the known reasons and remedies.

Invariants: a message counts once for each subscription that has not acknowledged it, and only if its entry was read; a
reason is reported only if the broker's own figures show it; a stuck tracker is only inferred if no other reason
remains.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Final

from pulsar_sidecar.backlog.ports import DelayedEntries, DelayPolicy, DueTimes, EntryAnswer, Topics
from pulsar_sidecar.backlog.waiting import (
    EntryKind,
    classify,
    durable_subscriptions,
    minus,
    partitions_of,
    positions_of,
    waiting_entries,
    with_metadata,
)
from pulsar_sidecar.features.delayed_index.results.inspection import (
    OverdueMessage,
    OverdueMessages,
    OverdueReason,
    OverdueReport,
)
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import Cursor, Subscription

_MAX_SAMPLE: Final = 10

PauseLimit = Callable[[TopicName], int | None]
"""Function that returns the number of acknowledgement ranges above which a topic's dispatch may pause (PIP-299); None
if it certainly never pauses."""


NO_CONSUMER: Final = OverdueReason("no consumer", "connect a consumer, or delete the subscription")
UNACKED_LIMIT: Final = OverdueReason(
    "unacknowledged limit",
    "have the consumers acknowledge, or raise maxUnackedMessagesPerSubscription or maxUnackedMessagesPerConsumer",
)
ACK_STATE_PAUSE: Final = OverdueReason(
    "dispatch paused by acknowledgement state",
    "acknowledge the oldest messages, or raise managedLedgerMaxUnackedRangesToPersist (PIP-299); "
    "`subscriptions ack-state` shows more, and whether the topic has its own policy",
)
NO_PERMITS: Final = OverdueReason(
    "no permits",
    "every consumer has as many messages as it asked for: find out why they do not receive, or add consumers",
)
NOT_ACKNOWLEDGED: Final = OverdueReason(
    "delivered, not acknowledged",
    "find out why the consumers do not acknowledge; the broker delivers a closed consumer's messages again",
)
REPLAY_PENDING: Final = OverdueReason(
    "replay pending", "wait: the broker sends them again; if that lasts, check the consumers"
)
STUCK_TRACKER: Final = OverdueReason(
    "perhaps a stuck tracker",
    "if neither a dispatch rate nor a topic load that still reads the backlog explains it, unload the topic; if that "
    "helps for a while only, set delayedDeliveryMaxNumBuckets to -1 on the brokers",
)
POLICY_DISABLED: Final = OverdueReason(
    "delayed delivery disabled", "brokers deliver messages at once, due or not: these wait for their consumers"
)


@dataclass(slots=True)
class OverdueBacklog:
    """Overdue messages of one subscription of a partition, or of a topic without partitions.

    Attributes:
        messages: number of overdue messages.
        first_due_ms: earliest due time, milliseconds since the epoch.
        last_due_ms: latest due time, milliseconds since the epoch.
        sample: due times and positions of the first overdue messages.
        unreadable: number of unacknowledged entries that could not be read.
        reasons: known reasons, possibly none.
    """

    topic: TopicName
    subscription: str
    messages: int = 0
    first_due_ms: int | None = None
    last_due_ms: int | None = None
    sample: Sequence[tuple[int, Position]] = ()
    unreadable: int = 0
    reasons: tuple[OverdueReason, ...] = ()

    def count(self, position: Position, answer: EntryAnswer, due_by_ms: int) -> None:
        """Count one entry that the subscription has not acknowledged."""
        kind, messages, due_ms = classify(answer, due_by_ms)
        self.unreadable += kind is EntryKind.UNREADABLE
        if kind is not EntryKind.DUE:
            return
        self.messages += messages
        self.first_due_ms = due_ms if self.first_due_ms is None else min(self.first_due_ms, due_ms)
        self.last_due_ms = due_ms if self.last_due_ms is None else max(self.last_due_ms, due_ms)
        if len(self.sample) < _MAX_SAMPLE or due_ms < self.sample[-1][0]:
            self.sample = nsmallest(_MAX_SAMPLE, [*self.sample, (due_ms, position)])

    def result(self) -> OverdueMessages:
        return OverdueMessages(
            topic=str(self.topic),
            subscription=self.subscription,
            messages=self.messages,
            first_due_ms=self.first_due_ms,
            last_due_ms=self.last_due_ms,
            unreadable=self.unreadable,
            reasons=self.reasons,
            sample=tuple(OverdueMessage(str(position), due_ms) for due_ms, position in self.sample),
        )


def reasons_of(
    found: OverdueBacklog, subscription: Subscription, cursor: Cursor, policy: DelayPolicy, pause_limit: int | None
) -> tuple[OverdueReason, ...]:
    """Return the reasons that the broker's figures show; without a consumer, only that one."""
    if not found.messages:
        return ()
    consumers = subscription.consumers
    if not consumers:
        return (NO_CONSUMER,)
    to_many = subscription.type.dispatches_to_many
    shown = {
        UNACKED_LIMIT: subscription.blocked or all(each.blocked for each in consumers),
        ACK_STATE_PAUSE: to_many and pause_limit is not None and cursor.ranges > pause_limit,
        NO_PERMITS: all(each.available_permits is not None and each.available_permits <= 0 for each in consumers),
        NOT_ACKNOWLEDGED: subscription.unacked_messages > 0,
        REPLAY_PENDING: subscription.in_replay > 0,
        POLICY_DISABLED: not policy.enabled,
    }
    reasons = tuple(reason for reason, is_shown in shown.items() if is_shown)
    # The tracker holds due messages back, although a consumer has permits and nothing else stops dispatch.
    if not reasons and to_many and subscription.delayed_messages > 0:
        return (STUCK_TRACKER,)
    return reasons


@dataclass(frozen=True, slots=True)
class OverdueReader:
    """Reader of overdue messages; changes nothing. Reading loads the topic on its broker."""

    topics: Topics
    entries: DelayedEntries
    due_times: DueTimes
    pause_limit: PauseLimit
    clock: Clock

    def overdue(self, topic: TopicName, subscription: str | None, late_ms: int, limit: int) -> OverdueReport:
        """Return the messages that have been due for at least ``late_ms`` and are unacknowledged.

        A message due for less may be in delivery. At most ``limit`` entries are read, from the oldest in each partition
        on, and none that buckets (PIP-195) show as due later.

        Raises:
            NotFoundError: there is no such topic, or no such subscription.
            TemporaryError: the topic could not be read.
        """
        now_ms = self.clock.now_ms()
        due_by_ms = now_ms - late_ms
        counted: list[OverdueBacklog] = []
        left, complete = limit, True
        for place in partitions_of(self.topics, topic):
            facts = durable_subscriptions(self.topics, topic, place, subscription)
            if not facts:
                continue
            found, read, is_whole = self._of(place, facts, due_by_ms, left)
            counted += found
            left -= read
            complete &= is_whole
        if subscription is not None and not counted:
            raise NotFoundError(f"{topic} has no durable subscription {subscription}")
        return OverdueReport(now_ms, due_by_ms, limit - left, complete, tuple(one.result() for one in counted))

    def _of(
        self, place: TopicName, facts: Mapping[str, Subscription], due_by_ms: int, limit: int
    ) -> tuple[list[OverdueBacklog], int, bool]:
        state = self.topics.state(place)
        cursors = {name: state.cursors[name] for name in sorted(facts) if name in state.cursors}
        found = {name: OverdueBacklog(place, name) for name in cursors}
        waiting = waiting_entries(state.ledgers, [cursor.acknowledged for cursor in cursors.values()])
        later = self.due_times.outside(place, None, due_by_ms + 1)
        positions = positions_of(minus(waiting, later))
        read = 0
        for position, answer in with_metadata(self.entries, place, islice(positions, limit)):
            read += 1
            for name, cursor in cursors.items():
                if position not in cursor.acknowledged:
                    found[name].count(position, answer, due_by_ms)
        if any(one.messages for one in found.values()):
            policy, pause_limit = self.topics.delay_policy(place), self.pause_limit(place)
            for name, one in found.items():
                one.reasons = reasons_of(one, facts[name], cursors[name], policy, pause_limit)
        return list(found.values()), read, next(positions, None) is None
