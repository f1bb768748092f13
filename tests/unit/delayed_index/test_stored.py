"""Stored delayed indexes: everything that cursors name, and unreadable parts with their causes."""

import json

import pytest
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.stored import AcknowledgedEntries, StoredIndex, StoredTopic
from pulsar_sidecar.model.errors import NotFoundError, UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges
from pulsar_sidecar.ownership.paths import ledger_path, partitioned_topic_path
from pyroaring import BitMap

from tests.fakes.bookkeeper import ledger_metadata_bytes
from tests.fakes.delayed_index import TOPIC, IndexesInMemory


class Stored(IndexesInMemory):
    def __init__(self) -> None:
        super().__init__(7, 8, 9, 10)
        self.topic.seal("s", 101, 9, 9, [(3_000, 9, 4)])
        self.topic.seal("s", 100, 7, 8, [(1_000, 7, 1), (1_500, 8, 2)], [(2_000, 7, 0)])
        self.topic.cursor("s", (7, 0))

    def read(self, subscription: str | None = None) -> StoredTopic:
        ((place, found),) = self.stored.read([TOPIC], subscription)
        assert place == TOPIC
        assert isinstance(found, StoredTopic)
        return found

    @property
    def index(self) -> StoredIndex:
        index = self.read().subscriptions["s"]
        assert isinstance(index, StoredIndex)
        return index


@pytest.fixture
def stored() -> Stored:
    return Stored()


def test_buckets_are_listed_in_order_of_their_ledgers(stored: Stored) -> None:
    index = stored.index
    assert [(bucket.key, bucket.ledger_id) for bucket in index.buckets] == [
        (BucketKey(LedgerId(7), LedgerId(8)), 100),
        (BucketKey(LedgerId(9), LedgerId(9)), 101),
    ]
    first = index.buckets[0]
    assert isinstance(first.ledger, LedgerMetadata)
    assert (first.ledger.state, first.ledger.last_entry_id) == (LedgerState.CLOSED, 2)
    assert first.ledger.custom_metadata["pulsar/delayedIndexCursor"] == b"s"
    assert isinstance(first.snapshot, tuple)
    assert [(part.count, part.min_schedule_timestamp, part.max_schedule_timestamp) for part in first.snapshot] == [
        (2, 1_000, 1_500),
        (1, 2_000, 2_000),
    ]
    assert index.acknowledged == PositionRanges(Position(LedgerId(7), EntryId(0)))
    assert sorted(stored.entries.asked) == [(100, 0), (101, 0)]


def test_missing_and_damaged_buckets_are_returned_as_values(stored: Stored) -> None:
    stored.store.remove(ledger_path(LedgerId(100)))
    stored.entries.put(101, b"\xff\xff")
    lost, damaged = stored.index.buckets
    assert (lost.ledger, lost.snapshot) == (Absent(), Absent())
    assert isinstance(damaged.ledger, LedgerMetadata)
    assert isinstance(damaged.snapshot, Unreadable)

    stored.topic.seal("s", 100, 7, 8, [(1_000, 7, 1)])
    stored.store.put(ledger_path(LedgerId(101)), b"nonsense")
    stored.entries.unreadable[100, 0] = "no bookie answers"
    silent, odd = stored.index.buckets
    assert silent.snapshot == Unreadable("no bookie answers")
    assert isinstance(odd.ledger, Unreadable)
    assert odd.snapshot == odd.ledger

    stored.store.put(ledger_path(LedgerId(101)), ledger_metadata_bytes(last_entry_id=-1))
    del stored.entries.payloads[101, 0]
    assert stored.index.buckets[1].snapshot == Absent()


def test_a_name_without_ledgers_comes_last(stored: Stored) -> None:
    stored.topic.seal("s", 102, 11, 11, [(1, 11, 0)])
    prefix = "#pulsar.internal.delayed.bucket"
    buckets = stored.topic._buckets["s"]
    buckets[f"{prefix}_x"] = buckets.pop(f"{prefix}_11_11")
    stored.topic.cursor("s")
    last = stored.index.buckets[-1]
    assert (last.name, last.ledger_id) == (f"{prefix}_x", 102)
    assert isinstance(last.key, Unreadable)


def test_a_bucket_that_is_deleted_while_it_is_read_is_read_again(stored: Stored) -> None:
    def delete() -> None:
        stored.store.remove(ledger_path(LedgerId(100)))
        del stored.topic._buckets["s"]["#pulsar.internal.delayed.bucket_7_8"]
        stored.topic.cursor("s")

    stored.store.before("read_many", delete, path=ledger_path(LedgerId(100)))
    assert [bucket.ledger_id for bucket in stored.index.buckets] == [101]


def test_only_subscriptions_are_reported(stored: Stored) -> None:
    kept_by_brokers = ("__compaction", "pulsar.dedup", "pulsar.repl.other")
    for name in (*kept_by_brokers, "t"):
        stored.topic.cursor(name)
    assert sorted(stored.read().subscriptions) == ["s", "t"]
    for name in (*kept_by_brokers, "nobody"):
        assert stored.read(name).subscriptions == {}


def test_places_are_read_from_metadata(stored: Stored) -> None:
    indexes = stored.stored
    assert indexes.topics.places_of(TOPIC) == [TOPIC]
    parted = parse_topic_name("persistent://public/default/parted")
    with pytest.raises(NotFoundError):
        indexes.topics.places_of(parted)
    stored.store.put(partitioned_topic_path(parted), json.dumps({"partitions": 2, "deleted": False}).encode())
    assert indexes.topics.places_of(parted) == [parted.partition(0), parted.partition(1)]
    assert list(indexes.read(indexes.topics.places_of(parted))) == []
    stored.store.put(partitioned_topic_path(parted), b"[]")
    with pytest.raises(UndecodableError):
        indexes.topics.places_of(parted)
    stored.store.put("/admin/policies/public/empty", b"{}")
    assert list(indexes.topics.places_below("public/empty")) == []


def test_acknowledged_entries_are_removed_from_bitmaps() -> None:
    ranges = [EntryRange(LedgerId(8), EntryId(2), EntryId(3)), EntryRange(LedgerId(9), EntryId(0), EntryId(0))]
    acknowledged = AcknowledgedEntries(PositionRanges(Position(LedgerId(8), EntryId(0)), ranges))
    every = BitMap(range(5))
    assert acknowledged.left(LedgerId(7), every) == BitMap()
    assert acknowledged.left(LedgerId(8), every) == BitMap([1, 4])
    assert acknowledged.left(LedgerId(9), every) == BitMap([1, 2, 3, 4])
    assert acknowledged.left(LedgerId(10), every) == every
    assert acknowledged.count_left({LedgerId(ledger_id): every for ledger_id in (7, 8, 9, 10)}) == 2 + 4 + 5
    nothing = AcknowledgedEntries(PositionRanges(Position(LedgerId(8), EntryId(-1))))
    assert nothing.left(LedgerId(8), every) == every
