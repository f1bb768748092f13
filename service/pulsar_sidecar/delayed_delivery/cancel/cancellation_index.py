"""Every open cancellation that the log holds, and the ends that this sidecar remembers.

Invariant: a level only ever rises or ends; a record that is older than what is known changes nothing.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, CancellationStatus
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName

SubscriptionKey = tuple[TopicName, str]
"""A topic without partitions (or one partition), and a subscription of it."""

REMEMBERED_ENDS: Final = 100_000
_FEW_FORGOTTEN: Final = 1000
_MOST_CHANGED: Final = 100_000
"""Beyond that it takes less to look at everything."""
_OPEN: Final = tuple(status for status in CancellationStatus if status.open)
_ENDED: Final = len(_OPEN)
"""Every end ranks above every open level."""
_RANKS: Final = {status: _OPEN.index(status) if status in _OPEN else _ENDED for status in CancellationStatus}


@dataclass(slots=True)
class _Tracked:
    """The open cancellations of one subscription, and which of them have news.

    Attributes:
        unpersisted: what is not PERSISTED yet.
        due: by the second of the due time, what was put there; some of it may have been forgotten since, at most about
            as much as is open.
        noted: how many there are in ``due``.
        changed: what was put since the last request for changes; None if that is not known.
        unseen: what was open when the log was begun to be read again, and was not put since.
    """

    open: dict[Position, Cancellation] = field(default_factory=dict)
    unpersisted: set[Position] = field(default_factory=set)
    due: dict[int, list[Position]] = field(default_factory=dict)
    noted: int = 0
    changed: set[Position] | None = None
    unseen: set[Position] = field(default_factory=set)

    def put(self, cancellation: Cancellation) -> None:
        position = cancellation.position
        if cancellation.status is CancellationStatus.PERSISTED:
            self.unpersisted.discard(position)
        else:
            self.unpersisted.add(position)
        if position not in self.open:
            if self.noted > 2 * len(self.open) + _FEW_FORGOTTEN:
                self._note_dues_anew()
            self._note_due(cancellation)
        self.open[position] = cancellation
        self.unseen.discard(position)
        if self.changed is not None:
            self.changed.add(position)
            if len(self.changed) > _MOST_CHANGED:
                self.changed = None

    def take_changed(self) -> list[Cancellation] | None:
        changed, self.changed = self.changed, set()
        return None if changed is None else self.open_of(changed | self.unpersisted)

    def take_expired(self, expired_ms: int) -> list[Cancellation]:
        over: list[Cancellation] = []
        for second in [second for second in self.due if second * 1000 <= expired_ms]:
            noted = self.due.pop(second)
            left = self.open_of(dict.fromkeys(noted))  # twice where it was forgotten and asked for again
            self.noted -= len(noted)
            for one in left:
                self._note_due(one)
            over += (one for one in left if one.deliver_at_ms <= expired_ms)
        return over

    def dues(self, until_ms: int) -> set[int]:
        noted = (self.due[second] for second in self.due if second * 1000 <= until_ms)
        return {one.deliver_at_ms for positions in noted for one in self.open_of(positions)}

    def _note_due(self, cancellation: Cancellation) -> None:
        self.due.setdefault(cancellation.deliver_at_ms // 1000, []).append(cancellation.position)
        self.noted += 1

    def _note_dues_anew(self) -> None:
        # A sidecar that only follows the log never asks what is over.
        self.due, self.noted = {}, 0
        for one in self.open.values():
            self._note_due(one)

    def open_of(self, positions: Iterable[Position]) -> list[Cancellation]:
        found = (self.open.get(position) for position in positions)
        return [one for one in found if one is not None]


class CancellationIndex:
    """The cancellations by subscription and position; safe for use by several threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """A caller that needs several calls at one moment holds it meanwhile."""
        self._tracked: dict[SubscriptionKey, _Tracked] = {}
        # With cachetools' LRUCache an end takes 3 microseconds more, and what is remembered 5 MB.
        self._ended: OrderedDict[tuple[TopicName, Position], dict[str, Cancellation]] = OrderedDict()

    # --- learning --------------------------------------------------------------------------------------------------

    def learn_all(self, cancellations: Iterable[Cancellation]) -> None:
        """Take over what is known of each, unless it is older news.

        One that was asked for again after its end starts afresh, also where its end was missed.
        """
        with self.lock:
            for one in cancellations:
                self._learn(one)

    def _learn(self, one: Cancellation) -> None:
        topic, subscription, position = one[:3]
        key, rank = (topic, subscription), _RANKS[one.status]
        tracked = self._at(key)
        known = tracked.open.get(position) or self._end_of(topic, position, subscription)
        if known is not None:
            known_rank = _RANKS[known.status]
            may_have_ended = known_rank == _ENDED or position in tracked.unseen
            tracked.unseen.discard(position)
            if rank < known_rank and not (may_have_ended and one.requested_ms > known.requested_ms):
                return
        if rank == _ENDED:
            self._forget_open(key, position)
            self._remember(one)
        else:
            self._ended.get((topic, position), {}).pop(subscription, None)
            self._tracked.setdefault(key, tracked).put(one)

    def lower(self, cancellations: Iterable[Cancellation]) -> None:
        """Take over levels that fell: what had been stored was lost and acknowledged again."""
        with self.lock:
            for one in cancellations:
                tracked = self._at((one.topic, one.subscription))
                if one.position in tracked.open:
                    tracked.put(one)

    def forget(self, topic: TopicName, position: Position, subscription: str) -> None:
        """The log has dropped it, so it is over; how it ended is remembered for a while."""
        with self.lock:
            known = self._forget_open((topic, subscription), position)
            if known is not None and known.status.cancelled:
                self._remember(known.at(CancellationStatus.EXPIRED))

    # --- reading the log anew --------------------------------------------------------------------------------------

    def mark_unseen(self) -> None:
        """The log is read from its beginning now: what it holds is learned again."""
        with self.lock:
            for tracked in self._tracked.values():
                tracked.unseen = set(tracked.open)

    def keep(self, topic: TopicName, position: Position, subscription: str) -> None:
        """The log holds it; `sweep_unseen` does not drop it."""
        with self.lock:
            self._at((topic, subscription)).unseen.discard(position)

    def sweep_unseen(self, *, complete: bool) -> int:
        """Drop what was not learned since `mark_unseen`, and remember no end of it, because none is known; how many.

        Nothing is dropped where the log could not be read as a whole.
        """
        dropped = 0
        with self.lock:
            for key, tracked in list(self._tracked.items()):
                unseen, tracked.unseen = tracked.unseen, set()
                if complete:
                    dropped += sum(self._forget_open(key, position) is not None for position in unseen)
        return dropped

    # --- asking ----------------------------------------------------------------------------------------------------

    def find(self, topic: TopicName, position: Position) -> list[Cancellation]:
        """What is known of one message, by subscription."""
        with self.lock:
            found = [
                tracked.open[position]
                for (of, _), tracked in self._tracked.items()
                if of == topic and position in tracked.open
            ]
            found += self._ended.get((topic, position), {}).values()
        return sorted(found, key=lambda cancellation: cancellation.subscription)

    def known(self, topic: TopicName, position: Position, subscription: str) -> Cancellation | None:
        """What is known of one message on one subscription."""
        with self.lock:
            found = self._at((topic, subscription)).open.get(position)
            return found or self._end_of(topic, position, subscription)

    def subscriptions(self) -> list[SubscriptionKey]:
        """The subscriptions with open cancellations."""
        with self.lock:
            return list(self._tracked)

    def at(self, key: SubscriptionKey) -> list[Cancellation]:
        """The open cancellations of a subscription."""
        with self.lock:
            return list(self._at(key).open.values())

    def changed_at(self, key: SubscriptionKey) -> list[Cancellation] | None:
        """What is news on a subscription since the last call, and what is not PERSISTED yet.

        None where that is not known, as at the first call: then everything may be (`at`).
        """
        with self.lock:
            return self._at(key).take_changed()

    def expired_at(self, key: SubscriptionKey, expired_ms: int) -> list[Cancellation]:
        """What was due by then on a subscription."""
        with self.lock:
            return self._at(key).take_expired(expired_ms)

    def dues_at(self, key: SubscriptionKey, until_ms: int) -> set[int]:
        """The due times, up to then, of what is open on a subscription."""
        with self.lock:
            return self._at(key).dues(until_ms)

    def unpersisted_count(self, key: SubscriptionKey) -> int:
        return len(self._at(key).unpersisted)

    def unpersisted_at(self, key: SubscriptionKey) -> list[Cancellation]:
        with self.lock:
            tracked = self._at(key)
            return tracked.open_of(tracked.unpersisted)

    @property
    def open_count(self) -> int:
        """How many are open: the size of the log once it is compacted."""
        with self.lock:
            return sum(len(tracked.open) for tracked in self._tracked.values())

    # --- inside ----------------------------------------------------------------------------------------------------

    def _at(self, key: SubscriptionKey) -> _Tracked:
        return self._tracked.get(key) or _Tracked()

    def _end_of(self, topic: TopicName, position: Position, subscription: str) -> Cancellation | None:
        return self._ended.get((topic, position), {}).get(subscription) if self._ended else None

    def _forget_open(self, key: SubscriptionKey, position: Position) -> Cancellation | None:
        tracked = self._at(key)
        known = tracked.open.pop(position, None)
        tracked.unpersisted.discard(position)
        if not tracked.open:
            self._tracked.pop(key, None)
        return known

    def _remember(self, cancellation: Cancellation) -> None:
        key = (cancellation.topic, cancellation.position)
        self._ended.setdefault(key, {})[cancellation.subscription] = cancellation
        self._ended.move_to_end(key)
        while len(self._ended) > REMEMBERED_ENDS:
            self._ended.popitem(last=False)
