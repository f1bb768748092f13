"""Each kind of damage is found, with its bucket, and a sound index is clean, also while brokers change it."""

import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.delayed_index.maintenance.checking import (
    BETWEEN_SECONDS,
    CheckOptions,
    CheckPass,
    CheckProgress,
    IndexChecker,
)
from pulsar_sidecar.features.delayed_index.maintenance.fsck import contradictions
from pulsar_sidecar.features.delayed_index.results.maintenance import FindingKind
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes, segment_metadata_of
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import encode_cursor, parse_topic_name
from pulsar_sidecar.ownership.paths import cursor_path, ledger_path, managed_ledger_path

from tests.fakes import index_damage as damage
from tests.fakes.bookkeeper import bucket_custom_metadata, cursor_bytes, ledger_metadata_bytes
from tests.fakes.checked_index import FIRST, HOUR_MS, SECOND, SUBSCRIPTION, CheckedIndex
from tests.fakes.delayed_index import TOPIC, IndexedTopic

CURSOR = cursor_path(TOPIC.managed_ledger_name, encode_cursor(SUBSCRIPTION))
K = FindingKind
ALL = CheckOptions(sample=None, orphans=True)


def check(index: CheckedIndex, options: CheckOptions = ALL) -> CheckPass:
    return IndexChecker(index.ports()).check(TOPIC, options)


def found(index: CheckedIndex, options: CheckOptions = ALL) -> list[tuple[FindingKind, int | None]]:
    return [(each.kind, each.ledger_id) for each in check(index, options).findings]


@pytest.fixture
def index() -> CheckedIndex:
    return CheckedIndex()


def test_a_sound_index_is_clean_and_everything_was_looked_at() -> None:
    report = check(CheckedIndex())
    assert report.findings == ()
    extent = CheckProgress(topics=1, subscriptions=1, buckets=2, indexes=7, entries=7, entries_left=7)
    assert report.checked == replace(extent.result(), ledgers=2, wrong_share_bound=0.0)


def test_a_sample_has_a_bound_and_is_the_same_each_time(index: CheckedIndex) -> None:
    report = check(index, CheckOptions(sample=2))
    assert (report.checked.entries, report.checked.entries_left, report.checked.ledgers) == (4, 7, None)
    # Half of the four in the first bucket: of seven they are the ones of which most could be wrong unseen.
    assert report.checked.wrong_share_bound == pytest.approx(math.log(20) * 2 / 7)
    assert check(index, CheckOptions(sample=0)).checked.wrong_share_bound == 1.0
    index.messages.due_ms[7, 3] = 5
    assert len({tuple(found(index, CheckOptions(sample=2))) for _ in range(20)}) == 1


@pytest.mark.parametrize(("ledgers", "named"), [(3, "20, 21, 22"), (5, "20, 21, 22 and 2 more")])
def test_a_cause_names_three_things_and_counts_the_others(index: CheckedIndex, ledgers: int, named: str) -> None:
    index.rows[SECOND] = ([(HOUR_MS, 20 + number, 0) for number in range(ledgers)],)
    index.seal(SECOND, 9, 9)
    causes = [each.cause for each in check(index).findings]
    assert f"entry 0 has indexes of ledgers outside #pulsar.internal.delayed.bucket_9_9: {named}" in causes


# --- damage ---------------------------------------------------------------------------------------------------------


