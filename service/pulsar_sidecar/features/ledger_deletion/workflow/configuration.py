"""Settings and adapters of one sidecar's ledger deletion, and of its watch for leaked ledgers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pulsar_sidecar.features.ledger_deletion.ports import (
    BookieCollections,
    DeletionTopics,
    LiveOwners,
    OffloadedLedgers,
    Publisher,
    TopicAdmin,
)
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import DeletionPolicy
from pulsar_sidecar.features.ledger_deletion.second_phase.limits import AdaptiveLimit
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import RetryPolicy
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_ports import NamespaceAdmin
from pulsar_sidecar.features.ledger_deletion.watch.assess import Assessor
from pulsar_sidecar.features.ledger_deletion.watch.ports import StoreChanges, TopicChanges, WholeStore
from pulsar_sidecar.features.ledger_deletion.watch.results import WatchMode
from pulsar_sidecar.features.ledger_deletion.workflow.copy_search import OffloadedExists
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.compaction import LedgerEntries


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
class Configuration:
    """Settings of the feature, in its own terms.

    Attributes:
        watchdog_late_ms: delay after which the sidecar reads a retry itself, bypassing the delayed tracker.
        topic_deletion_wait_ms: time that a call waits for a topic deletion before it returns RUNNING.
        undelete_lookback_ms: time span of the outcome topic that `undelete` searches.
        undelete_protection_ms: time for which nothing deletes a restored ledger.
        watch: settings of the watch for leaked ledgers.
    """

    enabled: bool
    ledgers_root: str
    policy: DeletionPolicy
    retry_policy: RetryPolicy
    rate_per_second: float | None
    watchdog_late_ms: int
    topic_deletion_wait_ms: int
    undelete_lookback_ms: int
    undelete_protection_ms: int
    batch_size: int
    watch: WatchConfiguration = field(default_factory=lambda: WatchConfiguration(WatchMode.OFF))


@dataclass(frozen=True, slots=True)
class Ports:
    """Adapters of ledger deletion.

    Attributes:
        endangered_source: returns the source whose ledgers brokers may delete when they load this shadow (PIP-180), or
            None; loads nothing, and raises `TemporaryError` when the metadata store or the brokers do not respond.
        metadata_mismatch: returns the difference between the brokers' metadata store and the sidecar's; None if they
            are the same. Raises `TemporaryError` when the brokers do not report theirs.
        limit: adaptive limit of the store's adapter, for display; None when it is switched off.
        changes: change feed of the watch; None where nothing is watched.
        topic_changes: change feed of the shadow index; None where it reads all topics for each refresh.
    """

    clock: Clock
    store: MetadataStore
    entries: LedgerEntries
    owners: LiveOwners
    admin: TopicAdmin
    namespaces: NamespaceAdmin
    endangered_source: Callable[[TopicName], str | None]
    topics: DeletionTopics
    offloaded: OffloadedLedgers
    bookies: BookieCollections
    metadata_mismatch: Callable[[], str | None]
    whole: WholeStore
    limit: AdaptiveLimit | None = None
    changes: StoreChanges | None = None
    topic_changes: TopicChanges | None = None


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
