"""Display of a delayed index: every number, and a tracker only where it is certain."""

from dataclasses import replace

import pytest
from pulsar_sidecar.features.delayed_index.results.inspection import SegmentView, Tracker, TrackerState
from pulsar_sidecar.features.delayed_index.service import DelayedIndexService
from pulsar_sidecar.features.delayed_index.settings import IN_MEMORY_TRACKER_FACTORY, BrokerTracker, TrackerSettings
from pulsar_sidecar.model.errors import NotFoundError, UnreachableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import encode_cursor
from pulsar_sidecar.ownership.paths import cursor_path, ledger_path, managed_ledger_path

from tests.fakes.bookkeeper import ledger_metadata_bytes
from tests.fakes.delayed_index import TOPIC, FakeTrackers, IndexesInMemory, index_service

OWNER = "http://broker-1:8080"


class StoredIndex(IndexesInMemory):
    def __init__(self) -> None:
        super().__init__(7, 8, 9, 10)
        self.trackers = FakeTrackers()
        self.topic.seal("s", 100, 7, 8, [(1_000, 7, 1), (1_500, 8, 2), (1_500, 8, 3)], [(2_000, 7, 0)])
        self.topic.seal("s", 101, 9, 9, [(3_000, 9, 4)])
        self.topic.cursor("s", (7, 0))
        self.topic.cursor("t")

    @property
    def service(self) -> DelayedIndexService:
        return index_service(self.store, self.entries, self.cursors, self.trackers)


@pytest.fixture
def index() -> StoredIndex:
    return StoredIndex()


def test_every_bucket_is_counted(index: StoredIndex) -> None:
    s, t = index.service.show(TOPIC)
    assert (s.subscription, s.indexes, s.left, s.done, s.mark_delete_position, s.problem) == ("s", 5, 4, 1, "7:0", None)
    first, second = s.buckets
    assert (first.start_ledger_id, first.end_ledger_id, first.ledger_id, first.state) == (7, 8, 100, "CLOSED")
    assert (first.indexes, first.left, first.done, first.first_due_ms, first.last_due_ms) == (4, 3, 1, 1_000, 2_000)
    assert first.segments == (SegmentView(1, 1_000, 1_500, 3, 3), SegmentView(2, 2_000, 2_000, 1, 0))
    assert first.size_bytes == sum(len(index.entries.payloads[100, entry]) for entry in range(3))
    assert (second.left, second.done) == (1, 0)
    assert (t.subscription, t.indexes, t.left, t.done, t.size_bytes, t.buckets) == ("t", 0, 0, 0, 0, ())


def test_unknown_acknowledgements_leave_the_counts_open(index: StoredIndex) -> None:
    index.cursors.unreadable = "no bookie answers"
    (s,) = index.service.show(TOPIC, "s")
    assert (s.indexes, s.left, s.done, s.mark_delete_position) == (5, None, None, None)
    assert s.problem == "the acknowledgements are unknown: no bookie answers"


def test_a_subscription_that_cannot_be_read_is_shown(index: StoredIndex) -> None:
    index.store.put(cursor_path(TOPIC.managed_ledger_name, encode_cursor("odd")), b"\xff")
    odd = index.service.show(TOPIC)[0]
    assert odd.subscription == "odd"
    assert odd.problem is not None
    assert {odd.buckets, odd.indexes, odd.left, odd.done, odd.size_bytes, odd.unreadable} == {None}
    assert odd.next_load == TrackerState(Tracker.UNKNOWN, odd.problem)
    index.trackers.owned_by = index.trackers.loaded = OWNER
    assert index.service.show(TOPIC)[0].running.tracker is Tracker.UNKNOWN
    index.store.put(managed_ledger_path(TOPIC.managed_ledger_name), b"\xff")
    for ask_broker in (False, True):
        (whole,) = index.service.show(TOPIC, ask_broker=ask_broker)
        assert whole.problem is not None
        assert {whole.running.tracker, whole.next_load.tracker} == {Tracker.UNKNOWN}


def test_an_unknown_subscription_and_an_unknown_partition(index: StoredIndex) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        index.service.show(TOPIC, "nobody")
    with pytest.raises(NotFoundError):
        index.service.show(TOPIC.partition(3))


def _lose_ledger(index: StoredIndex) -> None:
    index.store.remove(ledger_path(LedgerId(101)))


def _lose_entry(index: StoredIndex) -> None:
    index.store.put(ledger_path(LedgerId(101)), ledger_metadata_bytes(last_entry_id=-1))
    del index.entries.payloads[101, 0]


def _hide_entry(index: StoredIndex) -> None:
    index.entries.unreadable[101, 0] = "no bookie answers"


def _overlap(index: StoredIndex) -> None:
    index.topic.seal("s", 102, 8, 9, [(3_000, 9, 4)])
    index.topic.cursor("s")


