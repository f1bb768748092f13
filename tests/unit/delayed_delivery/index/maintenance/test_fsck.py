"""Each kind of damage is found, with its bucket, and a sound index is clean, also while brokers change it."""

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.maintenance.checking import (
    BETWEEN_SECONDS,
    CheckOptions,
    CheckPass,
    IndexChecker,
)
from pulsar_sidecar.delayed_delivery.index.maintenance.findings import Checked, FindingKind
from pulsar_sidecar.delayed_delivery.index.maintenance.fsck import contradictions
from pulsar_sidecar.delayed_delivery.index.settings import IN_MEMORY_TRACKER_FACTORY
from pulsar_sidecar.delayed_delivery.index.snapshot import (
    DelayedIndexes,
    decode_metadata,
    encode_metadata,
    encode_segment,
    segment_metadata_of,
)
from pulsar_sidecar.ledger_ownership.paths import cursor_path, ledger_path, managed_ledger_path
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import encode_cursor, parse_topic_name
from pulsar_sidecar.wire import DelayedMessageIndexBucketMetadata_pb2 as metadata_pb
from pyroaring import BitMap

from tests.fakes.bookkeeper import bucket_custom_metadata, cursor_bytes, data_custom_metadata, ledger_metadata_bytes
from tests.fakes.checked_index import FIRST, HOUR_MS, SECOND, SUBSCRIPTION, CheckedIndex, tracker
from tests.fakes.delayed_index import TOPIC, IndexedTopic

CURSOR = cursor_path(TOPIC.managed_ledger_name, encode_cursor(SUBSCRIPTION))
K = FindingKind
ALL = CheckOptions(sample=None, orphans=True)
FIELD_3 = b"\x18\x01"
"""Of a message that has fewer fields."""


def check(index: CheckedIndex, options: CheckOptions = ALL) -> CheckPass:
    return IndexChecker(index.ports()).check(TOPIC, options)


def found(index: CheckedIndex, options: CheckOptions = ALL) -> list[tuple[FindingKind, int | None]]:
    return [(each.kind, each.ledger_id) for each in check(index, options).findings]


def test_a_sound_index_is_clean_and_everything_was_looked_at() -> None:
    report = check(CheckedIndex())
    assert report.findings == ()
    assert report.checked == Checked(
        topics=1, subscriptions=1, buckets=2, indexes=7, entries=7, entries_left=7, ledgers=2
    )
    assert report.checked.wrong_share_bound == 0.0


def test_a_sample_has_a_bound_and_is_the_same_each_time() -> None:
    index = CheckedIndex()
    report = check(index, CheckOptions(sample=2))
    assert (report.checked.entries, report.checked.entries_left, report.checked.ledgers) == (4, 7, None)
    # Half of the four in the first bucket: of seven they are the ones of which most could be wrong unseen.
    assert report.checked.wrong_share_bound == pytest.approx(math.log(20) * 2 / 7)
    assert check(index, CheckOptions(sample=0)).checked.wrong_share_bound == 1.0
    index.messages.due_ms[7, 3] = 5
    assert len({tuple(found(index, CheckOptions(sample=2))) for _ in range(20)}) == 1


@pytest.mark.parametrize(("ledgers", "named"), [(3, "20, 21, 22"), (5, "20, 21, 22 and 2 more")])
def test_a_cause_names_three_things_and_counts_the_others(ledgers: int, named: str) -> None:
    index = CheckedIndex()
    index.rows[SECOND] = ([(HOUR_MS, 20 + number, 0) for number in range(ledgers)],)
    index.seal(SECOND, 9, 9)
    causes = [each.cause for each in check(index).findings]
    assert f"entry 0 has indexes of ledgers outside #pulsar.internal.delayed.bucket_9_9: {named}" in causes


