"""Questions about many topics at once: stuck cursors and slow topic loads, from stored state.

A topic load is slow because a broker replays the entries after the snapshot. The sidecar queries brokers only for
policies, and for the statuses of the topics that it shows; it loads no topic.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pulsar_sidecar.features.deduplication.inspection.lag_limits import LagLimits
from pulsar_sidecar.features.deduplication.inspection.policy_changes import Policies, RunningDeduplication
from pulsar_sidecar.features.deduplication.inspection.stuck import (
    BrokerDeduplicationSettings,
    DeduplicationSettings,
    StuckCursors,
)
from pulsar_sidecar.features.deduplication.replay_cost import ASSUMPTION, replay_seconds
from pulsar_sidecar.features.deduplication.results import LoadForecast, LoadForecasts, StuckReport
from pulsar_sidecar.features.deduplication.snapshots import Snapshot
from pulsar_sidecar.features.deduplication.stored import StoredDeduplication, StoredDeduplications
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.reports.formatting import format_count

MOST_SHOWN: Final = 10
_MOST_ASKED: Final = 100


@dataclass(frozen=True, slots=True)
class DeduplicationHealth:
    """Stuck cursors and slow topic loads; each call rereads brokers' policies. Thread-safe."""

    stored: StoredDeduplications
    policies: Policies
    running: RunningDeduplication

    def stuck(self, namespace: str | None, limits: LagLimits, most: int) -> StuckReport:
        """Return the stuck cursors of a namespace, or of all namespaces.

        Raises:
            NotFoundError: there is no such namespace.
            TemporaryError: the metadata store, or any broker, could not be reached.
        """
        search = StuckCursors(self.stored, BrokerDeduplicationSettings(self.policies), self.running)
        return search.find(self._places(namespace), limits, most)

    def slowest_loads(self, namespace: str | None) -> LoadForecasts:
        """Return the slowest topic loads of a namespace, or of all; raises as `stuck`."""
        places = self._places(namespace)
        settings = BrokerDeduplicationSettings(self.policies)
        topics, cursors = 0, 0
        costs: list[tuple[float, StoredDeduplication]] = []
        unreadable: list[str] = []
        for place, stored in self.stored.read(places):
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
        timeout_seconds = settings.broker().load_timeout_seconds
        return LoadForecasts(topics, cursors, timeout_seconds, tuple(slowest), tuple(unreadable), ASSUMPTION)

    def _places(self, namespace: str | None) -> Iterator[TopicName]:
        topics = self.stored.topics
        return topics.all_places() if namespace is None else topics.places_below(namespace)


def _deduplicated(
    costs: Iterable[tuple[float, StoredDeduplication]], settings: DeduplicationSettings, unreadable: list[str]
) -> Iterator[LoadForecast]:
    """Leave out topics that are certainly not deduplicated: the broker that loads them deletes the cursor.

    A topic's own policy costs several requests. After `_MOST_ASKED` topics, the levels above decide: where these are
    on, the topic is included; where they are off, it is left out, and reported.
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
            times_out = seconds > timeout_seconds
            yield LoadForecast(str(place), str(snapshot.position), since, seconds, deduplicated, times_out)
    if left_out:
        unreadable.append(
            f"{format_count(left_out, 'topic')} left out, with a deduplication cursor and an inherited policy that is "
            f"off: brokers were asked only for the policies of the {asked:,} slowest"
        )
