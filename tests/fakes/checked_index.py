"""A topic with a sound delayed index of two buckets for tests to damage, and all ports of a check."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pulsar_sidecar.backlog.ports import EntryAnswer, EntryFacts
from pulsar_sidecar.features.delayed_index.maintenance.attach import BucketPointers
from pulsar_sidecar.features.delayed_index.maintenance.checking import CheckPorts
from pulsar_sidecar.features.delayed_index.maintenance.repair import IndexRepair, RepairPorts
from pulsar_sidecar.features.delayed_index.ports import UnusableBucket
from pulsar_sidecar.features.delayed_index.settings import BUCKET_TRACKER_FACTORY, BrokerTracker, TrackerSettings
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.lookups import Absent
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import TopicStats
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, ledger_id_of_path

from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import IndexesInMemory

HOUR_MS = 3_600_000
SUBSCRIPTION = "s"
FIRST, SECOND = 100, 101
"""Ledgers of the buckets."""


def tracker(factory: str = BUCKET_TRACKER_FACTORY, max_num_buckets: int = -1) -> BrokerTracker:
    return BrokerTracker(factory, TrackerSettings(max_num_buckets=max_num_buckets))


@dataclass(slots=True)
class FakeMessages:
    """`DelayedEntries` with due times by position and nothing else; calls ``before`` before each reading."""

    due_ms: dict[tuple[int, int], int | None] = field(default_factory=dict)
    answers: dict[tuple[int, int], EntryAnswer] = field(default_factory=dict)
    before: Callable[[], object] = lambda: None

    def read(
        self, topic: TopicName, positions: Collection[Position], *, max_age_seconds: float = 0.0
    ) -> Mapping[Position, EntryAnswer]:
        assert isinstance(topic, TopicName)
        self.before()
        return {position: self._of(position) for position in positions}

    def _of(self, position: Position) -> EntryAnswer:
        if position in self.answers:
            return self.answers[position]
        return EntryFacts(self.due_ms[position], 0) if position in self.due_ms else Absent()


class CheckedIndex(IndexesInMemory):
    """The topic ``orders`` with ledgers 7 to 10 and two buckets, over 7 to 8 and over 9, of two segments each."""

    def __init__(self) -> None:
        super().__init__(7, 8, 9, 10)
        self.messages = FakeMessages()
        self.brokers = {"broker-1:8080": tracker()}
        self.clients: TopicStats | Exception = TopicStats("broker-1:8080", {})
        self.clock = FakeClock()
        due = self.store.now_ms() + HOUR_MS
        self.rows = {
            FIRST: ([(due, 7, 1), (due + 1, 8, 2)], [(due + 9, 7, 3), (due + 9, 7, 5)]),
            SECOND: ([(due + 2, 9, 0), (due + 2, 9, 4)], [(due + 7, 9, 1)]),
        }
        self.seal(FIRST, 7, 8)
        self.seal(SECOND, 9, 9)
        self.name()
        for segments in self.rows.values():
            self.messages.due_ms |= {(ledger, entry): at for rows in segments for at, ledger, entry in rows}

    def seal(self, bucket_ledger: int, start: int, end: int) -> None:
        """Seal the bucket's rows in its own ledger; `name` adds it to the cursor."""
        self.topic.seal(SUBSCRIPTION, bucket_ledger, start, end, *self.rows[bucket_ledger])

    def name(self, mark_delete: tuple[int, int] = (7, 0)) -> None:
        """Write the cursor's node with the sealed buckets."""
        self.topic.cursor(SUBSCRIPTION, mark_delete)

    def trackers(self) -> Mapping[str, BrokerTracker]:
        return self.brokers

    def stats(self, topic: TopicName) -> TopicStats:
        """Return a loaded topic's clients, or raise the test's error."""
        assert isinstance(topic, TopicName)
        if isinstance(self.clients, Exception):
            raise self.clients
        return self.clients

    def ports(self) -> CheckPorts:
        return CheckPorts(
            clock=self.clock,
            store=self.store,
            stored=self.stored,
            buckets=self.entries,
            messages=self.messages,
            ledgers=self._every_ledger,
            brokers=self,
            ledgers_root=DEFAULT_LEDGERS_ROOT,
        )

    def _every_ledger(self) -> Iterator[tuple[LedgerId, bytes]]:
        for path in self.store.paths():
            ledger_id = ledger_id_of_path(path, DEFAULT_LEDGERS_ROOT)
            node = self.store.peek(path)
            if ledger_id is not None and node is not None:
                yield ledger_id, node.data


@dataclass(slots=True)
class FakeLoaded:
    """`LoadedTopics` of a broker that loads the topic at the call number ``from_question``."""

    from_question: int | None = None
    asked: int = 0

    def loaded_by(self, topic: TopicName) -> str | None:
        assert isinstance(topic, TopicName)
        self.asked += 1
        return "broker-1:8080" if self.from_question is not None and self.asked >= self.from_question else None


@dataclass(slots=True)
class FakeDeletions:
    """`PendingBucketDeletions` with the same response for all."""

    ready: Exception | None = None
    refusal: str | Exception | None = None
    taken: list[UnusableBucket] = field(default_factory=list)
    before: Callable[[], object] = lambda: None

    def demand_ready(self) -> None:
        if self.ready is not None:
            raise self.ready

    def enqueue_for_deletion(self, buckets: Sequence[UnusableBucket]) -> Sequence[str | None]:
        assert buckets, "no bucket to enqueue"
        self.before()
        if isinstance(self.refusal, Exception):
            raise self.refusal
        if self.refusal is None:
            self.taken += buckets
        return [self.refusal for _ in buckets]


def repair_of(index: CheckedIndex, loaded: FakeLoaded, deletions: FakeDeletions) -> IndexRepair:
    pointers = BucketPointers(index.store, loaded, index.clock, DEFAULT_LEDGERS_ROOT)
    return IndexRepair(RepairPorts(index.ports(), loaded, pointers, deletions, index.stats, map))