def test_namespaces_and_tenants_are_checked_whole() -> None:
    index = CheckedIndex()
    index.store.remove(ledger_path(LedgerId(FIRST)))
    for scope in ("public/default", "public"):
        report = IndexChecker(index.ports()).check(scope, ALL)
        assert [each.kind for each in report.findings] == [K.DANGLING_POINTER]


def test_what_does_not_exist_is_an_error() -> None:
    for scope in (parse_topic_name("persistent://public/default/none"), "public/none"):
        with pytest.raises(NotFoundError):
            IndexChecker(CheckedIndex().ports()).check(scope, CheckOptions())


# --- damage ----------------------------------------------------------------------------------------------------------


def lose_a_ledger(index: CheckedIndex) -> None:
    index.store.remove(ledger_path(LedgerId(FIRST)))


def point_to_data(index: CheckedIndex) -> None:
    custom = data_custom_metadata(TOPIC.managed_ledger_name)
    index.store.put(ledger_path(LedgerId(FIRST)), ledger_metadata_bytes(custom_metadata=custom))


def stamp_as_a_newer_broker_may(index: CheckedIndex) -> None:
    custom = bucket_custom_metadata(str(TOPIC), SUBSCRIPTION, "#pulsar.internal.delayed.bucket_7_8")
    custom["pulsar/delayedIndexVersion"] = b"2"
    index.store.put(ledger_path(LedgerId(FIRST)), ledger_metadata_bytes(custom_metadata=custom))


def write_entry_0_as_a_newer_broker_may(index: CheckedIndex) -> None:
    index.entries.payloads[FIRST, 0] += FIELD_3


def write_a_segment_as_a_newer_broker_may(index: CheckedIndex) -> None:
    index.entries.payloads[FIRST, 2] += FIELD_3


def misshape_the_key(index: CheckedIndex) -> None:
    index.store.put(CURSOR, cursor_bytes(mark_delete=(7, 0), buckets={"#pulsar.internal.delayed.bucket_7": FIRST}))


def cut_entry_0(index: CheckedIndex) -> None:
    index.entries.payloads[FIRST, 0] = index.entries.payloads[FIRST, 0][:-3]


def claim_2_to_the_40_bits(index: CheckedIndex) -> None:
    message = metadata_pb.SnapshotMetadata.FromString(index.entries.payloads[FIRST, 0])
    every_container = BitMap()
    every_container.add_range(0, 2**32)
    message.metadata_list[0].delayed_index_bit_map[7] = every_container.serialize()
    index.entries.payloads[FIRST, 0] = message.SerializeToString()


def cut_a_segment(index: CheckedIndex) -> None:
    index.entries.payloads[FIRST, 2] = index.entries.payloads[FIRST, 2][:-1]


def index_entries_beyond_32_bits(index: CheckedIndex) -> None:
    rows = [(due_ms, 7, 2**32 + number) for number, (due_ms, _, _) in enumerate(index.rows[FIRST][1])]
    index.entries.payloads[FIRST, 2] = encode_segment(DelayedIndexes.of(rows))


def lose_a_segment(index: CheckedIndex) -> None:
    del index.entries.payloads[FIRST, 2]


def lose_bookies(index: CheckedIndex) -> None:
    index.entries.unreadable[FIRST, 1] = "no bookie answers"


def lose_bookies_of_entry_0(index: CheckedIndex) -> None:
    index.entries.unreadable[FIRST, 0] = "no bookie answers"


def garble_the_ledgers_node(index: CheckedIndex) -> None:
    index.store.put(ledger_path(LedgerId(FIRST)), b"no metadata")


def garble_the_cursor(index: CheckedIndex) -> None:
    index.store.put(CURSOR, cursor_bytes() + b"\xff")


def garble_the_managed_ledger(index: CheckedIndex) -> None:
    index.store.put(managed_ledger_path(TOPIC.managed_ledger_name), b"\xff\xff")


def lose_the_cursors_ledger(index: CheckedIndex) -> None:
    index.cursors.unreadable = "the cursor's ledger 5 is gone"


