"""What waits in a subscription's backlog, counted by due time.

Invariant: every entry of a page is counted once for each subscription that has not acknowledged it, as exactly one of
delayed, due, undelayed and unreadable; a chunked message counts with its last chunk.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from pulsar_sidecar.delayed_delivery.cancel.facts import EntryAnswer, EntryFacts
from pulsar_sidecar.delayed_delivery.cancel.select import waiting_positions
from pulsar_sidecar.delayed_delivery.ports import DelayedEntries, Topics
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import SYSTEM_SUBSCRIPTIONS, SubscriptionType, TopicInternalStats

_READ_AT_ONCE: Final = 10_000
BEFORE_EVERYTHING: Final = Position(LedgerId(0), EntryId(-1))
_PLACE: Final = re.compile(r"(\d{1,9}):(\d{1,18}):(-1|\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class DueMessage:
    """One waiting message; the order is by due time."""

    due_ms: int
    topic: str
    position: Position


@dataclass(slots=True)
class Waiting:
    """One subscription's part of a page.

    Attributes:
        delayed: messages that are not due yet.
        due: delayed messages that are due and not acknowledged: being delivered, or delivered already.
        undelayed: messages without a due time.
        unreadable: entries that could not be read.
        by_due_second: delayed messages by the second, since the epoch, at which they are due.
    """

    subscription: str
    type: SubscriptionType
    delayed: int = 0
    due: int = 0
    undelayed: int = 0
    unreadable: int = 0
    by_due_second: Counter[int] = field(default_factory=Counter)
    next: DueMessage | None = None
    last: DueMessage | None = None

    def count(self, topic: str, position: Position, answer: EntryAnswer, now_ms: int) -> None:
        """Take one entry into account that the subscription has not acknowledged."""
        if not isinstance(answer, EntryFacts):
            self.unreadable += 1
            return
        if answer.marker or (answer.chunk is not None and answer.chunk.chunk_id != answer.chunk.total - 1):
            return
        messages = answer.messages_in_batch or 1
        if answer.deliver_at_ms is None:
            self.undelayed += messages
        elif answer.deliver_at_ms <= now_ms:
            self.due += messages
        else:
            self._add(DueMessage(answer.deliver_at_ms, topic, position), messages)

    def _add(self, message: DueMessage, messages: int) -> None:
        self.delayed += messages
        self.by_due_second[message.due_ms // 1000] += messages
        self.next = message if self.next is None else min(self.next, message)
        self.last = message if self.last is None else max(self.last, message)


@dataclass(frozen=True, slots=True)
class BacklogPosition:
    """Where a page ends: a partition (0 for a topic without) and the last entry looked at there."""

    partition: int
    position: Position

    def __str__(self) -> str:
        return f"{self.partition}:{self.position}"


@dataclass(frozen=True, slots=True)
class WaitingPage:
    """So many entries of the backlog.

    Attributes:
        after: where to go on; None at the end.
        entries_read: entries that at least one subscription has not acknowledged.
        entries_left: entries beyond the page, acknowledged ones included.
    """

    now_ms: int
    subscriptions: tuple[Waiting, ...]
    after: BacklogPosition | None
    entries_read: int
    entries_left: int


def parse_backlog_position(text: str) -> BacklogPosition:
    """The inverse of `BacklogPosition.__str__`.

    Raises:
        InvalidInputError: it is no place.
    """
    match = _PLACE.fullmatch(text)
    if match is None:
        raise InvalidInputError("after must be what an earlier answer said there, such as 0:4711:99")
    partition, ledger_id, entry_id = map(int, match.groups())
    return BacklogPosition(partition, Position(LedgerId(ledger_id), EntryId(entry_id)))


def entries_beyond(state: TopicInternalStats, position: Position) -> int:
    """How many entries the topic has after a position."""
    beyond = 0
    for ledger_id, entries in state.ledgers.items():
        if ledger_id > position.ledger_id:
            beyond += entries
        elif ledger_id == position.ledger_id:
            beyond += max(0, entries - 1 - position.entry_id)
    return beyond


def count_all(
    counts: Collection[tuple[Waiting, PositionRanges]],
    topic: str,
    answers: Mapping[Position, EntryAnswer],
    now_ms: int,
) -> None:
    """Take entries into account for every subscription that has not acknowledged them."""
    for position, answer in answers.items():
        for waiting, acknowledged in counts:
            if position not in acknowledged:
                waiting.count(topic, position, answer, now_ms)


class WaitingReader:
    """Reads what waits, a page at a time; changes nothing and needs no log."""

    def __init__(self, topics: Topics, entries: DelayedEntries, clock: Clock) -> None:
        self._topics = topics
        self._entries = entries
        self._clock = clock

    def waiting(
        self, topic: TopicName, subscription: str | None, after: BacklogPosition | None, limit: int
    ) -> WaitingPage:
        """Look at up to ``limit`` entries of the backlog of one subscription, or of all durable ones.

        Raises:
            NotFoundError: there is no such topic, or no such subscription.
            TemporaryError: it could not be read.
        """
        partitions = self._topics.partitions(topic)
        if partitions is None:
            raise NotFoundError(f"there is no topic {topic}")
        parts = [topic.partition(index) for index in range(partitions)] or [topic]
        counts: dict[str, Waiting] = {}
        read, left, now_ms = 0, limit, self._clock.now_ms()
        start = after.partition if after else 0
        for number in range(start, len(parts)):
            place = after.position if after and number == start else None
            end, seen, beyond = self._part(parts[number], subscription, place, left, now_ms, counts)
            read, left = read + seen, left - seen
            if end is not None:
                return _page(now_ms, counts, BacklogPosition(number, end), read, beyond)
            if left <= 0 and number + 1 < len(parts):
                # The next page begins before the first entry of the next partition.
                return _page(now_ms, counts, BacklogPosition(number + 1, BEFORE_EVERYTHING), read, 0)
        if subscription is not None and not counts and after is None:
            raise NotFoundError(f"{topic} has no durable subscription {subscription}")
        return _page(now_ms, counts, None, read, 0)

    def _part(
        self,
        topic: TopicName,
        subscription: str | None,
        after: Position | None,
        limit: int,
        now_ms: int,
        counts: dict[str, Waiting],
    ) -> tuple[Position | None, int, int]:
        """Where it stopped (None at the end), how many entries it read, and how many there are beyond."""
        found = {
            name: facts
            for name, facts in self._topics.subscriptions(topic).items()
            if facts.durable and (name not in SYSTEM_SUBSCRIPTIONS if subscription is None else name == subscription)
        }
        state = self._topics.state(topic)
        cursors = [
            (counts.setdefault(name, Waiting(name, facts.type)), state.cursors[name].acknowledged)
            for name, facts in found.items()
            if name in state.cursors
        ]
        positions = iter(waiting_positions(state, [acked for _, acked in cursors], after))
        read, last = 0, None
        while read < limit and (portion := list(islice(positions, min(_READ_AT_ONCE, limit - read)))):
            answers = self._entries.read(topic, portion)
            count_all(cursors, str(topic), {position: answers[position] for position in portion}, now_ms)
            read, last = read + len(portion), portion[-1]
        beyond = 0 if last is None else entries_beyond(state, last)
        at_end = next(positions, None) is None
        return (None, read, 0) if at_end else (last or after or BEFORE_EVERYTHING, read, beyond)


def _page(
    now_ms: int, counts: Mapping[str, Waiting], after: BacklogPosition | None, read: int, beyond: int
) -> WaitingPage:
    return WaitingPage(now_ms, tuple(counts[name] for name in sorted(counts)), after, read, beyond)
