"""The metrics of deduplication for watched topics, from what is stored; no topic is loaded for them."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pulsar_sidecar.deduplication.inspection.service import DeduplicationService
from pulsar_sidecar.deduplication.inspection.show import DeduplicationDecision, DeduplicationView, SnapshotLimits
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
    """Whether the cursor exists although deduplication is off; None if either is not known."""
    if view.problem is not None and view.snapshot is None:
        return None
    if view.snapshot is None:
        return False
    return None if view.decision.enabled is None else not view.decision.enabled


_GAUGES: Final[Mapping[str, tuple[str, Callable[[DeduplicationView], float | None]]]] = {
    "snapshot_lag_entries": (
        "Entries after the snapshot, which a load of the topic replays.",
        lambda view: None if view.since is None else view.since.entries,
    ),
    "snapshot_lag_seconds": (
        "Age of the last message that the snapshot covers, by its publish time, or of the next one where that is gone "
        "or there is none; 0 if nothing came after it.",
        _lag_seconds,
    ),
    "load_replay_seconds": (
        "Estimated time that a load of the topic replays, in seconds.",
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
    """What the last look at each watched topic found; absent where that is unknown. Thread-safe."""

    def __init__(self, cluster: str, service: DeduplicationService) -> None:
        self._cluster = cluster
        self._service = service
        self._lock = threading.Lock()
        self._seen: dict[TopicName, Sequence[DeduplicationView]] = {}

    def look(self, topic: TopicName) -> None:
        """Look at a topic, in each of its partitions; raises as `DeduplicationService.show`."""
        views: Sequence[DeduplicationView] = ()
        try:
            views = self._service.show(topic)
        except NotFoundError:
            raise
        except SidecarError as error:
            # What the last look found is not known to hold any more.
            reason, limits = str(error), SnapshotLimits(None, None)
            views = [DeduplicationView(topic, DeduplicationDecision(None, reason), None, None, limits, problem=reason)]
            raise
        finally:
            with self._lock:
                self._seen[topic] = views

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            views = {str(view.topic): view for found in self._seen.values() for view in found}
        for name, (text, value_of) in _GAUGES.items():
            family = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=("cluster", "topic"))
            for topic, view in views.items():
                if (value := value_of(view)) is not None:
                    family.add_metric([self._cluster, topic], float(value))
            yield family
