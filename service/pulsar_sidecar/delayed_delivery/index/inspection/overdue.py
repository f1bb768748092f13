"""Messages that are due and not acknowledged, with the reasons that are known for it and what helps.

Invariants: a message counts once for each subscription that has not acknowledged it, and only if its entry was read; a
reason is named only where the broker's own figures show it; a stuck tracker is what remains, and so only perhaps one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import nsmallest
from itertools import islice
from typing import Final

from pulsar_sidecar.delayed_delivery.backlog import (
    DueMessage,
    EntryKind,
    answered,
    classify,
    durable_subscriptions,
    minus,
    partitions_of,
    positions_of,
    waiting_entries,
)
from pulsar_sidecar.delayed_delivery.ports import DelayedEntries, DelayPolicy, DueTimes, EntryAnswer, Topics
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import Cursor, Subscription

_MAX_SAMPLE: Final = 10

PauseLimit = Callable[[TopicName], int | None]
"""How many ranges of acknowledgements a cursor may have before the topic's dispatch may pause (PIP-299); None where it
certainly does not."""


class OverdueReason(Enum):
    """Why messages that are due are not acknowledged, and the remedy."""

    NO_CONSUMER = "no consumer", "connect a consumer, or delete the subscription"
    UNACKED_LIMIT = (
        "unacknowledged limit",
        "have the consumers acknowledge, or raise maxUnackedMessagesPerSubscription or maxUnackedMessagesPerConsumer",
    )
    ACK_STATE_PAUSE = (
        "dispatch paused by acknowledgement state",
        "acknowledge the oldest messages, or raise managedLedgerMaxUnackedRangesToPersist (PIP-299); "
        "`subscriptions ack-state` shows more, and whether the topic has its own policy",
    )
    NO_PERMITS = (
        "no permits",
        "every consumer has as many messages as it asked for: find out why they do not receive, or add consumers",
    )
    NOT_ACKNOWLEDGED = (
        "delivered, not acknowledged",
        "find out why the consumers do not acknowledge; the broker delivers a closed consumer's messages again",
    )
    REPLAY_PENDING = "replay pending", "wait: the broker sends them again; if that lasts, check the consumers"
    STUCK_TRACKER = (
        "perhaps a stuck tracker",
        "if no dispatch rate and no load that is still reading the backlog explains it, unload the topic; if that "
        "helps for a while only, set delayedDeliveryMaxNumBuckets to -1 on the brokers",
    )
    POLICY_DISABLED = (
        "delayed delivery disabled",
        "brokers deliver messages at once, due or not: these wait for their consumers",
    )

    def __init__(self, title: str, remedy: str) -> None:
        self.title = title
        self.remedy = remedy


@dataclass(slots=True)
class Overdue:
    """What of one subscription of a partition, or of a topic without, is overdue.

    Attributes:
        messages: how many.
        first_due_ms: the earliest due time of them.
        last_due_ms: the latest one.
        sample: the first of them.
        unreadable: unacknowledged entries that could not be read.
        reasons: none where none is known.
    """

    topic: TopicName
    subscription: str
    messages: int = 0
    first_due_ms: int | None = None
    last_due_ms: int | None = None
    sample: Sequence[DueMessage] = ()
    unreadable: int = 0
    reasons: Sequence[OverdueReason] = ()

    def count(self, position: Position, answer: EntryAnswer, due_by_ms: int) -> None:
        """Count one entry that the subscription has not acknowledged."""
        kind, messages, due_ms = classify(answer, due_by_ms)
        self.unreadable += kind is EntryKind.UNREADABLE
        if kind is not EntryKind.DUE:
            return
        self.messages += messages
        self.first_due_ms = due_ms if self.first_due_ms is None else min(self.first_due_ms, due_ms)
        self.last_due_ms = due_ms if self.last_due_ms is None else max(self.last_due_ms, due_ms)
        if len(self.sample) < _MAX_SAMPLE or due_ms < self.sample[-1].due_ms:
            self.sample = nsmallest(_MAX_SAMPLE, [*self.sample, DueMessage(due_ms, str(self.topic), position)])


@dataclass(frozen=True, slots=True)
class OverdueReport:
    """What is overdue in a topic.

    Attributes:
        due_by_ms: what was due by then and is unacknowledged counts.
        complete: whether the whole backlog was read.
    """

    now_ms: int
    due_by_ms: int
    subscriptions: tuple[Overdue, ...]
    entries_read: int
    complete: bool


def reasons_of(
    found: Overdue, subscription: Subscription, cursor: Cursor, policy: DelayPolicy, pause_limit: int | None
) -> tuple[OverdueReason, ...]:
    """What the broker's figures show; without a consumer nothing else matters."""
    if not found.messages:
        return ()
    consumers = subscription.consumers
    if not consumers:
        return (OverdueReason.NO_CONSUMER,)
    to_many = subscription.type.dispatches_to_many
    shown = {
        OverdueReason.UNACKED_LIMIT: subscription.blocked or all(each.blocked for each in consumers),
        OverdueReason.ACK_STATE_PAUSE: to_many and pause_limit is not None and cursor.ranges > pause_limit,
        OverdueReason.NO_PERMITS: all(
            each.available_permits is not None and each.available_permits <= 0 for each in consumers
        ),
        OverdueReason.NOT_ACKNOWLEDGED: subscription.unacked_messages > 0,
        OverdueReason.REPLAY_PENDING: subscription.in_replay > 0,
        OverdueReason.POLICY_DISABLED: not policy.enabled,
    }
    reasons = tuple(reason for reason, is_shown in shown.items() if is_shown)
    # It holds messages back that are due, though a consumer asks for some and nothing else stops them.
    if not reasons and to_many and subscription.delayed_messages > 0:
        return (OverdueReason.STUCK_TRACKER,)
    return reasons


