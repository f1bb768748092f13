"""Metrics of ledger deletion.

PIP-186 specifies nine counters; where it separates ledgers and offload-ledgers, one counter has the label
``ledger_type``, as Pulsar's own metrics do. Invariant: a gauge whose value could not be read is absent from the scrape;
it is never 0.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pulsar_sidecar.features.ledger_deletion.results import InflightEstimate, LimitReadings
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause, LeakState, WatchState, WatchStatus
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.observability.metrics import SECONDS

E = TypeVar("E", bound=StrEnum)

_PREFIX = "pulsar_ledger_deletion"


@dataclass(frozen=True, slots=True)
class GaugeReadings:
    """Gauge values of one scrape; a value of None is unknown and not reported.

    ``rate_per_second`` None means that no limit is set, ``adaptive_limit`` None that it is switched off, ``watch`` None
    that two-phase deletion is. ``oldest_topic_deletion_ms`` is an age; None where no topic deletion runs.
    """

    inflight: InflightEstimate | None
    paused: bool
    rate_per_second: float | None
    running_topic_deletions: int
    adaptive_limit: LimitReadings | None = None
    watch: WatchStatus | None = None
    stuck_topic_deletions: int = 0
    oldest_topic_deletion_ms: int | None = None
    running_namespace_deletions: int = 0
    dead_letters: int | None = None


_OPEN_STATES = (LeakState.SETTLING, LeakState.KEPT, LeakState.LEAKED, LeakState.APPENDED)


class DeletionMetrics(Collector):
    """Counters and gauges of ledger deletion; thread-safe.

    Attributes:
        received: messages that arrived at the consumer.
        acknowledged: messages acknowledged.
        max_retry_reached: messages that went to the dead-letter topic after their last retry.
        batch_seconds: duration of batches.
        deleted_ledgers: number of ledgers deleted, of any kind.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._series: list[Counter | Histogram] = []
        self._read: Callable[[], GaugeReadings] | None = None
        self.deleted_ledgers = 0
        count, ledgers = self._counter, self._ledger_counter
        # A series that starts at 0 has a rate from its first event on.
        self._sent = ledgers("sent", "Records sent to the system topic, by ledger type (first phase).")
        received = count("received", "Messages received from the system topic and its retry topic.")
        self._deleted = ledgers("deleted", "Ledgers deleted.")
        self._failed = ledgers("delete_failed", "Attempts to delete a ledger that were refused or not confirmed.")
        acknowledged = count("acknowledged", "Messages acknowledged.")
        given_up = count(
            "max_retry_reached", "Messages dead-lettered after twoPhaseDeletionMaxRetryDeleteCount retries."
        )
        self._deleted_bytes = ledgers("deleted_bytes", "Length of the ledgers deleted, before replication.")
        self._decisions = count("decisions", "Decisions about records, by decision and reason.", "decision", "reason")
        took = "Time from receiving a batch to acknowledging it."
        seconds = Histogram(f"{_PREFIX}_batch_seconds", took, ("cluster",), buckets=SECONDS, registry=None)
        self._series.append(seconds)
        self.received, self.acknowledged = received.labels(cluster), acknowledged.labels(cluster)
        self.max_retry_reached, self.batch_seconds = given_up.labels(cluster), seconds.labels(cluster)

    def bind(self, read: Callable[[], GaugeReadings]) -> None:
        """Read the gauges through ``read`` at every scrape; it must return within seconds, whatever brokers do."""
        self._read = read

    def sent(self, ledger_type: LedgerType, component: LedgerComponent) -> None:
        """Count a record that the system topic stored durably."""
        self._of(self._sent, ledger_type, component).inc()

    def deleted(self, ledger_type: LedgerType, component: LedgerComponent, *, length_bytes: int) -> None:
        """Count a deleted ledger of this length."""
        self.deleted_ledgers += 1
        self._of(self._deleted, ledger_type, component).inc()
        self._of(self._deleted_bytes, ledger_type, component).inc(length_bytes)

    def delete_failed(self, ledger_type: LedgerType, component: LedgerComponent) -> None:
        """Count a deletion that was sent and then refused or not confirmed; postponed ones are not counted."""
        self._of(self._failed, ledger_type, component).inc()

    def decided(self, decision: str, reason: str, count: int = 1) -> None:
        """Count decided records; both texts must come from closed lists, or the scrape grows without bound."""
        self._decisions.labels(self._cluster, decision, reason).inc(count)

    def collect(self) -> Iterator[Metric]:
        for metric in self._series:
            yield from metric.collect()
        try:
            readings = None if self._read is None else self._read()
        except SidecarError:
            readings = None  # a value that cannot be read is absent
        if readings is None:
            return
        values = _values(readings)
        if readings.watch is not None:
            values |= _watch_values(readings.watch)
            yield from self._watch_families(readings.watch)
        for name, (text, value) in values.items():
            if value is not None:
                family = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=("cluster",))
                family.add_metric([self._cluster], float(value))
                yield family

    def _watch_families(self, watch: WatchStatus) -> Iterator[Metric]:
        """Yield the families with a label; only the sidecar that watches knows leaks."""
        text = "1 for the state of this sidecar's watch, 0 for the other states."
        states = {state: int(watch.state is state) for state in WatchState}
        yield self._by(GaugeMetricFamily, "watch_state", text, "state", states)
        if watch.leaks is None or watch.leaked is None or watch.appended is None:
            return
        text = "Unreferenced ledgers, by state."
        found = {state: watch.leaks.get(state, 0) for state in _OPEN_STATES}
        yield self._by(GaugeMetricFamily, "watch_candidates", text, "state", found)
        text = "Ledgers found leaked since this sidecar took over the watch, by cause."
        leaked = {cause: watch.leaked.get(cause, 0) for cause in LeakCause}
        yield self._by(CounterMetricFamily, "watch_leaks", text, "cause", leaked)
        text = "Leaked ledgers appended to the system topic since this sidecar took over the watch."
        appended = CounterMetricFamily(f"{_PREFIX}_watch_appended", text, labels=("cluster",))
        appended.add_metric([self._cluster], watch.appended)
        yield appended

    def _by(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        text: str,
        label: str,
        values: Mapping[E, int],
    ) -> Metric:
        family = kind(f"{_PREFIX}_{name}", text, labels=("cluster", label))
        for member, value in values.items():
            family.add_metric([self._cluster, member.value], value)
        return family

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        counter = Counter(f"{_PREFIX}_{name}_total", text, ("cluster", *labels), registry=None)
        self._series.append(counter)
        return counter

    def _ledger_counter(self, name: str, text: str) -> Counter:
        counter = self._counter(name, text, "ledger_type", "component")
        for component in LedgerComponent:
            self._of(counter, LedgerType.LEDGER, component)
        self._of(counter, LedgerType.OFFLOAD_LEDGER, LedgerComponent.MANAGED_LEDGER)
        return counter

    def _of(self, counter: Counter, ledger_type: LedgerType, component: LedgerComponent) -> Counter:
        return counter.labels(self._cluster, ledger_type.value.lower(), component.value.lower())


