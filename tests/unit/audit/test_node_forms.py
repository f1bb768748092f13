"""Every form of a node, at every place, is decoded to the same with and without the readers of columns."""

import zlib
from collections.abc import Callable, Iterator
from inspect import isfunction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pulsar_sidecar.features.audit.columnar import nodes as columnar_nodes
from pulsar_sidecar.features.audit.columnar import paths as columnar_paths
from pulsar_sidecar.features.audit.columnar import reader
from pulsar_sidecar.features.audit.columnar.nodes import ledger_lengths, read_plain_cursors, read_plain_schemas
from pulsar_sidecar.features.audit.columnar.paths import ledger_ids
from pulsar_sidecar.features.audit.columnar.reader import ColumnReader
from pulsar_sidecar.features.audit.engine.candidates import owner_nodes
from pulsar_sidecar.features.audit.engine.decoding import decode_nodes, lists_naming
from pulsar_sidecar.features.audit.results.tables import NODES
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId
from pulsar_sidecar.model.ledgers import LedgerState, OffloadContext
from pulsar_sidecar.ownership.ledger_metadata import ledger_length
from pulsar_sidecar.ownership.paths import ledger_id_of_path, ledger_path
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml
from pulsar_sidecar.protobuf import SchemaStorageFormat_pb2 as schema_storage

from tests.fakes.bookkeeper import (
    compressed,
    cursor_bytes,
    cursor_custom_metadata,
    data_custom_metadata,
    delimited,
    ledger_metadata_bytes,
    managed_ledger_bytes,
    schema_locator_bytes,
    wrapped,
)
from tests.unit.audit.sources import node

COLUMNS, EXACT = ColumnReader(), ColumnReader(exact=True)
READERS = (columnar_nodes.__name__, columnar_paths.__name__)
EXACT_FUNCTIONS = {"ledger_id_of_path", "ledger_length", "owner_at", "owner_of_managed_ledger"}
BIG = 2**40

PLACES = {
    "managed ledger": "/managed-ledgers/t/n/persistent/a",
    "managed ledger, V1": "/managed-ledgers/t/c/n/persistent/a",
    "encoded topic": "/managed-ledgers/t/n/persistent/a%2Fb-partition-3",
    "cursor": "/managed-ledgers/t/n/persistent/a/sub",
    "cursor, V1": "/managed-ledgers/t/c/n/persistent/a/sub",
    "compaction cursor": "/managed-ledgers/t/n/persistent/a/__compaction",
    "either": "/managed-ledgers/t/c/persistent/persistent/x",
    "above managed ledgers": "/managed-ledgers/t/n",
    "odd": "/managed-ledgers/a/b/c/d/e/f/g",
    "schema": "/schemas/t/n/a",
    "above schemas": "/schemas/t",
}


def offloaded(*, deleted: bool) -> OffloadContext:
    return OffloadContext(
        uid_msb=1, uid_lsb=2, driver_name="S3", driver_metadata={}, complete=True, bookkeeper_deleted=deleted
    )


def with_holes(count: int, last_active: int | None = None) -> bytes:
    info = ml.ManagedCursorInfo.FromString(cursor_bytes(7))
    info.ClearField("lastActive")
    for entry in range(count):
        deleted = info.individualDeletedMessages.add()
        for end, place in ((deleted.lowerEndpoint, -1), (deleted.upperEndpoint, 2 * entry)):
            end.ledgerId, end.entryId = 2**30, place
    if last_active is not None:
        info.lastActive = last_active
    return info.SerializeToString()


def ledger_info(*ledgers: dict[str, int]) -> bytes:
    info = ml.ManagedLedgerInfo()
    for ledger in ledgers:
        info.ledgerInfo.add(**ledger)
    return info.SerializeToString()


def locator(**changed: Any) -> bytes:
    whole = schema_storage.SchemaLocator.FromString(schema_locator_bytes([4]))
    for name, value in changed.items():
        setattr(whole.info.position if name in ("ledgerId", "entryId") else whole.info, name, value)
    return whole.SerializeToString()


