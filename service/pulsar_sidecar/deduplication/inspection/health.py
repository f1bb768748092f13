"""What doors ask about many topics at once: cursors that are stuck, and slow loads, from what is stored.

A load is slow because a broker replays what came after the snapshot. No broker is asked about a topic, but for the
policies and the statuses of those that are shown; no topic is loaded.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.deduplication.inspection.lag_limits import LagLimits
from pulsar_sidecar.deduplication.inspection.policy_changes import Policies, RunningDeduplication
from pulsar_sidecar.deduplication.inspection.stuck import (
    BrokerDeduplicationSettings,
    DeduplicationSettings,
    StuckCursors,
    StuckReport,
)
from pulsar_sidecar.deduplication.replay_cost import ASSUMPTION, replay_seconds
from pulsar_sidecar.deduplication.snapshots import Snapshot
from pulsar_sidecar.deduplication.stored import Amount, StoredDeduplication, StoredDeduplications
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName

MOST_SHOWN: Final = 10
_MOST_ASKED: Final = 100


@dataclass(frozen=True, slots=True)
class LoadForecast:
    """What deduplication costs the next load of a partition, or of a topic without.

    Attributes:
        replay: what a broker replays.
        deduplicated: None if the topic's own policy is not known, so that the load may replay nothing.
        times_out: whether it takes longer than brokers let a load take (``topicLoadTimeoutSeconds``).
    """

    topic: TopicName
    position: Position
    replay: Amount
    seconds: float
    deduplicated: bool | None
    times_out: bool


@dataclass(frozen=True, slots=True)
class LoadForecasts:
    """The slowest first.

    Attributes:
        topics: partitions, and topics without, that were looked at.
        cursors: how many of them have a deduplication cursor; a load of the others replays nothing.
        load_timeout_seconds: ``topicLoadTimeoutSeconds`` of a broker.
        slowest: of those that are deduplicated, as far as is known.
        unreadable: what could not be read, and may be slow.
    """

    topics: int
    cursors: int
    load_timeout_seconds: int
    slowest: tuple[LoadForecast, ...]
    unreadable: tuple[str, ...]
    assumption: str = ASSUMPTION


class DeduplicationHealth:
    """Each call asks brokers anew for their policies; safe for use by several threads."""

    def __init__(self, stored: StoredDeduplications, policies: Policies, running: RunningDeduplication) -> None:
        self._stored = stored
        self._policies = policies
        self._running = running

    def stuck(self, namespace: str | None, limits: LagLimits, most: int) -> StuckReport:
        """The cursors of a namespace, or of all, that are stuck.

        Raises:
            NotFoundError: there is no such namespace.
            TemporaryError: the metadata store, or any broker, could not be asked.
        """
        search = StuckCursors(self._stored, BrokerDeduplicationSettings(self._policies), self._running)
        return search.find(self._places(namespace), limits, most)

    def slowest_loads(self, namespace: str | None) -> LoadForecasts:
        """The loads of a namespace, or of all, that would take longest; raises as `stuck`."""
        places = self._places(namespace)
        settings = BrokerDeduplicationSettings(self._policies)
        topics, cursors = 0, 0
        costs: list[tuple[float, StoredDeduplication]] = []
        unreadable: list[str] = []
        for place, stored in self._stored.read(places):
            topics += 1
            if isinstance(stored, StoredDeduplication) and isinstance(stored.snapshot, Absent):
                continue
            cursors += 1
            if isinstance(stored, Unreadable):
                unreadable.append(f"{place}: {stored.reason}")
            elif stored.since is None:
                reason = stored.snapshot.reason if isinstance(stored.snapshot, Unreadable) else stored.unmeasured
                unreadable.append(f"{place}: {reason}")
            else:
                costs.append((replay_seconds(stored.since), stored))
        costs.sort(key=lambda cost: (-cost[0], str(cost[1].topic)))
        slowest = islice(_deduplicated(costs, settings, unreadable), MOST_SHOWN)
        return LoadForecasts(topics, cursors, settings.broker().load_timeout_seconds, tuple(slowest), tuple(unreadable))

    def _places(self, namespace: str | None) -> Iterator[TopicName]:
        topics = self._stored.topics
        return topics.all_places() if namespace is None else topics.places_below(namespace)


def _deduplicated(
    costs: Iterable[tuple[float, StoredDeduplication]], settings: DeduplicationSettings, unreadable: list[str]
) -> Iterator[LoadForecast]:
    """Without those that are certainly not deduplicated: the broker that loads them deletes the cursor.

    A topic's own policy costs several requests. Once enough topics were asked about, the levels above decide: where
    these are on, the topic is in; where they are off, it is left out, and reported.
    """
    timeout_seconds = settings.broker().load_timeout_seconds
    asked, left_out = 0, 0
    for seconds, stored in costs:
        snapshot, since, place = stored.snapshot, stored.since, stored.topic
        if since is None or not isinstance(snapshot, Snapshot) or place.is_system_topic:
            continue
        deduplicated: bool | None = None
        if asked < _MOST_ASKED:
            asked += 1
            values = settings.of_topic(place)
            deduplicated = None if isinstance(values, Unreadable) else bool(values.applied)
        else:
            above = settings.inherited(place.namespace)
            if not isinstance(above, Unreadable) and not above.applied:
                left_out += 1
                continue
        if deduplicated is not False:
            yield LoadForecast(place, snapshot.position, since, seconds, deduplicated, seconds > timeout_seconds)
    if left_out:
        unreadable.append(
            "not asked, with a deduplication cursor and deduplication off by inheritance: "
            f"{format_count(left_out, 'topic')}; "
            f"brokers were asked for the own policies of the {asked:,} slowest only"
        )
