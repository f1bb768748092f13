"""The metrics of cancelling delayed messages."""

from collections.abc import Callable, Iterator

from prometheus_client import Counter, Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pulsar_sidecar.observability.metrics import BulkHistogram

_PREFIX = "pulsar_delayed_message_cancellations"


class CancellationMetrics(Collector):
    """What cancelling counts; thread-safe."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._requested = Counter(f"{_PREFIX}_requested_total", "Messages asked for.", ("cluster",), registry=None)
        self._seconds = BulkHistogram(
            f"{_PREFIX}_seconds",
            "Time from the request to a level of proof, by level (also unknown); its count is how many reached it.",
            ("cluster", "proof"),
        )
        self._refused = Counter(
            f"{_PREFIX}_refused_total",
            "Cancellations that did not come about, on each subscription, by cause; dispatched means raced.",
            ("cluster", "cause"),
            registry=None,
        )
        self._reasserted = Counter(
            f"{_PREFIX}_reasserted_total",
            "Acknowledgements made again after a cursor had lost them.",
            ("cluster",),
            registry=None,
        )
        self._open = Gauge(
            f"{_PREFIX}_open", "Cancellations in the log that are not finished.", ("cluster",), registry=None
        )
        for each in (self._requested, self._reasserted, self._open):
            each.labels(cluster)

    def requested(self, count: int = 1) -> None:
        """Messages were asked for."""
        self._requested.labels(self._cluster).inc(count)

    def reached(self, status: str, seconds: float, count: int = 1) -> None:
        """Cancellations reached a level, so long after they were asked for."""
        self._seconds.observe((self._cluster, status.lower()), seconds, count)

    def refused(self, cause: str, count: int = 1) -> None:
        """Cancellations did not come about; the text must come from a closed list."""
        self._refused.labels(self._cluster, cause.replace(" ", "_").lower()).inc(count)

    def acknowledged_again(self, count: int = 1) -> None:
        """Acknowledgements that a cursor had lost were made again."""
        self._reasserted.labels(self._cluster).inc(count)

    def bind(self, open_cancellations: Callable[[], int]) -> None:
        """Read the size of the log through ``open_cancellations`` at every scrape."""
        self._open.labels(self._cluster).set_function(open_cancellations)

    def collect(self) -> Iterator[Metric]:
        for metric in (self._requested, self._seconds, self._refused, self._reasserted, self._open):
            yield from metric.collect()
