"""PIP-195's metrics for watched topics, as far as they are visible from outside a broker.

Their names start with ``pulsar_sidecar_``, so that a sum over brokers' own metrics counts nothing twice. A broker
resets its ``op_count`` at each reading of its statistics (4.0.8: ``sumThenReset``); these counters only grow.
"""

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pulsar_sidecar.features.delayed_index.results.inspection import BucketView, IndexView, Tracker
from pulsar_sidecar.features.delayed_index.service import DelayedIndexService
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.names import TopicName

_PREFIX: Final = "pulsar_sidecar_delayed_message_index"
_CLASSES_MS: Final = (50, 100, 500, 1000, 5000, 30_000, 60_000)
"""``BucketDelayedMessageIndexStats.BUCKETS``; longer operations count as ``overflow``."""
QUANTILES: Final = (*map(str, _CLASSES_MS), "overflow")
_MERGED: Final = 2
"""Least number of vanished buckets covered by a new bucket that counts as merged from them."""


_GAUGES: Final[Sequence[tuple[str, str, Callable[[IndexView, int | None], float | None]]]] = (
    (
        "bucket_total",
        "Stored buckets; brokers also count the bucket that they are filling.",
        lambda view, _: None if view.buckets is None else len(view.buckets),
    ),
    ("loaded", "Indexes of buckets that a broker would load into memory with the topic.", lambda _, loaded: loaded),
    ("bucket_snapshot_size_bytes", "Bytes of all stored buckets.", lambda view, _: view.size_bytes),
    ("bucket_unreadable", "Buckets whose metadata could not be read.", lambda view, _: view.unreadable),
    (
        "next_load_on_buckets",
        "1 if a broker that loads the topic recovers the buckets, 0 if not; absent if unknown, or without buckets.",
        lambda view, _: (
            {Tracker.UNKNOWN: None, Tracker.BUCKETS: 1}.get(view.next_load.tracker, 0) if view.buckets else None
        ),
    ),
)


class _Labels(NamedTuple):
    topic: str
    subscription: str


