"""Owners of ledgers, by brokers' stamps."""

import pytest
from pulsar_sidecar.features.ledger_deletion.owners import tenants_of
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, ledger_path

from tests.fakes import bookkeeper
from tests.fakes.metadata import FakeMetadataStore

OWNED = {
    1: (bookkeeper.data_custom_metadata("t/n/persistent/x"), "t"),
    2: (bookkeeper.cursor_custom_metadata("u/c/n/persistent/x", "s"), "u"),
    3: (bookkeeper.schema_custom_metadata("v/n/x"), "v"),
    4: (bookkeeper.compacted_custom_metadata("persistent://w/n/x"), "w"),
    5: ({}, None),
    6: ({"application": b"pulsar", "component": b"of a later version"}, None),
}


@pytest.fixture
def store() -> FakeMetadataStore:
    store = FakeMetadataStore()
    for ledger_id, (stamp, _) in OWNED.items():
        store.put(ledger_path(LedgerId(ledger_id)), bookkeeper.ledger_metadata_bytes(custom_metadata=stamp))
    return store


def owners(store: FakeMetadataStore, *ledger_ids: int) -> list[str | None]:
    return tenants_of(store, [LedgerId(ledger_id) for ledger_id in ledger_ids], DEFAULT_LEDGERS_ROOT)


def test_each_kind_of_ledger_names_its_tenant(store: FakeMetadataStore) -> None:
    assert owners(store, *OWNED) == [tenant for _, tenant in OWNED.values()]
    assert owners(store, 7) == [None]


def test_unreadable_owner_raises(store: FakeMetadataStore) -> None:
    store.put(ledger_path(LedgerId(1)), b"BookieMetadataFormatVersion\t9\n")
    with pytest.raises(UndecodableError):
        owners(store, 2, 1)
    store.fail_next("read_many", TemporaryError("the session is lost"))
    with pytest.raises(TemporaryError):
        owners(store, 2)
