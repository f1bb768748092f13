"""A topic of delayed messages in memory without buckets: the ports of the builder, and its results."""

from collections.abc import Callable, Sequence

from pulsar_sidecar.features.delayed_index.maintenance.attach import BucketPointers
from pulsar_sidecar.features.delayed_index.maintenance.build import BuildPlan, IndexBuilder
from pulsar_sidecar.features.delayed_index.ports import BucketOwner
from pulsar_sidecar.features.delayed_index.results.maintenance import BuiltSubscription
from pulsar_sidecar.features.delayed_index.settings import BUCKET_TRACKER_FACTORY, BrokerTracker, TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
    encode_metadata,
    encode_segment,
    segment_metadata_of,
)
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.names import encode_cursor
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, cursor_path, ledger_path
from pulsar_sidecar.ownership.references import cursor_references
from pyroaring import BitMap

from tests.fakes.bookkeeper import bucket_custom_metadata, ledger_metadata_bytes
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import (
    TOPIC,
    FakeBucketEntries,
    FakeCursorPositions,
    IndexedTopic,
    Rows,
    stored_indexes,
)
from tests.fakes.metadata import FakeMetadataStore

SUBSCRIPTION = "a b/c"
PATH = cursor_path(TOPIC.managed_ledger_name, encode_cursor(SUBSCRIPTION))
FIRST_BUCKET = 1_000
DUE = 1_800_000_000_000


class FakeSnapshots:
    """`BucketSnapshotStorage` over the fakes of the metadata store and the bookies."""

    def __init__(self, store: FakeMetadataStore, entries: FakeBucketEntries) -> None:
        self.store, self.entries = store, entries
        self.created: list[LedgerId] = []
        self.fail_after: int | None = None
        self.failure: SidecarError = TemporaryError("too few bookies")
        self.corrupted: Rows | None = None
        self.before: Callable[[], object] = lambda: None

    def create_bucket_snapshot(
        self, metadata: SnapshotMetadata, segments: Sequence[DelayedIndexes], owner: BucketOwner
    ) -> LedgerId:
        self.before()
        if self.fail_after is not None and len(self.created) >= self.fail_after:
            raise self.failure
        bucket_id = LedgerId(FIRST_BUCKET + len(self.created))
        self.created.append(bucket_id)
        written = segments if self.corrupted is None else [DelayedIndexes.of(self.corrupted), *segments[1:]]
        self.entries.put(bucket_id, encode_metadata(metadata), *map(encode_segment, written))
        custom = bucket_custom_metadata(owner.topic_name, owner.cursor_name, str(owner.bucket_key))
        self.store.put(ledger_path(bucket_id), ledger_metadata_bytes(custom_metadata=custom))
        return bucket_id

    def get_bucket_snapshot_metadata(self, bucket_id: LedgerId) -> SnapshotMetadata:
        return decode_metadata(self.entries.payloads[bucket_id, 0])

    def get_bucket_snapshot_segment(
        self, bucket_id: LedgerId, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> Sequence[DelayedIndexes]:
        wanted = range(first_segment_entry_id, last_segment_entry_id + 1)
        return [decode_segment(self.entries.payloads[bucket_id, number]) for number in wanted]

    def get_bucket_snapshot_length(self, bucket_id: LedgerId) -> int:
        return sum(len(payload) for (ledger, _), payload in self.entries.payloads.items() if ledger == bucket_id)

    def delete_bucket_snapshot(self, bucket_id: LedgerId) -> None:
        if self.store.peek(ledger_path(bucket_id)) is not None:
            self.store.remove(ledger_path(bucket_id))


class IndexToBuild:
    """A topic of some ledgers with the due times of its entries; 0 for entries that brokers do not delay."""

    def __init__(
        self,
        ledgers: dict[int, list[int]],
        settings: TrackerSettings,
        mark_delete: tuple[int, int] = (0, -1),
        acknowledged: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self.times = {(ledger, entry): due for ledger, dues in ledgers.items() for entry, due in enumerate(dues)}
        self.store = FakeMetadataStore()
        self.bookies = FakeBucketEntries()
        self.topic = IndexedTopic(self.store, self.bookies)
        self.topic.ledgers(*ledgers)
        for ledger, dues in ledgers.items():
            self.store.put(ledger_path(LedgerId(ledger)), ledger_metadata_bytes(last_entry_id=len(dues) - 1))
        self.mark_delete, self.acknowledged = mark_delete, acknowledged
        self.topic.cursor(SUBSCRIPTION, mark_delete)
        self.cursors = FakeCursorPositions()
        self.cursors.ranges[Position(LedgerId(mark_delete[0]), EntryId(mark_delete[1]))] = list(acknowledged)
        self.snapshots = FakeSnapshots(self.store, self.bookies)
        self.loaded: str | None = None
        self.factory = BUCKET_TRACKER_FACTORY
        self.settings = settings
        self.second_settings: TrackerSettings | None = None
        self.unreadable = False
        self.stored = stored_indexes(self.store, self.bookies, self.cursors)
        self.builder = IndexBuilder(
            self.stored,
            self,
            self,
            self.snapshots,
            BucketPointers(self.store, self, FakeClock(), DEFAULT_LEDGERS_ROOT),
        )

    # Ports of the builder:

    def delayed(self, ledger_id: LedgerId, metadata: LedgerMetadata, entries: BitMap) -> DelayedIndexes:
        if self.unreadable:
            raise TemporaryError("no bookie has it")
        due = ((self.times[ledger_id, entry], ledger_id, entry) for entry in entries)
        return DelayedIndexes.of(row for row in due if row[0])

    def trackers(self) -> dict[str, BrokerTracker]:
        return {"broker-1": BrokerTracker(BUCKET_TRACKER_FACTORY, self.settings), "broker-2": self._second()}

    def loaded_by(self, topic: object) -> str | None:
        return self.loaded

    # Actions of tests:

    def plan(self) -> BuildPlan:
        return self.builder.plan(TOPIC, SUBSCRIPTION)

    def build(self, plan_hash: str | None = None) -> Sequence[BuiltSubscription]:
        return self.builder.execute(TOPIC, SUBSCRIPTION, plan_hash or self.plan().hash)

    def named(self) -> dict[str, LedgerId]:
        node = self.store.peek(PATH)
        assert node is not None
        return dict(cursor_references(node.data).buckets)

    def load_at_the_change(self) -> None:
        """Let a broker load the topic after the last check, just before the change of the cursor."""

        def load() -> None:
            self.loaded = "broker-1"

        self.store.before("write", load, path=PATH)

    def bucket_ledgers(self) -> list[LedgerId]:
        return [each for each in self.snapshots.created if self.store.peek(ledger_path(each)) is not None]

    def indexed(self) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        for bucket_id in self.named().values():
            metadata = self.snapshots.get_bucket_snapshot_metadata(bucket_id)
            segments = self.snapshots.get_bucket_snapshot_segment(bucket_id, 1, len(metadata))
            assert metadata == tuple(map(segment_metadata_of, segments))
            rows = [row for one in segments for row in zip(one.positions(), one.deliver_at_ms.tolist(), strict=True)]
            assert not found.keys() & dict(rows).keys()
            found.update(rows)
        return found

    def _second(self) -> BrokerTracker:
        return BrokerTracker(self.factory, self.second_settings or self.settings)


def small_buckets(max_num_buckets: int = -1) -> TrackerSettings:
    """Return settings with three indexes to a bucket, two to a segment."""
    return TrackerSettings(
        min_index_count=3, max_indexes_per_segment=2, time_step_ms=100, max_num_buckets=max_num_buckets
    )
