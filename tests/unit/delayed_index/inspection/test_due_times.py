"""Entries that buckets exclude by their due times; one without a bit never is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.delayed_index.inspection.due_times import BucketDueTimes
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    encode_metadata,
    encode_segment,
    segment_metadata_of,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import encode_cursor
from pulsar_sidecar.ownership.paths import cursor_path, ledger_path

from tests.fakes.delayed_index import TOPIC, IndexesInMemory, Rows, stored_indexes
from tests.fakes.metadata import FakeMetadataStore


class Buckets(IndexesInMemory):
    def outside(self, from_ms: int | None, to_ms: int | None) -> dict[int, list[int]]:
        found = BucketDueTimes(self.stored, self.entries).outside(TOPIC, from_ms, to_ms)
        return {ledger_id: list(entries) for ledger_id, entries in found.items() if entries}


EARLY, MIDDLE, LATE = [(100, 5, 0), (200, 5, 1)], [(300, 5, 2), (400, 6, 0)], [(500, 6, 1), (600, 6, 2)]


@pytest.fixture
def buckets() -> Buckets:
    found = Buckets(5, 6, 7)
    found.topic.seal("s", 90, 5, 6, EARLY, MIDDLE, LATE)
    found.topic.cursor("s")
    return found


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "expected", "segments_read"),
    [
        (300, 500, {5: [0, 1], 6: [1, 2]}, 0),
        (None, None, {}, 0),
        (601, None, {5: [0, 1, 2], 6: [0, 1, 2]}, 0),
        (None, 100, {5: [0, 1, 2], 6: [0, 1, 2]}, 0),
        (201, 300, {5: [0, 1, 2], 6: [0, 1, 2]}, 0),
        (350, 600, {5: [0, 1, 2], 6: [2]}, 2),
    ],
)
def test_only_a_segment_on_the_border_is_read(
    buckets: Buckets, from_ms: int | None, to_ms: int | None, expected: dict[int, list[int]], segments_read: int
) -> None:
    assert buckets.outside(from_ms, to_ms) == expected
    assert len([one for one in buckets.entries.asked if one.entry_id > 0]) == segments_read


def test_cursors_that_cannot_be_read_and_topics_that_do_not_exist_rule_nothing_out(buckets: Buckets) -> None:
    buckets.store.put(cursor_path(TOPIC.managed_ledger_name, encode_cursor("t")), b"\xff")
    assert buckets.outside(300, 500) == {5: [0, 1], 6: [1, 2]}
    assert Buckets(5, 6, 7).outside(300, 500) == {}
    stored = stored_indexes(FakeMetadataStore(), buckets.entries)
    assert not BucketDueTimes(stored, buckets.entries).outside(TOPIC, 300, 500)


def test_contradicting_buckets_cause_an_entry_read(buckets: Buckets) -> None:
    buckets.topic.seal("t", 91, 5, 5, [(400, 5, 0)])
    buckets.topic.cursor("t")
    assert buckets.outside(300, 500) == {5: [1], 6: [1, 2]}


@pytest.mark.parametrize("damaged", ["gone", "entry 0", "segment", "cut segment", "another ledger", "no bit"])
def test_unreadable_buckets_rule_nothing_out(buckets: Buckets, damaged: str) -> None:
    match damaged:
        case "gone":
            buckets.store.delete(ledger_path(LedgerId(90)), None)
        case "entry 0":
            buckets.entries.unreadable[90, 0] = "no bookie"
        case "segment":
            buckets.entries.unreadable[90, 2] = "no bookie"
        case "cut segment":
            buckets.entries.payloads[90, 2] = buckets.entries.payloads[90, 2][:-1]
        case "another ledger":
            buckets.topic.seal("s", 90, 5, 6, [(100, 7, 0)])
        case _:
            # The bitmaps name one entry less than the segment.
            metadata = [segment_metadata_of(DelayedIndexes.of(rows)) for rows in (EARLY, MIDDLE[:1], LATE)]
            buckets.entries.payloads[90, 0] = encode_metadata(metadata)
            buckets.entries.payloads[90, 2] = encode_segment(DelayedIndexes.of([(300, 5, 2), (350, 6, 0)]))
            assert buckets.outside(301, 302) == {5: [0, 1, 2], 6: [1, 2]}
            return
    found = buckets.outside(350, 450)
    assert found == ({} if damaged in ("gone", "entry 0", "another ledger") else {5: [0, 1], 6: [1, 2]})


@given(
    rows=st.lists(st.tuples(st.integers(1, 40), st.integers(5, 7), st.integers(0, 9)), max_size=25),
    cuts=st.lists(st.integers(0, 25), max_size=4),
    bounds=st.tuples(st.none() | st.integers(0, 45), st.none() | st.integers(0, 45)),
)
def test_exactly_the_wrong_due_times_are_ruled_out(
    rows: list[tuple[int, int, int]], cuts: list[int], bounds: tuple[int | None, int | None]
) -> None:
    due_of = {(ledger, entry): due for due, ledger, entry in rows}
    ordered = sorted((due, ledger, entry) for (ledger, entry), due in due_of.items())
    edges = [0, *sorted(cuts), len(ordered)]
    segments: list[Rows] = [part for a, b in itertools.pairwise(edges) if (part := ordered[a:b])]
    found = Buckets(5, 6, 7)
    if segments:
        found.topic.seal("s", 90, 5, 7, *segments)
    found.topic.cursor("s")
    first, end = bounds
    expected = {
        place
        for place, due in due_of.items()
        if (first is not None and due < first) or (end is not None and due >= end)
    }
    outside = found.outside(first, end)
    assert {(ledger, entry) for ledger, entries in outside.items() for entry in entries} == expected
