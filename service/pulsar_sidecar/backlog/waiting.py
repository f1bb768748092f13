"""Counts of the messages that wait in a topic's backlog, by due time.

Invariants: every entry of a page is counted once for each subscription that has not acknowledged it, as exactly one of
delayed, due, undelayed and unreadable; a chunked message counts with its last chunk. Markers, and entries that the
topic no longer has, are not counted.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from typing import Final, NamedTuple, assert_never

from pyroaring import BitMap

from pulsar_sidecar.backlog.ports import DelayedEntries, EntryAnswer, EntryFacts, Topics
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.results import result
from pulsar_sidecar.model.topic_stats import SYSTEM_SUBSCRIPTIONS, Subscription, SubscriptionType, TopicInternalStats

BEFORE_EVERYTHING: Final = Position(LedgerId(0), EntryId(-1))
_READ_AT_ONCE: Final = 10_000
_DAY_SECONDS: Final = 86_400
_STEPS_SECONDS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, _DAY_SECONDS)
_PLACE: Final = re.compile(r"(\d{1,9}):(\d{1,18}):(-1|\d{1,18})", re.ASCII)

EntriesByLedger = Mapping[LedgerId, BitMap]


def partitions_of(topics: Topics, topic: TopicName) -> list[TopicName]:
    """Return the topic's partitions, or the topic itself if it is not partitioned.

    Raises:
        NotFoundError: there is no such topic.
    """
    partitions = topics.partitions(topic)
    if partitions is None:
        raise NotFoundError(f"there is no topic {topic}")
    return [topic.partition(index) for index in range(partitions)] or [topic]


def subscriptions_of(topics: Topics, topic: TopicName, place: TopicName) -> Mapping[str, Subscription]:
    """Return the subscriptions of a topic or of one of its partitions; none for an unused one that brokers deleted.

    Raises:
        NotFoundError: there is no such topic.
    """
    try:
        return topics.subscriptions(place)
    except NotFoundError:
        if place == topic:
            raise
        return {}


def durable_subscriptions(
    topics: Topics, topic: TopicName, place: TopicName, subscription: str | None
) -> dict[str, Subscription]:
    """Return the named durable subscription, or all of a topic or partition except brokers' own ones."""
    return {
        name: facts
        for name, facts in subscriptions_of(topics, topic, place).items()
        if facts.durable and (name not in SYSTEM_SUBSCRIPTIONS if subscription is None else name == subscription)
    }


def waiting_entries(lengths: Mapping[LedgerId, int], acked: Iterable[PositionRanges]) -> EntriesByLedger:
    """Return the entries, oldest first, that at least one cursor has not acknowledged; ``lengths`` are by ledger."""
    found: dict[LedgerId, BitMap] = {}
    last = max(lengths, default=None)
    if last is None:
        return found
    everything = PositionRanges(Position(last, EntryId(lengths[last] - 1)))
    for cursor in acked:
        for run in everything.without(cursor, lengths):
            found.setdefault(run.ledger_id, BitMap()).add_range(run.first, run.last + 1)
    return dict(sorted(found.items()))


def minus(entries: EntriesByLedger, others: EntriesByLedger) -> EntriesByLedger:
    """Return the entries that are not among the others, without empty ledgers."""
    left = ((ledger_id, bits - others.get(ledger_id, BitMap())) for ledger_id, bits in entries.items())
    return {ledger_id: bits for ledger_id, bits in left if bits}


def common(entries: EntriesByLedger, others: EntriesByLedger) -> EntriesByLedger:
    """Return the entries in both."""
    return {ledger_id: bits & others[ledger_id] for ledger_id, bits in entries.items() if ledger_id in others}


def positions_of(entries: EntriesByLedger) -> Iterator[Position]:
    """Yield the entries one by one, in order."""
    return (Position(ledger_id, EntryId(entry_id)) for ledger_id, bits in entries.items() for entry_id in bits)


def with_metadata(
    entries: DelayedEntries, topic: TopicName, positions: Iterable[Position]
) -> Iterator[tuple[Position, EntryAnswer]]:
    """Yield the positions of a topic, in order, each with its entry's metadata; raises as `DelayedEntries.read`."""
    rest = iter(positions)
    while portion := list(islice(rest, _READ_AT_ONCE)):
        answers = entries.read(topic, portion)
        yield from ((position, answers[position]) for position in portion)


def entries_beyond(state: TopicInternalStats, position: Position) -> int:
    """Return the number of entries that the topic has after a position."""
    later = sum(entries for ledger_id, entries in state.ledgers.items() if ledger_id > position.ledger_id)
    return later + max(0, state.ledgers.get(position.ledger_id, 0) - 1 - position.entry_id)