PLAIN_FORMS = {
    "list of one": managed_ledger_bytes([5]),
    "list": managed_ledger_bytes([1, 2, 300]),
    "list of large ids": managed_ledger_bytes([127, 128, 2**14, BIG, 2**49 - 1]),
    "list that tells all": ledger_info(*({"ledgerId": n, "entries": n, "size": 7 * n, "timestamp": n} for n in (1, 9))),
    "list without entries": ledger_info({"ledgerId": 3, "size": 128, "timestamp": 1}, {"ledgerId": 4}),
    "list that is long": managed_ledger_bytes(range(1, 300)),
    "cursor with a ledger": cursor_bytes(6, mark_delete=(5, 9)),
    "cursor with a large ledger": cursor_bytes(BIG, mark_delete=(BIG, 2**33)),
    "cursor in its node": cursor_bytes(mark_delete=(3, 4)),
    "cursor before every ledger": cursor_bytes(6, mark_delete=(-1, -1)),
    "cursor with holes": with_holes(3),
    "cursor with holes, and active": with_holes(2, last_active=1),
    "schema": schema_locator_bytes([8]),
    "schema of versions": schema_locator_bytes([9, BIG, 9, 11]),
    "schema without a ledger": locator(ledgerId=-1, entryId=-1),
    "schema of 127 bytes": locator(hash=bytes(117)),
    "schema of 128 bytes": locator(hash=bytes(118)),
}
ODD_FORMS = {
    "not read": None,
    "empty": b"",
    "text": b"not protobuf at all",
    "one byte": b"\x0a",
    "list, out of order": managed_ledger_bytes([9, 8]),
    "list that repeats": managed_ledger_bytes([4, 4]),
    "list of a negative id": ledger_info({"ledgerId": -5}),
    "list of the largest ids": managed_ledger_bytes([2**49, MAX_LEDGER_ID]),
    "list of a ledger without id": b"\x0a\x02\x10\x01",
    "list with an id of more bytes": b"\x0a\x03\x08\x85\x00",
    "list in two orders": b"\x0a\x04\x10\x01\x08\x05",
    "list, cut": managed_ledger_bytes([1, 2])[:-1],
    "list, cut in a ledger's length": managed_ledger_bytes([1, 2]) + b"\x0a",
    "list, and more": managed_ledger_bytes([1, 2]) + b"\x50\x01",
    "list with a long ledger": b"\x0a\x83\x01\x08\x05\x10" + b"\x01" * 0x80,
    "list of a shadow": managed_ledger_bytes([1, 2], properties={"PULSAR.SHADOW_SOURCE": "persistent://t/n/s"}),
    "list with a property": managed_ledger_bytes([1, 2], properties={"k": "v"}),
    "list terminated behind its last ledger": managed_ledger_bytes([1, 2]) + b"\x12\x04\x08\x09\x10\x00",
    "terminated list": managed_ledger_bytes([1, 2], terminated=True),
    "list, offloaded": managed_ledger_bytes([1, 2], offloaded={1: offloaded(deleted=False)}),
    "list, offloaded and deleted": managed_ledger_bytes([1, 2], offloaded={1: offloaded(deleted=True)}),
    "compressed list": compressed("ZLIB", managed_ledger_bytes([1, 2]), zlib.compress(managed_ledger_bytes([1, 2]))),
    "wrapped list": wrapped("NONE", len(managed_ledger_bytes([1, 2])), managed_ledger_bytes([1, 2])),
    "wrapped cursor": wrapped("NONE", len(cursor_bytes(6)), cursor_bytes(6)),
    "cursor with a compacted ledger": cursor_bytes(6, compacted_ledger=7),
    "cursor with buckets": cursor_bytes(6, buckets={"#pulsar.internal.delayed.bucket0_9": 8}),
    "cursor with too many holes": with_holes(300),
    "cursor of the largest ids": cursor_bytes(MAX_LEDGER_ID),
    "cursor of a negative id": cursor_bytes(-2),
    "cursor with a ledger of more bytes": b"\x08\x86\x00",
    "cursor of its ledger alone": b"\x08\x06",
    "cursor, cut": cursor_bytes(6)[:-1],
    "cursor, and more": cursor_bytes(6) + b"\x78\x01",
    "cursor in two orders": b"\x10\x01\x08\x06",
    "schema with a negative ledger": locator(ledgerId=-2),
    "schema with a negative version": locator(version=-1),
    "schema with a length of more bytes": b"\x0a\xaa\x00" + schema_locator_bytes([8])[2:],
    "schema with a length far behind its end": b"\x0a\xff\x7f" + schema_locator_bytes([8])[2:],
    "schema, cut": schema_locator_bytes([8])[:-1],
    "schema, and more": schema_locator_bytes([8]) + b"\x78\x01",
    "schema without a hash": schema_locator_bytes([8]).replace(b"\x1a\x20" + bytes(32), b""),
    "schema of many versions": schema_locator_bytes(list(range(1, 150))),
}
FORMS = PLAIN_FORMS | ODD_FORMS
WHERE = {"list": ("managed ledger", "managed ledger, V1"), "curs": ("cursor",), "sche": ("schema",)}


