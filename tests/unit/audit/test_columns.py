"""Equal results of reading a whole column and each of its values."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.audit.arrays import NO_LEDGER, IdTable, LedgerSets
from pulsar_sidecar.features.audit.columnar.nodes import read_plain_cursors, read_plain_schemas, value_bytes
from pulsar_sidecar.features.audit.columnar.paths import (
    are_plain_managed_ledgers,
    owners_of_plain_cursors,
)
from pulsar_sidecar.features.audit.columnar.reader import ColumnReader
from pulsar_sidecar.features.audit.engine.decoding import DecodedPart, decode_part
from pulsar_sidecar.features.audit.engine.judging import newest_sizes
from pulsar_sidecar.features.audit.results.tables import NODES
from pulsar_sidecar.ownership.places import Place, locate, owner_at, owner_of_managed_ledger
from pulsar_sidecar.ownership.references import cursor_references, schema_references
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml
from pulsar_sidecar.protobuf import SchemaStorageFormat_pb2 as schema_storage

from tests.fakes.bookkeeper import cursor_bytes, managed_ledger_bytes
from tests.unit.audit.sources import node

READERS = (ColumnReader(), ColumnReader(exact=True))

# --- bytes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beyond", [None, *range(34)])
def test_pieces_of_values_are_ascii_if_every_byte_of_them_is(beyond: int | None) -> None:
    value = bytes(0xC3 if place == beyond else 0x7F for place in range(34))
    pieces = [(start, end) for start in range(35) for end in range(start, 35)]
    start, end = np.array(pieces, np.int64).T.copy()
    values = value_bytes(pa.array([b"\xff" * 5, value], pa.binary()).slice(1))
    assert values.are_ascii(start, end).tolist() == [value[first:last].isascii() for first, last in pieces]


def test_a_mark_distinguishes_bytes() -> None:
    pieces = [
        b"",
        b"\x01",
        b"12345678",
        b"123456789",
        b"1" * 20,
        b"1" * 21,
        b"12345678" + bytes(8),
        b"x2345678" + bytes(8),
    ]
    pieces = [each.ljust(8, b"=") for each in pieces]
    data = b"".join(piece + b"|" * 3 for piece in pieces)
    start = np.array([data.index(piece + b"|") for piece in pieces], np.int64)
    length = np.array([len(piece) for piece in pieces], np.int64)
    marks = value_bytes(pa.array([data], pa.binary())).mark(start, length).tolist()
    assert len(set(marks)) == len(pieces)
    again = value_bytes(pa.array([b"before it" + data], pa.binary())).mark(start + len(b"before it"), length).tolist()
    assert again == marks


# --- owners --------------------------------------------------------------------------------------------------------

PARTS = ("t", "", "persistent", "non-persistent", "a%2Fb", "x+y", "\u00e9", "a.b-partition-3")
NAMES = ["/".join(parts) for count in (1, 2, 3, 4) for parts in product(PARTS, repeat=count)]
NAMES += [f"t/n/{domain}/{local}/{cursor}" for domain in PARTS[2:4] for local in PARTS for cursor in PARTS]
PATHS = [f"{root}{name}" for root in ("/managed-ledgers/", "/schemas/", "/") for name in NAMES]


@pytest.mark.parametrize("columns", READERS)
def test_owners_of_a_column_are_the_owners_of_its_paths(columns: ColumnReader) -> None:
    for paths in (PATHS, PATHS[:1], PATHS[-1:], []):
        found = columns.owners_at(pa.array(paths, pa.string()))
        assert [names.type for names in found] == [pa.string()] * 3
        expected = [(each.tenant, each.namespace, each.topic) for each in map(owner_at, paths)]
        assert list(zip(*(names.to_pylist() for names in found), strict=True)) == expected


@pytest.mark.parametrize("columns", READERS)
def test_owners_of_a_column_are_the_owners_of_its_names(columns: ColumnReader) -> None:
    found = columns.owners_of(pa.array(NAMES, pa.string()))
    expected = [(each.tenant, each.namespace, each.topic) for each in map(owner_of_managed_ledger, NAMES)]
    assert list(zip(*(names.to_pylist() for names in found), strict=True)) == expected


def test_columns_agree_with_locate() -> None:
    column = pa.array(PATHS, pa.string())
    for path, is_list, owner in zip(
        PATHS, are_plain_managed_ledgers(column).to_pylist(), owners_of_plain_cursors(column).to_pylist(), strict=True
    ):
        located = locate(path)
        assert not is_list or located.place is Place.MANAGED_LEDGER
        assert owner is None or (located.place, located.owner) == (Place.CURSOR, owner)


# --- cursors -------------------------------------------------------------------------------------------------------

numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([-1, 0, 127, 128, 2**42, 2**49 - 1, 2**49]))


@st.composite
def cursor_values(draw: st.DrawFn) -> bytes:
    """A cursor's node: as Pulsar writes it, in odd shapes, or damaged."""
    info = ml.ManagedCursorInfo(cursorsLedgerId=draw(numbers))
    for name in ("markDeleteLedgerId", "markDeleteEntryId", "lastActive"):
        if draw(st.booleans()):
            setattr(info, name, draw(numbers))
    for _ in range(draw(st.integers(0, 2))):
        deleted = info.individualDeletedMessages.add()
        for end in (deleted.lowerEndpoint, deleted.upperEndpoint):
            end.ledgerId, end.entryId = draw(numbers), draw(numbers)
    if draw(st.integers(0, 5)) == 0:
        info.properties.add(name="CompactedTopicLedger", value=5)
    value = bytearray(info.SerializeToString())
    if draw(st.integers(0, 3)) == 0:
        value[draw(st.integers(0, len(value) - 1))] = draw(st.integers(0, 255))
    return bytes(value[: draw(st.integers(0, len(value)))] if draw(st.integers(0, 5)) == 0 else value)


