"""Rebuilding last-sequence-persisted by the recovery of PIP-6, as a broker of 4.0.8 does it."""

import pytest
from pulsar_sidecar.deduplication.inspection.replay import SequenceRow, published_at, replay
from pulsar_sidecar.deduplication.ports import UndecodableEntry
from pulsar_sidecar.deduplication.snapshots import Snapshot
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
    assert (found.entries, found.markers, found.last) == (4, 1, (2, 1))
    assert found.is_whole


def test_nothing_after_the_snapshot_leaves_its_map(messages: FakeStoredMessages) -> None:
    found = replay(messages, TOPIC, Snapshot(Position(LedgerId(2), EntryId(1)), {"p": 3}, 10))
    assert (found.rows, found.entries, found.last, found.is_whole) == ((SequenceRow("p", 3, 3),), 0, None, True)


def test_a_limit_is_no_end(messages: FakeStoredMessages) -> None:
    found = replay(messages, TOPIC, AT_4, limit=3)
    assert (found.entries, found.last) == (3, (2, 0))
    assert found.problems == ("replayed 3 entries, and there are more; raise the limit",)
    assert replay(messages, TOPIC, AT_4, limit=4).is_whole


def test_a_broker_ends_at_an_entry_that_is_no_message(messages: FakeStoredMessages) -> None:
    messages.put_other(UndecodableEntry(Position(LedgerId(2), EntryId(2)), "an entry holds no message"))
    messages.put((2, 3), "after", 5)
    found = replay(messages, TOPIC, AT_4)
    assert "after" not in {row.name for row in found.rows}
    assert found.problems == ("2:2: an entry holds no message; a broker ends its replay there",)


def test_what_was_not_read_is_named(messages: FakeStoredMessages) -> None:
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
