"""Settings and ports of the watch for leaked ledgers."""

from collections.abc import Callable
from dataclasses import dataclass

from pulsar_sidecar.features.ledger_deletion.ports import Publisher
from pulsar_sidecar.features.ledger_deletion.watch.assess import Assessor
from pulsar_sidecar.features.ledger_deletion.watch.ports import StoreChanges, WholeStore
from pulsar_sidecar.features.ledger_deletion.watch.results import WatchMode
from pulsar_sidecar.features.ledger_deletion.workflow.copy_search import OffloadedExists
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName


@dataclass(frozen=True, slots=True)
class WatchConfiguration:
    """Settings of the watch, in its own terms; times on the store's clock.

    Attributes:
        settle_ms: time for which a ledger must be unreferenced; by then a broker has exhausted its own retries.
        brake_references: see `Brake`.
        walk_interval_ms: interval of full reads, even if no change was missed.
        unlinked_min_age_ms: minimum age of a ledger that was never seen referenced, as for an audit.
        unlinked_window_ms: time for which this watch must have seen it unreferenced, in consecutive readings.
    """

    mode: WatchMode = WatchMode.REPORT
    settle_ms: int = 200_000
    brake_references: int = 1_000
    walk_interval_ms: int = 21_600_000
    nodes_per_second: float | None = 20_000.0
    unlinked_min_age_ms: int = 72 * 3_600_000
    unlinked_window_ms: int = 12 * 3_600_000


@dataclass(frozen=True, slots=True)
class WatchPorts:
    """Ports of the watch.

    Attributes:
        publisher: returns this sidecar's producer on ``__ledger_deletion``; raises `TemporaryError` while the topics
            are not ready.
        recorded_topics: returns the topics that the sidecars are deleting, whose references vanish on purpose.
        offloaded_exists: see `ledger_deletion.ports.OffloadedLedgers.exists`.
        yields: returns True while a walk pauses, a minute at most, since deletions wait for another reading.
    """

    clock: Clock
    store: MetadataStore
    changes: StoreChanges
    whole: WholeStore
    assessor: Assessor
    publisher: Callable[[], Publisher]
    recorded_topics: Callable[[], frozenset[TopicName]]
    offloaded_exists: OffloadedExists
    yields: Callable[[], bool]
