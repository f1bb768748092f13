"""Buckets in memory: bookies with their entries, cursors that name them, and their topic."""

from collections.abc import Collection, Mapping, Sequence

from pulsar_sidecar.backlog.ports import EntryAnswer, EntryFacts
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.ports import EntryPayload
from pulsar_sidecar.features.delayed_index.service import DelayedIndexService
from pulsar_sidecar.features.delayed_index.settings import BUCKET_TRACKER_FACTORY, BrokerTracker, TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    encode_metadata,
    encode_segment,
    segment_metadata_of,
)
from pulsar_sidecar.features.delayed_index.stored import StoredIndexes
from pulsar_sidecar.model.errors import SidecarError, UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName, encode_cursor, parse_topic_name
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges
from pulsar_sidecar.model.topic_stats import Subscription, SubscriptionType
from pulsar_sidecar.ownership.paths import cursor_path, ledger_path, managed_ledger_path
from pulsar_sidecar.ownership.ports import LedgerLengths
from pulsar_sidecar.ownership.references import LedgerReference, cursor_references

from tests.fakes.bookkeeper import bucket_custom_metadata, cursor_bytes, ledger_metadata_bytes, managed_ledger_bytes
from tests.fakes.metadata import FakeMetadataStore

TOPIC = parse_topic_name("persistent://public/default/orders")
Rows = Sequence[tuple[int, int, int]]
"""Due time in milliseconds, ledger, entry."""


class FakeBucketEntries:
    """`BucketEntries` over a test's payloads."""

    def __init__(self) -> None:
        self.payloads: dict[tuple[int, int], bytes] = {}
        self.unreadable: dict[tuple[int, int], str] = {}
        self.asked: list[Position] = []

    def put(self, ledger_id: int, *payloads: bytes) -> None:
        """Add entries from 0 on."""
        self.payloads.update({(ledger_id, number): payload for number, payload in enumerate(payloads)})

    def read(
        self, ledgers: Mapping[LedgerId, LedgerMetadata], positions: Collection[Position]
    ) -> Mapping[Position, EntryPayload]:
        assert {position.ledger_id for position in positions} <= ledgers.keys()
        assert all(isinstance(each, LedgerMetadata) for each in ledgers.values())
        self.asked += positions
        return {position: self._of(position) for position in positions}

    def _of(self, position: Position) -> EntryPayload:
        if position in self.unreadable:
            return Unreadable(self.unreadable[position])
        return self.payloads.get(position, Absent())


class FakeCursorPositions:
    """`CursorPositions` from the node's position, with a test's ranges or unreadable state."""

    def __init__(self) -> None:
        self.ranges: dict[Position, list[tuple[int, int, int]]] = {}
        self.unreadable: str | None = None
        self.asked = 0

    def acknowledged(
        self, cursors: Sequence[bytes], lengths: Mapping[LedgerId, int]
    ) -> Sequence[PositionRanges | Unreadable]:
        self.asked += len(cursors)
        return [self._of(data) for data in cursors]

    def _of(self, data: bytes) -> PositionRanges | Unreadable:
        if self.unreadable is not None:
            return Unreadable(self.unreadable)
        try:
            mark_delete = cursor_references(data).mark_delete
        except UndecodableError as error:
            return Unreadable(str(error))
        ranges = self.ranges.get(mark_delete, [])
        return PositionRanges(mark_delete, (EntryRange(LedgerId(a), EntryId(b), EntryId(c)) for a, b, c in ranges))


class FakeLedgerLengths(LedgerLengths):
    """Lengths with ten entries in the open ledger too."""

    def __init__(self) -> None:
        self.unreadable: str | None = None

    def measured(self, ledgers: Mapping[LedgerId, LedgerReference]) -> Mapping[LedgerId, LedgerReference] | Unreadable:
        if self.unreadable is not None:
            return Unreadable(self.unreadable)
        last = LedgerReference(10, 1000)
        return {ledger_id: reference if reference.closed_ms else last for ledger_id, reference in ledgers.items()}