def _misname(index: StoredIndex) -> None:
    buckets = index.topic._buckets["s"]
    buckets["#pulsar.internal.delayed.bucket_9"] = buckets.pop("#pulsar.internal.delayed.bucket_9_9")
    index.topic.cursor("s")


@pytest.mark.parametrize(
    ("change", "expected", "reason"),
    [
        (lambda _: None, Tracker.BUCKETS, "entry 0 of every bucket can be read"),
        (_lose_ledger, Tracker.IN_MEMORY, "ledger 101 does not exist"),
        (_lose_entry, Tracker.IN_MEMORY, "ledger 101 has no entry 0"),
        (_hide_entry, Tracker.UNKNOWN, "could not be read"),
        (_overlap, Tracker.BROKEN, "overlap"),
        (_misname, Tracker.BROKEN, "bucket_9"),
    ],
)
def test_next_load_predicts_the_tracker(index: StoredIndex, change: object, expected: Tracker, reason: str) -> None:
    change(index)  # type: ignore[operator]
    (s,) = index.service.show(TOPIC, "s")
    assert s.next_load.tracker is expected
    assert reason in s.next_load.reason
    assert any(bucket.problem for bucket in s.buckets) == (change in (_lose_ledger, _lose_entry, _hide_entry, _misname))


@pytest.mark.parametrize(
    ("size", "delayed", "expected", "as_bitmaps"),
    [
        (0, 0, Tracker.NONE, Tracker.NONE),
        (384, 10, Tracker.IN_MEMORY, Tracker.IN_MEMORY),
        (768, 10, Tracker.UNKNOWN, Tracker.UNKNOWN),
        (768, 100, Tracker.BUCKETS, Tracker.UNKNOWN),
        (10_000, 100, Tracker.UNKNOWN, Tracker.UNKNOWN),
        (15_552, 450, Tracker.IN_MEMORY, Tracker.UNKNOWN),
        (15_552 + 384, 450, Tracker.BUCKETS, Tracker.UNKNOWN),
    ],
)
def test_the_tracker_by_the_size_of_its_queues(
    index: StoredIndex, size: int, delayed: int, expected: Tracker, as_bitmaps: Tracker
) -> None:
    index.trackers.owned_by = index.trackers.loaded = OWNER
    index.trackers.sizes = {"s": (delayed, size)}
    for in_queue, tracker in ((True, expected), (False, as_bitmaps)):
        index.trackers.configuration = replace(index.trackers.configuration, memory_in_queue=in_queue)
        (s,) = index.service.show(TOPIC, "s", ask_broker=True)
        assert s.running.tracker is tracker
    (t,) = index.service.show(TOPIC, "t", ask_broker=True)
    assert t.running.tracker is Tracker.NONE


def test_another_tracker_is_not_taken_for_one_of_brokers_own(index: StoredIndex) -> None:
    index.trackers.owned_by = index.trackers.loaded = OWNER
    index.trackers.configuration = BrokerTracker("com.example.OurTrackerFactory", TrackerSettings())
    index.trackers.sizes = {"s": (10, 384)}
    unknown = TrackerState(Tracker.UNKNOWN, f"{OWNER} is configured with OurTrackerFactory")
    for ask_broker in (False, True):
        (s,) = index.service.show(TOPIC, "s", ask_broker=ask_broker)
        assert {s.configured, s.running, s.next_load} == {unknown}


def test_without_buckets_no_broker_has_fallen_back(index: StoredIndex) -> None:
    index.trackers.owned_by = OWNER
    s, t = index.service.show(TOPIC)
    assert (s.running.tracker, t.running.tracker) == (Tracker.UNKNOWN, Tracker.BUCKETS)
    assert "askBroker" in s.running.reason


def test_brokers_are_asked_for_no_more_than_is_needed(index: StoredIndex) -> None:
    def running() -> Tracker:
        return index.service.show(TOPIC, "s")[0].running.tracker

    assert running() is Tracker.NONE
    index.trackers.owned_by = OWNER
    assert running() is Tracker.UNKNOWN
    (s,) = index.service.show(TOPIC, "s", ask_broker=True)  # the statistics of a topic that is not loaded would load it
    assert s.running.tracker is Tracker.NONE
    index.trackers.configuration = BrokerTracker(IN_MEMORY_TRACKER_FACTORY, TrackerSettings())
    (s,) = index.service.show(TOPIC, "s")
    assert {s.configured.tracker, s.running.tracker, s.next_load.tracker} == {Tracker.IN_MEMORY}
    assert s.configured.reason == f"{OWNER} is configured with InMemoryDelayedDeliveryTrackerFactory"
    assert s.running.reason == f"{s.configured.reason}; none if the broker has not loaded the topic"
    index.trackers.error = UnreachableError("no broker answers")
    (s,) = index.service.show(TOPIC, "s")
    assert {s.configured.tracker, s.running.tracker, s.next_load.tracker} == {Tracker.UNKNOWN}
    assert (s.left, s.configured.reason) == (4, "brokers could not be queried: no broker answers")
