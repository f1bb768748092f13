"""What loading a topic would cost its broker now, from what is stored alone: no broker is asked, no topic is loaded.

Loading begins with an empty tracker. A broker with the in-memory tracker reads every unacknowledged entry again, since
it has to look whether the entry is delayed; one with the bucket tracker skips those that a bucket has a bit of. Every
figure is an upper bound: each unacknowledged entry is taken for a delayed message.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from pyroaring import BitMap

from pulsar_sidecar.delayed_delivery.backlog import waiting_entries
from pulsar_sidecar.delayed_delivery.index.inspection.broker_queues import queue_bytes
from pulsar_sidecar.delayed_delivery.index.inspection.show import Tracker, TrackerState, next_load
from pulsar_sidecar.delayed_delivery.index.settings import BrokerTracker
from pulsar_sidecar.delayed_delivery.index.snapshot import SnapshotMetadata
from pulsar_sidecar.delayed_delivery.index.stored import StoredIndex, StoredIndexes, StoredTopic
from pulsar_sidecar.ledger_ownership.ports import LedgerLengths
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName

ENTRIES_PER_SECOND: Final = 200_000 / 10.6
"""A broker of 4.0.8 after an unload, on two cores: 200,000 delayed messages took 10.6 s (docs/benchmarks.md)."""
FIRST_READ: Final = 100
"""``dispatcherMaxReadBatchSize``: the first delayed message makes the tracker, so the first read skips nothing."""
READS_PER_BUCKET: Final = 2
"""Entry 0 and the first segment that is not past."""
MOST_SHOWN: Final = 10

LOAD_ASSUMPTIONS: Final = (
    f"a broker reads {ENTRIES_PER_SECOND:,.0f} entries a second (200,000 in 10.6 s on 2 cores, twice that when busy); "
    "what else a load takes, some tenths of a second, is not counted",
    "an index takes 24 to 36 B in a broker's memory, as its queues grow; bitmaps of buckets take what they take stored",
    f"with buckets a broker reads {READS_PER_BUCKET} entries of each, and the backlog's first {FIRST_READ} entries",
    "acknowledgements as stored; those of a loaded topic since then are not known",
)
ASSUMPTIONS: Final = (
    *LOAD_ASSUMPTIONS,
    "every unacknowledged entry is a delayed message that is not due: an upper bound",
    "every subscription is Shared or Key_Shared and has a consumer: for others a load reads nothing ahead",
    "subscriptions of a topic read one after the other; a broker's cache makes the later ones quicker",
)


@dataclass(frozen=True, slots=True)
class LoadCost:
    """What a load takes."""

    entries: int
    memory_bytes: int

    @property
    def seconds(self) -> float:
        return self.entries / ENTRIES_PER_SECOND


@dataclass(frozen=True, slots=True)
class SubscriptionForecast:
    """One subscription of a topic without partitions, or of one partition.

    Attributes:
        waiting: entries that are not acknowledged.
        indexed: those of them that a bucket has a bit of and a broker need not read.
        buckets: how many it has.
        unusable: why a broker does not use the buckets (it falls back to its in-memory tracker, or, where they overlap
            or have a bad name, delivers nothing); None where it does.
        with_buckets: on a broker with the bucket tracker.
        without_buckets: on a broker with the in-memory tracker.
        as_configured: which of both a load takes now.
    """

    topic: TopicName
    subscription: str
    waiting: int
    indexed: int
    buckets: int
    unusable: str | None
    with_buckets: LoadCost
    without_buckets: LoadCost
    as_configured: LoadCost


@dataclass(frozen=True, slots=True)
class TopicForecast:
    """A topic without partitions, or one partition: its subscriptions together.

    Attributes:
        unreadable: why something of it could not be read, and so is not in the figures.
    """

    topic: TopicName
    subscriptions: tuple[SubscriptionForecast, ...]
    unreadable: tuple[str, ...]

    @property
    def with_buckets(self) -> LoadCost:
        return _sum(each.with_buckets for each in self.subscriptions)

    @property
    def without_buckets(self) -> LoadCost:
        return _sum(each.without_buckets for each in self.subscriptions)

    @property
    def as_configured(self) -> LoadCost:
        return _sum(each.as_configured for each in self.subscriptions)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The worst first.

    Attributes:
        buckets_configured: whether the brokers run the bucket tracker.
        topics: how many partitions, and topics without partitions, were looked at.
        worst: the most expensive of them; none without a subscription.
        total: all of them together.
        unreadable: what could not be read, and so is in no figure.
    """

    buckets_configured: bool
    topics: int
    worst: tuple[TopicForecast, ...]
    total: LoadCost
    unreadable: tuple[str, ...]
    assumptions: tuple[str, ...] = ASSUMPTIONS