def set_a_bit(index: CheckedIndex) -> None:
    segments = list(decode_metadata(index.entries.payloads[FIRST, 0]))
    bitmaps = {LedgerId(7): BitMap([1, 6]), LedgerId(8): BitMap([2])}
    segments[0] = segments[0].__class__(bitmaps, segments[0].min_schedule_timestamp, segments[0].max_schedule_timestamp)
    index.entries.payloads[FIRST, 0] = encode_metadata(segments)


def disorder_a_segment(index: CheckedIndex) -> None:
    index.entries.payloads[FIRST, 1] = encode_segment(DelayedIndexes.of(reversed(index.rows[FIRST][0])))


def seal_the_later_segment_first(index: CheckedIndex) -> None:
    index.rows[FIRST] = (index.rows[FIRST][1], index.rows[FIRST][0])
    index.seal(FIRST, 7, 8)


def leave_a_segment_out_of_entry_0(index: CheckedIndex) -> None:
    segments = decode_metadata(index.entries.payloads[FIRST, 0])
    index.entries.payloads[FIRST, 0] = encode_metadata(segments[:1])


def cover_another_ledger(index: CheckedIndex) -> None:
    index.rows[FIRST][0].append((index.rows[FIRST][0][-1][0], 9, 9))
    index.messages.due_ms[9, 9] = index.rows[FIRST][0][-1][0]
    index.seal(FIRST, 7, 8)


def index_a_message_in_two_segments(index: CheckedIndex) -> None:
    first, second = index.rows[FIRST]
    second.insert(0, (first[-1][0] + 1, *first[0][1:]))
    index.seal(FIRST, 7, 8)


def move_a_due_time(index: CheckedIndex) -> None:
    index.messages.due_ms[7, 3] = 5


def index_what_is_not_delayed(index: CheckedIndex) -> None:
    index.messages.due_ms[7, 3] = None


def index_what_does_not_exist(index: CheckedIndex) -> None:
    del index.messages.due_ms[7, 3]


def index_beyond_a_ledgers_end(index: CheckedIndex) -> None:
    index.rows[FIRST][1].append((index.rows[FIRST][1][-1][0], 8, 10))
    index.seal(FIRST, 7, 8)


def index_a_ledger_of_another_topic(index: CheckedIndex) -> None:
    index.topic.ledgers(7, 9, 10)


def overlap(index: CheckedIndex) -> None:
    index.topic.seal(SUBSCRIPTION, 102, 7, 9, *sorted([*index.rows[FIRST], *index.rows[SECOND]]))
    index.name()


def acknowledge_what_was_due(index: CheckedIndex) -> None:
    index.store.advance_ms(2 * HOUR_MS)
    index.name((8, 9))


def name_only_the_second(index: CheckedIndex) -> None:
    only = {str(BucketKey(LedgerId(9), LedgerId(9))): SECOND}
    index.store.put(CURSOR, cursor_bytes(mark_delete=(7, 0), buckets=only))


def forget_a_bucket(index: CheckedIndex) -> None:
    index.store.advance_ms(HOUR_MS)
    name_only_the_second(index)


def lose_the_subscription(index: CheckedIndex) -> None:
    index.store.advance_ms(HOUR_MS)
    index.store.remove(CURSOR)


def downgrade(index: CheckedIndex) -> None:
    index.brokers["b"] = tracker(IN_MEMORY_TRACKER_FACTORY)


def merge_three(index: CheckedIndex) -> None:
    index.brokers["b"] = tracker(max_num_buckets=3)


