"""Topics with deduplication cursors in memory, as brokers leave them after an unload."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pulsar_sidecar.features.deduplication.inspection.service import DeduplicationService
from pulsar_sidecar.features.deduplication.ports import ReplayedEntry, UndecodableEntry
from pulsar_sidecar.features.deduplication.snapshots import Snapshot, snapshot_in_node
from pulsar_sidecar.features.deduplication.stored import StoredDeduplications
from pulsar_sidecar.model.errors import NotFoundError, UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import UnseenEntries
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName, encode_cursor, parse_topic_name
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR
from pulsar_sidecar.ownership.paths import cursor_path, managed_ledger_path

from tests.fakes.bookkeeper import cursor_bytes, managed_ledger_bytes
from tests.fakes.clock import FakeClock
from tests.fakes.deduplication_policies import FakeDeduplication
from tests.fakes.delayed_index import FakeCursorPositions, FakeLedgerLengths
from tests.fakes.metadata import FakeMetadataStore

TOPIC = parse_topic_name("persistent://public/default/orders")


class FakeSnapshots:
    """`StoredSnapshots` from the nodes, or from a test's values by node data."""

    def __init__(self) -> None:
        self.answers: dict[bytes, Snapshot | Unreadable] = {}
        self.asked = 0

    def snapshots(self, cursors: Sequence[bytes]) -> Sequence[Snapshot | Unreadable]:
        self.asked += len(cursors)
        return [self._of(data) for data in cursors]

    def _of(self, data: bytes) -> Snapshot | Unreadable:
        try:
            return self.answers[data] if data in self.answers else snapshot_in_node(data)
        except UndecodableError as error:
            return Unreadable(str(error))


class FakeStoredMessages:
    """`StoredMessages` over a test's entries, in order."""

    def __init__(self) -> None:
        self._entries: dict[TopicName, list[ReplayedEntry | UndecodableEntry | UnseenEntries]] = {}

    def put(
        self, position: tuple[int, int], producer: str, sequence_id: int, *, topic: TopicName = TOPIC, at_ms: int = 0
    ) -> None:
        place = Position(LedgerId(position[0]), EntryId(position[1]))
        self.put_other(ReplayedEntry(place, producer, sequence_id, at_ms, is_marker=producer == "marker"), topic)

    def put_other(self, entry: ReplayedEntry | UndecodableEntry | UnseenEntries, topic: TopicName = TOPIC) -> None:
        self._entries.setdefault(topic, []).append(entry)

    def delete(self, topic: TopicName = TOPIC) -> None:
        self._entries.pop(topic, None)

    def __call__(self, topic: TopicName, first: Position) -> Iterator[ReplayedEntry | UndecodableEntry | UnseenEntries]:
        if topic not in self._entries:
            raise NotFoundError(f"there is no topic {topic}")
        for entry in self._entries[topic]:
            if isinstance(entry, UnseenEntries) or first <= entry.position:
                yield entry


class DeduplicatedTopics:
    """A test's topics, the reader of their stored state, and the service over both."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.brokers = FakeDeduplication()
        self.messages = FakeStoredMessages()
        self.store = FakeMetadataStore()
        self.snapshots = FakeSnapshots()
        self.lengths = FakeLedgerLengths()
        self.cursors = FakeCursorPositions()
        self.stored = StoredDeduplications(self.store, self.snapshots, self.lengths, self.cursors)
        threads = ThreadPoolExecutor(8)
        self.service = DeduplicationService(
            self.stored, self.messages, self.brokers, self.brokers, self.clock, threads.map
        )

    def put(
        self,
        topic: TopicName = TOPIC,
        ledgers: Sequence[int] = (1, 2, 3),
        mark_delete: tuple[int, int] | None = None,
        sequences: Mapping[str, int] | None = None,
    ) -> None:
        self.store.put(managed_ledger_path(topic.managed_ledger_name), managed_ledger_bytes(ledgers))
        if mark_delete is not None:
            self.cursor(DEDUPLICATION_CURSOR, mark_delete, sequences, topic)

    def cursor(
        self,
        name: str,
        mark_delete: tuple[int, int],
        sequences: Mapping[str, int] | None = None,
        topic: TopicName = TOPIC,
    ) -> None:
        path = cursor_path(topic.managed_ledger_name, encode_cursor(name))
        self.store.put(path, cursor_bytes(mark_delete=mark_delete, sequences=sequences))
