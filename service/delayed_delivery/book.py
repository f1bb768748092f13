"""Every cancellation that somebody still has to see to, as the log tells it, and the ends that were remembered.

Invariant: a level only ever rises or ends; a record that is older than what is known changes nothing.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from service.delayed_delivery.cancelling import Cancellation, Proof
from service.model.names import TopicName
from service.model.positions import Position

Place = tuple[TopicName, str]
"""A topic without partitions (or one partition), and a subscription of it."""

REMEMBERED_ENDS: Final = 100_000
_OPEN: Final = frozenset(proof.value for proof in Proof if proof.open)
_RANKS: Final[Mapping[Proof, int]] = {
    Proof.ACCEPTED: 0,
    Proof.ACKED: 1,
    Proof.PERSISTED: 2,
    Proof.EXPIRED: 3,
    Proof.RACED: 3,
    Proof.TOO_LATE: 3,
    Proof.NOT_FOUND: 3,
    Proof.REFUSED: 3,
}


@dataclass(slots=True)
class Book:
    """The cancellations by place and position; not thread-safe by itself."""

    _open: dict[Place, dict[Position, Cancellation]] = field(default_factory=dict)
    _unproven: defaultdict[Place, set[Position]] = field(default_factory=lambda: defaultdict(set))
    _ended: OrderedDict[tuple[TopicName, Position], dict[str, Cancellation]] = field(default_factory=OrderedDict)

    def learn(self, cancellation: Cancellation) -> bool:
        """Take over what is known of a cancellation; False when it is older news.

        One that was asked for again after its end starts afresh.
        """
        place = (cancellation.topic, cancellation.subscription)
        known = self._known(place, cancellation.position)
        renewed = known is not None and not known.proof.open and cancellation.requested_ms > known.requested_ms
        if known is not None and not renewed and _RANKS[cancellation.proof] < _RANKS[known.proof]:
            return False
        if cancellation.proof.open:
            self._ended.get((cancellation.topic, cancellation.position), {}).pop(cancellation.subscription, None)
            self._put(place, self._open.setdefault(place, {}), cancellation)
        else:
            self._forget_open(place, cancellation.position)
            self._remember(cancellation)
        return True

    def lower(self, cancellation: Cancellation) -> None:
        """Take over a level that fell: what had been stored was lost and acknowledged again."""
        place = (cancellation.topic, cancellation.subscription)
        at_place = self._open.get(place, {})
        if cancellation.position in at_place:
            self._put(place, at_place, cancellation)

    def forget(self, topic: TopicName, position: Position, subscription: str) -> None:
        """The log has dropped it: nobody needs to see to it any more; how it ended is remembered for a while."""
        place = (topic, subscription)
        known = self._forget_open(place, position)
        if known is not None and known.proof.cancelled:
            self._remember(known.at(Proof.EXPIRED))

    def find(self, topic: TopicName, position: Position) -> list[Cancellation]:
        """What is known of one message, by subscription."""
        found = [known[position] for (of, _), known in self._open.items() if of == topic and position in known]
        found += self._ended.get((topic, position), {}).values()
        return sorted(found, key=lambda cancellation: cancellation.subscription)

    def known(self, topic: TopicName, position: Position, subscription: str) -> Cancellation | None:
        """What is known of one message on one subscription."""
        return self._known((topic, subscription), position)

    def known_at(self, place: Place) -> Callable[[Position], Cancellation | None]:
        """`known` for many messages of one place; it shows what is known at the time of this call, or newer."""
        at_place, ended = self._open.get(place, {}), self._ended
        topic, subscription = place

        def known(position: Position) -> Cancellation | None:
            found = at_place.get(position)
            if found is None and ended:
                return ended.get((topic, position), {}).get(subscription)
            return found

        return known

    def places(self) -> list[Place]:
        """Where there is something to see to."""
        return list(self._open)

    def at(self, place: Place) -> list[Cancellation]:
        """What there is to see to at a place."""
        return list(self._open.get(place, {}).values())

    def unproven_count(self, place: Place) -> int:
        """How many there are not PERSISTED yet."""
        return len(self._unproven.get(place, ()))

    def unproven_at(self, place: Place) -> list[Cancellation]:
        """What there is not PERSISTED yet."""
        at_place = self._open.get(place, {})
        return [at_place[position] for position in self._unproven.get(place, ())]

    @property
    def open_count(self) -> int:
        """How many somebody has to see to: the size of the log once it is compacted."""
        return sum(len(known) for known in self._open.values())

    def learn_all(self, cancellations: Iterable[Cancellation]) -> None:
        """`learn` each; what is new at a place, or rises there, without looking anywhere else."""
        place: Place | None = None
        at_place: dict[Position, Cancellation] = {}
        for cancellation in cancellations:
            if place is None or cancellation.subscription != place[1] or cancellation.topic is not place[0]:
                place = (cancellation.topic, cancellation.subscription)
                at_place = self._open.get(place, {})
            if not self._rises(at_place.get(cancellation.position), cancellation):
                self.learn(cancellation)
                at_place = self._open.get(place, {})
                continue
            if not at_place:
                self._open[place] = at_place
            self._put(place, at_place, cancellation)

    def _rises(self, known: Cancellation | None, cancellation: Cancellation) -> bool:
        """Whether it certainly is news of something open that has not ended before."""
        if cancellation.proof.value not in _OPEN:
            return False
        if known is None:
            return (cancellation.topic, cancellation.position) not in self._ended
        return _RANKS[cancellation.proof] >= _RANKS[known.proof]

    def _known(self, place: Place, position: Position) -> Cancellation | None:
        found = self._open.get(place, {}).get(position)
        return found if found is not None else self._ended.get((place[0], position), {}).get(place[1])

    def _put(self, place: Place, at_place: dict[Position, Cancellation], cancellation: Cancellation) -> None:
        if cancellation.proof is Proof.PERSISTED:
            self._unproven[place].discard(cancellation.position)
        else:
            self._unproven[place].add(cancellation.position)
        at_place[cancellation.position] = cancellation

    def _forget_open(self, place: Place, position: Position) -> Cancellation | None:
        at_place = self._open.get(place, {})
        known = at_place.pop(position, None)
        if known is not None:
            self._unproven[place].discard(position)
        if not at_place:
            self._open.pop(place, None)
            self._unproven.pop(place, None)
        return known

    def _remember(self, cancellation: Cancellation) -> None:
        key = (cancellation.topic, cancellation.position)
        self._ended.setdefault(key, {})[cancellation.subscription] = cancellation
        self._ended.move_to_end(key)
        while len(self._ended) > REMEMBERED_ENDS:
            self._ended.popitem(last=False)
