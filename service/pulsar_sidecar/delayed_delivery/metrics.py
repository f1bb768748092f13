"""The metrics of cancelling delayed messages."""

from collections.abc import Callable, Iterator

from prometheus_client import Counter, Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pulsar_sidecar.observability.metrics import BulkHistogram

_PREFIX = "pulsar_delayed_message_cancellations"
_REACHED = "Time from the request to a cancellation status, by status; the count is of cancellations that reached it."
_REFUSED = "Cancellations refused or failed on a subscription, by cause; dispatched: maybe delivered first."
_REASSERTED = "Acknowledgements that the sidecar made again after a cursor had lost them."


class CancellationMetrics(Collector):
    """What cancelling counts; thread-safe."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        requested = _counter("requested", "Messages whose cancellation was requested.")
        reasserted = _counter("reasserted", _REASSERTED)
        self._seconds = BulkHistogram(f"{_PREFIX}_seconds", _REACHED, ("cluster", "proof"))
        self._refused = _counter("refused", _REFUSED, "cause")
        text = "Cancellations in the log that have not ended."
        self._open = Gauge(f"{_PREFIX}_open", text, ("cluster",), registry=None)
        self._open.labels(cluster)
        self._metrics = (requested, self._seconds, self._refused, reasserted, self._open)
        self.requested = requested.labels(cluster).inc
        self.acknowledged_again = reasserted.labels(cluster).inc

    def reached(self, status: str, seconds: float, count: int = 1) -> None:
        """Cancellations reached a status, so long after they were requested."""
        self._seconds.observe((self._cluster, status.lower()), seconds, count)

    def refused(self, cause: str, count: int = 1) -> None:
        """Cancellations were refused or failed; the cause must come from a closed list."""
        self._refused.labels(self._cluster, cause.replace(" ", "_").lower()).inc(count)

    def bind(self, open_cancellations: Callable[[], int]) -> None:
        """Read the size of the log through ``open_cancellations`` at every scrape."""
        self._open.labels(self._cluster).set_function(open_cancellations)

    def collect(self) -> Iterator[Metric]:
        for metric in self._metrics:
            yield from metric.collect()


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"{_PREFIX}_{name}_total", text, ("cluster", *labels), registry=None)
