"""Built buckets hold exactly what a broker would delay, are attached only as planned, and leave nothing behind."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.delayed_delivery.index.attach import BucketPointers, PointerOutcome
from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.build import BuildPlan, BuiltSubscription, IndexBuilder
from pulsar_sidecar.delayed_delivery.index.settings import (
    BUCKET_TRACKER_FACTORY,
    IN_MEMORY_TRACKER_FACTORY,
    BrokerTracker,
    TrackerSettings,
)
from pulsar_sidecar.delayed_delivery.index.snapshot import (
    DelayedIndexes,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
    encode_metadata,
    encode_segment,
    segment_metadata_of,
)
from pulsar_sidecar.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT, cursor_path, ledger_path
from pulsar_sidecar.ledger_ownership.references import cursor_references
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.names import encode_cursor
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
    """`BucketSnapshotStorage` in the fakes of the metadata store and the bookies."""

    def __init__(self, store: FakeMetadataStore, entries: FakeBucketEntries) -> None:
        self.store, self.entries = store, entries
        self.created: list[LedgerId] = []
        self.fail_after: int | None = None
        self.damage: Rows | None = None

    def start(self) -> None: ...

    def create_bucket_snapshot(
        self,
        metadata: SnapshotMetadata,
        segments: Sequence[DelayedIndexes],
        bucket_key: BucketKey,
        topic_name: str,
        cursor_name: str,
    ) -> LedgerId:
        if self.fail_after is not None and len(self.created) >= self.fail_after:
            raise TemporaryError("too few bookies")
        bucket_id = LedgerId(FIRST_BUCKET + len(self.created))
        self.created.append(bucket_id)
        written = segments if self.damage is None else [DelayedIndexes.of(self.damage), *segments[1:]]
        self.entries.put(bucket_id, encode_metadata(metadata), *map(encode_segment, written))
        custom = bucket_custom_metadata(topic_name, cursor_name, str(bucket_key))
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

    def close(self) -> None: ...


class Stage:
    """A topic of some ledgers, with the due times of its entries; 0 for an entry that brokers do not delay."""

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
        cursors = FakeCursorPositions()
        cursors.ranges[Position(*mark_delete)] = list(acknowledged)  # type: ignore[arg-type]
        self.snapshots = FakeSnapshots(self.store, self.bookies)
        self.loaded: str | None = None
        self.factory = BUCKET_TRACKER_FACTORY
        self.settings = settings
        self.unreadable = False
        self.stored = stored_indexes(self.store, self.bookies, cursors)
        self.builder = IndexBuilder(
            self.store,
            self.stored,
            self,
            self,
            self.snapshots,
            BucketPointers(self.store, self, FakeClock(), DEFAULT_LEDGERS_ROOT),
            DEFAULT_LEDGERS_ROOT,
        )

    # The ports that the builder asks:

    def delayed(self, ledger_id: LedgerId, metadata: LedgerMetadata, entries: BitMap) -> DelayedIndexes:
        if self.unreadable:
            raise TemporaryError("no bookie has it")
        due = ((self.times[ledger_id, entry], ledger_id, entry) for entry in entries)
        return DelayedIndexes.of(row for row in due if row[0])

    def trackers(self) -> dict[str, BrokerTracker]:
        return {"broker-1": BrokerTracker(BUCKET_TRACKER_FACTORY, self.settings), "broker-2": self._second()}

    def loaded_by(self, topic: object) -> str | None:
        return self.loaded

    # What a test asks and does:

    def plan(self) -> BuildPlan:
        return self.builder.plan(TOPIC, SUBSCRIPTION)

    def build(self, plan_hash: str | None = None) -> Sequence[BuiltSubscription]:
        return self.builder.execute(TOPIC, SUBSCRIPTION, plan_hash or self.plan().hash)

    def named(self) -> dict[str, LedgerId]:
        node = self.store.peek(PATH)
        assert node is not None
        return dict(cursor_references(node.data).buckets)

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
        return BrokerTracker(self.factory, self.settings)


def small(**settings: int) -> TrackerSettings:
    return TrackerSettings(min_index_count=3, max_indexes_per_segment=2, time_step_ms=100, **settings)  # type: ignore[arg-type]


THREE = {3: [DUE + 5, DUE, 0, DUE + 500], 5: [0, 0], 8: [DUE + 7], 9: [DUE + 8, DUE + 9, DUE + 10]}


def test_buckets_are_sealed_as_a_tracker_seals_them() -> None:
    stage = Stage(THREE, small())
    [built] = stage.build()
    assert built.outcome is PointerOutcome.DONE
    assert stage.named() == {
        str(BucketKey(LedgerId(3), LedgerId(3))): FIRST_BUCKET,
        str(BucketKey(LedgerId(8), LedgerId(9))): FIRST_BUCKET + 1,
    }
    assert stage.indexed() == {position: due for position, due in stage.times.items() if due}
    segments = stage.snapshots.get_bucket_snapshot_segment(LedgerId(FIRST_BUCKET), 1, 2)
    assert [one.deliver_at_ms.tolist() for one in segments] == [[DUE, DUE + 5], [DUE + 500]]


def test_what_is_acknowledged_or_covered_gets_no_bit() -> None:
    stage = Stage(THREE, small(), mark_delete=(3, 0), acknowledged=[(9, 1, 1)])
    stage.topic.seal(SUBSCRIPTION, 700, 7, 8, [(DUE + 7, 8, 0)])
    stage.topic.cursor(SUBSCRIPTION, stage.mark_delete)
    [build] = stage.plan().subscriptions
    assert build.covered == (8,)
    stage.build()
    assert stage.indexed() == {(3, 1): DUE, (3, 3): DUE + 500, (8, 0): DUE + 7, (9, 0): DUE + 8, (9, 2): DUE + 10}
    assert set(stage.named()) == {str(BucketKey(LedgerId(a), LedgerId(b))) for a, b in [(3, 3), (7, 8), (9, 9)]}


def test_a_backlog_without_delayed_messages_builds_nothing() -> None:
    stage = Stage({3: [0, 0]}, small())
    assert [build.buckets for build in stage.plan().subscriptions] == [()]
    assert stage.build() == []
    assert stage.snapshots.created == []


@st.composite
def stages(draw: st.DrawFn) -> Stage:
    ids = sorted(draw(st.sets(st.integers(1, 30), min_size=1, max_size=8)))
    due = st.one_of(st.just(0), st.integers(DUE, DUE + 400))
    ledgers = {each: draw(st.lists(due, min_size=1, max_size=6)) for each in ids}
    marked = draw(st.sampled_from(ids))
    ranges = draw(st.lists(st.tuples(st.sampled_from(ids), st.integers(0, 5), st.integers(0, 2)), max_size=4))
    stage = Stage(
        ledgers,
        small(),
        (marked, draw(st.integers(-1, len(ledgers[marked]) - 1))),
        [(ledger, first, first + more) for ledger, first, more in ranges],
    )
    cuts = sorted(draw(st.sets(st.integers(1, 30), max_size=4)))
    for number, (start, end) in enumerate(list(pairwise(cuts))[::2]):
        stage.topic.seal(SUBSCRIPTION, 700 + number, start, end, [(DUE + 900, start, 77)])
    stage.topic.cursor(SUBSCRIPTION, stage.mark_delete)
    return stage


@given(stages())
def test_every_bit_is_an_entrys_own_due_time_and_no_waiting_one_is_forgotten(stage: Stage) -> None:
    there = [BucketKey.parse(name) for name in stage.named()]
    before = stage.indexed()
    stage.build()
    expected = {
        position: due
        for position, due in stage.times.items()
        if due
        and position > stage.mark_delete
        and not any(
            position[0] == ledger and first <= position[1] <= last for ledger, first, last in stage.acknowledged
        )
        and not any(position[0] in key for key in there)
    }
    found = stage.indexed()
    assert {position: due for position, due in found.items() if position not in before} == expected
    keys = sorted(BucketKey.parse(name) for name in stage.named())
    assert all(one.end < other.start for one, other in pairwise(keys))


# --- refusals: nothing is written -----------------------------------------------------------------------------------


def refused(stage: Stage, error: type[Exception], match: str, plan_hash: str | None = None) -> None:
    named = stage.named()
    with pytest.raises(error, match=match):
        stage.build(plan_hash)
    assert stage.named() == named
    assert stage.bucket_ledgers() == []


def test_a_loaded_topic_is_refused() -> None:
    stage = Stage(THREE, small())
    stage.loaded = "broker-1"
    refused(stage, ConflictError, "broker-1 has .* loaded")


def test_one_broker_without_the_bucket_tracker_is_enough_to_refuse() -> None:
    stage = Stage(THREE, small())
    stage.factory = IN_MEMORY_TRACKER_FACTORY
    refused(stage, ConflictError, "broker-2 runs .*InMemory.*set delayedDeliveryTrackerFactoryClassName")


def test_settings_that_stop_dispatch_are_refused() -> None:
    refused(Stage(THREE, small(max_num_buckets=3)), ConflictError, "delayedDeliveryMaxNumBuckets=3")


def test_a_ledger_that_is_not_closed_is_refused() -> None:
    stage = Stage(THREE, small())
    stage.store.put(ledger_path(LedgerId(9)), ledger_metadata_bytes(LedgerState.OPEN))
    refused(stage, ConflictError, "ledger 9 .*not closed.*topics unload")


def test_a_ledger_that_is_gone_is_refused() -> None:
    stage = Stage(THREE, small())
    stage.store.remove(ledger_path(LedgerId(8)))
    refused(stage, ConflictError, "ledger 8, which is gone")


def test_entries_that_cannot_be_read_are_refused() -> None:
    stage = Stage(THREE, small())
    stage.unreadable = True
    refused(stage, TemporaryError, "no bookie has it")


def test_another_plan_than_the_approved_one_is_refused() -> None:
    stage = Stage(THREE, small())
    approved = stage.plan().hash
    assert stage.plan().hash == approved
    stage.topic.cursor(SUBSCRIPTION, stage.mark_delete)
    refused(stage, ConflictError, "approved", approved)


def test_a_subscription_or_topic_that_is_not_there() -> None:
    stage = Stage(THREE, small())
    with pytest.raises(NotFoundError):
        stage.builder.plan(TOPIC, "another")
    with pytest.raises(NotFoundError):
        stage.builder.plan(TOPIC.partition(3), None)


# --- what goes wrong on the way -------------------------------------------------------------------------------------


def test_bookies_that_fail_at_the_second_bucket_leave_nothing() -> None:
    stage = Stage(THREE, small())
    stage.snapshots.fail_after = 1
    refused(stage, TemporaryError, "too few bookies")
    assert len(stage.snapshots.created) == 1


def test_a_bucket_that_reads_otherwise_than_it_was_written_is_not_attached() -> None:
    stage = Stage(THREE, small())
    stage.snapshots.damage = [(DUE + 1, 3, 1), (DUE + 5, 3, 0)]
    refused(stage, TemporaryError, "read otherwise")


def test_a_cursor_that_changes_meanwhile_keeps_no_bucket() -> None:
    stage = Stage(THREE, small())
    node = stage.store.peek(PATH)
    assert node is not None
    stage.store.before("write", lambda: stage.store.put(PATH, node.data), path=PATH)
    refused(stage, ConflictError, "version")


def test_a_broker_that_overwrites_the_cursor_is_told_and_keeps_no_bucket() -> None:
    stage = Stage(THREE, small())
    node = stage.store.peek(PATH)
    assert node is not None
    approved = stage.plan().hash

    def overwrite_later() -> None:
        stage.store.before("read", lambda: stage.store.put(PATH, node.data), path=PATH)

    stage.store.before("write", overwrite_later, path=PATH)
    refused(stage, ConflictError, "wrote its own copy.*unload it, and build again", approved)


def test_a_lost_answer_names_what_may_be_left() -> None:
    stage = Stage(THREE, small())
    stage.store.lose_answer_next("write", applied=False)
    with pytest.raises(OutcomeUnknownError, match=rf"new ledgers: {FIRST_BUCKET}, {FIRST_BUCKET + 1}"):
        stage.build()


def test_a_topic_loaded_just_afterwards_is_told() -> None:
    stage = Stage(THREE, small())

    def load() -> None:
        stage.loaded = "broker-1"

    stage.store.before("write", load, path=PATH)
    [built] = stage.build()
    assert built.outcome is PointerOutcome.LOADED_MEANWHILE
    assert len(stage.named()) == 2