DEFECTS: list[tuple[Callable[[CheckedIndex], None], list[tuple[FindingKind, int | None]]]] = [
    (lose_a_ledger, [(K.DANGLING_POINTER, FIRST)]),
    (point_to_data, [(K.FOREIGN_LEDGER, FIRST)]),
    (stamp_as_a_newer_broker_may, [(K.UNREADABLE_NODE, FIRST)]),
    (write_entry_0_as_a_newer_broker_may, [(K.UNREAD_SNAPSHOT, FIRST)]),
    (write_a_segment_as_a_newer_broker_may, [(K.UNREAD_SNAPSHOT, FIRST)]),
    (misshape_the_key, [(K.BAD_KEY, FIRST)]),
    (cut_entry_0, [(K.UNREADABLE_SNAPSHOT, FIRST)]),
    (claim_2_to_the_40_bits, [(K.UNREADABLE_SNAPSHOT, FIRST)]),
    (cut_a_segment, [(K.UNREADABLE_SNAPSHOT, FIRST)]),
    (index_entries_beyond_32_bits, [(K.UNREADABLE_SNAPSHOT, FIRST)]),
    (lose_a_segment, [(K.UNREADABLE_SNAPSHOT, FIRST)]),
    (lose_bookies, [(K.UNREAD_SNAPSHOT, FIRST)]),
    (lose_bookies_of_entry_0, [(K.UNREAD_SNAPSHOT, FIRST)]),
    (garble_the_ledgers_node, [(K.UNREADABLE_NODE, FIRST)]),
    (garble_the_cursor, [(K.UNREADABLE_NODE, None)]),
    (garble_the_managed_ledger, [(K.UNREADABLE_NODE, None)]),
    (lose_the_cursors_ledger, [(K.UNREADABLE_NODE, None)]),
    (set_a_bit, [(K.WRONG_BITMAP, FIRST)]),
    (disorder_a_segment, [(K.WRONG_BITMAP, FIRST)]),
    (seal_the_later_segment_first, [(K.WRONG_BITMAP, FIRST)]),
    (leave_a_segment_out_of_entry_0, [(K.WRONG_BITMAP, FIRST)]),
    (cover_another_ledger, [(K.WRONG_BITMAP, FIRST)]),
    (index_a_message_in_two_segments, [(K.WRONG_BITMAP, FIRST)]),
    (move_a_due_time, [(K.WRONG_DELIVER_AT, FIRST)]),
    (index_what_is_not_delayed, [(K.WRONG_DELIVER_AT, FIRST)]),
    (index_what_does_not_exist, [(K.WRONG_DELIVER_AT, FIRST)]),
    (index_beyond_a_ledgers_end, [(K.OUTSIDE_TOPIC, FIRST)]),
    (index_a_ledger_of_another_topic, [(K.OUTSIDE_TOPIC, FIRST)]),
    (overlap, [(K.OVERLAP, FIRST), (K.OVERLAP, SECOND)]),
    (acknowledge_what_was_due, [(K.DEAD_BUCKET, FIRST)]),
    (forget_a_bucket, [(K.ORPHANED_BUCKET, FIRST)]),
    (lose_the_subscription, [(K.ORPHANED_BUCKET, FIRST), (K.ORPHANED_BUCKET, SECOND)]),
    (downgrade, [(K.TRACKER_DOWNGRADE, FIRST), (K.TRACKER_DOWNGRADE, SECOND)]),
    (merge_three, [(K.UNUSABLE_SETTING, None)]),
]


@pytest.mark.parametrize(("defect", "expected"), [pytest.param(*row, id=row[0].__name__) for row in DEFECTS])
def test_damaged_bytes_are_found(
    defect: Callable[[CheckedIndex], None], expected: list[tuple[FindingKind, int | None]]
) -> None:
    index = CheckedIndex()
    defect(index)
    report = check(index)
    assert [(each.kind, each.ledger_id) for each in report.findings] == expected
    assert all(each.cause and each.consequence and each.remedy for each in report.findings)


def lose_entry_0(index: CheckedIndex) -> None:
    del index.entries.payloads[FIRST, 0]