def nodes_of(*rows: tuple[str, bytes | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([node(path, value) for path, value in rows], schema=NODES)


def canonical(nodes: pa.RecordBatch, columns: ColumnReader) -> tuple[Any, ...]:
    found = decode_nodes(nodes, columns)
    lists = (found.lists.node, found.lists.ledger_id, found.lists.entries, found.lists.size_bytes, found.lists.closed)
    return (
        list(zip(*(column.tolist() for column in lists), strict=True)),
        sorted(map(str, found.singles.to_pylist())),
        sorted(map(str, found.cursors.to_pylist())),
        sorted(found.unreadable_nodes),
        found.shadows,
        sorted(map(str, found.usage(columns).to_pylist())),
        sorted(map(str, found.unsized().to_pylist())),
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_node_is_decoded_alike_both_ways_wherever_it_is(form: str) -> None:
    alone = [nodes_of((PLACES[place], FORMS[form])) for place in ("managed ledger", "cursor", "schema")]
    for nodes in (*alone, nodes_of(*((path, FORMS[form]) for path in PLACES.values()))):
        exact = decode_nodes(nodes, EXACT)
        assert canonical(nodes, COLUMNS) == canonical(nodes, EXACT)
        wanted = exact.lists.ledger_id[:1]
        assert lists_naming(COLUMNS, wanted, nodes).to_pylist() == lists_naming(EXACT, wanted, nodes).to_pylist()
        assert owner_nodes(COLUMNS, nodes) == owner_nodes(EXACT, nodes)


def test_all_nodes_of_a_batch_are_decoded_alike_both_ways() -> None:
    every = [(path, value) for path in PLACES.values() for value in FORMS.values()]
    nodes = nodes_of(*((f"{path}{number}", value) for number, (path, value) in enumerate(every)))
    for batch in (nodes, nodes.slice(5), nodes.slice(3, 100), nodes.slice(0, 0)):
        assert canonical(batch, COLUMNS) == canonical(batch, EXACT)


@pytest.mark.parametrize("form", PLAIN_FORMS)
def test_the_plain_forms_are_not_left_to_the_exact_decoder(form: str) -> None:
    for place in WHERE[form[:4]]:
        nodes = nodes_of((PLACES[place], PLAIN_FORMS[form]))
        assert COLUMNS.read_nodes(nodes.column("path"), nodes.column("value"), with_entries=True).left.tolist() == []


def test_only_nodes_that_may_name_a_ledger_are_read_for_it() -> None:
    may_name = {
        managed_ledger_bytes([1, 5]): True,
        managed_ledger_bytes([1, 6]): False,
        managed_ledger_bytes([5], properties={"k": "v"}): True,
        managed_ledger_bytes([6], properties={"k": "v"}): True,  # for all that columns show
        cursor_bytes(5): False,
        b"": False,
        None: True,
    }
    wanted = np.array([5], np.int64)
    assert COLUMNS.may_name(pa.array(may_name, pa.binary()), wanted).tolist() == list(may_name.values())
    assert COLUMNS.may_name(pa.array([], pa.binary()), wanted).tolist() == []
    assert EXACT.may_name(pa.array(may_name, pa.binary()), wanted).tolist() == [True] * len(may_name)


def test_entries_are_read_only_if_they_are_asked_for() -> None:
    nodes = nodes_of((PLACES["managed ledger"], PLAIN_FORMS["list that tells all"]))
    for asked, entries in ((True, [1, 9]), (False, [0, 0])):
        lists = COLUMNS.read_nodes(nodes.column("path"), nodes.column("value"), with_entries=asked).lists
        assert (lists.ledger_id.tolist(), lists.entries.tolist()) == ([1, 9], entries)


def test_bytes_behind_a_missing_value_are_not_read() -> None:
    """Arrow allows any bytes there."""
    for value in (managed_ledger_bytes([5]), cursor_bytes(5), schema_locator_bytes([5]), ledger_metadata_bytes()):
        whole = pa.array([value, value], pa.binary())
        column = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), *whole.buffers()[1:]])
        assert column.to_pylist() == [None, value]
        paths = pa.array([PLACES["cursor"], PLACES["cursor"]])
        assert COLUMNS.read_nodes(paths, column, with_entries=True).left.tolist()[:1] == [0]
        assert not read_plain_cursors(column).read[0]
        assert not read_plain_schemas(column).read[0]
        assert COLUMNS.may_name(column, np.array([6], np.int64))[0]
        assert COLUMNS.ledger_lengths(column).to_pylist() == [None, ledger_length(value)]


