"""Stored state: snapshots, the entries after them, and the ledgers that cursors retain."""

import pytest
from pulsar_sidecar.features.deduplication.results import Amount, ReplicatedPosition
from pulsar_sidecar.features.deduplication.snapshots import (
    Snapshot,
    replicated_positions,
    snapshot_in_entry,
    snapshot_in_node,
)
from pulsar_sidecar.features.deduplication.stored import StoredDeduplication, held_by
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR
from pulsar_sidecar.ownership.paths import cursor_path, managed_ledger_path
from pulsar_sidecar.ownership.references import LedgerReference

from tests.fakes.bookkeeper import cursor_bytes, position_entry
from tests.fakes.deduplication import TOPIC, DeduplicatedTopics

LEDGERS = {LedgerId(id_): LedgerReference(10, 1000, 1) for id_ in (2, 5, 9)}
CURSOR = cursor_path(TOPIC.managed_ledger_name, DEDUPLICATION_CURSOR)


@pytest.fixture
def topics() -> DeduplicatedTopics:
    return DeduplicatedTopics()


def _read(topics: DeduplicatedTopics) -> StoredDeduplication:
    ((_, found),) = topics.stored.read([TOPIC])
    assert isinstance(found, StoredDeduplication)
    return found


def _snapshot(position: tuple[int, int], lost: str | None = None) -> Snapshot:
    return Snapshot(Position(LedgerId(position[0]), EntryId(position[1])), {}, 10, lost=lost)


@pytest.mark.parametrize(
    ("mark_delete", "since", "held"),
    [
        ((1, 99), Amount(30, 3000), [2, 5]),
        ((2, -1), Amount(30, 3000), [2, 5]),
        ((2, 0), Amount(29, 2900), [2, 5]),
        ((2, 9), Amount(20, 2000), [5]),
        ((3, -1), Amount(20, 2000), [5]),
        ((5, 4), Amount(15, 1500), [5]),
        ((5, 9), Amount(10, 1000), []),
        ((9, 9), Amount(0, 0), []),
        ((9, 12), Amount(0, 0), []),
        ((10, -1), Amount(0, 0), []),
    ],
)
def test_entries_after_a_snapshot_and_retained_ledgers(
    mark_delete: tuple[int, int], since: Amount, held: list[int]
) -> None:
    stored = StoredDeduplication(TOPIC, _snapshot(mark_delete), LEDGERS)
    assert stored.since == since
    assert stored.held == held
    assert stored.size_of(stored.held) == 1000 * len(held)


def test_unknown_amounts_are_not_counted() -> None:
    unreadable = StoredDeduplication(TOPIC, Unreadable("cut"), LEDGERS)
    assert (unreadable.since, unreadable.held) == (None, None)
    unmeasured = StoredDeduplication(TOPIC, _snapshot((2, 0)), LEDGERS, "no bookie")
    assert (unmeasured.since, unmeasured.held) == (None, [2, 5])
    absent = StoredDeduplication(TOPIC, Absent(), LEDGERS)
    assert (absent.since, absent.held) == (None, ())
    assert held_by(Position(LedgerId(0), EntryId(0)), {}) == []


def test_topics_are_read_with_their_snapshots(topics: DeduplicatedTopics) -> None:
    topics.put(mark_delete=(1, 4), sequences={"p": 2**63 - 1, "q": -1})
    topics.put(TOPIC.partition(0))
    topics.put(TOPIC.partition(1))
    topics.store.put(managed_ledger_path(TOPIC.partition(1).managed_ledger_name), b"\xff")
    places = [TOPIC, TOPIC.partition(0), TOPIC.partition(1), TOPIC.partition(2)]
    found = dict(topics.stored.read(places))
    assert found.keys() == set(places[:3])
    plain, never, odd = (found[place] for place in places[:3])
    assert isinstance(plain, StoredDeduplication)
    assert isinstance(plain.snapshot, Snapshot)
    assert plain.snapshot.sequences == {"p": 2**63 - 1, "q": -1}
    assert plain.since == Amount(25, 2500)
    assert isinstance(never, StoredDeduplication)
    assert (never.topic, never.snapshot, list(never.ledgers)) == (places[1], Absent(), [1, 2, 3])
    assert isinstance(odd, Unreadable)
    assert "cannot be read" in odd.reason