DEFECTS: list[tuple[Callable[[CheckedIndex], None], list[tuple[FindingKind, int | None]], str]] = [
    (damage.lose_a_ledger, [(K.DANGLING_POINTER, FIRST)], ""),
    (damage.point_to_data, [(K.FOREIGN_LEDGER, FIRST)], ""),
    (
        damage.stamp_as_a_newer_broker_may,
        [(K.UNREADABLE_NODE, FIRST)],
        f"^ledger {FIRST}: .*delayedIndexVersion",
    ),
    (damage.write_entry_0_as_a_newer_broker_may, [(K.UNREAD_SNAPSHOT, FIRST)], f"^entry {FIRST}:0: .*upgrade first$"),
    (damage.write_a_segment_as_a_newer_broker_may, [(K.UNREAD_SNAPSHOT, FIRST)], f"^entry {FIRST}:2: .*upgrade first$"),
    (damage.misshape_the_key, [(K.BAD_KEY, FIRST)], ""),
    (damage.cut_entry_0, [(K.UNREADABLE_SNAPSHOT, FIRST)], f"^entry {FIRST}:0: .*SnapshotMetadata"),
    (damage.claim_2_to_the_40_bits, [(K.UNREADABLE_SNAPSHOT, FIRST)], ""),
    (damage.cut_a_segment, [(K.UNREADABLE_SNAPSHOT, FIRST)], ""),
    (damage.index_entries_beyond_32_bits, [(K.UNREADABLE_SNAPSHOT, FIRST)], ""),
    (damage.lose_a_segment, [(K.UNREADABLE_SNAPSHOT, FIRST)], ""),
    (damage.lose_entry_0, [(K.UNREADABLE_SNAPSHOT, FIRST)], f"^entry {FIRST}:0: no bookie has it$"),
    (damage.lose_bookies, [(K.UNREAD_SNAPSHOT, FIRST)], ""),
    (damage.lose_bookies_of_entry_0, [(K.UNREAD_SNAPSHOT, FIRST)], ""),
    (damage.garble_the_ledgers_node, [(K.UNREADABLE_NODE, FIRST)], ""),
    (damage.garble_the_cursor, [(K.UNREADABLE_NODE, None)], "ManagedCursorInfo"),
    (damage.garble_the_managed_ledger, [(K.UNREADABLE_NODE, None)], "ManagedLedgerInfo"),
    (damage.lose_the_cursors_ledger, [(K.UNREADABLE_NODE, None)], "the cursor's ledger 5 is gone"),
    (damage.set_a_bit, [(K.WRONG_BITMAP, FIRST)], ""),
    (damage.disorder_a_segment, [(K.WRONG_BITMAP, FIRST)], "^segment 1: its times do not ascend"),
    (damage.seal_the_later_segment_first, [(K.WRONG_BITMAP, FIRST)], "^segment 2 begins before the end of segment 1$"),
    (damage.leave_a_segment_out_of_entry_0, [(K.WRONG_BITMAP, FIRST)], ""),
    (damage.cover_another_ledger, [(K.WRONG_BITMAP, FIRST)], ""),
    (damage.index_a_message_in_two_segments, [(K.WRONG_BITMAP, FIRST)], "^in two segments: 1 index$"),
    (damage.move_a_due_time, [(K.WRONG_DELIVER_AT, FIRST)], ""),
    (damage.index_what_is_not_delayed, [(K.WRONG_DELIVER_AT, FIRST)], "such as 7:3: .*the message is not delayed$"),
    (damage.index_what_does_not_exist, [(K.WRONG_DELIVER_AT, FIRST)], "such as 7:3: the topic has no such entry$"),
    (damage.index_beyond_a_ledgers_end, [(K.OUTSIDE_TOPIC, FIRST)], "^the topic has no such entries: 8:10$"),
    (damage.index_a_ledger_of_another_topic, [(K.OUTSIDE_TOPIC, FIRST)], "^the topic has no such entries: ledger 8$"),
    (damage.overlap, [(K.OVERLAP, FIRST), (K.OVERLAP, SECOND)], ""),
    (damage.acknowledge_what_was_due, [(K.DEAD_BUCKET, FIRST)], "^every message in it is due and acknowledged$"),
    (damage.forget_a_bucket, [(K.ORPHANED_BUCKET, FIRST)], ""),
    (damage.lose_the_subscription, [(K.ORPHANED_BUCKET, FIRST), (K.ORPHANED_BUCKET, SECOND)], ""),
    (
        damage.downgrade,
        [(K.TRACKER_DOWNGRADE, FIRST), (K.TRACKER_DOWNGRADE, SECOND)],
        "b runs InMemory",
    ),
    (damage.merge_three, [(K.UNUSABLE_SETTING, None)], ""),
]
"""Damage, the kind and the ledger of each finding, and the cause of the first."""


@pytest.mark.parametrize(("defect", "expected", "cause"), [pytest.param(*row, id=row[0].__name__) for row in DEFECTS])
def test_damage_is_found(
    index: CheckedIndex,
    defect: Callable[[CheckedIndex], None],
    expected: list[tuple[FindingKind, int | None]],
    cause: str,
) -> None:
    defect(index)
    report = check(index)
    assert [(each.kind, each.ledger_id) for each in report.findings] == expected
    assert all(each.cause and each.consequence and each.remedy for each in report.findings)
    first = report.findings[0]
    assert re.search(cause, first.cause), first.cause
    is_of_topic, is_of_s = defect is not damage.merge_three, defect is not damage.garble_the_managed_ledger
    place = str(TOPIC) if is_of_topic else None, SUBSCRIPTION if is_of_topic and is_of_s else None
    assert (first.topic, first.subscription) == place


