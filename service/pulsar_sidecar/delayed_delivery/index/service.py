"""Reading delayed indexes: their content, overdue messages, and the cost of loads and of settings."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from pulsar_sidecar.delayed_delivery.index.inspection.forecast import Forecaster
from pulsar_sidecar.delayed_delivery.index.inspection.overdue import OverdueReader
from pulsar_sidecar.delayed_delivery.index.inspection.show import (
    IndexView,
    Tracker,
    TrackerState,
    configured_state,
    next_load,
    running_tracker,
    unasked_tracker,
    view_of,
)
from pulsar_sidecar.delayed_delivery.index.inspection.simulate import Simulator
from pulsar_sidecar.delayed_delivery.index.ports import RunningTrackers
from pulsar_sidecar.delayed_delivery.index.settings import BrokerTracker
from pulsar_sidecar.delayed_delivery.index.stored import StoredBucket, StoredIndex, StoredIndexes
from pulsar_sidecar.ledger_ownership.ports import LoadedTopics
from pulsar_sidecar.model.errors import NotFoundError, SidecarError
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName

_NOT_LOADED = TrackerState(Tracker.NONE, "no broker has the topic loaded")

_Buckets = Sequence[StoredBucket] | Unreadable
_ConfiguredBy = Callable[[str | None], BrokerTracker]


@dataclass(frozen=True, slots=True)
class IndexPlanning:
    """None of them changes anything; only ``overdue`` asks a topic's broker."""

    overdue: OverdueReader
    forecaster: Forecaster
    simulator: Simulator


@dataclass(frozen=True, slots=True)
class DelayedIndexService:
    """Answers questions about delayed indexes; safe for use by several threads.

    Attributes:
        owner: the web service URL of the broker that owns a topic's bundle, None when none does; loads nothing.
    """

    stored: StoredIndexes
    trackers: RunningTrackers
    loaded: LoadedTopics
    owner: Callable[[TopicName], str | None]

    def show(self, topic: TopicName, subscription: str | None = None, *, ask_broker: bool = False) -> list[IndexView]:
        """The index of one subscription, or of all: one answer for each partition.

        Args:
            topic: a partitioned topic, a partition, or a topic without partitions.
            subscription: only this one.
            ask_broker: have the broker that has the topic loaded show its statistics; loads nothing.

        Raises:
            NotFoundError: there is no such topic, or no such subscription.
            TemporaryError: the metadata store could not be asked.
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
                states = configured, runs_on, next_load(configured, buckets)
                if isinstance(index, StoredIndex):
                    yield view_of(index, *states)
                else:
                    yield IndexView(place, name, None, *states, None, index.reason)

    def _trackers(
        self, place: TopicName, configured_by: _ConfiguredBy, *, ask_broker: bool
    ) -> tuple[TrackerState, Callable[[str, _Buckets], TrackerState]]:
        """What the owner, or any broker, is configured to run, and what each subscription runs on."""
        try:
            owner = self.owner(place)
            configuration = configured_by(owner)
            configured = configured_state(owner or "a broker", configuration)
            if owner is None or (ask_broker and self.loaded.loaded_by(place) is None):
                return configured, lambda *_: _NOT_LOADED
            if not ask_broker:
                return configured, lambda _, buckets: unasked_tracker(configured, buckets)
            subscriptions = self.trackers.subscriptions(place)
            in_queue = configuration.memory_in_queue
            return configured, lambda name, _: running_tracker(configured, subscriptions.get(name), in_queue=in_queue)
        except SidecarError as error:
            unknown = TrackerState(Tracker.UNKNOWN, f"brokers could not be asked: {error}")
            return unknown, lambda *_: unknown
