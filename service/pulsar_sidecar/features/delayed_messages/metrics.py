"""Metrics of cancelling delayed messages."""

from collections.abc import Callable, Iterator

from prometheus_client import Counter, Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pulsar_sidecar.features.delayed_messages.results import CancellationStatus, Cause
from pulsar_sidecar.observability.metrics import BulkHistogram

_PREFIX = "pulsar_delayed_message_cancellations"
_REACHED = "Time from the request to a cancellation status, by status; the count is of cancellations that reached it."
_REFUSED = "Cancellations refused or failed on a subscription, by cause; dispatched: maybe delivered first."
_REASSERTED = "Acknowledgements that the sidecar made again after a cursor had lost them."


class CancellationMetrics(Collector):
    """Metrics of cancellations; thread-safe."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        requested = _counter("requested", "Messages whose cancellation was requested.")
        reasserted = _counter("reasserted", _REASSERTED)
        self._seconds = BulkHistogram(f"{_PREFIX}_seconds", _REACHED, ("cluster", "proof"))
        self._refused = _counter("refused", _REFUSED, "cause")
        text = "Cancellations in the log that have not ended."
        self._open = Gauge(f"{_PREFIX}_open", text, ("cluster",), registry=None)
        self._open.labels(cluster)
        text = "Readings of a subscription that failed, so that its cancellations were not reconciled."
        failed = _counter("reconcile_failed", text)
        text = "1 on the sidecar that reconciles the cancellations, 0 on the others; absent while cancelling is off."
        self._leading = Gauge(f"{_PREFIX}_leading", text, ("cluster",), registry=None)
        self._metrics = (requested, self._seconds, self._refused, reasserted, failed, self._open, self._leading)
        # A series that starts at 0 has a rate from its first event on.
        for status in CancellationStatus:
            if status.open or status in (CancellationStatus.EXPIRED, CancellationStatus.UNKNOWN):
                self.reached(status.value, 0, 0)
        for cause in Cause:
            self.refused(cause.value, 0)
        self.reconcile_failed = failed.labels(cluster).inc
        self.requested = requested.labels(cluster).inc
        self.acknowledged_again = reasserted.labels(cluster).inc

    def reached(self, status: str, seconds: float, count: int = 1) -> None:
        """Observe cancellations that reached a status, and the time since they were requested."""
        self._seconds.observe((self._cluster, status.lower()), seconds, count)

    def refused(self, cause: str, count: int = 1) -> None:
        """Count refused or failed cancellations; ``cause`` must come from a closed list."""
        self._refused.labels(self._cluster, cause.replace(" ", "_").lower()).inc(count)

    def bind(self, open_cancellations: Callable[[], int], leading: Callable[[], bool] | None) -> None:
        """Read the log's size and leadership at each scrape; ``leading`` is None while cancelling is off."""
        self._open.labels(self._cluster).set_function(open_cancellations)
        if leading is not None:
            self._leading.labels(self._cluster).set_function(leading)

    def collect(self) -> Iterator[Metric]:
        for metric in self._metrics:
            yield from metric.collect()


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"{_PREFIX}_{name}_total", text, ("cluster", *labels), registry=None)
