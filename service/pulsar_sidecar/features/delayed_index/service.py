"""Service that reads delayed indexes: contents, overdue messages, and the cost of topic loads and settings."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from pulsar_sidecar.features.delayed_index.inspection.forecast import Forecaster
from pulsar_sidecar.features.delayed_index.inspection.overdue import OverdueReader
from pulsar_sidecar.features.delayed_index.inspection.show import (
    configured_state,
    inferred_tracker,
    next_load,
    running_tracker,
    view_of,
)
from pulsar_sidecar.features.delayed_index.inspection.simulate import Simulator
from pulsar_sidecar.features.delayed_index.ports import RunningTrackers
from pulsar_sidecar.features.delayed_index.results.inspection import IndexView, Tracker, TrackerState
from pulsar_sidecar.features.delayed_index.settings import BrokerTracker
from pulsar_sidecar.features.delayed_index.stored import StoredBucket, StoredIndex, StoredIndexes
from pulsar_sidecar.model.errors import NotFoundError, SidecarError
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.ports import LoadedTopics

_NOT_LOADED = TrackerState(Tracker.NONE, "no broker has the topic loaded")

_Buckets = Sequence[StoredBucket] | Unreadable
_ConfiguredBy = Callable[[str | None], BrokerTracker]


@dataclass(frozen=True, slots=True)
class IndexPlanning:
    """Readers for planning, which change nothing; only ``overdue`` queries a topic's broker."""

    overdue: OverdueReader
    forecaster: Forecaster
    simulator: Simulator


@dataclass(frozen=True, slots=True)
class DelayedIndexService:
    """Service that reads delayed indexes; thread-safe.

    Attributes:
        owner: returns the web service URL of the broker that owns a topic's bundle, or None; loads nothing.
    """

    stored: StoredIndexes
    trackers: RunningTrackers
    loaded: LoadedTopics
    owner: Callable[[TopicName], str | None]

    def show(self, topic: TopicName, subscription: str | None = None, *, ask_broker: bool = False) -> list[IndexView]:
        """Return the index of one subscription, or of all, with one view for each partition.

        Raises:
            NotFoundError: there is no such topic, or no such subscription.
            TemporaryError: the metadata store is unreachable.
        """
        places, configured = self.stored.topics.places_of(topic), cache(self.trackers.configured)
        found = [
            view for place in places for view in self._place(place, subscription, configured, ask_broker=ask_broker)
        ]
        if not found and subscription is not None:
            raise NotFoundError(f"{topic} has no durable subscription {subscription}")
        return found

    def _place(
        self, place: TopicName, subscription: str | None, configured_by: _ConfiguredBy, *, ask_broker: bool
    ) -> Iterator[IndexView]:
        for _, stored in self.stored.read([place], subscription):
            configured, running = self._trackers(place, configured_by, ask_broker=ask_broker)
            indexes = {subscription or "": stored} if isinstance(stored, Unreadable) else stored.subscriptions
            for name, index in indexes.items():
                buckets = index.buckets if isinstance(index, StoredIndex) else index
                runs_on = running(name, buckets) if name else TrackerState(Tracker.UNKNOWN, "no subscription is known")
                yield view_of(place, name, index, configured, runs_on, next_load(configured, buckets))

    def _trackers(
        self, place: TopicName, configured_by: _ConfiguredBy, *, ask_broker: bool
    ) -> tuple[TrackerState, Callable[[str, _Buckets], TrackerState]]:
        """Return the tracker configured on the owner, or any broker, and a function for the running one."""
        try:
            owner = self.owner(place)
            configuration = configured_by(owner)
            configured = configured_state(owner or "a broker", configuration)
            if owner is None or (ask_broker and self.loaded.loaded_by(place) is None):
                return configured, lambda *_: _NOT_LOADED
            if not ask_broker:
                return configured, lambda _, buckets: inferred_tracker(configured, buckets)
            subscriptions = self.trackers.subscriptions(place)
            in_queue = configuration.memory_in_queue
            return configured, lambda name, _: running_tracker(configured, subscriptions.get(name), in_queue=in_queue)
        except SidecarError as error:
            unknown = TrackerState(Tracker.UNKNOWN, f"brokers could not be queried: {error}")
            return unknown, lambda *_: unknown
