"""Reading many nodes at once gives the results of reading each, or leaves the node to that."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pulsar_sidecar.features.audit.columnar.nodes import read_ledger_lists
from pulsar_sidecar.features.audit.columnar.reader import ColumnReader
from pulsar_sidecar.features.audit.engine.decoding import decode_nodes, lists_naming
from pulsar_sidecar.features.audit.results.tables import NODES
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId
from pulsar_sidecar.model.names import TopicName, parse_topic_name, topic_of_managed_ledger
from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.ownership.paths import ledger_id_of_path, ledger_path
from pulsar_sidecar.ownership.places import (
    Owner,
    Place,
    locate,
    owner_of_managed_ledger,
    owner_of_schema,
    owner_of_topic,
    topic_of_schema,
)
from pulsar_sidecar.ownership.references import managed_ledger_references
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.fakes.bookkeeper import cursor_bytes, managed_ledger_bytes, schema_locator_bytes
from tests.unit.audit.sources import node

READERS = (ColumnReader(), ColumnReader(exact=True))

numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(0, 300), st.sampled_from([0, 127, 128, 2**56 - 1, 2**56, 2**62])
)


@st.composite
def list_values(draw: st.DrawFn) -> bytes:
    """A managed ledger's node: as Pulsar writes it, in odd shapes, or damaged."""
    info = ml.ManagedLedgerInfo()
    for _ in range(draw(st.integers(0, 4))):
        ledger = info.ledgerInfo.add(ledgerId=draw(numbers))
        for name in ("entries", "size", "timestamp"):
            if draw(st.booleans()):
                setattr(ledger, name, draw(numbers))
        if draw(st.integers(0, 9)) == 0:
            ledger.offloadContext.complete = False
    if draw(st.integers(0, 9)) == 0:
        info.properties.add(key="k", value="v")
    value = bytearray(info.SerializeToString())
    if draw(st.integers(0, 3)) == 0 and value:
        position = draw(st.integers(0, len(value) - 1))
        value[position] = draw(st.integers(0, 255))
    if draw(st.integers(0, 5)) == 0:
        value = value[: draw(st.integers(0, len(value)))]
    if draw(st.integers(0, 5)) == 0:
        value += draw(st.binary(max_size=12))
    return bytes(value)


def exactly(value: bytes) -> list[tuple[int, int, int, bool]] | None:
    try:
        listed = managed_ledger_references(value).ledgers
    except UndecodableError:
        return None
    return [(id_, entry.entries, entry.size_bytes, entry.closed_ms != 0) for id_, entry in listed.items()]


@given(st.lists(st.one_of(list_values(), st.binary(max_size=20), st.none()), max_size=12), st.integers(0, 3))
def test_list_column_is_read_like_single_lists(values: Sequence[bytes | None], skipped: int) -> None:
    column = pa.array([*([b"x"] * skipped), *values], pa.binary()).slice(skipped)
    lists, unread = read_ledger_lists(column, with_entries=True)
    left = set(unread.tolist())
    assert {number for number, value in enumerate(values) if value is None} <= left
    for number, value in enumerate(values):
        chosen = lists.node == number
        columns = (lists.ledger_id, lists.entries, lists.size_bytes, lists.closed)
        found = list(zip(*(each[chosen].tolist() for each in columns), strict=True))
        assert found == ([] if number in left or value is None else exactly(value))


NODES_PATHS = st.sampled_from(
    [f"/managed-ledgers/t/n/persistent/{rest}" for rest in ("a", "a/sub", "persistent/a")] + ["/schemas/t/n/a", "/odd"]
)


@given(st.lists(st.tuples(NODES_PATHS, list_values()), max_size=12), st.data())
def test_nodes_that_name_some_ledgers_are_found_without_reading_all(
    nodes: Sequence[tuple[str, bytes]], data: st.DataObject
) -> None:
    batch = pa.RecordBatch.from_pylist([node(path, value) for path, value in nodes], NODES)
    everything = decode_nodes(batch, ColumnReader())
    named = st.sampled_from([0, *everything.lists.ledger_id.tolist()])
    wanted = np.unique(np.array(data.draw(st.lists(named, max_size=4)), np.int64))
    for columns in READERS:
        assert lists_naming(columns, wanted, batch).to_pylist() == everything.lists_naming(wanted).to_pylist()


# --- paths ---------------------------------------------------------------------------------------------------------

NEARLY = st.from_regex(r"/(ledgers|l)(/[0-9]{2,4}){1,5}(/L[0-9]{3,5})?(/x)?", fullmatch=True)
IDS = st.one_of(st.integers(0, MAX_LEDGER_ID), st.integers(0, 10_000)).map(lambda each: ledger_path(LedgerId(each)))