def _values(readings: GaugeReadings) -> dict[str, tuple[str, float | None]]:
    inflight, limit = readings.inflight, readings.adaptive_limit
    return {
        "inflight": ("Pending records: backlog over partitions and retry.", inflight.count if inflight else None),
        "oldest_pending_age_seconds": (
            "Age of the oldest record that waits; absent when none does.",
            _seconds(inflight.oldest_age_ms if inflight else None),
        ),
        "waiting_bytes": (
            "Estimated bytes of the ledgers that wait: their number times the mean length of recent ones.",
            inflight.waiting_bytes if inflight else None,
        ),
        "paused": ("1 while an operator has paused deletion.", readings.paused),
        "rate_limit_per_second": ("The operator's limit; absent when there is none.", readings.rate_per_second),
        "topic_deletions_running": ("Two-phase topic deletions under way.", readings.running_topic_deletions),
        "topic_deletions_stuck": (
            "Topic deletions that failed the same way ten times, or whose node this version cannot read.",
            readings.stuck_topic_deletions,
        ),
        "topic_deletions_oldest_age_seconds": (
            "Time since the request of the oldest two-phase topic deletion under way; absent without one.",
            _seconds(readings.oldest_topic_deletion_ms),
        ),
        "dead_letters": ("Records on the dead-letter topic that were not sent again.", readings.dead_letters),
        "namespace_deletions_running": (
            "Deletions of whole namespaces under way.",
            readings.running_namespace_deletions,
        ),
        "in_flight_limit": (
            "Deletions that may be in flight to the metadata store at a time; absent when the adaptive limit is off.",
            limit.level if limit else None,
        ),
        "metadata_store_idle_p99_seconds": (
            "99th percentile of probes of the metadata store while this sidecar is idle.",
            _seconds(limit.idle_p99_ms if limit else None),
        ),
        "metadata_store_working_p99_seconds": (
            "99th percentile of the last probes of the metadata store during which a deletion was in flight.",
            _seconds(limit.recent_p99_ms if limit else None),
        ),
    }


def _watch_values(watch: WatchStatus) -> dict[str, tuple[str, float | None]]:
    """Return the watch's values; none is known before its first full read, not even the brake."""
    braked = None if watch.walked_ms is None else watch.braked is not None
    unsought = None if watch.unsought_copies is None else sum(watch.unsought_copies.values())
    return {
        "watch_unsought_copies": (
            "Copies in tiered storage that lists no longer name and that the sidecar does not search for.",
            unsought,
        ),
        "watch_braked": ("1 while the brake is engaged: nothing is appended until an operator resumes.", braked),
        "watch_lag_seconds": ("Delay between a change and the watch's reading of it.", watch.lag_seconds),
        "watch_walk_seconds": ("Duration of the last whole reading.", watch.walk_seconds),
        "watch_walk_timestamp_seconds": (
            "Time at which the last whole reading ended, on the metadata store's clock.",
            _seconds(watch.walked_ms),
        ),
        "watch_ledgers": ("Ledgers that exist.", watch.ledgers),
        "watch_references": ("References to ledgers in nodes.", watch.references),
        "watch_unlinked_ledgers": ("Ledgers that no node was ever seen to reference.", watch.unlinked),
        "watch_unreadable_nodes": ("Nodes that could not be read or understood.", watch.unreadable),
        "watch_vanished_references": (
            "References that vanished within 10 minutes while their ledgers stayed.",
            watch.vanished,
        ),
        "watch_brake_limit": ("Number of vanished references above which the brake engages.", watch.brake_limit),
    }


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
