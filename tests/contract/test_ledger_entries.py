"""Reads of ledgers' entries, the same on the fake and on a cluster's bookies; and entries that only brokers write."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import CursorName
from pulsar_sidecar.ownership import paths
from pulsar_sidecar.ownership.claims import CompactedClaim, CursorClaim, DataClaim, SchemaClaim, read_claim
from pulsar_sidecar.ownership.references import (
    managed_ledger_references,
    position_entry_compacted_ledger,
    schema_references,
)

from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.contract.bookkeeping import Bookkeeping, ClusterBookkeeping, FakeBookkeeping

NEVER_WRITTEN = LedgerId(2**40)


@pytest.fixture(scope="module")
def real(cluster: ClusterUnderTest) -> Iterator[ClusterBookkeeping]:
    bookkeeping = ClusterBookkeeping(cluster)
    yield bookkeeping
    bookkeeping.close()


@pytest.fixture(params=["fake", "cluster"])
def bookkeeping(request: pytest.FixtureRequest) -> Bookkeeping:
    return FakeBookkeeping() if request.param == "fake" else request.getfixturevalue("real")


def test_the_tail_of_an_open_ledger(bookkeeping: Bookkeeping) -> None:
    ledger_id, metadata = bookkeeping.open_ledger(5)
    assert metadata.state is LedgerState.OPEN
    tail = bookkeeping.entries.read_tail(ledger_id, metadata, 2)
    assert [(entry.ledger_id, entry.entry_id) for entry in tail] == [(ledger_id, 3), (ledger_id, 4)]
    assert all(entry.payload.endswith(f"entry {entry.entry_id}".encode()) for entry in tail)
    assert [entry.entry_id for entry in bookkeeping.entries.read_tail(ledger_id, metadata, 100)] == [0, 1, 2, 3, 4]
    assert bookkeeping.entries.readable(ledger_id, metadata)


def test_the_tail_of_a_closed_ledger(bookkeeping: Bookkeeping) -> None:
    ledger_id, metadata = bookkeeping.closed_ledger(3)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 2)
    assert [entry.entry_id for entry in bookkeeping.entries.read_tail(ledger_id, metadata, 2)] == [1, 2]
    assert [entry.entry_id for entry in bookkeeping.entries.read_tail(ledger_id, metadata, 9)] == [0, 1, 2]
    assert bookkeeping.entries.readable(ledger_id, metadata)


def test_a_closed_ledger_without_entries_is_readable(bookkeeping: Bookkeeping) -> None:
    _, metadata = bookkeeping.closed_ledger(1)
    empty = replace(metadata, last_entry_id=EntryId(-1))
    assert bookkeeping.entries.read_tail(NEVER_WRITTEN, empty, 3) == ()
    assert bookkeeping.entries.readable(NEVER_WRITTEN, empty)


def test_entries_that_bookies_do_not_hold(bookkeeping: Bookkeeping) -> None:
    _, metadata = bookkeeping.closed_ledger(1)
    with pytest.raises(TemporaryError):
        bookkeeping.entries.read_tail(NEVER_WRITTEN, metadata, 1)
    assert not bookkeeping.entries.readable(NEVER_WRITTEN, metadata)


def test_an_open_ledger_without_entries(bookkeeping: Bookkeeping) -> None:
    _, metadata = bookkeeping.open_ledger(1)
    assert bookkeeping.entries.read_tail(NEVER_WRITTEN, metadata, 3) == ()
    assert not bookkeeping.entries.readable(NEVER_WRITTEN, metadata)


def test_asking_unfenced_keeps_the_writer_writing(real: ClusterBookkeeping) -> None:
    topic = real.topic()
    real.produce(topic, b"before")
    [ledger_id] = managed_ledger_references(
        real.node(paths.managed_ledger_path(topic.managed_ledger_name)).data
    ).ledgers
    real.entries.read_tail(ledger_id, real.metadata(ledger_id), 1)
    real.produce(topic, b"after")
    tail = real.entries.read_tail(ledger_id, real.metadata(ledger_id), 9)
    assert [entry.payload.endswith(text) for entry, text in zip(tail, (b"before", b"after"), strict=True)] == [True] * 2
    assert real.metadata(ledger_id).state is LedgerState.OPEN


def test_too_few_bookies_is_no_absence(real: ClusterBookkeeping) -> None:
    ledger_id, metadata = real.open_ledger(2)
    ensemble = tuple(BookieId("127.0.0.1:1") for _ in metadata.segments[-1].ensemble)
    unreachable = replace(metadata, segments=(replace(metadata.segments[-1], ensemble=ensemble),))
    with pytest.raises(TemporaryError):
        real.entries.read_tail(ledger_id, unreachable, 1)
    with pytest.raises(TemporaryError):
        real.entries.readable(ledger_id, replace(unreachable, state=LedgerState.CLOSED, last_entry_id=EntryId(1)))


def test_a_cursors_position_is_in_the_tail_of_its_ledger(real: ClusterBookkeeping) -> None:
    topic = real.topic()
    real.produce(topic, *[b"message"] * 4)
    real.consume(topic, "a b/c", 3)
    until(lambda: real.cursor(topic, "a+b%2Fc").cursor_ledger is not None, "the cursor has a ledger")
    ledger_id = real.cursor(topic, "a+b%2Fc").cursor_ledger
    assert ledger_id is not None
    claim = read_claim(real.metadata(ledger_id).custom_metadata)
    assert claim == CursorClaim(topic.managed_ledger_name, CursorName("a+b%2Fc"))
    until(lambda: bool(real.entries.read_tail(ledger_id, real.metadata(ledger_id), 1)), "entries can be read")
    tail = real.entries.read_tail(ledger_id, real.metadata(ledger_id), 3)
    assert [position_entry_compacted_ledger(entry.payload) for entry in tail] == [None] * len(tail) != []


def test_the_compacted_ledger_is_found_where_only_the_cursors_ledger_names_it(real: ClusterBookkeeping) -> None:
    topic = real.topic()
    real.consume(topic, "reader", 0)
    real.produce(topic, *[b"value"] * 3, key="key")
    real.compact(topic)
    brokers_own = real.admin("GET", topic, "internalStats")["compactedLedger"]["ledgerId"]
    # A broker writes positions at a limited rate, else within a minute; until then it alone knows the new ledger.
    until(lambda: real.compacted_ledgers_in_tail(topic, 1) == [brokers_own], "the broker compacted on its own")
    assert read_claim(real.metadata(LedgerId(brokers_own)).custom_metadata) == CompactedClaim(topic)

    real.admin("PUT", topic, "unload")
    until(lambda: real.cursor(topic, "__compaction").cursor_ledger is None, "the cursor has no ledger")
    assert real.cursor(topic, "__compaction").compacted_ledger == brokers_own


def test_every_version_of_a_schema_is_referenced(real: ClusterBookkeeping) -> None:
    topic = real.topic()
    optional_field = {"name": "a", "type": ["null", "int"], "default": None}
    for fields in ([], [optional_field]):
        definition = json.dumps({"type": "record", "name": "R", "fields": fields})
        real.admin("POST", topic, "schema", {"type": "AVRO", "schema": definition, "properties": {}})
    ledgers = schema_references(real.node(paths.schema_path(topic.schema_id)).data)
    assert len(ledgers) == 2
    assert {read_claim(real.metadata(each).custom_metadata) for each in ledgers} == {SchemaClaim(topic.schema_id)}


def test_a_data_ledger_names_its_owner(real: ClusterBookkeeping) -> None:
    topic = real.topic()
    real.produce(topic, b"one")
    references = managed_ledger_references(real.node(paths.managed_ledger_path(topic.managed_ledger_name)).data)
    claims = {read_claim(real.metadata(each).custom_metadata) for each in references.ledgers}
    assert claims == {DataClaim(topic.managed_ledger_name)}
