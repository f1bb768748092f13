"""Reads what waits, a page at a time, so that a long backlog can be looked at with progress and stopped anywhere."""

from collections.abc import Mapping, Sequence
from itertools import islice

from pulsar_sidecar.delayed_delivery.cancel.select import waiting_positions
from pulsar_sidecar.delayed_delivery.ports import DelayedEntries, Topics
from pulsar_sidecar.delayed_delivery.waiting import (
    BEFORE_EVERYTHING,
    BacklogPosition,
    Waiting,
    WaitingPage,
    count_all,
    entries_beyond,
)
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.positions import Position
from pulsar_sidecar.model.topic_stats import SYSTEM_SUBSCRIPTIONS, Subscription, TopicInternalStats

_READ_AT_ONCE = 10_000


class WaitingReader:
    """`delayed_delivery.waiting.WaitingMessages`; changes nothing and needs no log."""

    def __init__(self, topics: Topics, entries: DelayedEntries, clock: Clock) -> None:
        self._topics = topics
        self._entries = entries
        self._clock = clock

    def waiting(
        self, topic: TopicName, subscription: str | None, after: BacklogPosition | None, limit: int
    ) -> WaitingPage:
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
        found = self._wanted(self._topics.subscriptions(topic), subscription)
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
        beyond = _beyond(state, last)
        at_end = next(positions, None) is None
        return (None, read, 0) if at_end else (last or after or BEFORE_EVERYTHING, read, beyond)

    def _wanted(self, subscriptions: Mapping[str, Subscription], wanted: str | None) -> Mapping[str, Subscription]:
        return {
            name: facts
            for name, facts in subscriptions.items()
            if facts.durable and (name == wanted if wanted is not None else name not in SYSTEM_SUBSCRIPTIONS)
        }


def _beyond(state: TopicInternalStats, last: Position | None) -> int:
    return 0 if last is None else entries_beyond(state, last)


def _page(
    now_ms: int, counts: Mapping[str, Waiting], after: BacklogPosition | None, read: int, beyond: int
) -> WaitingPage:
    subscriptions: Sequence[Waiting] = [counts[name] for name in sorted(counts)]
    return WaitingPage(now_ms, tuple(subscriptions), after, read, beyond)
