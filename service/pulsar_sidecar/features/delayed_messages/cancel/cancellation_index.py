"""Index of every open cancellation in the log, and of the ended ones that this sidecar remembers.

Invariant: a status only rises or ends; a record older than the known one changes nothing.
"""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation, by_subscription
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName

SubscriptionKey = tuple[TopicName, str]
"""Non-partitioned topic (or one partition) and one of its subscriptions."""

REMEMBERED_ENDS: Final = 100_000
_FEW_FORGOTTEN: Final = 1000
_MOST_CHANGED: Final = 100_000
"""Above this number, comparing every cancellation is cheaper."""


@dataclass(slots=True)
class _OpenCancellations:
    """Open cancellations of one subscription, and which of them changed.

    Attributes:
        unpersisted: positions that are not PERSISTED yet.
        due: positions by the second of their due time; stale ones remain, at most about as many as are open.
        noted: number of positions in ``due``.
        changed: positions put since the last request for changes; None if unknown.
        unseen: positions that were open when rereading of the log began, and were not put since.
    """

    open: dict[Position, Cancellation] = field(default_factory=dict)
    unpersisted: set[Position] = field(default_factory=set)
    due: defaultdict[int, list[Position]] = field(default_factory=lambda: defaultdict(list))
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
                self._recompute_dues()
            self._note_due(cancellation)
        self.open[position] = cancellation
        self.unseen.discard(position)
        if self.changed is not None:
            self.changed.add(position)
            if len(self.changed) > _MOST_CHANGED:
                self.changed = None

    def take(self, position: Position) -> Cancellation | None:
        self.unpersisted.discard(position)
        return self.open.pop(position, None)

    def take_changed(self) -> list[Cancellation] | None:
        changed, self.changed = self.changed, set()
        return None if changed is None else self.open_of(changed | self.unpersisted)

    def take_expired(self, expired_ms: int) -> list[Cancellation]:
        over: list[Cancellation] = []
        for second in [second for second in self.due if second * 1000 <= expired_ms]:
            noted = self.due.pop(second)
            left = self.open_of(dict.fromkeys(noted))  # twice if it was forgotten and requested again
            self.noted -= len(noted)
            for one in left:
                self._note_due(one)
            over += (one for one in left if one.deliver_at_ms <= expired_ms)
        return over

    def dues(self, until_ms: int) -> set[int]:
        noted = (self.due[second] for second in self.due if second * 1000 <= until_ms)
        return {one.deliver_at_ms for positions in noted for one in self.open_of(positions)}

    def _note_due(self, cancellation: Cancellation) -> None:
        self.due[cancellation.deliver_at_ms // 1000].append(cancellation.position)
        self.noted += 1

    def _recompute_dues(self) -> None:
        # A sidecar that only follows the log never takes expired cancellations.
        self.due.clear()
        self.noted = 0
        for one in self.open.values():
            self._note_due(one)

    def open_of(self, positions: Iterable[Position]) -> list[Cancellation]:
        found = (self.open.get(position) for position in positions)
        return [one for one in found if one is not None]


class CancellationIndex:
    """Cancellations by subscription and position; thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Reentrant lock; a caller holds it to make several calls atomic."""
        self._tracked: dict[SubscriptionKey, _OpenCancellations] = {}
        # cachetools' LRUCache would cost 3 microseconds more per ended cancellation, and 5 MB.
        self._ended: OrderedDict[tuple[TopicName, Position], dict[str, Cancellation]] = OrderedDict()

    # --- updates ---------------------------------------------------------------------------------------------------

    def learn_all(self, cancellations: Iterable[Cancellation]) -> None:
        """Apply each cancellation unless a newer status is known.

        A cancellation that was requested again after its end starts afresh, even if this sidecar missed the end.
        """
        with self.lock:
            for key, ones in groupby(cancellations, by_subscription):
                tracked = self._tracked.setdefault(key, _OpenCancellations())
                for one in ones:
                    self._learn(key, tracked, one)
                if not tracked.open:
                    del self._tracked[key]

    def _learn(self, key: SubscriptionKey, tracked: _OpenCancellations, one: Cancellation) -> None:
        topic, subscription = key
        position, status = one.position, one.status
        known = tracked.open.get(position) or self._end_of(topic, position, subscription)
        if known is not None:
            may_have_ended = not known.status.open or position in tracked.unseen
            tracked.unseen.discard(position)
            if status.rank < known.status.rank and not (may_have_ended and one.requested_ms > known.requested_ms):
                return
        if status.open:
            if self._ended:
                self._ended.get((topic, position), {}).pop(subscription, None)
            tracked.put(one)
        else:
            tracked.take(position)
            self._remember(one)

    def lower(self, cancellations: Iterable[Cancellation]) -> None:
        """Apply statuses that fell: the cursor lost a stored acknowledgement, and it was acknowledged again."""
        with self.lock:
            for one in cancellations:
                tracked = self._at((one.topic, one.subscription))
                if one.position in tracked.open:
                    tracked.put(one)

    def forget(self, topic: TopicName, position: Position, subscription: str) -> None:
        """End a cancellation that the log has dropped, and remember for a while how it ended."""
        with self.lock:
            known = self._forget_open((topic, subscription), position)
            if known is not None and known.status.cancelled:
                self._remember(known.at(CancellationStatus.EXPIRED))

    # --- rereading the log -----------------------------------------------------------------------------------------

    def mark_unseen(self) -> None:
        """Mark all open cancellations as unseen before the log is reread from its beginning."""
        with self.lock:
            for tracked in self._tracked.values():
                tracked.unseen = set(tracked.open)

    def keep(self, topic: TopicName, position: Position, subscription: str) -> None:
        """Keep a cancellation that the log still holds: `sweep_unseen` does not drop it."""
        with self.lock:
            self._at((topic, subscription)).unseen.discard(position)

    def sweep_unseen(self, *, complete: bool) -> int:
        """Drop cancellations not seen since `mark_unseen`, and return their number.

        Their end is unknown, so it is not remembered. If the log was not read completely, nothing is dropped.
        """
        dropped = 0
        with self.lock:
            for key, tracked in list(self._tracked.items()):
                unseen, tracked.unseen = tracked.unseen, set()
                if complete:
                    dropped += sum(self._forget_open(key, position) is not None for position in unseen)
        return dropped

    # --- queries ---------------------------------------------------------------------------------------------------

    def find(self, topic: TopicName, position: Position) -> list[Cancellation]:
        """Return the cancellations of one message, sorted by subscription."""
        with self.lock:
            found = [
                tracked.open[position]
                for (of, _), tracked in self._tracked.items()
                if of == topic and position in tracked.open
            ]
            found += self._ended.get((topic, position), {}).values()
        return sorted(found, key=lambda cancellation: cancellation.subscription)

    def known(self, topic: TopicName, position: Position, subscription: str) -> Cancellation | None:
        """Return the cancellation of one message on one subscription, open or ended."""
        with self.lock:
            found = self._at((topic, subscription)).open.get(position)
            return found or self._end_of(topic, position, subscription)

    def subscriptions(self) -> list[SubscriptionKey]:
        """Return the subscriptions with open cancellations."""
        with self.lock:
            return list(self._tracked)

    def at(self, key: SubscriptionKey) -> list[Cancellation]:
        """Return the open cancellations of a subscription."""
        with self.lock:
            return list(self._at(key).open.values())

    def changed_at(self, key: SubscriptionKey) -> list[Cancellation] | None:
        """Return a subscription's cancellations that changed since the last call or are not PERSISTED yet.

        Returns None if the changes are unknown, as at the first call: any of them may have changed (`at`).
        """
        with self.lock:
            return self._at(key).take_changed()

    def expired_at(self, key: SubscriptionKey, expired_ms: int) -> list[Cancellation]:
        """Return a subscription's open cancellations that were due by ``expired_ms``."""
        with self.lock:
            return self._at(key).take_expired(expired_ms)

    def dues_at(self, key: SubscriptionKey, until_ms: int) -> set[int]:
        """Return the due times, up to ``until_ms``, of a subscription's open cancellations."""
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
        """Number of open cancellations: the size of the compacted log."""
        with self.lock:
            return sum(len(tracked.open) for tracked in self._tracked.values())

    # --- internals -------------------------------------------------------------------------------------------------

    def _at(self, key: SubscriptionKey) -> _OpenCancellations:
        return self._tracked.get(key) or _OpenCancellations()

    def _end_of(self, topic: TopicName, position: Position, subscription: str) -> Cancellation | None:
        return self._ended.get((topic, position), {}).get(subscription) if self._ended else None

    def _forget_open(self, key: SubscriptionKey, position: Position) -> Cancellation | None:
        tracked = self._at(key)
        known = tracked.take(position)
        if not tracked.open:
            self._tracked.pop(key, None)
        return known

    def _remember(self, cancellation: Cancellation) -> None:
        key = (cancellation.topic, cancellation.position)
        self._ended.setdefault(key, {})[cancellation.subscription] = cancellation
        self._ended.move_to_end(key)
        while len(self._ended) > REMEMBERED_ENDS:
            self._ended.popitem(last=False)