class DelayedIndexMetrics(Collector):
    """Findings of the last check of each watched topic, and changes since the first; thread-safe."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._seen: dict[TopicName, dict[_Labels, IndexView]] = {}
        self._loaded: dict[_Labels, int] = {}
        self._operations: Counter[tuple[_Labels, str, str]] = Counter()
        self._latencies: defaultdict[_Labels, Counter[str]] = defaultdict(Counter)
        self._sums_ms: Counter[_Labels] = Counter()

    def observe(self, topic: TopicName, views: Sequence[IndexView], now_ms: int, took_ms: int) -> None:
        """Record a topic's views after a check."""
        found = {_Labels(view.topic, view.subscription): view for view in views}
        with self._lock:
            before = self._seen.get(topic, {})
            for place, view in found.items():
                self._loaded.pop(place, None)
                if view.buckets is None:
                    continue
                if place in before:
                    self._count_changes(place, before[place].buckets, view.buckets)
                self._count_loads(place, view.buckets, took_ms)
                self._loaded[place] = sum(_in_memory(bucket, now_ms) for bucket in view.buckets)
            self._seen[topic] = found

    def forget(self, topic: TopicName) -> None:
        """Discard the last views of a topic after a failed check: they may be outdated."""
        with self._lock:
            self._seen.pop(topic, None)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            views = {place: view for found in self._seen.values() for place, view in found.items()}
            loaded, operations = dict(self._loaded), dict(self._operations)
            latencies, sums = {place: dict(each) for place, each in self._latencies.items()}, dict(self._sums_ms)
        for name, text, value_of in _GAUGES:
            family = Metric(f"{_PREFIX}_{name}", text, "gauge")
            for place, view in views.items():
                value = value_of(view, loaded.get(place))
                if value is not None:
                    family.add_sample(family.name, self._labels(place), float(value))
            yield family
        # PIP-195 names its counters like this; the client library would add _total.
        text = "Operations on buckets: the sidecar's own loads, and changes by brokers between two of them."
        family = Metric(f"{_PREFIX}_bucket_op_count", text, "unknown")
        for (place, kind, state), count in operations.items():
            family.add_sample(family.name, self._labels(place, type=kind, state=state), count)
        yield family
        text = "Loads of a subscription's buckets by the sidecar, by duration: at most quantile milliseconds."
        family = Metric(f"{_PREFIX}_bucket_op_latency_ms", text, "unknown")
        for place, classes in latencies.items():
            for quantile in QUANTILES:
                labels = self._labels(place, type="load", quantile=quantile)
                family.add_sample(family.name, labels, classes.get(quantile, 0))
            labels = self._labels(place, type="load")
            family.add_sample(f"{family.name}_count", labels, sum(classes.values()))
            family.add_sample(f"{family.name}_sum", labels, sums[place])
        yield family

    def _labels(self, place: _Labels, **more: str) -> dict[str, str]:
        return {"cluster": self._cluster, **place._asdict(), **more}

    def _count(self, place: _Labels, kind: str, state: str, count: int) -> None:
        if count:
            self._operations[place, kind, state] += count
            self._operations[place, kind, "all"] += count

    def _count_loads(self, place: _Labels, buckets: Sequence[BucketView], took_ms: int) -> None:
        if not buckets:
            return
        failed = sum(bucket.segments is None for bucket in buckets)
        self._count(place, "load", "succeed", len(buckets) - failed)
        self._count(place, "load", "failed", failed)
        self._latencies[place][QUANTILES[bisect_left(_CLASSES_MS, took_ms)]] += 1
        self._sums_ms[place] += took_ms

    def _count_changes(self, place: _Labels, before: Sequence[BucketView] | None, now: Sequence[BucketView]) -> None:
        """Count brokers' changes since the last check, except buckets that came and went in between."""
        if before is None:
            return
        old = {(bucket.name, bucket.ledger_id): bucket for bucket in before}
        new = {(bucket.name, bucket.ledger_id): bucket for bucket in now}
        created = [new[each] for each in new.keys() - old.keys()]
        deleted = [old[each] for each in old.keys() - new.keys()]
        self._count(place, "create", "succeed", len(created))
        self._count(place, "delete", "succeed", len(deleted))
        self._count(place, "merge", "succeed", sum(_is_merged(bucket, deleted) for bucket in created))


def _is_merged(bucket: BucketView, deleted: Sequence[BucketView]) -> bool:
    covered = _ledgers(bucket)
    return sum(bool(each) and each[0] in covered and each[-1] in covered for each in map(_ledgers, deleted)) >= _MERGED


def _ledgers(bucket: BucketView) -> range:
    start, end = bucket.start_ledger_id, bucket.end_ledger_id
    return range(0) if start is None or end is None else range(start, end + 1)


def _in_memory(bucket: BucketView, now_ms: int) -> int:
    """Return the indexes that a broker loads (``asyncRecoverBucketSnapshotEntry``): the first segment not past."""
    return next((part.indexes for part in bucket.segments or () if part.last_due_ms > now_ms), 0)


@dataclass(frozen=True, slots=True)
class WatchedIndexes:
    """Reader of watched topics for the metrics."""

    service: DelayedIndexService
    metrics: DelayedIndexMetrics
    clock: Clock

    def update(self, topic: TopicName) -> None:
        """Read all subscriptions of a topic; raises as `DelayedIndexService.show`, or if one is unreadable."""
        started = self.clock.monotonic_seconds()
        try:
            views = self.service.show(topic)
        except SidecarError:
            self.metrics.forget(topic)
            raise
        took_ms = round((self.clock.monotonic_seconds() - started) * 1000)
        self.metrics.observe(topic, views, self.clock.now_ms(), took_ms)
        for view in views:
            if view.buckets is None:
                raise TemporaryError(f"subscription {view.subscription} of {view.topic}: {view.problem}")