@given(st.lists(st.one_of(IDS, NEARLY, st.text(max_size=25)), max_size=30))
@example(["/ledgers/99/9999/L9999", "/ledgers/000/0000/0000/0000/L0001", "/ledgers/999/9999/9999/9999/L9999"])
@example(["/ledgers", "/ledgers/00", "/", "", "/ledgersx/00/0000/L0001", "/x/ledgers/00/0000/L0001"])
def test_ids_of_many_paths_are_the_ids_of_each(paths: list[str]) -> None:
    paths += [ledger_path(LedgerId(number)) for number in range(200)]
    for columns in READERS:
        found = columns.ledger_ids(pa.array(paths, pa.string()), "/ledgers").to_pylist()
        assert found == [ledger_id_of_path(path) for path in paths]


PARTS = st.sampled_from(["t", "n", "persistent", "non-persistent", "a%2Fb", "x+y", "~", "é", "a.b-partition-3", "%"])


@given(st.lists(PARTS, min_size=1, max_size=6).map("/".join))
def test_owners_of_managed_ledgers_are_their_topics(name: str) -> None:
    assert owner_of_managed_ledger(name) == owner_of_topic(topic_of_managed_ledger(name))


@given(st.sampled_from(["persistent://t/n/", "persistent://t/c/n/"]), st.text(min_size=1, max_size=20))
def test_every_schemas_owner_shares_its_id(beginning: str, local_name: str) -> None:
    try:
        topic: TopicName = parse_topic_name(f"{beginning}{local_name.replace('/', '')}x")
    except Exception:  # noqa: BLE001  # not a name at all
        return
    found = topic_of_schema(topic.schema_id)
    assert found is not None
    assert found.schema_id == topic.schema_id


@pytest.mark.parametrize(("path", "place"), [
    ("/managed-ledgers/t/n/persistent/topic", Place.MANAGED_LEDGER),
    ("/managed-ledgers/t/c/n/persistent/topic", Place.MANAGED_LEDGER),
    ("/managed-ledgers/t/n/persistent/topic/sub", Place.CURSOR),
    ("/managed-ledgers/t/c/n/persistent/topic/sub", Place.CURSOR),
    ("/managed-ledgers/t/c/persistent/persistent/x", Place.EITHER),
    ("/managed-ledgers/t/n/persistent", Place.ODD),
    ("/managed-ledgers/t/n/persistent/topic/sub/more", Place.ODD),
    ("/schemas/t/n/topic", Place.SCHEMA),
    ("/managed-ledgers", Place.ODD),
    ("/elsewhere", Place.ODD),
])  # fmt: skip
def test_places(path: str, place: Place) -> None:
    assert locate(path).place is place


def test_ledger_without_a_topic_has_no_owner() -> None:
    assert owner_of_managed_ledger("t/n/persistent/not~encoded") == Owner()
    assert owner_of_schema("t/n") == owner_of_schema("t/n/not~encoded") == owner_of_schema("t//x") == Owner()


# --- nodes ---------------------------------------------------------------------------------------------------------


def decoded(path: str, value: bytes) -> tuple[set[int], list[tuple[int, LedgerKind]], int]:
    nodes = pa.RecordBatch.from_pylist([node(path, value)], schema=NODES)
    found = decode_nodes(nodes, ColumnReader())
    return (
        set(found.lists.ledger_id.tolist()),
        [(each["ledger_id"], LedgerKind(each["kind"])) for each in found.singles.to_pylist()],
        len(found.unreadable_nodes),
    )


def test_a_node_at_an_odd_place_counts_by_its_shape() -> None:
    odd = "/managed-ledgers/a/b/c/d/e/f/g"
    assert decoded(odd, managed_ledger_bytes([5, 6])) == ({5, 6}, [], 0)
    assert decoded(odd, cursor_bytes(cursor_ledger=7)) == (set(), [(7, LedgerKind.CURSOR)], 0)
    assert decoded(odd, b"") == (set(), [], 0)
    assert decoded(odd, b"garbage") == (set(), [], 1)
    either = "/managed-ledgers/t/c/persistent/persistent/x"
    assert decoded(either, managed_ledger_bytes([6, 5])) == ({5, 6}, [], 0)
    assert decoded(either, cursor_bytes(cursor_ledger=7, compacted_ledger=8))[1] == [
        (7, LedgerKind.CURSOR),
        (8, LedgerKind.COMPACTED),
    ]


def test_a_list_where_a_schema_should_be_counts_and_is_damaged() -> None:
    assert decoded("/schemas/t/n/x", managed_ledger_bytes([5, 6])) == ({5, 6}, [], 1)
    assert decoded("/schemas/t/n/x", schema_locator_bytes([5, 5]))[1] == [(5, LedgerKind.SCHEMA)]