def is_earlier_chunk(facts: EntryFacts) -> bool:
    """Return True for a chunk that is not its message's last one, with which the message counts."""
    return facts.chunk is not None and facts.chunk.chunk_id != facts.chunk.total - 1


# --- counting ------------------------------------------------------------------------------------------------------


def round_step(seconds: int, rows: int) -> int:
    """Return a round length of time of which at most ``rows`` cover the span, wherever it begins."""
    for step in _STEPS_SECONDS:
        if seconds <= step * max(1, rows - 1):
            return step
    return -(-seconds // (_DAY_SECONDS * max(1, rows - 1))) * _DAY_SECONDS


@result
class DueMessage:
    """A waiting message."""

    deliver_at: int
    """Due time, milliseconds since the epoch."""
    topic: str
    """Topic, or partition."""
    message_id: str
    """``ledgerId:entryId``."""


@result
class WaitingMessages:
    """Waiting messages of one subscription in this part of the backlog."""

    subscription: str
    type: SubscriptionType
    """Only Shared and Key_Shared subscriptions hold messages back; the others deliver at once."""
    delayed: int
    """Number of messages that are not due yet."""
    due: int
    """Number of delayed messages that are due and not acknowledged."""
    undelayed: int
    """Number of messages without a due time."""
    unreadable: int
    """Number of entries that could not be read, and so are in none of these counts."""
    by_due_second: Mapping[int, int]
    """Numbers of delayed messages by the second, since the epoch, in which they are due."""
    next: DueMessage | None
    """The message that is due next."""
    last: DueMessage | None
    """The message that is due last."""


@result
class WaitingPage:
    """Part of a backlog."""

    now: int
    """Time to which due times were compared, milliseconds since the epoch."""
    subscriptions: tuple[WaitingMessages, ...]
    """Subscriptions by name."""
    entries_read: int
    """Number of entries read, each unacknowledged by at least one subscription."""
    entries_left: int
    """Number of later entries of this partition, including acknowledged ones."""
    after: str | None
    """``after`` of the next request; null at the end."""


class EntryKind(Enum):
    """Classification of an entry, for a subscription that has not acknowledged it."""

    NO_MESSAGE = auto()
    """A marker, a chunk that ends no message, or an entry that the topic no longer has."""
    UNREADABLE = auto()
    UNDELAYED = auto()
    """Messages without a due time."""
    DUE = auto()
    DELAYED = auto()


class ClassifiedEntry(NamedTuple):
    """An entry's kind, its number of messages, and their due time, 0 for none."""

    kind: EntryKind
    messages: int = 0
    due_ms: int = 0


def classify(answer: EntryAnswer, now_ms: int) -> ClassifiedEntry:
    """Return the kind of an entry at a time; every count of waiting messages uses this."""
    match answer:
        case Absent():
            return ClassifiedEntry(EntryKind.NO_MESSAGE)
        case Unreadable():
            return ClassifiedEntry(EntryKind.UNREADABLE)
        case EntryFacts():
            messages, due_ms = answer.messages_in_batch or 1, answer.deliver_at_ms
            if answer.marker or is_earlier_chunk(answer):
                return ClassifiedEntry(EntryKind.NO_MESSAGE)
            if due_ms is None:
                return ClassifiedEntry(EntryKind.UNDELAYED, messages)
            return ClassifiedEntry(EntryKind.DUE if due_ms <= now_ms else EntryKind.DELAYED, messages, due_ms)
        case _:
            assert_never(answer)


@dataclass(slots=True, kw_only=True)
class MessageCounts:
    """Unacknowledged messages of one subscription.

    Attributes:
        delayed: messages that are not due yet.
        due: messages whose due time has come: being delivered, or delivered already.
        undelayed: messages without a due time.
        unreadable: entries that could not be read.
        by_due_second: delayed messages by the second, since the epoch, at which they are due.
    """

    delayed: int = 0
    due: int = 0
    undelayed: int = 0
    unreadable: int = 0
    by_due_second: Counter[int] = field(default_factory=Counter)

    def add(self, answer: EntryAnswer, now_ms: int) -> ClassifiedEntry:
        entry = classify(answer, now_ms)
        match entry.kind:
            case EntryKind.NO_MESSAGE:
                pass
            case EntryKind.UNREADABLE:
                self.unreadable += 1
            case EntryKind.UNDELAYED:
                self.undelayed += entry.messages
            case EntryKind.DUE:
                self.due += entry.messages
            case EntryKind.DELAYED:
                self.delay(entry.due_ms, entry.messages)
        return entry

    def delay(self, due_ms: int, messages: int) -> None:
        """Count messages that are not due yet."""
        self.delayed += messages
        self.by_due_second[due_ms // 1000] += messages


_DueEntry = tuple[int, str, Position]
"""Due time, topic and position."""


@dataclass(slots=True)
class SubscriptionBacklog(MessageCounts):
    """Part of a page for one subscription; ``next`` and ``last`` are delayed messages, by due time."""

    subscription: str
    type: SubscriptionType
    next: _DueEntry | None = None
    last: _DueEntry | None = None

    def count(self, topic: str, position: Position, answer: EntryAnswer, now_ms: int) -> None:
        """Count one entry that the subscription has not acknowledged."""
        entry = self.add(answer, now_ms)
        if entry.kind is EntryKind.DELAYED:
            message = entry.due_ms, topic, position
            self.next = message if self.next is None else min(self.next, message)
            self.last = message if self.last is None else max(self.last, message)

    def result(self) -> WaitingMessages:
        return WaitingMessages(
            self.subscription,
            self.type,
            self.delayed,
            self.due,
            self.undelayed,
            self.unreadable,
            dict(sorted(self.by_due_second.items())),
            _message(self.next),
            _message(self.last),
        )


def _message(entry: _DueEntry | None) -> DueMessage | None:
    return None if entry is None else DueMessage(entry[0], entry[1], str(entry[2]))


@dataclass(frozen=True, slots=True)
class BacklogPosition:
    """End of a page: a partition (0 for a topic without) and the last entry read there."""

    partition: int
    position: Position

    def __str__(self) -> str:
        return f"{self.partition}:{self.position}"


def parse_backlog_position(text: str) -> BacklogPosition:
    """Return the position in a string (inverse of `BacklogPosition.__str__`).

    Raises:
        InvalidInputError: the text has another form.
    """
    match = _PLACE.fullmatch(text)
    if match is None:
        raise InvalidInputError("after must be the value of `after` in an earlier answer, such as 0:4711:99")
    partition, ledger_id, entry_id = map(int, match.groups())
    return BacklogPosition(partition, Position(LedgerId(ledger_id), EntryId(entry_id)))


@dataclass(frozen=True, slots=True)
class WaitingReader:
    """Reader of waiting messages, a page at a time; changes nothing and needs no log."""

    topics: Topics
    entries: DelayedEntries
    clock: Clock

    def waiting(
        self, topic: TopicName, subscription: str | None, after: BacklogPosition | None, limit: int
    ) -> WaitingPage:
        """Read up to ``limit`` entries of the backlog of one subscription, or of all durable ones.

        Raises:
            NotFoundError: there is no such topic, or no such subscription.
            TemporaryError: it could not be read.
        """
        parts = partitions_of(self.topics, topic)
        counts: dict[str, SubscriptionBacklog] = {}
        read, now_ms = 0, self.clock.now_ms()

        def page(end: BacklogPosition | None, beyond: int) -> WaitingPage:
            found = tuple(counts[name].result() for name in sorted(counts))
            return WaitingPage(now_ms, found, read, beyond, None if end is None else str(end))

        start = after.partition if after else 0
        for number, part in enumerate(parts[start:], start):
            last = after.position if after and number == start else BEFORE_EVERYTHING
            found = durable_subscriptions(self.topics, topic, part, subscription)
            if not found:
                continue
            state = self.topics.state(part)
            cursors = [
                (counts.setdefault(name, SubscriptionBacklog(name, facts.type)), state.cursors[name].acknowledged)
                for name, facts in found.items()
                if name in state.cursors
            ]
            beyond_last = (PositionRanges(max(acked.mark_delete, last), acked) for _, acked in cursors)
            positions = positions_of(waiting_entries(state.ledgers, beyond_last))
            name, before = str(part), read
            for position, answer in with_metadata(self.entries, part, islice(positions, limit - read)):
                for waiting, acknowledged in cursors:
                    if position not in acknowledged:
                        waiting.count(name, position, answer, now_ms)
                read, last = read + 1, position
            if next(positions, None) is not None:
                return page(BacklogPosition(number, last), entries_beyond(state, last) if read > before else 0)
            if read >= limit and number + 1 < len(parts):
                # The next page begins before the first entry of the next partition.
                return page(BacklogPosition(number + 1, BEFORE_EVERYTHING), 0)
        if subscription is not None and not counts and after is None:
            raise NotFoundError(f"{topic} has no durable subscription {subscription}")
        return page(None, 0)