@pytest.mark.parametrize(
    ("defect", "place", "cause"),
    [
        pytest.param(defect, place, cause, id=defect.__name__)
        for defect, place, cause in [
            (downgrade, (TOPIC, SUBSCRIPTION), "b runs InMemoryDelayedDeliveryTrackerFactory"),
            (garble_the_cursor, (TOPIC, SUBSCRIPTION), "ManagedCursorInfo"),
            (garble_the_managed_ledger, (TOPIC, None), "ManagedLedgerInfo"),
            (lose_the_cursors_ledger, (TOPIC, SUBSCRIPTION), "the cursor's ledger 5 is gone"),
            (acknowledge_what_was_due, (TOPIC, SUBSCRIPTION), "^every message in it is due and acknowledged$"),
            (index_beyond_a_ledgers_end, (TOPIC, SUBSCRIPTION), "^the topic has no such entries: 8:10$"),
            (index_a_ledger_of_another_topic, (TOPIC, SUBSCRIPTION), "^the topic has no such entries: ledger 8$"),
            (index_what_does_not_exist, (TOPIC, SUBSCRIPTION), "such as 7:3: the topic has no such entry$"),
            (index_what_is_not_delayed, (TOPIC, SUBSCRIPTION), "such as 7:3: .*the message is not delayed$"),
            (lose_entry_0, (TOPIC, SUBSCRIPTION), f"^entry {FIRST}:0: no bookie has it$"),
            (cut_entry_0, (TOPIC, SUBSCRIPTION), f"^entry {FIRST}:0: .*SnapshotMetadata"),
            (stamp_as_a_newer_broker_may, (TOPIC, SUBSCRIPTION), f"^ledger {FIRST}: .*pulsar/delayedIndexVersion"),
            (write_entry_0_as_a_newer_broker_may, (TOPIC, SUBSCRIPTION), f"^entry {FIRST}:0: .*upgrade first$"),
            (write_a_segment_as_a_newer_broker_may, (TOPIC, SUBSCRIPTION), f"^entry {FIRST}:2: .*upgrade first$"),
            (index_a_message_in_two_segments, (TOPIC, SUBSCRIPTION), "^in two segments: 1 index$"),
            (disorder_a_segment, (TOPIC, SUBSCRIPTION), "^segment 1: its times do not ascend"),
            (seal_the_later_segment_first, (TOPIC, SUBSCRIPTION), "^segment 2 begins before the end of segment 1$"),
        ]
    ],
)
def test_a_finding_names_the_place_and_the_reason(
    defect: Callable[[CheckedIndex], None], place: tuple[object, object], cause: str
) -> None:
    index = CheckedIndex()
    defect(index)
    finding = check(index).findings[0]
    assert (finding.topic, finding.subscription) == place
    assert re.search(cause, finding.cause), finding.cause


def test_each_broken_bucket_is_found_and_what_is_sound_is_counted_all_the_same() -> None:
    index = CheckedIndex()
    point_to_data(index)
    index.messages.due_ms[9, 0] = 5
    report = check(index)
    assert [(each.kind, each.ledger_id) for each in report.findings] == [
        (K.FOREIGN_LEDGER, FIRST),
        (K.WRONG_DELIVER_AT, SECOND),
    ]
    assert report.checked == Checked(
        topics=1, subscriptions=1, buckets=2, indexes=3, entries=3, entries_left=3, ledgers=2
    )
    assert report.seconds == BETWEEN_SECONDS


def test_each_subscription_and_each_topic_is_checked() -> None:
    index = CheckedIndex()
    index.store.put(cursor_path(TOPIC.managed_ledger_name, encode_cursor("a")), b"\xff\xff")
    lose_a_ledger(index)
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
    assert {kind for _, expected in DEFECTS for kind, _ in expected} == set(FindingKind)


def test_of_overlapping_buckets_with_as_many_indexes_the_first_is_kept() -> None:
    index = CheckedIndex()
    index.topic.seal(SUBSCRIPTION, 102, 7, 9, *index.rows[FIRST])
    index.name()
    assert found(index) == [(K.OVERLAP, 102)]