def test_more_nodes_than_are_read_in_one_step_are_each_read() -> None:
    values = [managed_ledger_bytes([number]) for number in range(5_000)]
    odd = [2, 4_095, 4_096, 4_998]
    for number in odd:
        values[number] = managed_ledger_bytes([number], properties={"k": "v"})
    column, paths = pa.array(values, pa.binary()), pa.array([PLACES["managed ledger"]] * len(values))
    nodes = COLUMNS.read_nodes(paths, column, with_entries=True)
    assert (nodes.lists.node.tolist(), nodes.left.tolist()) == (nodes.lists.ledger_id.tolist(), odd)
    assert sorted([*nodes.lists.node, *odd]) == list(range(5_000))
    wanted = np.array([3, 4_094, 4_097, 4_999], np.int64)
    assert np.flatnonzero(COLUMNS.may_name(column, wanted)).tolist() == sorted([*wanted, *odd])
    ledgers = [ledger_metadata_bytes(length_bytes=number) for number in range(5_000)]
    assert COLUMNS.ledger_lengths(pa.array(ledgers, pa.binary())).to_pylist() == list(range(5_000))


def test_bytes_after_a_node_are_not_read_into_it() -> None:
    field = b"\x30\x01"  # when a cursor was last active
    assert read_plain_cursors(pa.array([with_holes(1), field], pa.binary())).read.tolist() == [True, False]
    assert read_plain_cursors(pa.array([with_holes(1) + field], pa.binary())).read.tolist() == [True]
    whole = schema_storage.SchemaLocator.FromString(schema_locator_bytes([8]))
    del whole.index[:]
    newest = whole.SerializeToString()
    version = b"\x12" + newest[1:]
    assert read_plain_schemas(pa.array([newest, version], pa.binary())).read.tolist() == [True, False]
    assert read_plain_schemas(pa.array([newest + version], pa.binary())).read.tolist() == [True]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of functions that the readers' entry calls, readers and exact functions."""
    found: list[str] = []

    def telling(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            found.append(name)
            return function(*arguments, **named)

        return call

    columnar = {name: each for name, each in vars(reader).items() if getattr(each, "__module__", "") in READERS}
    for name, each in {**columnar, **{name: getattr(reader, name) for name in EXACT_FUNCTIONS}}.items():
        if isfunction(each):
            monkeypatch.setattr(reader, name, telling(name, each))
    return found


def read_everything(columns: ColumnReader) -> None:
    nodes = nodes_of(*((PLACES[WHERE[form[:4]][0]], value) for form, value in PLAIN_FORMS.items()))
    columns.read_nodes(nodes.column("path"), nodes.column("value"), with_entries=True)
    columns.may_name(nodes.column("value"), np.array([5], np.int64))
    columns.ledger_ids(pa.array([ledger_path(LedgerId(5))]), "/ledgers")
    columns.ledger_lengths(pa.array([ledger_metadata_bytes()]))
    columns.owners_at(nodes.column("path"))
    columns.owners_of(pa.array(["t/n/persistent/a"]))


def test_plain_values_bypass_the_exact_functions(asked: list[str]) -> None:
    read_everything(COLUMNS)
    assert asked
    assert not EXACT_FUNCTIONS & set(asked)


def test_exactly_no_reader_of_columns_is_asked(asked: list[str]) -> None:
    read_everything(EXACT)
    assert set(asked) == EXACT_FUNCTIONS


# --- ledgers' paths and lengths ------------------------------------------------------------------------------------


def test_paths_are_read_alike_both_ways() -> None:
    ids = [0, 9, 10, 1234, 99_999, 12_345_678, 2**31 - 1, 2**31, 9_999_999_999, 10**10, MAX_LEDGER_ID]
    paths = [ledger_path(LedgerId(each)) for each in ids]
    good = paths[1]
    paths += [good[:place] + other + good[place + 1 :] for place in range(len(good)) for other in ":/0L9l\xe9\x00"]
    flipped = [good[:place] + chr(ord(good[place]) ^ 1 << bit) for place in range(len(good)) for bit in range(7)]
    paths += [path + good[len(path) :] for path in flipped]
    paths += ["", "/ledgers", "/ledgers/00/0000", "/ledgers/L0001/00/0000", "/ledgers/99/9999/L9999", f"{good}0"]
    exact = [ledger_id_of_path(path) for path in paths]
    for columns in (COLUMNS, EXACT):
        found = columns.ledger_ids(pa.array(paths, pa.string()), "/ledgers")
        assert found.type == pa.int64()
        assert found.to_pylist() == exact
        elsewhere = [f"/chroot/of/its/own{path}" for path in paths]
        assert columns.ledger_ids(pa.array(elsewhere, pa.string()), "/chroot/of/its/own/ledgers").to_pylist() == exact
        assert columns.ledger_ids(pa.array(["", *paths], pa.string()).slice(3), "/ledgers").to_pylist() == exact[2:]


def test_paths_of_the_short_form_are_not_left_to_the_exact_reader() -> None:
    paths = [ledger_path(LedgerId(each)) for each in (0, 2**31 - 2, 2**31)]
    found, valid, left = ledger_ids(pa.array([*paths, "/ledgers"], pa.string()), "/ledgers")
    assert (found[valid].tolist(), left.tolist()) == ([0, 2**31 - 2], [False, False, True, True])


@pytest.mark.parametrize("columns", [COLUMNS, EXACT])
def test_columns_of_no_ledgers_are_numbers_too(columns: ColumnReader) -> None:
    for nothing in ([], ["/ledgers"]):
        found = columns.ledger_ids(pa.array(nothing, pa.string()), "/ledgers")
        assert (found.type, found.to_pylist()) == (pa.int64(), [None] * len(nothing))
    for nothing in ([], [b"\x00"]):
        lengths = columns.ledger_lengths(pa.array(nothing, pa.binary()))
        assert (lengths.type, lengths.to_pylist()) == (pa.int64(), [None] * len(nothing))


def metadata_forms() -> Iterator[tuple[bytes | None, bool]]:
    """Ledgers' nodes, and whether readers of columns understand them."""
    more = {5: ("bookie-2:3181", "bookie-3:3181"), 9: ("bookie-1:3181", "bookie-3:3181")}
    for custom in ({}, data_custom_metadata("t/n/persistent/" + "x" * 200), cursor_custom_metadata("t/n/x", "sub")):
        for length in (0, 127, 128, BIG):
            for later in ({}, more):
                for state in LedgerState:
                    yield ledger_metadata_bytes(state, custom, length_bytes=length, later_ensembles=later), True
    whole = ledger_metadata_bytes()
    for changed in ({"ack_quorum_size": 3}, {"ack_quorum_size": 0}, {"write_quorum_size": 9}, {"last_entry_id": -2}):
        yield ledger_metadata_bytes(**changed), False  # type: ignore[arg-type]
    for ensemble in ((), ("ü:3181", "bookie:3181"), ("same:1", "same:1")):
        yield ledger_metadata_bytes(ensemble=ensemble, later_ensembles=more), False
    yield ledger_metadata_bytes(custom_metadata={"short": b"1"}), False
    yield from ((piece, False) for piece in (None, b"", b"x", whole[:30], whole[:31], whole[:-1], whole + b"\x00"))
    yield from ((whole[:place] + b"\x7f" + whole[place + 1 :], False) for place in range(len(whole)))
    header, _, message = whole.partition(b"3\n")
    yield header + b"2\n" + message, False
    yield header + b"3\n" + delimited(message[1:] + b"\x78\x01"), False
    yield header + b"3\n" + bytes([message[0] | 0x80, 0]) + message[1:], False  # not the shortest form of its length


def test_lengths_are_decoded_alike_both_ways() -> None:
    forms = list(metadata_forms())
    values = [value for value, _ in forms]
    exact = [ledger_length(value) for value in values]
    for columns in (COLUMNS, EXACT):
        assert columns.ledger_lengths(pa.array(values, pa.binary())).to_pylist() == exact
    _, left = ledger_lengths(pa.array(values, pa.binary()))
    assert not any(is_left for is_left, (_, is_plain) in zip(left.tolist(), forms, strict=True) if is_plain)
