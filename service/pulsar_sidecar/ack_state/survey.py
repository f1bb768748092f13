"""The acknowledgement states of many topics as they are stored: which subscriptions are full, or will be soon.

Everything comes from the metadata store and from bookies, so no topic is loaded. A loaded topic may have acknowledged
more since its broker last wrote. Brokers store one range more than fits, so a subscription that is full shows it here.
Invariant: what could not be read is named, never left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from pulsar_sidecar.ack_state.limits import AckStateLimits
from pulsar_sidecar.ack_state.states import histogram
from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path
from pulsar_sidecar.ledger_ownership.ports import CursorPositions, LedgerLengths
from pulsar_sidecar.ledger_ownership.references import managed_ledger_references
from pulsar_sidecar.ledger_ownership.stored_topics import StoredTopics
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import NodeReader
from pulsar_sidecar.model.names import CursorName, TopicName, decode_cursor
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import REPLICATOR_PREFIX, SYSTEM_SUBSCRIPTIONS

STRETCHES: Final = 60
"""Equal parts into which the entries of a subscription are divided."""
_NEARLY_FULL: Final = 0.8
_TRIES: Final = 3


class Fullness(Enum):
    """How a subscription's stored ranges compare with the limit."""

    FULL = "full"
    """More ranges than fit: they are lost when the broker stops, or dispatch is paused."""
    NEARLY_FULL = "nearly full"
    """At least four fifths of what fits."""
    FITS = "fits"


@dataclass(frozen=True, slots=True)
class StoredAckState:
    """One subscription of one topic, or of one partition.

    Attributes:
        ranges: acknowledged ranges beyond the mark-delete position, at most one more than fits.
        entries: entries beyond the mark-delete position.
        acknowledged: of them, those that are acknowledged.
        pause_enabled: whether dispatch pauses when the ranges do not fit, by the namespace or the brokers; a topic's
            own policy may override it.
        stretches: the entries in equal parts: the percentage of each that is acknowledged; 0 and 100 only where it is
            none or all.
    """

    topic: TopicName
    subscription: str
    mark_delete: Position
    ranges: int
    entries: int
    acknowledged: int
    fullness: Fullness
    pause_enabled: bool
    stretches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AckStateSurvey:
    """What a look at many topics found.

    Attributes:
        as_of_ms: when it began.
        topics: topics without partitions, and partitions, that were looked at.
        limit: ``managedLedgerMaxUnackedRangesToPersist`` of a broker.
        states: the fullest first.
        unreadable: what could not be read, and may be full.
    """

    as_of_ms: int
    topics: int
    limit: int
    states: tuple[StoredAckState, ...]
    unreadable: tuple[str, ...]


class PauseDefaults(Protocol):
    """What brokers and namespaces have set; `TemporaryError` if that cannot be read."""

    def limits(self, broker: str | None) -> AckStateLimits:
        """Any broker's limits."""

    def of_namespace(self, namespace: str) -> bool | None:
        """Whether the namespace has dispatch pause; None if it has no policy. `NotFoundError` if there is none."""


EachTopic = Callable[[Callable[[TopicName], "_Found"], Iterable[TopicName]], Iterable["_Found"]]
"""``map``, or that of a pool of threads."""


@dataclass(frozen=True, slots=True)
class _Found:
    place: TopicName
    cursors: Mapping[str, PositionRanges]
    lengths: Mapping[LedgerId, int]
    unreadable: tuple[str, ...] = ()


