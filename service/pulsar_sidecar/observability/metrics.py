"""Building blocks of every feature's metrics, and the metrics of the process itself.

A feature's own metrics are in its ``metrics.py``. Every sample carries ``cluster``.
"""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge, Info, ProcessCollector, disable_created_metrics
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""The buckets of every histogram of durations."""


def process_registry(*, cluster: str, instance: str, version: str, ready: Callable[[], bool]) -> CollectorRegistry:
    """Return a registry with the process's metrics, to which features add theirs; ``ready`` reads memory only."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per counter, of no use here
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    info = Info("pulsar_sidecar", "Always 1; the labels identify the sidecar.", registry=registry)
    info.info({"cluster": cluster, "instance": instance, "version": version})
    text = "1 while /readyz answers 200: the sidecar can work, and the cluster answers."
    Gauge("pulsar_sidecar_ready", text, ("cluster",), registry=registry).labels(cluster).set_function(ready)
    return registry


class BulkHistogram(Collector):
    """A histogram that takes many observations of the same value in one step; thread-safe."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._bounds = (*SECONDS, float("inf"))
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._lock = threading.Lock()

    def observe(self, values: tuple[str, ...], seconds: float, count: int) -> None:
        """Add ``count`` observations of the same duration; ``values`` are the labels' values."""
        with self._lock:
            counts = self._counts.setdefault(values, [0] * len(self._bounds))
            counts[bisect_left(self._bounds, seconds)] += count
            self._sums[values] += seconds * count

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        bounds = [*(str(float(bound)) for bound in SECONDS), "+Inf"]
        with self._lock:
            for values, counts in self._counts.items():
                family.add_metric(values, list(zip(bounds, accumulate(counts), strict=True)), self._sums[values])
        yield family