@pytest.mark.parametrize(("later_ms", "kinds"), [(8, []), (9, [K.DEAD_BUCKET])])
def test_a_bucket_is_dead_when_its_last_message_was_due_long_enough_ago(
    later_ms: int, kinds: list[FindingKind]
) -> None:
    index = CheckedIndex()
    index.store.advance_ms(HOUR_MS + ALL.min_age_ms + later_ms)
    index.name((8, 9))
    assert [kind for kind, _ in found(index)] == kinds


@pytest.mark.parametrize(("later_ms", "kinds"), [(-1, []), (0, [K.ORPHANED_BUCKET])])
def test_a_bucket_is_an_orphan_when_its_ledger_is_old_enough(later_ms: int, kinds: list[FindingKind]) -> None:
    index = CheckedIndex()
    name_only_the_second(index)
    index.store.set_created_ms(ledger_path(LedgerId(FIRST)), index.store.now_ms() - ALL.min_age_ms - later_ms)
    assert [kind for kind, _ in found(index)] == kinds


def test_orphans_are_those_of_the_scope() -> None:
    index = CheckedIndex()
    forget_a_bucket(index)
    elsewhere = parse_topic_name("persistent://public/other/x")
    index.store.put(managed_ledger_path(elsewhere.managed_ledger_name))
    for scope in ("public/default", "public"):
        assert [each.ledger_id for each in IndexChecker(index.ports()).check(scope, ALL).findings] == [FIRST]
    for scope in ("public/other", elsewhere):
        assert IndexChecker(index.ports()).check(scope, ALL).findings == ()


# --- what is no damage -----------------------------------------------------------------------------------------------


def test_orphans_are_looked_for_on_demand_only_and_only_old_ones() -> None:
    index = CheckedIndex()
    index.store.put(CURSOR, cursor_bytes(mark_delete=(7, 0)))
    assert found(index) == [], "a broker may be about to point to them"
    index.store.advance_ms(HOUR_MS)
    assert found(index, CheckOptions(orphans=False)) == []
    assert len(found(index)) == 2


def test_buckets_of_a_deleted_topic_are_found() -> None:
    index = CheckedIndex()
    index.store.remove(managed_ledger_path(TOPIC.managed_ledger_name))
    index.store.advance_ms(HOUR_MS)
    assert found(index) == [(K.ORPHANED_BUCKET, FIRST), (K.ORPHANED_BUCKET, SECOND)]


def test_a_cursor_that_cannot_be_read_may_point_to_everything() -> None:
    index = CheckedIndex()
    garble_the_cursor(index)
    index.store.advance_ms(HOUR_MS)
    assert found(index) == [(K.UNREADABLE_NODE, None)]


def test_what_a_broker_changed_between_two_looks_is_no_finding() -> None:
    index = CheckedIndex()
    lose_a_ledger(index)
    index.messages.before = lambda: name_only_the_second(index)
    assert found(index) == []


def test_a_pointer_that_is_put_between_two_looks_is_no_finding() -> None:
    index = CheckedIndex()
    named = index.store.peek(CURSOR)
    assert named is not None
    forget_a_bucket(index)
    calls: list[Callable[[], object]] = [lambda: None, lambda: index.store.put(CURSOR, named.data)]
    index.messages.before = lambda: calls.pop(0)() if calls else None
    index.messages.due_ms[9, 0] = 1
    assert found(index) == [(K.WRONG_DELIVER_AT, SECOND)], "the other finding makes it look twice"


def test_what_is_acknowledged_need_not_exist() -> None:
    index = CheckedIndex()
    index.name((7, 3))
    del index.messages.due_ms[7, 1], index.messages.due_ms[7, 3]
    assert found(index) == []
    index.topic.ledgers(9, 10)
    assert found(index) == [], "trimmed, which the stored position does not say yet"


def test_what_was_due_a_moment_ago_is_not_dead() -> None:
    index = CheckedIndex()
    index.store.advance_ms(HOUR_MS + 60_000)
    index.name((8, 9))
    assert found(index) == []


