"""The settings of the watch for leaked ledgers, and what it works with."""

from collections.abc import Callable
from dataclasses import dataclass

from pulsar_sidecar.ledger_deletion.ports import Publisher
from pulsar_sidecar.ledger_deletion.watch.assess import Assessor
from pulsar_sidecar.ledger_deletion.watch.ports import StoreChanges, WholeStore
from pulsar_sidecar.ledger_deletion.watch.service import WatchMode
from pulsar_sidecar.ledger_deletion.workflow.copy_search import OffloadedExists
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName


@dataclass(frozen=True, slots=True)
class WatchConfiguration:
    """The settings of the watch, in its own words; times on the store's clock.

    Attributes:
        settle_ms: how long a ledger must have been unreferenced; by then a broker has used up its own retries.
        brake_references: see `Brake`.
        walk_interval_ms: how often everything is read again, even if nothing was missed.
        unlinked_min_age_ms: how old a ledger must be that was never seen referenced, as for an audit.
        unlinked_window_ms: how long this watch must have seen that, in one reading after the other.
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
    """What the watch works with.

    Attributes:
        publisher: this sidecar's producer on ``__ledger_deletion``; raises `TemporaryError` while the topics are not
            ready.
        recorded_topics: the topics that the sidecars are deleting, whose references vanish on purpose.
        offloaded_exists: see `ledger_deletion.ports.OffloadedLedgers.exists`.
    """

    clock: Clock
    store: MetadataStore
    changes: StoreChanges
    whole: WholeStore
    assessor: Assessor
    publisher: Callable[[], Publisher]
    recorded_topics: Callable[[], frozenset[TopicName]]
    offloaded_exists: OffloadedExists
