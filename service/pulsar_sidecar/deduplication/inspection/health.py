"""What doors ask about many topics at once: cursors that are stuck, and slow loads."""

from pulsar_sidecar.deduplication.inspection.forecast import LoadForecasts, slowest_loads
from pulsar_sidecar.deduplication.inspection.lag_limits import LagLimits
from pulsar_sidecar.deduplication.inspection.policy_changes import Policies, RunningDeduplication
from pulsar_sidecar.deduplication.inspection.stuck import BrokerDeduplicationSettings, StuckCursors, StuckReport
from pulsar_sidecar.deduplication.stored import StoredDeduplications


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
        topics = self._stored.topics
        places = topics.all_places() if namespace is None else topics.places_below(namespace)
        search = StuckCursors(self._stored, BrokerDeduplicationSettings(self._policies), self._running)
        return search.find(places, limits, most)

    def slowest_loads(self, namespace: str) -> LoadForecasts:
        """The slowest loads of a namespace; raises as `stuck`."""
        places = self._stored.topics.places_below(namespace)
        return slowest_loads(self._stored, BrokerDeduplicationSettings(self._policies), places)
