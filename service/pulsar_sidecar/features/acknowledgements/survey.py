"""Survey of the stored acknowledgement states of many topics, to find subscriptions that are full, or will be soon.

Everything comes from the metadata store and from bookies, so the survey loads no topic. A loaded topic may have
acknowledged more since its broker last wrote. Brokers store one range more than fits, so a full subscription shows it
here. Invariant: the survey names whatever it could not read, and never leaves it out.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits
from pulsar_sidecar.features.acknowledgements.ports import PausePolicies, SubscriptionStats
from pulsar_sidecar.features.acknowledgements.results import Fullness, StoredAckState, StoredAckStates
from pulsar_sidecar.features.acknowledgements.states import stretches
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import NodeReader
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.ownership.paths import managed_ledger_path
from pulsar_sidecar.ownership.ports import CursorPositions, LedgerLengths
from pulsar_sidecar.ownership.references import managed_ledger_references
from pulsar_sidecar.ownership.stored_topics import StoredTopics, subscriptions_among

STRETCHES: Final = 60
"""Number of equal parts into which the entries of a subscription are divided."""
_NEARLY_FULL: Final = 0.8
_TRIES: Final = 3
_MOST_REASONS: Final = 100


@dataclass(frozen=True, slots=True)
class AckStateSurvey:
    """Result of a survey.

    Attributes:
        as_of_ms: start of the survey, milliseconds since the epoch.
        topics: number of topics without partitions, and of partitions, in the survey.
        limit: ``managedLedgerMaxUnackedRangesToPersist`` of a broker.
        states: states, those with the most ranges first.
        unreadable: topics and subscriptions that could not be read, and may be full.
    """

    as_of_ms: int
    topics: int
    limit: int
    states: tuple[StoredAckState, ...]
    unreadable: tuple[str, ...]

    def result(self, takes: Callable[[StoredAckState], bool], offset: int, limit: int) -> StoredAckStates:
        """Return counts of all states, and a page of those that a filter takes."""
        found = [state for state in self.states if takes(state)]
        kinds = [state.fullness for state in self.states]
        return StoredAckStates(
            as_of_ms=self.as_of_ms,
            topics=self.topics,
            subscriptions=len(kinds),
            full=kinds.count(Fullness.FULL),
            nearly_full=kinds.count(Fullness.NEARLY_FULL),
            max_unacked_ranges_to_persist=self.limit,
            found=len(found),
            states=tuple(found[offset : offset + limit]),
            unreadable=len(self.unreadable),
            reasons=self.unreadable[:_MOST_REASONS],
        )


EachTopic = Callable[[Callable[[TopicName], "_TopicStates"], Iterable[TopicName]], Iterable["_TopicStates"]]
"""The builtin ``map``, or that of a pool of threads."""


@dataclass(frozen=True, slots=True)
class _TopicStates:
    place: TopicName
    cursors: Mapping[str, PositionRanges]
    lengths: Mapping[LedgerId, int]
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AckStateSurveyor:
    """Reader of stored states; thread-safe."""

    store: NodeReader
    cursors: CursorPositions
    lengths: LedgerLengths
    stats: SubscriptionStats
    policies: PausePolicies
    clock: Clock
    each_topic: EachTopic

    def survey(self, scope: TopicName | str | None) -> AckStateSurvey:
        """Survey the subscriptions of a topic, of a namespace or tenant by name, or of all topics.

        Raises:
            NotFoundError: there is no such topic, namespace or tenant.
            TemporaryError: the metadata store, or any broker, could not be queried.
        """
        now_ms, limits = self.clock.now_ms(), self.stats.limits(None)
        pauses: dict[str, bool] = {}
        topics, states, unreadable = 0, list[StoredAckState](), list[str]()
        for found in self.each_topic(self._read, self._places(scope)):
            namespace = found.place.namespace
            if found.cursors and namespace not in pauses:
                own = self.policies.of_namespace(namespace)
                pauses[namespace] = limits.pause_enabled if own is None else own
            topics += 1
            unreadable += found.unreadable
            states += (
                stored_ack_state(found.place, name, acknowledged, found.lengths, limits, pauses[namespace])
                for name, acknowledged in found.cursors.items()
            )
        states.sort(key=lambda state: (-state.ranges, state.acknowledged - state.entries, state.topic))
        return AckStateSurvey(now_ms, topics, limits.max_unacked_ranges, tuple(states), tuple(unreadable))

    def _places(self, scope: TopicName | str | None) -> Iterable[TopicName]:
        topics = StoredTopics(self.store)
        if scope is None:
            return topics.all_places()
        return topics.places_of(scope) if isinstance(scope, TopicName) else topics.places_below(scope)

    def _read(self, place: TopicName) -> _TopicStates:
        """Read unreadable state again: a broker that moves a cursor to another ledger deletes the old one."""
        found = self._once(place)
        for _ in range(_TRIES - 1):
            if not found.unreadable:
                break
            found = self._once(place)
        return found

    def _once(self, place: TopicName) -> _TopicStates:
        path = managed_ledger_path(place.managed_ledger_name)
        node, children = self.store.read(path), self.store.children(path)
        if node is None or not children:
            return _TopicStates(place, {}, {})
        names = subscriptions_among(children)
        nodes = zip(names, self.store.read_many([f"{path}/{child}" for child in names.values()]), strict=True)
        there = {name: cursor.data for name, cursor in nodes if cursor is not None}
        if not there:
            return _TopicStates(place, {}, {})
        try:
            lengths = self.lengths.lengths(managed_ledger_references(node.data).ledgers)
        except UndecodableError as error:
            lengths = Unreadable(str(error))
        if isinstance(lengths, Unreadable):
            return _TopicStates(place, {}, {}, (f"{place}: {lengths.reason}",))
        read = dict(zip(there, self.cursors.acknowledged(list(there.values()), lengths), strict=True))
        problems = {name: found.reason for name, found in read.items() if isinstance(found, Unreadable)}
        cursors = {name: found for name, found in read.items() if not isinstance(found, Unreadable)}
        return _TopicStates(place, cursors, lengths, tuple(f"{place} {name}: {why}" for name, why in problems.items()))


def stored_ack_state(
    topic: TopicName,
    subscription: str,
    acknowledged: PositionRanges,
    lengths: Mapping[LedgerId, int],
    limits: AckStateLimits,
    pause_enabled: bool,
) -> StoredAckState:
    """Return the state of one subscription; ``lengths`` are the entries of each of the topic's ledgers."""
    parts = stretches(acknowledged, acknowledged, lengths, STRETCHES)
    return StoredAckState(
        str(topic),
        subscription,
        fullness=fullness_of(acknowledged.range_count, limits.max_unacked_ranges),
        pause_enabled=pause_enabled,
        mark_delete_position=str(acknowledged.mark_delete),
        ranges=acknowledged.range_count,
        entries=sum(part.entries for part in parts),
        acknowledged=sum(part.acknowledged for part in parts),
        stretches=tuple(percentage(part.acknowledged, part.entries) for part in parts),
    )


def fullness_of(ranges: int, limit: int) -> Fullness:
    """Compare ranges with the limit like `pause_state`."""
    if ranges > limit:
        return Fullness.FULL
    return Fullness.NEARLY_FULL if ranges and ranges >= limit * _NEARLY_FULL else Fullness.FITS


def percentage(part: int, whole: int) -> int:
    """Return a percentage that is 0 only for nothing, and 100 only for everything."""
    if part <= 0:
        return 0
    return 100 if part >= whole else min(99, max(1, round(100 * part / whole)))