@given(st.lists(st.one_of(cursor_values(), st.binary(max_size=14), st.none()), max_size=10), st.integers(0, 2))
def test_cursor_column_is_read_like_single_cursors(values: Sequence[bytes | None], skipped: int) -> None:
    found = read_plain_cursors(pa.array([*([b"x"] * skipped), *values], pa.binary()).slice(skipped))
    for value, read, ledger_id in zip(values, found.read.tolist(), found.ledger_id.tolist(), strict=True):
        if read:
            assert value is not None
            exact = cursor_references(value)
            assert exact.cursor_ledger == (None if ledger_id == NO_LEDGER else ledger_id)
            assert (exact.compacted_ledger, dict(exact.buckets)) == (None, {})


# --- schemas -------------------------------------------------------------------------------------------------------


@st.composite
def schema_values(draw: st.DrawFn) -> bytes:
    """A schema's node: as Pulsar writes it, in odd shapes, or damaged."""
    locator = schema_storage.SchemaLocator()
    for entry in (locator.info, *(locator.index.add() for _ in range(draw(st.integers(0, 3))))):
        entry.version, entry.hash = draw(numbers), draw(st.binary(max_size=33))
        entry.position.ledgerId, entry.position.entryId = draw(st.one_of(st.integers(0, 3), numbers)), draw(numbers)
    value = bytearray(locator.SerializeToString())
    if draw(st.integers(0, 3)) == 0:
        value[draw(st.integers(0, len(value) - 1))] = draw(st.integers(0, 255))
    return bytes(value[: draw(st.integers(0, len(value)))] if draw(st.integers(0, 5)) == 0 else value)


@given(st.lists(st.one_of(schema_values(), st.binary(max_size=14), st.none()), max_size=10), st.integers(0, 2))
def test_schema_column_is_read_like_single_schemas(values: Sequence[bytes | None], skipped: int) -> None:
    found = read_plain_schemas(pa.array([*([b"x"] * skipped), *values], pa.binary()).slice(skipped))
    for number, (value, read) in enumerate(zip(values, found.read.tolist(), strict=True)):
        named = found.ledger_id[found.node == number].tolist()
        assert read or not named
        if read:
            assert value is not None
            assert named == sorted(schema_references(value))


# --- sets of ids ---------------------------------------------------------------------------------------------------

ids = st.one_of(st.integers(-1, 50), st.sampled_from([2**28, 2**31, 2**62]))


@given(st.lists(ids, max_size=12), st.lists(ids, max_size=12))
def test_a_table_holds_its_ids(members: list[int], asked: list[int]) -> None:
    found = IdTable(np.array(members, np.int64)).holds(np.array(asked, np.int64))
    assert found.tolist() == [each >= 0 and each in members for each in asked]


@given(st.lists(ids.filter(lambda each: each >= 0), max_size=12), *[st.lists(ids, max_size=12)] * 2)
def test_the_sets_of_an_audit(listed: list[int], dumped: list[int], referenced: list[int]) -> None:
    cut = len(listed) // 2
    sets = LedgerSets([np.array(each, np.int64) for each in (listed[:cut], listed[cut:])], np.array(dumped, np.int64))
    for some in (referenced[:cut], referenced[cut:]):
        sets.refer(np.array(some, np.int64))
    there, named = {each for each in dumped if each >= 0}, {each for each in referenced if each >= 0}
    assert sets.candidates().tolist() == sorted((there & set(listed)) - named)
    places = [place for place, each in enumerate(dumped) if each >= 0 and each in referenced]
    assert sets.rows_of(np.array(referenced, np.int64)).tolist() == places
    assert sets.gone().tolist() == sorted(named - there - set(listed))
    assert (sets.listed, sets.references) == (len(listed), len(referenced))
    assert (sets.in_dump(), sets.referenced_and_listed()) == (len(there & set(listed)), len(named & set(listed)))
    assert sets.newest() == max([*there, *listed], default=-1)


# --- parts ---------------------------------------------------------------------------------------------------------


def part_of(*nodes: tuple[str, bytes]) -> DecodedPart:
    return decode_part(
        ColumnReader(), pa.RecordBatch.from_pylist([node(path, value) for path, value in nodes], schema=NODES)
    )


def test_a_part_names_the_nodes_that_name_a_ledger() -> None:
    name = "/managed-ledgers/t/n/persistent/{}"
    unordered = managed_ledger_bytes([9, 8])  # which only the exact reader accepts
    part = part_of(
        (name.format("a"), managed_ledger_bytes([1, 2])),
        (name.format("a/sub"), cursor_bytes(3)),
        (name.format("b"), unordered),
        (name.format("c"), managed_ledger_bytes([4, 5, 6])),
    )
    assert (part.rows, part.ids.tolist()) == (4, [1, 2, 8, 9, 4, 5, 6])
    wanted = {2: [0], 8: [2], 4: [3], 6: [3]}
    for ledger_id, places in wanted.items():
        assert part.naming(np.flatnonzero(part.ids == ledger_id)).tolist() == places
    assert part.naming(np.zeros(0, np.int64)).tolist() == []


def test_of_two_rows_of_a_ledger_the_newer_size_counts() -> None:
    rows = [(1, 5, 5, 10), (2, 1, 1, None), (1, 5, 6, 20), (1, 4, 9, 30)]
    columns = zip(*rows, strict=True)
    sizes = pa.table(dict(zip(("ledger_id", "czxid", "mzxid", "length"), map(list, columns), strict=True)))
    assert newest_sizes(sizes).select(["ledger_id", "length"]).to_pylist() == [
        {"ledger_id": 1, "length": 20},
        {"ledger_id": 2, "length": None},
    ]