class AckStateSurveyor:
    """Reads what is stored; safe for use by several threads."""

    def __init__(
        self,
        store: NodeReader,
        cursors: CursorPositions,
        lengths: LedgerLengths,
        pauses: PauseDefaults,
        clock: Clock,
        each_topic: EachTopic,
    ) -> None:
        self._store = store
        self._cursors = cursors
        self._lengths = lengths
        self._pauses = pauses
        self._clock = clock
        self._each_topic = each_topic
        self._topics = StoredTopics(store)

    def survey(self, scope: TopicName | str | None) -> AckStateSurvey:
        """The subscriptions of a topic, of a namespace or tenant by name, or of all topics.

        Raises:
            NotFoundError: there is no such topic, namespace or tenant.
            TemporaryError: the metadata store, or any broker, could not be asked.
        """
        now_ms, limits = self._clock.now_ms(), self._pauses.limits(None)
        pauses: dict[str, bool] = {}
        topics, states, unreadable = 0, list[StoredAckState](), list[str]()
        for found in self._each_topic(self._read, self._places(scope)):
            namespace = found.place.namespace
            if found.cursors and namespace not in pauses:
                own = self._pauses.of_namespace(namespace)
                pauses[namespace] = limits.pause_enabled if own is None else own
            topics += 1
            unreadable += found.unreadable
            states += (
                stored_ack_state(found.place, name, acknowledged, found.lengths, limits, pauses[namespace])
                for name, acknowledged in found.cursors.items()
            )
        states.sort(key=lambda state: (-state.ranges, state.acknowledged - state.entries, str(state.topic)))
        return AckStateSurvey(now_ms, topics, limits.max_unacked_ranges, tuple(states), tuple(unreadable))

    def _places(self, scope: TopicName | str | None) -> Iterable[TopicName]:
        if scope is None:
            return self._topics.all_places()
        return self._topics.places_of(scope) if isinstance(scope, TopicName) else self._topics.places_below(scope)

    def _read(self, place: TopicName) -> _Found:
        """A broker that moves a cursor to another ledger deletes the old one: what was not readable is read again."""
        found = self._once(place)
        for _ in range(_TRIES - 1):
            if not found.unreadable:
                break
            found = self._once(place)
        return found

    def _once(self, place: TopicName) -> _Found:
        path = managed_ledger_path(place.managed_ledger_name)
        node, children = self._store.read(path), self._store.children(path)
        if node is None or not children:
            return _Found(place, {}, {})
        names = dict(_subscriptions(children))
        nodes = zip(names, self._store.read_many([f"{path}/{child}" for child in names.values()]), strict=True)
        there = {name: cursor.data for name, cursor in nodes if cursor is not None}
        if not there:
            return _Found(place, {}, {})
        try:
            lengths = self._lengths.lengths(managed_ledger_references(node.data).ledgers)
        except UndecodableError as error:
            lengths = Unreadable(str(error))
        if isinstance(lengths, Unreadable):
            return _Found(place, {}, {}, (f"{place}: {lengths.reason}",))
        read = dict(zip(there, self._cursors.acknowledged(list(there.values()), lengths), strict=True))
        problems = {name: found.reason for name, found in read.items() if isinstance(found, Unreadable)}
        cursors = {name: found for name, found in read.items() if not isinstance(found, Unreadable)}
        return _Found(place, cursors, lengths, tuple(f"{place} {name}: {why}" for name, why in problems.items()))


def _subscriptions(children: Iterable[str]) -> Iterator[tuple[str, str]]:
    for child in children:
        name = decode_cursor(CursorName(child)) or child
        if name not in SYSTEM_SUBSCRIPTIONS and not name.startswith(f"{REPLICATOR_PREFIX}."):
            yield name, child


def stored_ack_state(
    topic: TopicName,
    subscription: str,
    acknowledged: PositionRanges,
    lengths: Mapping[LedgerId, int],
    limits: AckStateLimits,
    pause_enabled: bool,
) -> StoredAckState:
    """One subscription, from what is stored of it; ``lengths`` are the entries of each of the topic's ledgers."""
    parts = histogram(acknowledged, acknowledged, lengths, STRETCHES)
    return StoredAckState(
        topic,
        subscription,
        acknowledged.mark_delete,
        acknowledged.range_count,
        entries=sum(part.entries for part in parts),
        acknowledged=sum(part.acknowledged for part in parts),
        fullness=fullness_of(acknowledged.range_count, limits.max_unacked_ranges),
        pause_enabled=pause_enabled,
        stretches=tuple(percentage(part.acknowledged, part.entries) for part in parts),
    )


def fullness_of(ranges: int, limit: int) -> Fullness:
    """As `pause_state` compares them."""
    if ranges > limit:
        return Fullness.FULL
    return Fullness.NEARLY_FULL if ranges and ranges >= limit * _NEARLY_FULL else Fullness.FITS


def percentage(part: int, whole: int) -> int:
    """0 only for nothing, and 100 only for all of it."""
    if part <= 0:
        return 0
    return 100 if part >= whole else min(99, max(1, round(100 * part / whole)))
