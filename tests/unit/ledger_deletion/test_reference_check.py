"""References read from nodes of every sort: adding one is always noticed, and an unread node is never absent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import Referenced, ReferencesUnknown, Unreferenced
from pulsar_sidecar.features.ledger_deletion.second_phase.gather import OwnerNodes
from pulsar_sidecar.model.ids import LedgerId, NodeVersion
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.metadata import Guard, Node
from pulsar_sidecar.model.names import encode_cursor, parse_topic_name
from pulsar_sidecar.ownership.claims import (
    BucketClaim,
    Claim,
    CompactedClaim,
    CursorClaim,
    DataClaim,
    SchemaClaim,
    owner_path,
)
from pulsar_sidecar.ownership.compaction import CompactedLedgers
from pulsar_sidecar.ownership.paths import ledger_path

from tests.fakes.bookkeeper import (
    FakeLedgerEntries,
    cursor_bytes,
    ledger_metadata_bytes,
    managed_ledger_bytes,
    position_entry,
    schema_locator_bytes,
)
from tests.fakes.metadata import FakeMetadataStore

TOPIC = parse_topic_name("persistent://public/default/orders")
SUBSCRIPTION = "x y/z"
CURSOR_LEDGER = LedgerId(500)

CLAIMS: dict[str, Claim] = {
    "data": DataClaim(TOPIC.managed_ledger_name),
    "cursor": CursorClaim(TOPIC.managed_ledger_name, encode_cursor(SUBSCRIPTION)),
    "schema": SchemaClaim(TOPIC.schema_id),
    "compacted": CompactedClaim(TOPIC),
    "bucket": BucketClaim(TOPIC, SUBSCRIPTION, "#pulsar.internal.delayed.bucket_1_2"),
}
PATHS = {
    "data": "/managed-ledgers/public/default/persistent/orders",
    "cursor": "/managed-ledgers/public/default/persistent/orders/x+y%2Fz",
    "schema": "/schemas/public/default/orders",
    "compacted": "/managed-ledgers/public/default/persistent/orders/__compaction",
    "bucket": "/managed-ledgers/public/default/persistent/orders/x+y%2Fz",
}


def nodes(path: str, data: bytes | None, tail: list[int | None] | None = None) -> OwnerNodes:
    store, entries = FakeMetadataStore(), FakeLedgerEntries()
    if tail is not None:
        store.put(ledger_path(CURSOR_LEDGER), ledger_metadata_bytes(LedgerState.OPEN))
        entries.put(CURSOR_LEDGER, *(position_entry(ledger_id) for ledger_id in tail))
    node = None if data is None else Node(path, data, NodeVersion(4), 0, 0, 1)
    return OwnerNodes({path: node}, CompactedLedgers(store, entries, "/ledgers"))


def node_bytes(kind: str, ids: list[int]) -> bytes:
    """A node of that kind that references exactly these ledgers (a cursor's ledger: the first of them)."""
    match kind:
        case "data":
            return managed_ledger_bytes(ids)
        case "cursor":
            return cursor_bytes(ids[0] if ids else None)
        case "schema":
            return schema_locator_bytes(ids or [-1])
        case "compacted":
            return cursor_bytes(None, compacted_ledger=ids[0] if ids else None)
        case _:
            return cursor_bytes(None, buckets={f"#pulsar.internal.delayed.bucket_{each}_1": each for each in ids})


@pytest.mark.parametrize("kind", CLAIMS)
def test_every_kind_has_one_node_that_references_it(kind: str) -> None:
    assert owner_path(CLAIMS[kind]) == PATHS[kind]


@given(st.sampled_from(sorted(CLAIMS)), st.sets(st.integers(0, 20), max_size=6).map(sorted), st.integers(0, 20))
def test_referenced_exactly_if_the_node_names_it(kind: str, ids: list[int], asked: int) -> None:
    named = ids[:1] if kind in ("cursor", "compacted") else ids
    found = nodes(PATHS[kind], node_bytes(kind, ids)).references(CLAIMS[kind], LedgerId(asked))
    guard = Guard(PATHS[kind], NodeVersion(4))
    assert found == (Referenced(guard) if asked in named else Unreferenced((guard,)))


@pytest.mark.parametrize("kind", CLAIMS)
def test_missing_node_is_unreferenced_without_guard(kind: str) -> None:
    assert nodes(PATHS[kind], None).references(CLAIMS[kind], LedgerId(7)) == Unreferenced(())


@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("damaged", [b"\xff", b"\x0a\x05", b"Gx\x00"])
def test_a_damaged_node_proves_nothing(kind: str, damaged: bytes) -> None:
    assert isinstance(nodes(PATHS[kind], damaged).references(CLAIMS[kind], LedgerId(7)), ReferencesUnknown)


@pytest.mark.parametrize(
    ("tail", "referenced"),
    [
        ([7], True),
        ([None, 7], True),
        ([7, None], True),
        ([7, 8], True),
        ([7, 8, 9], False),
        ([8], False),
        ([None, None], False),
    ],
)
def test_the_last_two_positions_of_an_open_compaction_cursor_count(tail: list[int | None], referenced: bool) -> None:
    found = nodes(PATHS["compacted"], cursor_bytes(CURSOR_LEDGER), tail).references(CLAIMS["compacted"], LedgerId(7))
    assert isinstance(found, Referenced) == referenced


def test_the_nodes_own_position_is_stale_while_there_is_a_cursor_ledger() -> None:
    data = cursor_bytes(CURSOR_LEDGER, compacted_ledger=7)
    assert isinstance(nodes(PATHS["compacted"], data, [8]).references(CLAIMS["compacted"], LedgerId(7)), Unreferenced)
