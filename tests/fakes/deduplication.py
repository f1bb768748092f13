"""Topics with deduplication cursors in memory, as brokers leave them when they unload a topic."""

from collections.abc import Mapping, Sequence

from pulsar_sidecar.deduplication.snapshots import Snapshot, snapshot_in_node
from pulsar_sidecar.deduplication.stored import StoredDeduplications
from pulsar_sidecar.ledger_ownership.paths import cursor_path, managed_ledger_path
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName, encode_cursor, parse_topic_name
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR

from tests.fakes.bookkeeper import cursor_bytes, managed_ledger_bytes
from tests.fakes.delayed_index import FakeCursorPositions, FakeLedgerLengths
from tests.fakes.metadata import FakeMetadataStore

TOPIC = parse_topic_name("persistent://public/default/orders")


class FakeSnapshots:
    """`StoredSnapshots`: what the node itself holds, or what the test says of the node's data."""

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


class DeduplicatedTopics:
    """Topics put in by the test, and the reader of what is stored of them."""

    def __init__(self) -> None:
        self.store = FakeMetadataStore()
        self.snapshots = FakeSnapshots()
        self.lengths = FakeLedgerLengths()
        self.cursors = FakeCursorPositions()
        self.stored = StoredDeduplications(self.store, self.snapshots, self.lengths, self.cursors)

    def put(
        self,
        topic: TopicName = TOPIC,
        ledgers: Sequence[int] = (1, 2, 3),
        mark_delete: tuple[int, int] | None = None,
        sequences: Mapping[str, int] | None = None,
    ) -> None:
        """Ledgers of ten entries of 100 bytes, and a deduplication cursor if there is a position for it."""
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
        """A cursor whose node holds everything."""
        path = cursor_path(topic.managed_ledger_name, encode_cursor(name))
        self.store.put(path, cursor_bytes(mark_delete=mark_delete, sequences=sequences))
