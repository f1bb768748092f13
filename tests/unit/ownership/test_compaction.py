"""A compacted ledger is found where brokers put its id, or nothing is claimed."""

import pytest
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerEntry, LedgerMetadata, LedgerState
from pulsar_sidecar.ownership.compaction import CompactedLedgers
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.ownership.references import cursor_references

from tests.fakes.bookkeeper import FakeLedgerEntries, cursor_bytes, ledger_metadata_bytes, position_entry
from tests.fakes.metadata import FakeMetadataStore

CURSOR_LEDGER = LedgerId(7)
PATH = ledger_path(CURSOR_LEDGER)


class EntriesDuringAnEnsembleChange(FakeLedgerEntries):
    """Auto-recovery replaces a bookie of the ledger while its entries are read."""

    def __init__(self, store: FakeMetadataStore) -> None:
        super().__init__()
        self._store = store

    def read_tail(self, ledger_id: LedgerId, metadata: LedgerMetadata, count: int) -> tuple[LedgerEntry, ...]:
        node = self._store.peek(PATH)
        assert node is not None
        self._store.write(PATH, node.data, node.version)
        return super().read_tail(ledger_id, metadata, count)


def test_the_last_two_positions_count() -> None:
    store, entries = FakeMetadataStore(), FakeLedgerEntries()
    store.put(PATH, ledger_metadata_bytes(state=LedgerState.OPEN))
    entries.put(CURSOR_LEDGER, position_entry(1), position_entry(2), position_entry(3))
    compacted = CompactedLedgers(store, entries, "/ledgers")
    assert compacted.referenced(cursor_references(cursor_bytes(CURSOR_LEDGER))) == {2, 3}


def test_entries_that_moved_while_they_were_read_prove_nothing() -> None:
    store = FakeMetadataStore()
    store.put(PATH, ledger_metadata_bytes(state=LedgerState.OPEN))
    entries = EntriesDuringAnEnsembleChange(store)
    entries.put(CURSOR_LEDGER, position_entry(1))
    compacted = CompactedLedgers(store, entries, "/ledgers")
    with pytest.raises(TemporaryError, match="moved"):
        compacted.referenced(cursor_references(cursor_bytes(CURSOR_LEDGER)))


def test_a_cursor_without_a_ledger_names_its_position_itself() -> None:
    compacted = CompactedLedgers(FakeMetadataStore(), FakeLedgerEntries(), "/ledgers")
    assert compacted.referenced(cursor_references(cursor_bytes(None, compacted_ledger=9))) == {9}
    assert compacted.referenced(cursor_references(cursor_bytes(None))) == frozenset()


def test_ledgers_may_be_kept_elsewhere() -> None:
    store, entries = FakeMetadataStore(), FakeLedgerEntries()
    store.put(ledger_path(CURSOR_LEDGER, "/elsewhere"), ledger_metadata_bytes(state=LedgerState.OPEN))
    entries.put(CURSOR_LEDGER, position_entry(1))
    compacted = CompactedLedgers(store, entries, "/elsewhere")
    assert compacted.referenced(cursor_references(cursor_bytes(CURSOR_LEDGER))) == {1}