def test_each_broken_bucket_is_found_and_what_is_sound_is_counted_all_the_same(index: CheckedIndex) -> None:
    damage.point_to_data(index)
    index.messages.due_ms[9, 0] = 5
    report = check(index)
    assert [(each.kind, each.ledger_id) for each in report.findings] == [
        (K.FOREIGN_LEDGER, FIRST),
        (K.WRONG_DELIVER_AT, SECOND),
    ]
    extent = CheckProgress(topics=1, subscriptions=1, buckets=2, indexes=3, entries=3, entries_left=3)
    assert report.checked == replace(extent.result(), ledgers=2)
    assert report.seconds == BETWEEN_SECONDS


def test_each_subscription_and_each_topic_is_checked(index: CheckedIndex) -> None:
    index.store.put(cursor_path(TOPIC.managed_ledger_name, encode_cursor("a")), b"\xff\xff")
    damage.lose_a_ledger(index)
    other = IndexedTopic(index.store, index.entries, parse_topic_name("persistent://public/default/payments"))
    other.ledgers(30, 31)
    other.seal("b", 200, 30, 30, [(HOUR_MS, 30, 1)])
    other.cursor("b")
    index.store.remove(ledger_path(LedgerId(200)))
    report = IndexChecker(index.ports()).check("public/default", ALL)
    assert {(each.kind, each.subscription, each.ledger_id) for each in report.findings} == {
        (K.UNREADABLE_NODE, "a", None),
        (K.DANGLING_POINTER, SUBSCRIPTION, FIRST),
        (K.DANGLING_POINTER, "b", 200),
    }
    assert (report.checked.topics, report.checked.subscriptions, report.checked.buckets) == (2, 3, 3)


def test_every_kind_is_made_here() -> None:
    assert {kind for _, expected, _ in DEFECTS for kind, _ in expected} == set(FindingKind)


def test_of_overlapping_buckets_with_as_many_indexes_the_first_is_kept(index: CheckedIndex) -> None:
    index.topic.seal(SUBSCRIPTION, 102, 7, 9, *index.rows[FIRST])
    index.name()
    assert found(index) == [(K.OVERLAP, 102)]


@pytest.mark.parametrize(("later_ms", "kinds"), [(8, []), (9, [K.DEAD_BUCKET])])
def test_a_bucket_is_dead_when_its_last_message_was_due_long_enough_ago(
    index: CheckedIndex, later_ms: int, kinds: list[FindingKind]
) -> None:
    index.store.advance_ms(HOUR_MS + ALL.min_age_ms + later_ms)
    index.name((8, 9))
    assert [kind for kind, _ in found(index)] == kinds


@pytest.mark.parametrize(("later_ms", "kinds"), [(-1, []), (0, [K.ORPHANED_BUCKET])])
def test_a_bucket_is_an_orphan_when_its_ledger_is_old_enough(
    index: CheckedIndex, later_ms: int, kinds: list[FindingKind]
) -> None:
    damage.name_only_the_second(index)
    index.store.set_created_ms(ledger_path(LedgerId(FIRST)), index.store.now_ms() - ALL.min_age_ms - later_ms)
    assert [kind for kind, _ in found(index)] == kinds


def test_orphans_are_those_of_the_scope(index: CheckedIndex) -> None:
    damage.forget_a_bucket(index)
    elsewhere = parse_topic_name("persistent://public/other/x")
    index.store.put(managed_ledger_path(elsewhere.managed_ledger_name))
    for scope in ("public/default", "public"):
        assert [each.ledger_id for each in IndexChecker(index.ports()).check(scope, ALL).findings] == [FIRST]
    for scope in ("public/other", elsewhere):
        assert IndexChecker(index.ports()).check(scope, ALL).findings == ()


# --- states without damage -------------------------------------------------------------------------------------------


def test_orphans_are_looked_for_on_demand_only_and_only_old_ones(index: CheckedIndex) -> None:
    index.store.put(CURSOR, cursor_bytes(mark_delete=(7, 0)))
    assert found(index) == [], "a broker may be about to point to them"
    index.store.advance_ms(HOUR_MS)
    assert found(index, CheckOptions(orphans=False)) == []
    assert len(found(index)) == 2


def test_buckets_of_a_deleted_topic_are_found(index: CheckedIndex) -> None:
    index.store.remove(managed_ledger_path(TOPIC.managed_ledger_name))
    index.store.advance_ms(HOUR_MS)
    assert found(index) == [(K.ORPHANED_BUCKET, FIRST), (K.ORPHANED_BUCKET, SECOND)]


def test_a_cursor_that_cannot_be_read_may_point_to_everything(index: CheckedIndex) -> None:
    damage.garble_the_cursor(index)
    index.store.advance_ms(HOUR_MS)
    assert found(index) == [(K.UNREADABLE_NODE, None)]


def test_change_by_a_broker_between_reads_is_not_a_finding(index: CheckedIndex) -> None:
    damage.lose_a_ledger(index)
    index.messages.before = lambda: damage.name_only_the_second(index)
    assert found(index) == []