def test_the_snapshot_is_known_without_bookies(topics: DeduplicatedTopics) -> None:
    topics.put(mark_delete=(1, 4))
    topics.lengths.unreadable = "no bookie answers"
    stored = _read(topics)
    assert isinstance(stored.snapshot, Snapshot)
    assert stored.unmeasured == "no bookie answers"
    assert stored.since is None


def test_a_moving_cursor_is_read_again(topics: DeduplicatedTopics) -> None:
    topics.put(mark_delete=(1, 4))
    moving = cursor_bytes(7, mark_delete=(1, 0))
    topics.store.put(CURSOR, moving)
    lost = _snapshot((1, 0), lost="the cursor's ledger 7 is gone")
    topics.snapshots.answers[moving] = lost
    assert _read(topics).snapshot == lost
    topics.store.before("read", lambda: topics.cursor(DEDUPLICATION_CURSOR, (2, 3)), path=CURSOR)
    moved = _read(topics).snapshot
    assert isinstance(moved, Snapshot)
    assert moved.position == (2, 3)


def test_cursor_deleted_during_the_read_is_absent(topics: DeduplicatedTopics) -> None:
    topics.put(mark_delete=(1, 4))
    moving = cursor_bytes(7, mark_delete=(1, 0))
    topics.store.put(CURSOR, moving)
    topics.snapshots.answers[moving] = _snapshot((1, 0), lost="the cursor's ledger 7 is gone")
    topics.store.before("read", lambda: topics.store.remove(CURSOR), path=CURSOR)
    assert _read(topics).snapshot == Absent()


def test_ledgers_retained_by_other_cursors_too(topics: DeduplicatedTopics) -> None:
    topics.put(ledgers=(1, 2, 3, 4), mark_delete=(1, 4))
    stored = _read(topics)
    assert topics.stored.held_alone(stored) == [1, 2, 3]
    topics.cursor("quick", (4, 0))
    topics.cursor("slow", (2, 9))
    assert topics.stored.held_alone(stored) == [1, 2]
    topics.cursor("slower", (1, 0))
    assert topics.stored.held_alone(stored) == []
    topics.cursors.unreadable = "a cursor's ledger is gone"
    assert topics.stored.held_alone(stored) == Unreadable("a cursor's ledger is gone")
    unknown = StoredDeduplication(TOPIC, Unreadable("cut"), stored.ledgers)
    why = Unreadable("the position of the deduplication cursor is unknown")
    assert topics.stored.held_alone(unknown) == why
    assert topics.stored.held_alone(StoredDeduplication(TOPIC, Absent(), stored.ledgers)) == ()


def test_truncated_snapshots_are_errors() -> None:
    many = {f"producer-{number}": number for number in range(10_001)}
    node, entry = cursor_bytes(mark_delete=(1, 2), sequences=many), position_entry(mark_delete=(1, 2), sequences=many)
    assert len(snapshot_in_node(node).sequences) == 10_001
    assert snapshot_in_entry(entry, LedgerId(7), EntryId(3)).sequences == many
    for length in (0, 1, len(entry) - 1):
        with pytest.raises(UndecodableError):
            snapshot_in_entry(entry[:length], LedgerId(7), EntryId(3))
        with pytest.raises(UndecodableError):
            snapshot_in_node(node[: min(length, len(node) - 1)])


def test_replicators_keep_positions() -> None:
    name = "pulsar.repl.east-->west"
    sequences = {f"{name}_EID": 3, f"{name}_LID": 9, "mine_LID": 1, "mine_EID": 2, "pulsar.repl.half_LID": 5}
    assert list(replicated_positions(sequences)) == [ReplicatedPosition(name, "9:3")]
