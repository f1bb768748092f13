"""Deduplication metrics of watched topics, from stored state; they load no topic."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pulsar_sidecar.features.deduplication.inspection.service import DeduplicationService, unreadable_view
from pulsar_sidecar.features.deduplication.results import DeduplicationDecision, DeduplicationView
from pulsar_sidecar.model.errors import NotFoundError, SidecarError
from pulsar_sidecar.model.names import TopicName

_PREFIX: Final = "pulsar_sidecar_deduplication"
_MS_PER_SECOND: Final = 1000


def _lag_seconds(view: DeduplicationView) -> float | None:
    if view.since is None or view.snapshot is None:
        return None
    if not view.since.entries:
        return 0.0
    return None if view.snapshot.age_ms is None else view.snapshot.age_ms / _MS_PER_SECOND


def _is_left_over(view: DeduplicationView) -> bool | None:
    """Return True if the cursor exists although deduplication is off; None if either is unknown."""
    if view.problem is not None and view.snapshot is None:
        return None
    if view.snapshot is None:
        return False
    return None if view.decision.enabled is None else not view.decision.enabled


_GAUGES: Final[Mapping[str, tuple[str, Callable[[DeduplicationView], float | None]]]] = {
    "snapshot_lag_entries": (
        "Entries after the snapshot, which a topic load replays.",
        lambda view: None if view.since is None else view.since.entries,
    ),
    "snapshot_lag_seconds": (
        "Age of the last message that the snapshot covers, by its publish time, or of the next one where that is gone "
        "or there is none; 0 if nothing came after it.",
        _lag_seconds,
    ),
    "load_replay_seconds": (
        "Estimated replay time of a topic load, in seconds.",
        lambda view: view.replay_seconds,
    ),
    "pinned_bytes": (
        "Bytes of the ledgers that the deduplication cursor retains.",
        lambda view: None if view.held is None else view.held.size_bytes,
    ),
    "pinned_alone_bytes": (
        "Bytes that only the deduplication cursor retains.",
        lambda view: None if view.held_alone is None else view.held_alone.size_bytes,
    ),
    "producers": (
        "Names in the snapshot; a replicator has two.",
        lambda view: None if view.snapshot is None else view.snapshot.names,
    ),
    "max_producers": ("Maximum number of names that brokers store.", lambda view: view.limits.max_producers),
    "cursor_left_over": (
        "1 if the deduplication cursor exists although deduplication is off; absent if unknown.",
        _is_left_over,
    ),
    "unreadable": ("1 if deduplication state could not be read, or part of it.", lambda view: view.problem is not None),
}


class DeduplicationMetrics(Collector):
    """Findings of the last check of each watched topic; absent where unknown. Thread-safe."""

    def __init__(self, cluster: str, service: DeduplicationService) -> None:
        self._cluster = cluster
        self._service = service
        self._lock = threading.Lock()
        self._seen: dict[TopicName, Sequence[DeduplicationView]] = {}

    def update(self, topic: TopicName) -> None:
        """Read the state of a topic, in each of its partitions; raises as `DeduplicationService.show`."""
        views: Sequence[DeduplicationView] = ()
        try:
            views = self._service.show(topic)
        except NotFoundError:
            raise
        except SidecarError as error:
            # The findings of the last check may no longer hold.
            views = [unreadable_view(topic, DeduplicationDecision(None, None, str(error)), str(error))]
            raise
        finally:
            with self._lock:
                self._seen[topic] = views

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            views = {view.topic: view for found in self._seen.values() for view in found}
        for name, (text, value_of) in _GAUGES.items():
            family = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=("cluster", "topic"))
            for topic, view in views.items():
                if (value := value_of(view)) is not None:
                    family.add_metric([self._cluster, topic], float(value))
            yield family