@dataclass(frozen=True, slots=True)
class OverdueReader:
    """Reads what is overdue; changes nothing. Asking loads the topic on its broker."""

    topics: Topics
    entries: DelayedEntries
    due_times: DueTimes
    pause_limit: PauseLimit
    clock: Clock

    def overdue(self, topic: TopicName, subscription: str | None, late_ms: int, limit: int) -> OverdueReport:
        """What has been due for so long and is unacknowledged.

        Args:
            topic: with or without partitions.
            subscription: only this one; None for every durable one.
            late_ms: what has been due for less may be on its way.
            limit: so many entries are read at most, from the oldest on in each partition; what buckets (PIP-195) place
                later is not read.

        Raises:
            NotFoundError: there is no such topic, or no such subscription.
            TemporaryError: it could not be read.
        """
        now_ms = self.clock.now_ms()
        due_by_ms = now_ms - late_ms
        counted: list[Overdue] = []
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
        return OverdueReport(now_ms, due_by_ms, tuple(counted), limit - left, complete)

    def _of(
        self, place: TopicName, facts: Mapping[str, Subscription], due_by_ms: int, limit: int
    ) -> tuple[list[Overdue], int, bool]:
        state = self.topics.state(place)
        cursors = {name: state.cursors[name] for name in sorted(facts) if name in state.cursors}
        found = {name: Overdue(place, name) for name in cursors}
        waiting = waiting_entries(state.ledgers, [cursor.acknowledged for cursor in cursors.values()])
        later = self.due_times.outside(place, None, due_by_ms + 1)
        positions = positions_of(minus(waiting, later))
        read = 0
        for position, answer in answered(self.entries, place, islice(positions, limit)):
            read += 1
            for name, cursor in cursors.items():
                if position not in cursor.acknowledged:
                    found[name].count(position, answer, due_by_ms)
        if any(one.messages for one in found.values()):
            policy, pause_limit = self.topics.delay_policy(place), self.pause_limit(place)
            for name, one in found.items():
                one.reasons = reasons_of(one, facts[name], cursors[name], policy, pause_limit)
        return list(found.values()), read, next(positions, None) is None