def test_what_is_acknowledged_and_not_due_is_not_dead() -> None:
    index = CheckedIndex()
    index.name((9, 9))
    assert found(index) == []


def test_a_message_that_cannot_be_read_is_no_finding_and_not_counted() -> None:
    index = CheckedIndex()
    index.messages.answers[7, 3] = Unreadable("its bookies are away")
    report = check(index)
    assert report.findings == ()
    assert (report.checked.entries, report.checked.entries_left, report.checked.unread) == (6, 7, 1)
    assert report.checked.wrong_share_bound == 1.0, "nothing is known of what may be no message any more"


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=4))
def test_whatever_a_sample_easily_misses_is_within_its_bound(buckets: list[tuple[int, int, int]]) -> None:
    """Of each bucket: its messages, how many of them are compared, and how many are wrong."""
    checked, missed, wrong = Checked(), 1.0, 0
    for left, sample, bad in buckets:
        compared, bad_here = min(left, sample), min(left, bad)
        checked.compare(left, compared, compared)
        missed *= math.comb(left - bad_here, compared) / math.comb(left, compared)
        wrong += bad_here
    assert missed <= 0.05 or wrong / checked.entries_left <= checked.wrong_share_bound + 1e-9


def test_a_topic_whose_messages_cannot_be_read_is_checked_but_for_them() -> None:
    index = CheckedIndex()
    overlap(index)

    def fail() -> None:
        raise TemporaryError("the metadata store does not answer")

    index.messages.before = fail
    report = check(index)
    assert [each.kind for each in report.findings] == [K.OVERLAP, K.OVERLAP]
    assert (report.checked.buckets, report.checked.entries, report.checked.wrong_share_bound) == (3, 0, 1.0)
    assert report.checked.unread == report.checked.entries_left > 0


def test_a_bucket_that_is_written_to_may_have_more_segments_than_its_node_lists() -> None:
    index = CheckedIndex()
    claim = bucket_custom_metadata(str(TOPIC), SUBSCRIPTION, "#pulsar.internal.delayed.bucket_7_8")
    index.store.put(ledger_path(LedgerId(FIRST)), ledger_metadata_bytes(LedgerState.OPEN, claim))
    assert found(index) == []


def test_indexes_of_the_ledger_that_is_written_to_are_no_finding() -> None:
    index = CheckedIndex()
    due_ms = index.rows[SECOND][1][-1][0]
    index.rows[SECOND][1].append((due_ms, 10, 3))
    index.messages.due_ms[10, 3] = due_ms
    index.store.put(CURSOR, cursor_bytes())
    index.topic = IndexedTopic(index.store, index.entries)
    index.seal(FIRST, 7, 8)
    index.seal(SECOND, 9, 10)
    index.name()
    assert found(index) == []


def test_nothing_is_outside_a_topic_whose_ledgers_are_not_known() -> None:
    index = CheckedIndex()
    index.topic.ledgers()
    assert found(index) == []


def test_a_ledger_that_only_mentions_buckets_is_none() -> None:
    index = CheckedIndex()
    index.store.advance_ms(HOUR_MS)
    mentions = {"application": b"pulsar", "component": b"schema", "pulsar/schemaId": b"delayed-index-bucket"}
    index.store.put(ledger_path(LedgerId(300)), ledger_metadata_bytes(custom_metadata=mentions), created_ms=0)
    assert check(index).findings == ()
    assert check(index).checked.ledgers == 3


def test_numbers_of_buckets_that_brokers_can_merge() -> None:
    for number in (-1, 4, 50):
        index = CheckedIndex()
        index.brokers["b"] = tracker(max_num_buckets=number)
        assert found(index) == []


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
        "its first and last time are not those in entry 0",
    ]
    assert contradictions(metadata, segment[np.array([], np.int64)]) == ["it is empty"]
