"""Forecast of the cost of loading a topic, from stored data alone: it queries no broker and loads no topic.

Loading starts with an empty tracker. A broker with the in-memory tracker rereads every unacknowledged entry to check if
it is delayed; one with the bucket tracker skips entries that have a bit in a bucket. Every figure is an upper bound:
each unacknowledged entry counts as a delayed message.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from pyroaring import BitMap

from pulsar_sidecar.backlog.waiting import waiting_entries
from pulsar_sidecar.features.delayed_index.inspection.broker_queues import queue_bytes
from pulsar_sidecar.features.delayed_index.inspection.show import recovery_of
from pulsar_sidecar.features.delayed_index.results.inspection import (
    Forecast,
    LoadCost,
    SubscriptionForecast,
    TopicForecast,
    Tracker,
)
from pulsar_sidecar.features.delayed_index.settings import BrokerTracker
from pulsar_sidecar.features.delayed_index.snapshot import SnapshotMetadata
from pulsar_sidecar.features.delayed_index.stored import StoredIndex, StoredIndexes, StoredTopic
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.ports import LedgerLengths

ENTRIES_PER_SECOND: Final = 200_000 / 10.6
"""Reading speed of a 4.0.8 broker after an unload, on two cores: 200,000 delayed messages in 10.6 s
(docs/benchmarks.md)."""
FIRST_READ: Final = 100
"""``dispatcherMaxReadBatchSize``: the first delayed message creates the tracker, so the first read skips nothing."""
READS_PER_BUCKET: Final = 2
"""Reads per bucket: entry 0 and the first segment that is not past."""
MOST_SHOWN: Final = 10

LOAD_ASSUMPTIONS: Final = (
    f"a broker reads {ENTRIES_PER_SECOND:,.0f} entries per second (200,000 in 10.6 s on 2 cores, twice that when "
    "busy); the rest of a topic load, some tenths of a second, is not counted",
    "an index takes 24 to 36 B in a broker's memory, as its queues grow; bitmaps of buckets take as much as in storage",
    f"with buckets a broker reads {READS_PER_BUCKET} entries of each, and the backlog's first {FIRST_READ} entries",
    "acknowledgements as stored; a loaded topic may have more",
)
ASSUMPTIONS: Final = (
    *LOAD_ASSUMPTIONS,
    "every unacknowledged entry is a delayed message that is not due: an upper bound",
    "every subscription is Shared or Key_Shared and has a consumer: for others a topic load reads nothing ahead",
    "subscriptions of a topic read one after the other; a broker's cache makes the later ones quicker",
)


def load_cost(entries: int, memory_bytes: int) -> LoadCost:
    """Return the cost of reading these entries, with the time that a broker takes."""
    return LoadCost(entries, entries / ENTRIES_PER_SECOND, memory_bytes)


def forecast_of(
    index: StoredIndex, lengths: Mapping[LedgerId, int], now_ms: int, *, buckets_configured: bool
) -> SubscriptionForecast | Unreadable:
    """Return the forecast for one subscription; ``lengths`` are by ledger, the open one included."""
    if isinstance(index.acknowledged, Unreadable):
        return index.acknowledged
    waiting = waiting_entries(lengths, [index.acknowledged])
    count = sum(map(len, waiting.values()))
    without = load_cost(count, queue_bytes(count))
    # If one bucket is unusable, a 4.0.8 broker recovers none of them.
    load = recovery_of(index.buckets)
    unusable = None if load.tracker is Tracker.BUCKETS else load.reason
    snapshots = [bucket.snapshot for bucket in index.buckets if isinstance(bucket.snapshot, tuple)]
    skipped, with_buckets = cost_with_buckets(snapshots, waiting, now_ms) if unusable is None else (0, without)
    now = with_buckets if buckets_configured else without
    buckets = len(index.buckets)
    return SubscriptionForecast(index.subscription, count, skipped, buckets, unusable, now, with_buckets, without)


def cost_with_buckets(
    snapshots: Sequence[SnapshotMetadata], waiting: Mapping[LedgerId, BitMap], now_ms: int
) -> tuple[int, LoadCost]:
    """Return the number of waiting entries with a bit, and the cost of recovery and of reading the others."""
    indexed: dict[LedgerId, BitMap] = {}
    loaded = bitmap_bytes = 0
    for snapshot in snapshots:
        left = [segment for segment in snapshot if segment.max_schedule_timestamp > now_ms]
        loaded += left[0].count if left else 0
        for ledger_id, entries in (pair for segment in left for pair in segment.bitmaps.items()):
            bitmap_bytes += len(entries.serialize())
            indexed.setdefault(ledger_id, BitMap()).update(entries & waiting.get(ledger_id, BitMap()))
    skipped = sum(map(len, indexed.values()))
    unread = sum(map(len, waiting.values())) - skipped
    return skipped, load_cost(
        unread + min(FIRST_READ, skipped) + READS_PER_BUCKET * len(snapshots),
        queue_bytes(unread) + queue_bytes(loaded) + bitmap_bytes,
    )


@dataclass(frozen=True, slots=True)
class Forecaster:
    """Forecaster from stored data; changes nothing."""

    stored: StoredIndexes
    lengths: LedgerLengths
    tracker: Callable[[], BrokerTracker]
    clock: Clock

    def of_topic(self, topic: TopicName) -> Forecast:
        """Return the forecast for all partitions of a topic, or for the topic itself.

        Raises:
            NotFoundError: there is no such topic.
            TemporaryError: the metadata store or the brokers could not be queried.
        """
        places = self.stored.topics.places_of(topic)
        return self._of(places, len(places))

    def of_namespace(self, namespace: str) -> Forecast:
        """Return the forecast for a namespace's or tenant's topics; each partition counts separately.

        Raises:
            NotFoundError: there is no such namespace or tenant.
            TemporaryError: the metadata store or the brokers could not be queried.
        """
        return self._of(self.stored.topics.places_below(namespace), MOST_SHOWN)

    def _of(self, places: Iterable[TopicName], most: int) -> Forecast:
        buckets_configured = self.tracker().keeps_buckets
        unreadable: list[str] = []
        worst: list[TopicForecast] = []
        count, total = 0, load_cost(0, 0)
        for place, stored in self.stored.read(places):
            count += 1
            if isinstance(stored, Unreadable):
                unreadable.append(stored.reason)
                continue
            found = self._of_place(place, stored, buckets_configured=buckets_configured)
            unreadable += found.unreadable
            total = sum_of_costs([total, found.as_configured])
            if found.subscriptions:
                worst = nlargest(most, [*worst, found], key=lambda each: each.as_configured.entries)
        return Forecast(buckets_configured, count, total, tuple(worst), tuple(unreadable), ASSUMPTIONS)

    def _of_place(self, place: TopicName, stored: StoredTopic, *, buckets_configured: bool) -> TopicForecast:
        lengths = self.lengths.lengths(stored.ledgers)
        if isinstance(lengths, Unreadable):
            return _topic_forecast(place, [], [f"{place}: {lengths.reason}"])
        found: list[SubscriptionForecast] = []
        unreadable: list[str] = []
        for name, index in stored.subscriptions.items():
            cost = (
                index
                if isinstance(index, Unreadable)
                else forecast_of(index, lengths, self.clock.now_ms(), buckets_configured=buckets_configured)
            )
            if isinstance(cost, Unreadable):
                unreadable.append(f"{name} of {place}: {cost.reason}")
            else:
                found.append(cost)
        return _topic_forecast(place, found, unreadable)


def _topic_forecast(
    place: TopicName, subscriptions: Sequence[SubscriptionForecast], unreadable: Sequence[str]
) -> TopicForecast:
    return TopicForecast(
        topic=str(place),
        as_configured=sum_of_costs(each.as_configured for each in subscriptions),
        with_buckets=sum_of_costs(each.with_buckets for each in subscriptions),
        without_buckets=sum_of_costs(each.without_buckets for each in subscriptions),
        subscriptions=tuple(subscriptions),
        unreadable=tuple(unreadable),
    )


def sum_of_costs(costs: Iterable[LoadCost]) -> LoadCost:
    """Return the cost of several topic loads together."""
    every = list(costs)
    return load_cost(sum(each.entries for each in every), sum(each.memory_bytes for each in every))
