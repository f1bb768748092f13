"""Rebuilding last-sequence-persisted by the recovery of PIP-6, as a broker of 4.0.8 does it."""

import pytest
from pulsar_sidecar.features.deduplication.inspection.replay import published_at, replay
from pulsar_sidecar.features.deduplication.ports import ReplayedEntry, UndecodableEntry
from pulsar_sidecar.features.deduplication.results import SequenceRow
from pulsar_sidecar.features.deduplication.snapshots import Snapshot
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import UnseenCause, UnseenEntries

from tests.fakes.deduplication import TOPIC, FakeStoredMessages

AT_4 = Snapshot(Position(LedgerId(1), EntryId(4)), {"kept": 9, "back": 50, "on": 1}, 10)


@pytest.fixture
def messages() -> FakeStoredMessages:
    made = FakeStoredMessages()
    made.put((1, 3), "kept", 77, at_ms=77)
    made.put((1, 4), "kept", 78, at_ms=1_234)
    made.put((1, 5), "on", 2)
    made.put((1, 6), "back", 3)
    made.put((2, 0), "marker", 0)
    made.put((2, 1), "new", -1)
    return made


def test_each_later_entry_is_put_whether_it_is_larger_or_not(messages: FakeStoredMessages) -> None:
    found = replay(messages, TOPIC, AT_4)
    assert found.rows == (
        SequenceRow("back", 50, 3),
        SequenceRow("kept", 9, 9),
        SequenceRow("marker", None, 0),
        SequenceRow("new", None, -1),
        SequenceRow("on", 1, 2),
    )
    assert (found.entries, found.markers, found.last) == (4, 1, "2:1")
    assert found.is_whole


def test_entries_of_another_cluster_are_marked_as_such() -> None:
    messages = FakeStoredMessages()
    for entry_id, (producer, cluster) in enumerate([("p", "east"), ("q", "east"), ("q", None)], 5):
        place = Position(LedgerId(1), EntryId(entry_id))
        messages.put_other(ReplayedEntry(place, producer, entry_id, 0, is_marker=False, replicated_from=cluster))
    rows = replay(messages, TOPIC, AT_4).rows
    assert {row.name: row.replicated_from for row in rows if row.name in "pq"} == {"p": "east", "q": None}


def test_replay_without_entries_returns_the_snapshot(messages: FakeStoredMessages) -> None:
    found = replay(messages, TOPIC, Snapshot(Position(LedgerId(2), EntryId(1)), {"p": 3}, 10))
    assert (found.rows, found.entries, found.last, found.is_whole) == ((SequenceRow("p", 3, 3),), 0, None, True)


def test_limited_replay_is_incomplete(messages: FakeStoredMessages) -> None:
    found = replay(messages, TOPIC, AT_4, limit=3)
    assert (found.entries, found.last) == (3, "2:0")
    assert found.problems == ("replayed 3 entries, and there are more; raise the limit",)
    assert replay(messages, TOPIC, AT_4, limit=4).is_whole


def test_a_replay_ends_at_an_undecodable_entry(messages: FakeStoredMessages) -> None:
    messages.put_other(UndecodableEntry(Position(LedgerId(2), EntryId(2)), "an entry holds no message"))
    messages.put((2, 3), "after", 5)
    found = replay(messages, TOPIC, AT_4)
    assert "after" not in {row.name for row in found.rows}
    assert found.problems == ("2:2: an entry holds no message; a broker ends its replay there",)


def test_unread_entries_are_named(messages: FakeStoredMessages) -> None:
    causes = ((UnseenCause.OFFLOADED, "moved"), (UnseenCause.UNREADABLE, "lost"), (UnseenCause.TRIMMED, "gone"))
    for ledger_id, (cause, reason) in enumerate(causes, 3):
        last = None if cause is UnseenCause.UNREADABLE else EntryId(8)
        messages.put_other(UnseenEntries(LedgerId(ledger_id), EntryId(0), last, cause, reason))
    messages.put((9, 0), "after", 5)
    found = replay(messages, TOPIC, AT_4)
    assert not found.is_whole
    assert "after" in {row.name for row in found.rows}
    assert found.problems == (
        "3:0 to 8 is in tiered storage, where a broker replays it and the sidecar does not: moved",
        "4:0 to the end was not read: lost",
        "5:0 to 8 was not read: gone",
    )
    for ledger_id in range(20, 60):
        gone = UnseenEntries(LedgerId(ledger_id), EntryId(0), None, UnseenCause.UNREADABLE, "lost")
        messages.put_other(gone)
    assert replay(messages, TOPIC, AT_4).problems[-1] == "and 33 more"


def test_when_the_last_covered_message_was_published(messages: FakeStoredMessages) -> None:
    assert published_at(messages, TOPIC, AT_4.position) == 1_234
    assert published_at(messages, TOPIC, Position(LedgerId(1), EntryId(-1))) == 77
    assert published_at(messages, TOPIC, Position(LedgerId(7), EntryId(0))) is None
    messages.delete()
    assert published_at(messages, TOPIC, AT_4.position) is None
    with pytest.raises(NotFoundError):
        replay(messages, TOPIC, AT_4)
