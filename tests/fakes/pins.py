"""Sources of pins in memory: a store, brokers with loaded topics, bookies with disks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pulsar_sidecar.features.ledger_deletion.ports import ConnectedClients
from pulsar_sidecar.features.pins.facts import DueSpan, Retention
from pulsar_sidecar.features.pins.gathering import Sources
from pulsar_sidecar.features.pins.obstacles import LoadingPolicies
from pulsar_sidecar.features.pins.ports import BrokerUsage, StoredCopies
from pulsar_sidecar.features.pins.reading import PinsReader
from pulsar_sidecar.features.pins.results import BookieFigures, Compaction
from pulsar_sidecar.features.pins.sweep import RetentionSweep
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import CursorName, TopicName, parse_topic_name
from pulsar_sidecar.model.topic_stats import TopicInternalStats
from pulsar_sidecar.ownership.compaction import CompactedLedgers
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, cursor_path, ledger_path, managed_ledger_path
from pulsar_sidecar.ownership.references import managed_ledger_references
from pulsar_sidecar.ownership.registrations import BookieState

from tests.fakes.bookkeeper import (
    FakeLedgerEntries,
    cursor_bytes,
    data_custom_metadata,
    ledger_metadata_bytes,
    managed_ledger_bytes,
)
from tests.fakes.brokers import FakeLiveOwners
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import FakeCursorPositions, FakeLedgerLengths
from tests.fakes.hooks import Hooks
from tests.fakes.metadata import FakeMetadataStore

TOPIC = parse_topic_name("persistent://public/default/orders")
FIGURES = BookieFigures(
    http_url="http://127.0.0.1:8000",
    live_bytes=5_000,
    entry_logs=2,
    ledgers=7,
    disk_used_bytes=3_000_000,
    disk_total_bytes=9_000_000,
    gc_wait_seconds=900.0,
    entry_log_limit_bytes=1_000_000,
    minor=Compaction(0.2, 3_600),
    major=Compaction(0.5, 86_400),
    is_collecting=False,
)


@dataclass
class FakeTrimPolicies:
    """`TrimPolicies`, the same for all topics."""

    found: Retention | Unreadable = field(default_factory=Retention)
    lag_ms: int | Unreadable = -1
    clusters: frozenset[str] | Unreadable = frozenset()
    loading: LoadingPolicies | Unreadable = field(default_factory=LoadingPolicies)
    asked: list[TopicName] = field(default_factory=list)
    """Topics whose retention or clusters were read."""

    def retention(self, topic: TopicName) -> Retention | Unreadable:
        self.asked.append(topic)
        return self.found

    def offload_lag_ms(self, namespace: str) -> int | Unreadable:
        return self.lag_ms

    def replicated_to(self, topic: TopicName) -> frozenset[str] | Unreadable:
        self.asked.append(topic)
        return self.clusters

    def on_loading(self, topic: TopicName) -> LoadingPolicies | Unreadable:
        return self.loading


@dataclass
class FakeDueTimes:
    """`DueTimesOfCursors` from a test."""

    firsts: dict[Position, int] = field(default_factory=dict)
    held: dict[LedgerId, tuple[DueSpan, ...]] = field(default_factory=dict)

    def first_due_ms(self, topic: TopicName, positions: Sequence[Position]) -> Mapping[Position, int]:
        return {position: self.firsts[position] for position in positions if position in self.firsts}

    def spans(self, topic: TopicName) -> Mapping[LedgerId, tuple[DueSpan, ...]]:
        return self.held


@dataclass
class FakeBookies:
    """`Bookies` with figures, with stopped bookies, and with the ledgers whose entries they still have."""

    read: dict[BookieId, BookieFigures | Unreadable] = field(default_factory=dict)
    stored: dict[LedgerId, StoredCopies] = field(default_factory=dict)
    down: set[BookieId] = field(default_factory=set)

    def known(self) -> Mapping[BookieId, BookieState]:
        return {each: BookieState.DOWN if each in self.down else BookieState.WRITABLE for each in sorted(self.read)}

    def copies(self, ledger_id: LedgerId) -> StoredCopies:
        return self.stored.get(ledger_id, StoredCopies(0, ()))

    def figures(self, bookies: Sequence[BookieId]) -> Mapping[BookieId, BookieFigures | Unreadable]:
        return {bookie: self.read.get(bookie, Unreadable("it is down")) for bookie in bookies}


class FakeTrimming:
    """`TopicTrimming`: brokers that delete the ledgers that a test names.

    Attributes:
        deletes: ledgers that a trim deletes, by topic.
        connected: number of clients, by topic.
        usage: most used resource.
        hooks: arrivals at ``trim`` and ``unload``.
    """

    def __init__(self, store: FakeMetadataStore, owners: FakeLiveOwners) -> None:
        self._store, self._owners = store, owners
        self.deletes: dict[TopicName, tuple[int, ...]] = {}
        self.connected: dict[TopicName, int] = {}
        self.usage = BrokerUsage("broker-1", "CPU", 20.0)
        self.hooks = Hooks()
        self.trimmed: list[TopicName] = []

    def busiest(self) -> BrokerUsage:
        return self.usage

    def trim(self, topic: TopicName) -> None:
        self._owners.load(topic, TopicInternalStats({}, Position(LedgerId(-1), EntryId(-1)), broker="broker-1"))
        self.hooks.arrive("trim")
        self.trimmed.append(topic)
        path = managed_ledger_path(topic.managed_ledger_name)
        node, gone = self._store.read(path), self.deletes.get(topic, ())
        assert node is not None
        self._store.put(path, managed_ledger_bytes(managed_ledger_references(node.data).ledgers.keys() - {*gone}))
        for ledger_id in gone:
            self._store.delete(ledger_path(LedgerId(ledger_id)))

    def unload(self, topic: TopicName) -> None:
        self.hooks.arrive("unload")
        self._owners.unload(topic)

    def clients(self, topic: TopicName) -> ConnectedClients:
        return ConnectedClients(consumers=self.connected.get(topic, 0))


class PinnedCluster:
    """A cluster in memory, and a reader of its pins."""

    def __init__(self) -> None:
        self.store, self.owners, self.clock = FakeMetadataStore(), FakeLiveOwners(), FakeClock()
        self.entries, self.cursors, self.lengths = FakeLedgerEntries(), FakeCursorPositions(), FakeLedgerLengths()
        self.policies, self.dues, self.bookies = FakeTrimPolicies(), FakeDueTimes(), FakeBookies()
        compacted = CompactedLedgers(self.store, self.entries, DEFAULT_LEDGERS_ROOT)
        self.sources = Sources(
            self.store, self.cursors, self.lengths, compacted, self.owners, self.policies, self.dues, self.clock,
            DEFAULT_LEDGERS_ROOT,
        )  # fmt: skip
        self.reader = PinsReader(self.sources, self.bookies)
        self.own("public/default", "other/ns")
        self.brokers = FakeTrimming(self.store, self.owners)
        self.sweep = RetentionSweep(self.sources, self.policies.on_loading, self.brokers.busiest, self.brokers)

    def own(self, *namespaces: str, url: str | None = "http://broker-1:8080") -> None:
        """Make a broker own the bundle of these namespaces' policies, or none."""
        for namespace in namespaces:
            self.owners.own(parse_topic_name(f"{namespace}/__change_events"), url)

    def topic(self, *ledger_ids: int, topic: TopicName = TOPIC, properties: Mapping[str, str] | None = None) -> None:
        """Add a topic's list and its ledgers' metadata; all ledgers but the last are closed with 1,000 bytes."""
        name = topic.managed_ledger_name
        self.store.put(managed_ledger_path(name), managed_ledger_bytes(ledger_ids, properties=properties))
        for ledger_id in ledger_ids:
            self.ledger(ledger_id, data_custom_metadata(name))

    def ledger(
        self,
        ledger_id: int,
        custom_metadata: Mapping[str, bytes] | None = None,
        state: LedgerState = LedgerState.CLOSED,
    ) -> None:
        self.store.put(ledger_path(LedgerId(ledger_id)), ledger_metadata_bytes(state, custom_metadata))

    def cursor(
        self,
        name: str,
        cursor_ledger: int | None = None,
        mark_delete: tuple[int, int] = (0, -1),
        compacted_ledger: int | None = None,
        buckets: Mapping[str, int] | None = None,
    ) -> None:
        data = cursor_bytes(cursor_ledger, mark_delete=mark_delete, compacted_ledger=compacted_ledger, buckets=buckets)
        self.store.put(cursor_path(TOPIC.managed_ledger_name, CursorName(name)), data)
