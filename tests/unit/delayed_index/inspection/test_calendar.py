"""Calendar of due messages: each is counted once, buckets by their own figures, everything else by its own entry."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar_sidecar.backlog import waiting as backlog
from pulsar_sidecar.backlog.ports import EntryAnswer, EntryFacts
from pulsar_sidecar.features.delayed_index.inspection.counting import CalendarOptions, CalendarReader
from pulsar_sidecar.features.delayed_index.results.inspection import Calendar, DueTime
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes, encode_segment
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName, encode_cursor, parse_topic_name
from pulsar_sidecar.ownership.paths import cursor_path, ledger_path

from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import TOPIC, FakeTopicEntries, IndexedTopic, IndexesInMemory

NOW = 1_000_000


class Waiting(IndexesInMemory):
    """Ledgers 7, 8 and 9 of ten entries; 7 and 8 have a bucket, but for a late message; 9 has none."""

    def __init__(self) -> None:
        super().__init__(7, 8, 9)
        self.messages = FakeTopicEntries()
        self.clock = FakeClock(now_ms=NOW)
        indexed = [[(NOW + 1_000, 7, 1), (NOW + 4_000, 8, 2)], [(NOW + 9_000, 7, 0), (NOW + 9_000, 7, 2)]]
        self.topic.seal("s", 100, 7, 8, *indexed)
        self.topic.cursor("s", (7, 0))
        self.messages.due([row for segment in indexed for row in segment])
        self.messages.due([(NOW + 2_000, 8, 5), (NOW + 60_000, 9, 0), (NOW, 9, 1)])

    @property
    def reader(self) -> CalendarReader:
        return CalendarReader(self.stored, self.entries, self.messages, self.messages, self.clock)

    def calendar(self, **options: Any) -> Calendar:
        return self.reader.of_topic(TOPIC, CalendarOptions(**options))


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


def counts(calendar: Calendar) -> tuple[int, ...]:
    return (calendar.delayed, calendar.due, calendar.undelayed, calendar.unreadable, calendar.unread)


def test_buckets_are_counted_by_their_metadata(waiting: Waiting) -> None:
    found = waiting.calendar(step_seconds=1)
    # 29 entries are not acknowledged; three are in the bucket, three more are delayed.
    assert counts(found) == (5, 1, 23, 0, 0)
    assert (found.from_buckets, found.resolution_ms, found.exact) == (3, 3_000, False)
    assert found.times == (
        DueTime(NOW + 1_000, 2),
        DueTime(NOW + 2_000, 1),
        DueTime(NOW + 9_000, 1),
        DueTime(NOW + 60_000, 1),
    )
    (s,) = found.subscriptions
    assert (s.first_due_ms, s.last_due_ms) == (NOW + 1_000, NOW + 60_000)
    assert not {(7, 1), (8, 2), (7, 2)} & set(waiting.messages.asked)


def test_a_subscription_that_is_not_there(waiting: Waiting) -> None:
    with pytest.raises(NotFoundError, match="no durable subscription nobody"):
        waiting.calendar(subscription="nobody")
    assert waiting.reader.below("public", CalendarOptions("nobody")).subscriptions == ()


def test_exact_reads_segments(waiting: Waiting) -> None:
    found = waiting.calendar(exact=True, step_seconds=1)
    assert counts(found) == (5, 1, 23, 0, 0)
    assert (found.from_buckets, found.resolution_ms) == (3, 0)
    assert [(time.from_ms - NOW, time.messages) for time in found.times] == [
        (1_000, 1),
        (2_000, 1),
        (4_000, 1),
        (9_000, 1),
        (60_000, 1),
    ]


def test_rows_have_round_widths_and_a_maximum(waiting: Waiting) -> None:
    found = waiting.calendar(rows=4)
    assert found.step_seconds == 30
    assert sum(time.messages for time in found.times) == 5
    assert all(time.from_ms % 30_000 == 0 for time in found.times)


def test_a_segment_that_is_partly_due_counts_from_now_on(waiting: Waiting) -> None:
    waiting.clock.advance_ms(2_000)
    found = waiting.calendar(step_seconds=1)
    assert (found.delayed, found.due, found.resolution_ms) == (4, 2, 1_999)
    assert found.times[0] == DueTime(NOW + 2_000, 2)
    exact = waiting.calendar(exact=True)
    assert (exact.delayed, exact.due) == (3, 3)


def test_a_bucket_that_cannot_be_read_is_counted_by_its_entries(waiting: Waiting) -> None:
    waiting.store.remove(ledger_path(LedgerId(100)))
    found = waiting.calendar(step_seconds=1)
    assert (counts(found), found.from_buckets) == ((5, 1, 23, 0, 0), 0)


@pytest.mark.parametrize("damaged", [b"\xff", None, encode_segment(DelayedIndexes.of([(NOW + 1_000, 7, 1)]))])
def test_damaged_segment_is_counted_by_its_entries(waiting: Waiting, damaged: bytes | None) -> None:
    if damaged is None:
        del waiting.entries.payloads[100, 1]
    else:
        waiting.entries.payloads[100, 1] = damaged
    found = waiting.calendar(exact=True)
    assert counts(found) == counts(waiting.calendar()) == (5, 1, 23, 0, 0)
    assert (8, 2) in waiting.messages.asked
    assert found.times == Waiting().calendar(exact=True).times


@pytest.mark.parametrize("exact", [False, True])
def test_message_in_two_buckets_counts_once(waiting: Waiting, exact: bool) -> None:
    """A broker that dies while it merges buckets leaves the old ones beside the new one."""
    waiting.topic.seal("s", 101, 8, 8, [(NOW + 4_000, 8, 2), (NOW + 5_000, 8, 5)])
    waiting.topic.cursor("s", (7, 0))
    found = waiting.calendar(exact=exact)
    assert (counts(found), found.from_buckets) == ((5, 1, 23, 0, 0), 4)


@pytest.mark.parametrize("exact", [False, True])
def test_a_bit_of_an_entry_that_the_topic_does_not_have_does_not_count(waiting: Waiting, exact: bool) -> None:
    waiting.topic.seal("s", 101, 9, 9, [(NOW + 1_000, 9, 10), (NOW + 1_000, 9, 11)], [(NOW + 1_000, 6, 0)])
    waiting.topic.cursor("s", (7, 0))
    found = waiting.calendar(exact=exact)
    assert (counts(found), found.from_buckets) == ((5, 1, 23, 0, 0), 3)


def test_skipped_entries_are_reported(waiting: Waiting) -> None:
    waiting.messages.answers[9, 5] = Unreadable("no bookie answers")
    assert counts(waiting.calendar()) == (5, 1, 22, 1, 0)
    assert counts(waiting.calendar(limit=10)) == (3, 0, 10, 0, 16)
    assert counts(waiting.calendar(limit=0)) == (3, 0, 0, 0, 26)


def test_the_limit_is_of_all_topics_though_one_cannot_be_read(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "_READ_AT_ONCE", 4)
    for name in ("a", "b", "c"):
        other = IndexedTopic(waiting.store, waiting.entries, parse_topic_name(f"persistent://public/default/{name}"))
        other.ledgers(9)
        other.cursor("s")
    asked: list[int] = []

    def read(topic: TopicName, positions: Collection[Position], **_: float) -> Mapping[Position, EntryAnswer]:
        asked.append(len(positions))
        if len(asked) % 2 == 0:
            raise TemporaryError("no answer")
        return dict.fromkeys(positions, EntryFacts(None, 0))

    monkeypatch.setattr(waiting.messages, "read", read)
    found = waiting.reader.below("public/default", CalendarOptions(limit=13))
    assert asked == [4, 4, 4, 1]
    assert [one.problem for one in found.subscriptions] == ["no answer", "no answer", None, None]


def test_batches_markers_and_chunks(waiting: Waiting) -> None:
    waiting.messages.answers[9, 2] = EntryFacts(NOW + 1, 0, messages_in_batch=5)
    waiting.messages.answers[9, 3] = EntryFacts(None, 0, marker=True)
    assert counts(waiting.calendar()) == (10, 1, 21, 0, 0)
    waiting.messages.answers[9, 4] = Absent()
    assert counts(waiting.calendar()) == (10, 1, 20, 0, 0), "trimmed meanwhile"


def test_each_subscription_counts_for_itself(waiting: Waiting) -> None:
    waiting.topic.cursor("memory", (8, 9))
    found = waiting.calendar()
    assert [(one.subscription, one.delayed, one.due, one.undelayed) for one in found.subscriptions] == [
        ("memory", 1, 1, 8),
        ("s", 5, 1, 23),
    ]
    assert len(waiting.messages.asked) == len(set(waiting.messages.asked))
    assert [one.subscription for one in waiting.calendar(subscription="s").subscriptions] == ["s"]


def test_unknown_counts_are_a_problem(waiting: Waiting) -> None:
    waiting.store.put(cursor_path(TOPIC.managed_ledger_name, encode_cursor("odd")), b"\xff")
    odd, s = waiting.calendar().subscriptions
    assert odd.problem is not None
    assert s.problem is None
    waiting.cursors.unreadable = "the cursor's ledger 5 is gone"
    (s,) = waiting.calendar(subscription="s").subscriptions
    assert (s.problem, s.delayed) == ("the cursor's ledger 5 is gone", 0)
    waiting.messages.unreadable = "ledger 9 cannot be measured"
    (s,) = waiting.calendar(subscription="s").subscriptions
    assert s.problem == "ledger 9 cannot be measured"


def test_a_namespace_and_a_tenant(waiting: Waiting) -> None:
    other = IndexedTopic(waiting.store, waiting.entries, parse_topic_name("persistent://public/default/__events"))
    other.ledgers(9)
    other.cursor("s")
    another = IndexedTopic(waiting.store, waiting.entries, parse_topic_name("persistent://public/quiet/other"))
    another.ledgers(9)
    another.cursor("t")
    reader = waiting.reader
    namespace = reader.below("public/default", CalendarOptions())
    assert [one.subscription for one in namespace.subscriptions] == ["s"]
    assert reader.below("public", CalendarOptions()).delayed == 6
    with pytest.raises(NotFoundError):
        reader.below("nobody", CalendarOptions())


@given(st.data())
@settings(max_examples=60)
def test_exact_is_the_truth_and_metadata_are_near_it(data: st.DataObject) -> None:
    waiting = Waiting()
    waiting.topic = IndexedTopic(waiting.store, waiting.entries)
    entries = [(ledger, entry) for ledger in (7, 8, 9) for entry in range(10)]
    delayed = data.draw(st.lists(st.sampled_from(entries), unique=True))
    rows = [(NOW + data.draw(st.integers(-5_000, 20_000)), *position) for position in sorted(delayed)]
    acked = data.draw(st.sets(st.sampled_from(entries)))
    waiting.cursors.ranges[Position(LedgerId(0), EntryId(-1))] = [(a, b, b) for a, b in acked]
    waiting.messages.answers.clear()
    waiting.messages.due(rows)
    indexed = sorted(row for row in rows if row[1] < 9 and data.draw(st.booleans()))
    size = data.draw(st.integers(1, 5))
    if indexed:
        waiting.topic.seal("s", 200, 7, 8, *(indexed[start : start + size] for start in range(0, len(indexed), size)))
    waiting.topic.cursor("s")

    left = [row for row in rows if row[1:] not in acked]
    later = [due for due, _, _ in left if due > NOW]
    exact = waiting.calendar(exact=True, step_seconds=1)
    assert Counter({time.from_ms // 1000: time.messages for time in exact.times}) == Counter(d // 1000 for d in later)
    assert (exact.delayed, exact.due) == (len(later), len(left) - len(later))
    rough = waiting.calendar(step_seconds=1)
    assert rough.delayed + rough.due == len(left)
    assert rough.undelayed == exact.undelayed == len(set(entries) - acked - set(delayed))
    for bound in range(NOW + 1_000, NOW + 21_000, 1_000):
        shown = sum(time.messages for time in rough.times if time.from_ms < bound) + rough.due
        true = sum(due < bound for due, _, _ in left)
        early = sum(due < bound + 1_000 + rough.resolution_ms for due, _, _ in left)
        assert true <= shown <= early
