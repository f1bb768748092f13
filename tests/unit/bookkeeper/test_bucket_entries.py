"""Entries of many buckets, stored cursors, and ledgers' lengths: every result is a value."""

from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.bucket_snapshots import BookieBucketEntries
from pulsar_sidecar.adapters.bookkeeper.stored_cursors import BookieLedgerLengths, BookieStoredCursors
from pulsar_sidecar.features.deduplication.snapshots import Snapshot
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.ownership.references import LedgerReference

from tests.fakes.bookie_servers import FakeBookie
from tests.fakes.bookkeeper import cursor_bytes, ledger_metadata_bytes, position_entry
from tests.fakes.metadata import FakeMetadataStore

UNREACHABLE = "127.0.0.1:1"


@pytest.fixture
def bookie() -> Iterator[FakeBookie]:
    with FakeBookie() as made:
        yield made


@pytest.fixture
def entries(bookie: FakeBookie) -> Iterator[BookieEntries]:
    made = BookieEntries(BookieConnections())
    yield made
    made.close()


def _metadata(bookie_id: str, state: LedgerState = LedgerState.CLOSED) -> bytes:
    return ledger_metadata_bytes(state, ensemble=[bookie_id], write_quorum_size=1, ack_quorum_size=1)


def _ledgers(bookie_id: str, *ids: int) -> dict[LedgerId, LedgerMetadata]:
    return {LedgerId(id_): decode_ledger_metadata(_metadata(bookie_id)) for id_ in ids}


def test_entries_of_many_ledgers(bookie: FakeBookie, entries: BookieEntries) -> None:
    for ledger_id in range(100, 130):
        bookie.store(ledger_id, 0, b"metadata %d" % ledger_id)
    bookie.store(100, 1, b"segment")
    ledgers = _ledgers(bookie.bookie_id, *range(100, 131)) | _ledgers(UNREACHABLE, 200)
    wanted = [Position(ledger_id, EntryId(0)) for ledger_id in ledgers] + [
        Position(LedgerId(100), EntryId(number)) for number in (1, 2)
    ]
    buckets = BookieBucketEntries(entries)
    found = buckets.read(ledgers, wanted)
    buckets.close()
    assert found.keys() == set(wanted)
    found = dict(found)
    away = found.pop(Position(LedgerId(200), EntryId(0)))
    assert isinstance(away, Unreadable)
    assert UNREACHABLE in away.reason
    assert found == {
        **{(ledger_id, 0): b"metadata %d" % ledger_id for ledger_id in range(100, 130)},
        (130, 0): Absent(),
        (100, 1): b"segment",
        (100, 2): Absent(),
    }


def test_acknowledged_positions_of_stored_cursors(bookie: FakeBookie, entries: BookieEntries) -> None:
    store = FakeMetadataStore()
    store.put(ledger_path(LedgerId(5)), _metadata(bookie.bookie_id, LedgerState.OPEN))
    store.put(ledger_path(LedgerId(6)), _metadata(bookie.bookie_id, LedgerState.OPEN))
    store.put(ledger_path(LedgerId(8)), _metadata(UNREACHABLE, LedgerState.OPEN))
    bookie.store(5, 0, position_entry(mark_delete=(3, 1)))
    bookie.store(5, 1, position_entry(mark_delete=(3, 9)))
    cursors = [cursor_bytes(ledger_id, mark_delete=(3, 0)) for ledger_id in (None, 5, 6, 7, 8)]
    in_node, in_ledger, empty, gone, away = BookieStoredCursors(store, entries, "/ledgers").acknowledged(cursors, {})
    assert in_node == empty == PositionRanges(Position(LedgerId(3), EntryId(0)))
    assert in_ledger == PositionRanges(Position(LedgerId(3), EntryId(9)))
    assert isinstance(gone, Unreadable)
    assert "ledger 7 is gone" in gone.reason
    assert isinstance(away, Unreadable)
    assert UNREACHABLE in away.reason
    (damaged,) = BookieStoredCursors(store, entries, "/ledgers").acknowledged([b"\xff"], {})
    assert isinstance(damaged, Unreadable)


def test_snapshots_of_deduplication(bookie: FakeBookie, entries: BookieEntries) -> None:
    store = FakeMetadataStore()
    for ledger_id in (5, 6, 9):
        store.put(ledger_path(LedgerId(ledger_id)), _metadata(bookie.bookie_id, LedgerState.OPEN))
    store.put(ledger_path(LedgerId(8)), _metadata(UNREACHABLE, LedgerState.OPEN))
    written = position_entry(mark_delete=(3, 9), sequences={"p": 7, "q": -1})
    bookie.store(5, 0, position_entry(mark_delete=(3, 1), sequences={"p": 1}))
    bookie.store(5, 1, written)
    bookie.store(9, 0, written[:-3])
    nodes = [cursor_bytes(id_, mark_delete=(3, 0), sequences={"old": 1}) for id_ in (None, 5, 6, 7, 8, 9)]
    cursors = BookieStoredCursors(store, entries, "/ledgers")
    in_node, in_ledger, empty, gone, away, cut, damaged = cursors.snapshots([*nodes, nodes[0][:-3]])
    at_node = Position(LedgerId(3), EntryId(0))
    assert in_node == Snapshot(at_node, {"old": 1}, len(nodes[0]))
    position = Position(LedgerId(3), EntryId(9))
    assert in_ledger == Snapshot(position, {"p": 7, "q": -1}, len(written), LedgerId(5), EntryId(1))
    assert empty == Snapshot(at_node, {}, len(nodes[2]), lost="the cursor's ledger has no entry")
    assert gone == Snapshot(at_node, {}, len(nodes[3]), lost="the cursor's ledger 7 is gone")
    assert isinstance(away, Unreadable)
    assert UNREACHABLE in away.reason
    assert isinstance(cut, Unreadable)
    assert isinstance(damaged, Unreadable)


def test_the_ledger_that_was_written_to_last_is_measured(bookie: FakeBookie, entries: BookieEntries) -> None:
    store = FakeMetadataStore()
    lengths = BookieLedgerLengths(store, entries, "/ledgers")
    full, last = LedgerId(5), LedgerId(6)
    listed = {full: LedgerReference(10, closed_ms=1), last: LedgerReference()}
    assert lengths.lengths({}) == {}
    assert lengths.lengths({full: listed[full]}) == {full: 10}
    assert lengths.lengths(listed) == {full: 10, last: 0}
    store.put(ledger_path(last), _metadata(bookie.bookie_id, LedgerState.OPEN))
    assert lengths.lengths(listed) == {full: 10, last: 0}
    for entry_id in range(3):
        bookie.store(last, entry_id, b"entry", ledger_bytes=5 * (entry_id + 1))
    assert lengths.lengths(listed) == {full: 10, last: 3}
    assert lengths.measured(listed) == {full: listed[full], last: LedgerReference(3, 15)}
    closed = ledger_metadata_bytes(last_entry_id=6, ensemble=[UNREACHABLE], write_quorum_size=1, ack_quorum_size=1)
    store.put(ledger_path(last), closed)
    assert lengths.lengths(listed) == {full: 10, last: 7}
    assert lengths.measured(listed) == {full: listed[full], last: LedgerReference(7, 1000)}
    store.put(ledger_path(last), _metadata(UNREACHABLE, LedgerState.OPEN))
    away = lengths.lengths(listed)
    assert isinstance(away, Unreadable)
    assert UNREACHABLE in away.reason
