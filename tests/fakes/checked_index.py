"""One topic with a sound delayed index of two buckets, for tests to damage, and everything that a check reads."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pulsar_sidecar.delayed_delivery.index.checking import CheckPorts
from pulsar_sidecar.delayed_delivery.index.fsck import BrokerSettings
from pulsar_sidecar.delayed_delivery.index.settings import BUCKET_TRACKER_FACTORY
from pulsar_sidecar.delayed_delivery.ports import Absent, EntryAnswer, EntryFacts
from pulsar_sidecar.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT, ledger_id_of_path
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.names import TopicName

from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import FakeBucketEntries, FakeCursorPositions, IndexedTopic, stored_indexes
from tests.fakes.metadata import FakeMetadataStore

HOUR_MS = 3_600_000
SUBSCRIPTION = "s"
FIRST, SECOND = 100, 101
"""The buckets' ledgers."""


@dataclass(slots=True)
class FakeMessages:
    """`DelayedEntries`: due times by position; everything else is absent. ``before`` is called before each reading."""

    due_ms: dict[tuple[int, int], int | None] = field(default_factory=dict)
    answers: dict[tuple[int, int], EntryAnswer] = field(default_factory=dict)
    before: Callable[[], object] = lambda: None

    def read(
        self, topic: TopicName, positions: Collection[Position], *, max_age_seconds: float = 0.0
    ) -> Mapping[Position, EntryAnswer]:
        self.before()
        return {position: self._of(position) for position in positions}

    def _of(self, position: Position) -> EntryAnswer:
        if position in self.answers:
            return self.answers[position]
        return EntryFacts(self.due_ms[position], 0) if position in self.due_ms else Absent()


class FakeLedgerWalk:
    """`LedgerWalk` over a fake store."""

    def __init__(self, store: FakeMetadataStore) -> None:
        self._store = store

    def walk(self) -> Iterator[tuple[LedgerId, bytes]]:
        for path in self._store.paths():
            ledger_id = ledger_id_of_path(path, DEFAULT_LEDGERS_ROOT)
            node = self._store.peek(path)
            if ledger_id is not None and node is not None:
                yield ledger_id, node.data


class CheckedIndex:
    """The topic ``orders`` with ledgers 7 to 10 and, sealed over 7 to 8 and 9, two buckets of two segments each."""

    def __init__(self) -> None:
        self.store = FakeMetadataStore()
        self.entries = FakeBucketEntries()
        self.cursors = FakeCursorPositions()
        self.messages = FakeMessages()
        self.topic = IndexedTopic(self.store, self.entries)
        self.brokers = [BrokerSettings("broker-1:8080", BUCKET_TRACKER_FACTORY, -1)]
        self.clock = FakeClock()
        due = self.store.now_ms() + HOUR_MS
        self.rows = {
            FIRST: ([(due, 7, 1), (due + 1, 8, 2)], [(due + 9, 7, 3), (due + 9, 7, 5)]),
            SECOND: ([(due + 2, 9, 0), (due + 2, 9, 4)], [(due + 7, 9, 1)]),
        }
        self.topic.ledgers(7, 8, 9, 10)
        self.seal(FIRST, 7, 8)
        self.seal(SECOND, 9, 9)
        self.name()
        for segments in self.rows.values():
            self.messages.due_ms |= {(ledger, entry): at for rows in segments for at, ledger, entry in rows}

    def seal(self, bucket_ledger: int, start: int, end: int) -> None:
        """The bucket's rows in a ledger of its own; `name` has the cursor name it."""
        self.topic.seal(SUBSCRIPTION, bucket_ledger, start, end, *self.rows[bucket_ledger])

    def name(self, mark_delete: tuple[int, int] = (7, 0)) -> None:
        """The cursor's node, naming the buckets that were sealed."""
        self.topic.cursor(SUBSCRIPTION, mark_delete)

    def ports(self) -> CheckPorts:
        """What a check is given."""
        return CheckPorts(
            clock=self.clock,
            store=self.store,
            stored=stored_indexes(self.store, self.entries, self.cursors),
            buckets=self.entries,
            messages=self.messages,
            ledgers=FakeLedgerWalk(self.store),
            settings=lambda: self.brokers,
            ledgers_root=DEFAULT_LEDGERS_ROOT,
        )