def test_pointer_restored_between_reads_is_not_a_finding(index: CheckedIndex) -> None:
    named = index.store.peek(CURSOR)
    assert named is not None
    damage.forget_a_bucket(index)
    calls: list[Callable[[], object]] = [lambda: None, lambda: index.store.put(CURSOR, named.data)]
    index.messages.before = lambda: calls.pop(0)() if calls else None
    index.messages.due_ms[9, 0] = 1
    assert found(index) == [(K.WRONG_DELIVER_AT, SECOND)], "the other finding makes it look twice"


def test_acknowledged_entries_need_not_exist(index: CheckedIndex) -> None:
    index.name((7, 3))
    del index.messages.due_ms[7, 1], index.messages.due_ms[7, 3]
    assert found(index) == []
    index.topic.ledgers(9, 10)
    assert found(index) == [], "trimmed, which the stored position does not say yet"


def test_acknowledged_entries_not_yet_due_are_not_dead(index: CheckedIndex) -> None:
    index.name((9, 9))
    assert found(index) == []


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=4))
def test_wrong_share_bound_holds_with_95_percent_confidence(buckets: list[tuple[int, int, int]]) -> None:
    """Figures of each bucket: messages, compared ones and wrong ones."""
    extent, missed, wrong = CheckProgress(), 1.0, 0
    for left, sample, bad in buckets:
        compared, bad_here = min(left, sample), min(left, bad)
        extent.compare(left, compared, compared)
        missed *= math.comb(left - bad_here, compared) / math.comb(left, compared)
        wrong += bad_here
    checked = extent.result()
    assert missed <= 0.05 or wrong / checked.entries_left <= checked.wrong_share_bound + 1e-9


def test_a_topic_whose_messages_cannot_be_read_is_checked_but_for_them(index: CheckedIndex) -> None:
    damage.overlap(index)

    def fail() -> None:
        raise TemporaryError("the metadata store does not respond")

    index.messages.before = fail
    report = check(index)
    assert [each.kind for each in report.findings] == [K.OVERLAP, K.OVERLAP]
    assert (report.checked.buckets, report.checked.entries, report.checked.wrong_share_bound) == (3, 0, 1.0)
    assert report.checked.unread == report.checked.entries_left > 0


def test_a_bucket_that_is_written_to_may_have_more_segments_than_its_node_lists(index: CheckedIndex) -> None:
    claim = bucket_custom_metadata(str(TOPIC), SUBSCRIPTION, "#pulsar.internal.delayed.bucket_7_8")
    index.store.put(ledger_path(LedgerId(FIRST)), ledger_metadata_bytes(LedgerState.OPEN, claim))
    assert found(index) == []


def test_indexes_of_the_ledger_that_is_written_to_are_no_finding(index: CheckedIndex) -> None:
    due_ms = index.rows[SECOND][1][-1][0]
    index.rows[SECOND][1].append((due_ms, 10, 3))
    index.messages.due_ms[10, 3] = due_ms
    index.store.put(CURSOR, cursor_bytes())
    index.topic = IndexedTopic(index.store, index.entries)
    index.seal(FIRST, 7, 8)
    index.seal(SECOND, 9, 10)
    index.name()
    assert found(index) == []


def test_unknown_ledger_list_yields_no_findings(index: CheckedIndex) -> None:
    index.topic.ledgers()
    assert found(index) == []


def test_ledger_mentioning_buckets_is_not_a_bucket(index: CheckedIndex) -> None:
    index.store.advance_ms(HOUR_MS)
    mentions = {"application": b"pulsar", "component": b"schema", "pulsar/schemaId": b"delayed-index-bucket"}
    index.store.put(ledger_path(LedgerId(300)), ledger_metadata_bytes(custom_metadata=mentions), created_ms=0)
    assert check(index).findings == ()
    assert check(index).checked.ledgers == 3


def test_contradictions_are_counted_and_named() -> None:
    segment = DelayedIndexes.of([(5, 7, 1), (5, 7, 1), (4, 7, 2), (6, 9, 3)])
    metadata = segment_metadata_of(DelayedIndexes.of([(4, 7, 1), (9, 7, 8), (9, 7, 6), (9, 11, 0)]))
    assert contradictions(metadata, segment) == [
        "2 bits without an index, such as 7:6",
        "1 index without a bit, such as 7:2",
        "1 index without a bit, such as 9:3",
        "1 bit without an index, such as 11:0",
        "1 index twice",
        "its times do not ascend",
        "its first and last times differ from those in entry 0",
    ]
    assert contradictions(metadata, segment[np.array([], np.int64)]) == ["it is empty"]
