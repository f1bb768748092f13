"""Every metric of the service, in one file, so that a dashboard's author has one place to look.

PIP-186 asks for nine counters; where it counts ledgers and offload-ledgers apart, one counter has the label
``ledger_type``, as Pulsar labels its own. Every sample carries ``cluster``. Invariant: a gauge whose value could not
be read is absent from the scrape; it is never 0.
"""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_BATCH_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class AdaptiveLimitReadings(Protocol):
    """What the adaptive limit allows, and the latencies of the metadata store that it goes by."""

    @property
    def level(self) -> float: ...

    @property
    def idle_p99_ms(self) -> float | None: ...

    @property
    def recent_p99_ms(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class GaugeReadings:
    """What is read when Prometheus asks; None means that it is not known, and is then not reported.

    ``rate_per_second`` None means that no limit is set, ``adaptive_limit`` None that it is switched off.
    """

    inflight: int | None
    oldest_pending_age_seconds: float | None
    waiting_bytes: int | None
    paused: bool
    rate_per_second: float | None
    running_topic_deletions: int
    adaptive_limit: AdaptiveLimitReadings | None = None


@dataclass(frozen=True, slots=True)
class AckStateReading:
    """One subscription's acknowledgement state when it was last looked at.

    ``blocked`` None means that it cannot be told; it is then not reported.
    """

    topic: str
    subscription: str
    blocked: bool | None
    ranges: int
    max_ranges: int
    entries_lost_in_a_crash: int


class DeletionMetrics:
    """What ledger deletion counts. Thread-safe; one instance per registry."""

    def __init__(self, registry: CollectorRegistry, *, cluster: str, instance: str, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per counter, of no use here
        self._registry = registry
        self._cluster = cluster
        self._sent = self._ledger_counter("sent", "Records sent to the system topic, by ledger type (first phase).")
        self._received = self._counter("received", "Messages received from the system topic and its retry topic.")
        self._deleted = self._ledger_counter("deleted", "Ledgers deleted.")
        self._failed = self._ledger_counter(
            "delete_failed", "Attempts to delete a ledger that were refused or not confirmed."
        )
        self._acknowledged = self._counter("acknowledged", "Messages acknowledged.")
        self._max_retry = self._counter(
            "max_retry_reached", "Messages given up after twoPhaseDeletionMaxRetryDeleteCount tries."
        )
        self._deleted_bytes = self._ledger_counter(
            "deleted_bytes", "Length of the ledgers deleted, before replication."
        )
        self._decisions = Counter(
            "pulsar_ledger_deletion_decisions_total",
            "Decisions about records, by decision and reason.",
            ("cluster", "decision", "reason"),
            registry=registry,
        )
        self._batch_seconds = Histogram(
            "pulsar_ledger_deletion_batch_seconds",
            "Time from receiving a batch to acknowledging it.",
            ("cluster",),
            buckets=_BATCH_SECONDS,
            registry=registry,
        ).labels(cluster)
        info = Gauge(
            "pulsar_sidecar_info",
            "Always 1; the labels say which sidecar this is.",
            ("cluster", "instance", "version"),
            registry=registry,
        )
        info.labels(cluster, instance, version).set(1)

    def sent(self, ledger_type: LedgerType, component: LedgerComponent, count: int = 1) -> None:
        """Records are durably in the system topic."""
        self._of(self._sent, ledger_type, component).inc(count)

    def received(self, count: int = 1) -> None:
        """Messages arrived at the consumer."""
        self._received.labels(self._cluster).inc(count)

    def deleted(
        self, ledger_type: LedgerType, component: LedgerComponent, count: int = 1, length_bytes: int = 0
    ) -> None:
        """Ledgers were deleted; ``length_bytes`` is the sum of their lengths."""
        self._of(self._deleted, ledger_type, component).inc(count)
        self._of(self._deleted_bytes, ledger_type, component).inc(length_bytes)

    def delete_failed(self, ledger_type: LedgerType, component: LedgerComponent, count: int = 1) -> None:
        """Deletions were sent, and refused or not confirmed; what was only put off is not counted."""
        self._of(self._failed, ledger_type, component).inc(count)

    def acknowledged(self, count: int = 1) -> None:
        """Messages are finished for good."""
        self._acknowledged.labels(self._cluster).inc(count)

    def max_retry_reached(self, count: int = 1) -> None:
        """Messages went to the dead-letter topic after the last try."""
        self._max_retry.labels(self._cluster).inc(count)

    def decided(self, decision: str, reason: str, count: int = 1) -> None:
        """Records were decided; both texts must come from closed lists, or the scrape grows without bound."""
        self._decisions.labels(self._cluster, decision, reason).inc(count)

    def batch_seconds(self, seconds: float) -> None:
        """One batch took so long."""
        self._batch_seconds.observe(seconds)

    def bind(self, read: Callable[[], GaugeReadings]) -> None:
        """Read the gauges through ``read`` at every scrape; it must answer from memory. Call once."""
        self._registry.register(_Gauges(self._cluster, read))

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"pulsar_ledger_deletion_{name}_total", text, ("cluster",), registry=self._registry)
        counter.labels(self._cluster)
        return counter

    def _ledger_counter(self, name: str, text: str) -> Counter:
        counter = Counter(
            f"pulsar_ledger_deletion_{name}_total",
            text,
            ("cluster", "ledger_type", "component"),
            registry=self._registry,
        )
        for ledger_type, component in _kinds():  # a series that starts at 0 has a rate from its first event on
            self._of(counter, ledger_type, component)
        return counter

    def _of(self, counter: Counter, ledger_type: LedgerType, component: LedgerComponent) -> Counter:
        return counter.labels(self._cluster, ledger_type.value.lower(), component.value.lower())


def _kinds() -> Iterator[tuple[LedgerType, LedgerComponent]]:
    for component in LedgerComponent:
        yield LedgerType.LEDGER, component
    yield LedgerType.OFFLOAD_LEDGER, LedgerComponent.MANAGED_LEDGER


class CancellationMetrics:
    """What cancelling delayed messages counts. Thread-safe; one instance per registry."""

    def __init__(self, registry: CollectorRegistry, *, cluster: str) -> None:
        self._registry = registry
        self._cluster = cluster
        prefix = "pulsar_delayed_message_cancellations"
        self._requested = Counter(f"{prefix}_requested_total", "Messages asked for.", ("cluster",), registry=registry)
        self._requested.labels(cluster)
        self._seconds = _ManyAtOnce(
            f"{prefix}_seconds",
            "Time from the request to a level of proof, by level (also unknown); its count is how many reached it.",
            ("cluster", "proof"),
            _BATCH_SECONDS,
        )
        registry.register(self._seconds)
        self._refused = Counter(
            f"{prefix}_refused_total",
            "Cancellations that did not come about, on each subscription, by cause; dispatched means raced.",
            ("cluster", "cause"),
            registry=registry,
        )
        self._reasserted = Counter(
            f"{prefix}_reasserted_total",
            "Acknowledgements made again after a cursor had lost them.",
            ("cluster",),
            registry=registry,
        )
        self._reasserted.labels(cluster)

    def requested(self, count: int = 1) -> None:
        """Messages were asked for."""
        self._requested.labels(self._cluster).inc(count)

    def reached(self, proof: str, seconds: float, count: int = 1) -> None:
        """Cancellations reached a level, so long after they were asked for."""
        self._seconds.observe((self._cluster, proof.lower()), seconds, count)

    def refused(self, cause: str, count: int = 1) -> None:
        """Cancellations did not come about; the text must come from a closed list."""
        self._refused.labels(self._cluster, cause.replace(" ", "_").lower()).inc(count)

    def acknowledged_again(self, count: int = 1) -> None:
        """Acknowledgements were made again."""
        self._reasserted.labels(self._cluster).inc(count)

    def bind(self, open_cancellations: Callable[[], int]) -> None:
        """Read the size of the log through ``open_cancellations`` at every scrape. Call once."""
        gauge = Gauge(
            "pulsar_delayed_message_cancellations_open",
            "Cancellations in the log that somebody still sees to.",
            ("cluster",),
            registry=self._registry,
        )
        gauge.labels(self._cluster).set_function(open_cancellations)


class _ManyAtOnce:
    """A histogram that takes many observations of the same value in one step; thread-safe."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._bounds = (*sorted(bounds), float("inf"))
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._lock = threading.Lock()

    def observe(self, values: tuple[str, ...], seconds: float, count: int) -> None:
        """``count`` observations; ``values`` are the labels' values."""
        with self._lock:
            counts = self._counts.setdefault(values, [0] * len(self._bounds))
            counts[bisect_left(self._bounds, seconds)] += count
            self._sums[values] += seconds * count

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        with self._lock:
            for values, counts in self._counts.items():
                buckets = [
                    (_shown(bound), total) for bound, total in zip(self._bounds, accumulate(counts), strict=True)
                ]
                family.add_metric(values, buckets, self._sums[values])
        yield family


def _shown(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(float(bound))


class _Gauges:
    """Gauges read when they are scraped, so a stale number never survives its source."""

    def __init__(self, cluster: str, read: Callable[[], GaugeReadings]) -> None:
        self._cluster = cluster
        self._read = read

    def collect(self) -> Iterable[Metric]:
        try:
            readings = self._read()
        except SidecarError:
            return  # what cannot be read is absent
        yield from self._known(readings)

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not read."""
        return ()

    def _known(self, readings: GaugeReadings) -> Iterator[Metric]:
        values: dict[str, tuple[str, float | None]] = {
            "inflight": ("Records that wait: backlog over partitions and retry.", readings.inflight),
            "oldest_pending_age_seconds": (
                "Age of the oldest record that waits; absent when none does.",
                readings.oldest_pending_age_seconds,
            ),
            "waiting_bytes": ("Length of the ledgers that wait, as far as records tell.", readings.waiting_bytes),
            "paused": ("1 while an operator has paused deletion.", readings.paused),
            "rate_limit_per_second": ("The operator's limit; absent when there is none.", readings.rate_per_second),
            "topic_deletions_running": ("Two-phase topic deletions under way.", readings.running_topic_deletions),
            **_limit(readings.adaptive_limit),
        }
        for name, (text, value) in values.items():
            if value is not None:
                family = GaugeMetricFamily(f"pulsar_ledger_deletion_{name}", text, labels=("cluster",))
                family.add_metric([self._cluster], float(value))
                yield family


def _limit(readings: AdaptiveLimitReadings | None) -> dict[str, tuple[str, float | None]]:
    if readings is None:
        return {}
    return {
        "in_flight_limit": (
            "Deletions that may be in flight to the metadata store at a time; absent when the adaptive limit is off.",
            readings.level,
        ),
        "metadata_store_idle_p99_seconds": (
            "Idle 99th percentile of probes of the metadata store: this sidecar does nothing meanwhile.",
            _seconds(readings.idle_p99_ms),
        ),
        "metadata_store_working_p99_seconds": (
            "99th percentile of the last probes of the metadata store during which a deletion was in flight.",
            _seconds(readings.recent_p99_ms),
        ),
    }


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


class AckStateGauges:
    """Subscriptions that are watched or were asked about lately (PIP-299); one that nobody asks about disappears."""

    def __init__(self, cluster: str, read: Callable[[], Sequence[AckStateReading]]) -> None:
        """``read`` answers what is known, from memory, and bounds how much that is."""
        self._cluster = cluster
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not read."""
        return ()

    def collect(self) -> Iterable[Metric]:
        readings = self._read()
        values: dict[str, tuple[str, Callable[[AckStateReading], float | None]]] = {
            "blocked_on_ack_state_persistent": (
                "1 while dispatch is paused because acknowledgements do not fit; absent if it cannot be told.",
                lambda reading: reading.blocked,
            ),
            "ack_state_ranges": ("Ranges of acknowledgements that the cursor holds.", lambda reading: reading.ranges),
            "ack_state_max_ranges": ("Ranges that the broker writes down.", lambda reading: reading.max_ranges),
            "ack_state_unstored_entries": (
                "Acknowledged entries that would be delivered again if the broker died.",
                lambda reading: reading.entries_lost_in_a_crash,
            ),
        }
        for name, (text, value_of) in values.items():
            family = GaugeMetricFamily(f"pulsar_subscription_{name}", text, labels=("cluster", "topic", "subscription"))
            for reading in readings:
                if (value := value_of(reading)) is not None:
                    family.add_metric([self._cluster, reading.topic, reading.subscription], float(value))
            yield family