class IndexedTopic:
    """A topic whose subscriptions have buckets, as a broker leaves them after an unload."""

    def __init__(self, store: FakeMetadataStore, entries: FakeBucketEntries, topic: TopicName = TOPIC) -> None:
        self._store = store
        self._entries = entries
        self.topic = topic
        self._buckets: dict[str, dict[str, int]] = {}

    def ledgers(self, *ids: int) -> None:
        """Write the topic's ledgers, of ten entries each except for the last one, which is open."""
        self._store.put(managed_ledger_path(self.topic.managed_ledger_name), managed_ledger_bytes(ids))

    def cursor(self, subscription: str, mark_delete: tuple[int, int] = (0, -1)) -> None:
        """Write the subscription's node with all sealed buckets."""
        path = cursor_path(self.topic.managed_ledger_name, encode_cursor(subscription))
        buckets = self._buckets.get(subscription, {})
        self._store.put(path, cursor_bytes(mark_delete=mark_delete, buckets=buckets))

    def seal(self, subscription: str, bucket_ledger: int, start: int, end: int, *segments: Rows) -> None:
        """Seal a bucket of these segments in its own closed ledger; `cursor` adds it to the subscription."""
        key = str(BucketKey(LedgerId(start), LedgerId(end)))
        self._buckets.setdefault(subscription, {})[key] = bucket_ledger
        written = [DelayedIndexes.of(rows) for rows in segments]
        payloads = [encode_metadata(map(segment_metadata_of, written)), *map(encode_segment, written)]
        self._entries.put(bucket_ledger, *payloads)
        custom = bucket_custom_metadata(str(self.topic), subscription, key)
        length = sum(map(len, payloads))
        metadata = ledger_metadata_bytes(custom_metadata=custom, last_entry_id=len(segments), length_bytes=length)
        self._store.put(ledger_path(LedgerId(bucket_ledger)), metadata)


def stored_indexes(
    store: FakeMetadataStore, entries: FakeBucketEntries, cursors: FakeCursorPositions | None = None
) -> StoredIndexes:
    return StoredIndexes(store, entries, cursors or FakeCursorPositions(), "/ledgers")


class IndexesInMemory:
    """A topic of these ledgers, without subscriptions, and what its indexes are read from."""

    def __init__(self, *ledgers: int) -> None:
        self.store = FakeMetadataStore()
        self.entries = FakeBucketEntries()
        self.cursors = FakeCursorPositions()
        self.topic = IndexedTopic(self.store, self.entries)
        self.topic.ledgers(*ledgers)

    @property
    def stored(self) -> StoredIndexes:
        return stored_indexes(self.store, self.entries, self.cursors)


class FakeTrackers:
    """`RunningTrackers`, `LoadedTopics` and a topic's owner."""

    def __init__(self) -> None:
        self.configuration = BrokerTracker(BUCKET_TRACKER_FACTORY, TrackerSettings())
        self.owned_by: str | None = None
        self.loaded: str | None = None
        self.sizes: dict[str, tuple[int, int]] = {}
        """Numbers of delayed messages and bytes of their queues."""
        self.error: SidecarError | None = None

    def owner(self, topic: TopicName) -> str | None:
        if self.error is not None:
            raise self.error
        return self.owned_by

    def configured(self, broker: str | None) -> BrokerTracker:
        assert broker == self.owned_by
        return self.configuration

    def loaded_by(self, topic: TopicName) -> str | None:
        return self.loaded

    def subscriptions(self, topic: TopicName) -> Mapping[str, Subscription]:
        assert self.loaded is not None, "the question would load the topic"
        return {
            name: Subscription(name, SubscriptionType.SHARED, delayed_messages=delayed, delayed_index_bytes=size)
            for name, (delayed, size) in self.sizes.items()
        }


class FakeTopicEntries(FakeLedgerLengths):
    """`DelayedEntries` and `LedgerLengths` over a test's due times."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[tuple[int, int], EntryAnswer] = {}
        self.asked: list[Position] = []

    def due(self, rows: Rows) -> None:
        self.answers.update({(ledger, entry): EntryFacts(due, 0) for due, ledger, entry in rows})

    def read(
        self, topic: TopicName, positions: Collection[Position], *, max_age_seconds: float = 0.0
    ) -> Mapping[Position, EntryAnswer]:
        self.asked += positions
        return {position: self.answers.get(position, EntryFacts(None, 0)) for position in positions}


def index_service(
    store: FakeMetadataStore,
    entries: FakeBucketEntries,
    cursors: FakeCursorPositions | None = None,
    trackers: FakeTrackers | None = None,
) -> DelayedIndexService:
    brokers = trackers or FakeTrackers()
    return DelayedIndexService(stored_indexes(store, entries, cursors), brokers, brokers, brokers.owner)
