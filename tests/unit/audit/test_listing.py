"""Listings: every ledger, or nothing."""

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pulsar_sidecar.adapters.parquet.directories import open_tables
from pulsar_sidecar.adapters.parquet.inputs import read_table
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.features.audit.results.tables import NODES, Table
from pulsar_sidecar.features.audit.sources.listing import ledgers_among, list_ledgers
from pulsar_sidecar.features.audit.sources.manifests import InputKind, Manifest, NewestWrite, RowCounts
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import ledger_path

from tests.fakes.clock import START_MS, FakeClock
from tests.unit.audit.sources import INSTANCE_ID, Ledgers, node


def make(directory: Path, source: Ledgers, *, with_metadata: bool = False) -> Manifest:
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
    made = make(tmp_path / "listing", Ledgers(rows), with_metadata=True)
    assert open_tables(tmp_path / "listing", InputKind.LISTING) == made
    assert (made.instance_id, made.as_of, made.left_out) == (INSTANCE_ID, NewestWrite(30, START_MS), ())
    assert made.counts == {"ledgers": RowCounts(2, 1)}
    found = read_table(tmp_path / "listing", Table.LEDGERS).to_pylist()
    assert [{key: value for key, value in row.items() if value is not None} for row in found] == rows
    assert make(tmp_path / "ids", Ledgers([{"ledger_id": 1}])).left_out == ("metadata",)


def test_an_empty_or_unfinished_listing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match="the source lists no ledger"):
        make(tmp_path / "listing", Ledgers([]))
    with pytest.raises(TemporaryError, match="broke off"):
        make(tmp_path / "listing", Ledgers([{"ledger_id": 1}], TemporaryError("broke off")))
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
