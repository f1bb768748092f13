"""Dumps and listings: whole ones appear, with a true manifest; all others leave nothing."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pulsar_sidecar.adapters.parquet.directories import hidden_beside, open_tables
from pulsar_sidecar.adapters.parquet.inputs import read_table
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.features.audit.results.tables import NODES, Subtree, Table
from pulsar_sidecar.features.audit.sources.cursor_ledgers import NOT_READ
from pulsar_sidecar.features.audit.sources.dumping import dump
from pulsar_sidecar.features.audit.sources.listing import ledgers_among, list_ledgers
from pulsar_sidecar.features.audit.sources.manifests import InputKind, Manifest, NewestWrite, OrderRange, RowCounts
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import ledger_path

from tests.fakes.clock import START_MS, FakeClock
from tests.made_audits import dumped_nodes, open_to_others
from tests.unit.audit.sources import INSTANCE_ID, SMALL_CLUSTER, Ledgers, Nodes, node


def make(directory: Path, source: Nodes | None = None, **options: Any) -> Manifest:
    return dump(
        source or Nodes(),
        options.pop("live", None),
        partial(parquet_output, directory),
        FakeClock(),
        options.pop("report", lambda text: None),
        ledgers_root="/ledgers",
        without_ledgers=options.pop("without_ledgers", False),
        tool_version="1.0",
    )


def test_every_node_but_zookeepers_own_is_in_one_part(tmp_path: Path) -> None:
    make(tmp_path / "dump")
    rows = {row["path"]: row for row in read_table(tmp_path / "dump", Table.NODES).to_pylist()}
    expected = {row["path"]: row for row in SMALL_CLUSTER if not row["path"].startswith("/zookeeper")}
    assert set(rows) == set(expected)
    for path, row in expected.items():
        assert rows[path] == {**row, "unreadable": None}
    below = {each: {row["path"] for row in dumped_nodes(tmp_path / "dump", each)} for each in Subtree}
    assert below[Subtree.LEDGERS] == {"/ledgers/00", "/ledgers/00/0000", "/ledgers/00/0000/L0007"}
    assert below[Subtree.BOOKKEEPER] == {"/ledgers", "/ledgers/INSTANCEID", "/ledgers/idgen"}
    assert "/managed-ledgers" in below[Subtree.MANAGED_LEDGERS]
    assert below[Subtree.SCHEMAS] == {"/schemas/t/n/topic"}
    assert "/admin/policies/t/n" in below[Subtree.ADMIN]
    assert "/stream/storage" in below[Subtree.DISTRIBUTED_LOG]
    assert below[Subtree.OTHER] == {"/", "/counters"}
    assert sum(map(len, below.values())) == len(SMALL_CLUSTER) - 2


def test_the_manifest_names_what_there_is(tmp_path: Path) -> None:
    made = make(tmp_path / "dump")
    assert open_tables(tmp_path / "dump", InputKind.DUMP) == made
    assert (made.instance_id, made.cluster_name, made.tool_version) == (INSTANCE_ID, "local", "1.0")
    assert made.zxids == OrderRange(20, 40)
    # The time of the newest write by the store's order, though another node's clock ran ahead.
    assert made.as_of == NewestWrite(40, START_MS + 5)
    assert made.counts["ledgers"] == RowCounts(3, 0)
    assert made.counts["log_segments"] == RowCounts(1, 0)
    assert made.counts["cursor_ledgers"] == RowCounts(1, 1)
    assert (made.allows_deletion, made.left_out) == (True, ())
    assert sum(file.rows for file in made.files if file.path.startswith("nodes/")) == len(SMALL_CLUSTER) - 2


def test_log_segments_and_cursors_have_tables_of_their_own(tmp_path: Path) -> None:
    make(tmp_path / "dump")
    (segment,) = read_table(tmp_path / "dump", Table.LOG_SEGMENTS).to_pylist()
    assert (segment["ledger_id"], segment["kind"]) == (130, "completed")
    (cursor,) = read_table(tmp_path / "dump", Table.CURSOR_LEDGERS).to_pylist()
    assert cursor["cursor_path"] == "/managed-ledgers/t/n/persistent/topic/__compaction"
    assert (cursor["state"], cursor["unreadable"]) == ("unreadable", NOT_READ)


def test_unreadable_nodes_are_rows_and_are_counted(tmp_path: Path) -> None:
    hidden = node("/managed-ledgers/secret", unreadable="NoAuth")
    made = make(tmp_path / "dump", Nodes([*SMALL_CLUSTER, hidden]))
    assert made.counts["managed-ledgers"] == RowCounts(5, 1)
    (row,) = [row for row in read_table(tmp_path / "dump", Table.NODES).to_pylist() if row["path"] == hidden["path"]]
    assert (row["unreadable"], row["value"]) == ("NoAuth", None)


def test_the_manifest_records_reservations_several_clusters_and_what_was_left_out(tmp_path: Path) -> None:
    without = [row for row in SMALL_CLUSTER if not row["path"].startswith("/ledgers/00")]
    source = Nodes([*without, node("/admin/clusters/other")], reservations=("it is old",))
    made = make(tmp_path / "dump", source, without_ledgers=True)
    assert (made.allows_deletion, made.reservations) == (False, ("it is old",))
    assert (made.cluster_name, made.left_out) == (None, ("ledgers",))


# --- failures ------------------------------------------------------------------------------------------------------


def nothing_left(directory: Path) -> bool:
    return not list(directory.iterdir())


@pytest.mark.parametrize("rows", [(), SMALL_CLUSTER[:5], SMALL_CLUSTER])
@pytest.mark.parametrize("failure", [TemporaryError("it broke off"), KeyboardInterrupt()])
def test_a_source_that_breaks_off_leaves_nothing(
    tmp_path: Path, rows: tuple[dict[str, Any], ...], failure: BaseException
) -> None:
    with pytest.raises(type(failure)):
        make(tmp_path / "dump", Nodes(rows, failure))
    assert nothing_left(tmp_path)


@pytest.mark.parametrize(("missing", "reason"), [
    ("/ledgers/INSTANCEID", "instance id"),
    ("/managed-ledgers", "/managed-ledgers does not exist"),
    ("/ledgers/00", "no ledger below"),
])  # fmt: skip
def test_incomplete_cluster_is_refused(tmp_path: Path, missing: str, reason: str) -> None:
    rows = [row for row in SMALL_CLUSTER if not row["path"].startswith(missing)]
    with pytest.raises(TemporaryError, match=reason):
        make(tmp_path / "dump", Nodes(rows))
    assert nothing_left(tmp_path)


def test_a_storage_without_an_instance_id_is_told_by_its_layout(tmp_path: Path) -> None:
    rows = [row for row in SMALL_CLUSTER if row["path"] != "/ledgers/INSTANCEID"]
    made = make(tmp_path / "dump", Nodes([*rows, node("/ledgers/LAYOUT", b"2", czxid=7, ctime_ms=5)]))
    assert made.instance_id == "layout-7-5"


def test_an_unreadable_instance_id_is_refused(tmp_path: Path) -> None:
    hidden = node("/ledgers/INSTANCEID", unreadable="NoAuth")
    rows = [hidden if row["path"] == hidden["path"] else row for row in SMALL_CLUSTER]
    with pytest.raises(TemporaryError, match="NoAuth"):
        make(tmp_path / "dump", Nodes(rows))


@pytest.mark.parametrize("occupy", [Path.mkdir, Path.touch, lambda place: place.symlink_to("nowhere")])
def test_existing_dump_is_not_overwritten(tmp_path: Path, occupy: Callable[[Path], object]) -> None:
    place = tmp_path / "dump"
    occupy(place)
    with pytest.raises(InvalidInputError, match="already exists"):
        make(place)
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]


def test_directory_created_during_the_dump_is_not_overwritten(tmp_path: Path) -> None:
    def report(text: str) -> None:
        (tmp_path / "dump").mkdir(exist_ok=True)

    with pytest.raises(InvalidInputError, match="was created meanwhile"):
        make(tmp_path / "dump", report=report)
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]
    assert nothing_left(tmp_path / "dump")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_dump_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make(tmp_path / "dump")
    finally:
        os.umask(before)
    assert open_to_others(tmp_path / "dump") == []


def test_a_parent_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="create it first"):
        make(tmp_path / "no" / "dump")


# --- reading back --------------------------------------------------------------------------------------------------


def test_a_changed_file_a_missing_one_and_one_too_many_are_refused(tmp_path: Path) -> None:
    made = make(tmp_path / "dump")
    path = tmp_path / "dump" / made.files[0].path
    intact = path.read_bytes()
    path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    with pytest.raises(InvalidInputError, match="does not match its SHA-256"):
        open_tables(tmp_path / "dump", InputKind.DUMP)
    path.unlink()
    with pytest.raises(InvalidInputError, match="exactly the files"):
        open_tables(tmp_path / "dump", InputKind.DUMP)
    path.write_bytes(intact)
    (path.parent / "part-00009.parquet").write_bytes(intact)
    with pytest.raises(InvalidInputError, match="exactly the files"):
        open_tables(tmp_path / "dump", InputKind.DUMP)


@pytest.mark.parametrize("change", [{"formatVersion": 2}, {"complete": False}, {"kind": "other"}, {"files": None}])
def test_a_manifest_that_is_not_understood_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    make(tmp_path / "dump")
    manifest = tmp_path / "dump" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    with pytest.raises(InvalidInputError):
        open_tables(tmp_path / "dump", InputKind.DUMP)


def test_dump_is_refused_as_listing_or_with_a_broken_manifest(tmp_path: Path) -> None:
    make(tmp_path / "dump")
    with pytest.raises(InvalidInputError, match="not a ledger-listing"):
        open_tables(tmp_path / "dump", InputKind.LISTING)
    for text in ("{", "[" * 100_000):
        (tmp_path / "dump" / "manifest.json").write_text(text)
        with pytest.raises(InvalidInputError, match="no readable manifest"):
            open_tables(tmp_path / "dump", InputKind.DUMP)


def test_addresses_of_object_stores_are_refused_with_the_next_step() -> None:
    address = Path("s3://bucket/dumps/monday")
    with pytest.raises(InvalidInputError, match="only the Spark job reads and writes object stores"):
        open_tables(address, InputKind.DUMP)
    with pytest.raises(InvalidInputError, match="work on a disk"), hidden_beside(address, "unfinished"):
        pass


# --- listings --------------------------------------------------------------------------------------------------------


def list_into(directory: Path, source: Ledgers, *, with_metadata: bool = False) -> Manifest:
    return list_ledgers(
        source,
        partial(parquet_output, directory),
        FakeClock(),
        lambda text: None,
        ledgers_root="/ledgers",
        with_metadata=with_metadata,
        tool_version="1.0",
    )


def test_rows_and_manifest(tmp_path: Path) -> None:
    rows = [
        {"ledger_id": 10, "metadata": b"m", "version": 2, "ctime_ms": 5, "mtime_ms": START_MS, "mzxid": 30},
        {"ledger_id": 9, "unreadable": "NoAuth"},
    ]
    made = list_into(tmp_path / "listing", Ledgers(rows), with_metadata=True)
    assert open_tables(tmp_path / "listing", InputKind.LISTING) == made
    assert (made.instance_id, made.as_of, made.left_out) == (INSTANCE_ID, NewestWrite(30, START_MS), ())
    assert made.counts == {"ledgers": RowCounts(2, 1)}
    found = read_table(tmp_path / "listing", Table.LEDGERS).to_pylist()
    assert [{key: value for key, value in row.items() if value is not None} for row in found] == rows
    assert list_into(tmp_path / "ids", Ledgers([{"ledger_id": 1}])).left_out == ("metadata",)


def test_an_empty_or_unfinished_listing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match="the source lists no ledger"):
        list_into(tmp_path / "listing", Ledgers([]))
    with pytest.raises(TemporaryError, match="broke off"):
        list_into(tmp_path / "listing", Ledgers([{"ledger_id": 1}], TemporaryError("broke off")))
    assert not list(tmp_path.iterdir())


def listed(*nodes: dict[str, Any]) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pylist(list(nodes), schema=NODES)
    return [row for part in ledgers_among(iter([batch]), "/ledgers") for row in part.to_pylist()]


def test_ledgers_among_the_nodes_of_their_tree() -> None:
    large = ledger_path(LedgerId(2**40))
    rows = listed(
        node("/ledgers"),
        node("/ledgers/00"),
        node("/ledgers/00/0000/L0007", b"m", version=3, mzxid=8, czxid=4),
        node(large, unreadable="NoAuth"),
        node("/ledgers/00/0000/other"),
    )
    assert [row["ledger_id"] for row in rows] == [7, 2**40]
    assert (rows[0]["metadata"], rows[0]["version"], rows[0]["mzxid"], rows[0]["czxid"]) == (b"m", 3, 8, 4)
    assert (rows[1]["unreadable"], rows[1]["metadata"]) == ("NoAuth", None)


def test_a_directory_of_ledgers_that_may_not_be_read_fails() -> None:
    with pytest.raises(TemporaryError, match="/ledgers/00 cannot be listed"):
        listed(node("/ledgers"), node("/ledgers/00", unreadable="NoAuth"))