def forecast_of(
    index: StoredIndex, lengths: Mapping[LedgerId, int], now_ms: int, *, buckets_configured: bool
) -> SubscriptionForecast | Unreadable:
    """One subscription's.

    Args:
        index: as stored.
        lengths: the entries of each of the topic's ledgers, the last one's included.
        now_ms: segments that are past are skipped when buckets are recovered.
        buckets_configured: whether the brokers run the bucket tracker.
    """
    if isinstance(index.acknowledged, Unreadable):
        return index.acknowledged
    waiting = waiting_entries(lengths, [index.acknowledged])
    count = sum(map(len, waiting.values()))
    without = LoadCost(count, queue_bytes(count))
    # If one is unusable a broker of 4.0.8 recovers none of them.
    load = next_load(TrackerState(Tracker.BUCKETS, ""), index.buckets)
    unusable = None if load.tracker is Tracker.BUCKETS else load.reason
    snapshots = [bucket.snapshot for bucket in index.buckets if isinstance(bucket.snapshot, tuple)]
    skipped, with_buckets = cost_with_buckets(snapshots, waiting, now_ms) if unusable is None else (0, without)
    now = with_buckets if buckets_configured else without
    buckets = len(index.buckets)
    return SubscriptionForecast(
        index.topic, index.subscription, count, skipped, buckets, unusable, with_buckets, without, now
    )


def cost_with_buckets(
    snapshots: Sequence[SnapshotMetadata], waiting: Mapping[LedgerId, BitMap], now_ms: int
) -> tuple[int, LoadCost]:
    """How many of the waiting entries buckets have a bit of, and what recovering them and reading the others takes."""
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
    return skipped, LoadCost(
        unread + min(FIRST_READ, skipped) + READS_PER_BUCKET * len(snapshots),
        queue_bytes(unread) + queue_bytes(loaded) + bitmap_bytes,
    )


@dataclass(frozen=True, slots=True)
class Forecaster:
    """Forecasts from what is stored; changes nothing."""

    stored: StoredIndexes
    lengths: LedgerLengths
    tracker: Callable[[], BrokerTracker]
    clock: Clock

    def of_topic(self, topic: TopicName) -> Forecast:
        """All of the topic's partitions, or the topic itself.

        Raises:
            NotFoundError: there is no such topic.
            TemporaryError: the metadata store or the brokers could not be asked.
        """
        places = self.stored.topics.places_of(topic)
        return self._of(places, len(places))

    def of_namespace(self, namespace: str) -> Forecast:
        """The most expensive topics of a namespace, or of a tenant; each partition counts by itself.

        Raises:
            NotFoundError: there is no such namespace or tenant.
            TemporaryError: the metadata store or the brokers could not be asked.
        """
        return self._of(self.stored.topics.places_below(namespace), MOST_SHOWN)

    def _of(self, places: Iterable[TopicName], most: int) -> Forecast:
        buckets_configured = self.tracker().keeps_buckets
        unreadable: list[str] = []
        worst: list[TopicForecast] = []
        count, total = 0, LoadCost(0, 0)
        for place, stored in self.stored.read(places):
            count += 1
            if isinstance(stored, Unreadable):
                unreadable.append(stored.reason)
                continue
            found = self._of_place(place, stored, buckets_configured=buckets_configured)
            unreadable += found.unreadable
            total = _sum([total, found.as_configured])
            if found.subscriptions:
                worst = nlargest(most, [*worst, found], key=lambda each: each.as_configured.entries)
        return Forecast(buckets_configured, count, tuple(worst), total, tuple(unreadable))

    def _of_place(self, place: TopicName, stored: StoredTopic, *, buckets_configured: bool) -> TopicForecast:
        lengths = self.lengths.lengths(stored.ledgers)
        if isinstance(lengths, Unreadable):
            return TopicForecast(place, (), (f"{place}: {lengths.reason}",))
        found, unreadable = [], []
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
        return TopicForecast(place, tuple(found), tuple(unreadable))


def _sum(costs: Iterable[LoadCost]) -> LoadCost:
    every = list(costs)
    return LoadCost(sum(each.entries for each in every), sum(each.memory_bytes for each in every))
