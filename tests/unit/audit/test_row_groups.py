import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.parquet import row_groups
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.adapters.parquet.row_groups import RowGroup, marked_groups, work_on_group, work_on_rows
from pulsar_sidecar.bootstrap import audit_run
from pulsar_sidecar.bootstrap.audit_run import perform_audit
from pulsar_sidecar.features.audit.requests import AuditRequest
from pulsar_sidecar.features.audit.results.summaries import AuditSummary
from pulsar_sidecar.features.audit.results.tables import LEDGERS, Table, schemas_of

from tests.made_audits import comparable
from tests.made_clusters import MadeUpCluster

ROWS, ROWS_OF_A_GROUP = 100, 30


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[RowGroup]:
    path = tmp_path_factory.mktemp("groups") / "table.parquet"
    pq.write_table(pa.table({"other": range(ROWS), "value": range(ROWS)}), path, row_group_size=ROWS_OF_A_GROUP)
    return [RowGroup(path, number, min(ROWS_OF_A_GROUP, ROWS - ROWS_OF_A_GROUP * number)) for number in range(4)]


@pytest.fixture(autouse=True, scope="module")
def small_batches() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_groups, "ROWS_AT_ONCE", 7)
        yield


@given(marked=st.sets(st.integers(0, ROWS - 1)).map(sorted))
def test_marked_rows_are_those_at_their_positions(groups: list[RowGroup], marked: list[int]) -> None:
    positions = np.array(marked, np.int64)
    every = [
        work_on_rows(["value"], lambda batch: batch.column(0).to_pylist(), group)
        for group in marked_groups(groups, positions)
    ]
    assert [value for values in every for value in values] == marked
    assert all(every)
    numbered = [
        work_on_rows(["value"], lambda batch: [column.to_pylist() for column in batch.columns], group)
        for group in marked_groups(groups, positions, positions * 10)
    ]
    assert [value for _, values in numbered for value in values] == marked
    assert [number for ids, _ in numbered for number in ids] == [10 * each for each in marked]


def test_columns_come_in_the_order_in_which_they_were_asked_for(groups: list[RowGroup]) -> None:
    names = work_on_group(["value", "other"], lambda batch: batch.schema.names, groups[0])
    assert names == [["value", "other"]] * 5


# --- processes and threads -----------------------------------------------------------------------------------------


def test_an_audit_is_the_same_by_processes_by_threads_and_by_the_exact_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump, listing = MadeUpCluster.of(5_000).write(tmp_path)

    def audited(name: str, *, exact: bool = False) -> tuple[dict[str, list[dict[str, Any]]], AuditSummary]:
        perform_audit(AuditRequest(dump, listing, tmp_path / name, exact=exact), lambda text: None)
        return comparable(tmp_path / name)

    alone = audited("alone")
    assert alone[0]["orphan_ledgers"]
    assert audited("exact", exact=True) == alone
    monkeypatch.setattr(audit_run, "_WORTH_WORKERS_ROWS", 0)
    assert audited("together") == alone


# --- how tables are written ----------------------------------------------------------------------------------------


def test_numbers_are_encoded_by_their_differences(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pylist([{"ledger_id": number, "version": 0} for number in range(10_000)], schema=LEDGERS)
    with parquet_output(tmp_path / "made", schemas_of(Table.LEDGERS)) as output:
        output.write(Table.LEDGERS, rows)
        output.close_tables()
        output.finish("manifest.json", {})
    (path,) = (tmp_path / "made").rglob("*.parquet")
    metadata = pq.ParquetFile(path).metadata.row_group(0)
    sizes = {metadata.column(number).path_in_schema: metadata.column(number) for number in range(metadata.num_columns)}
    assert "DELTA_BINARY_PACKED" in sizes["ledger_id"].encodings
    assert pq.read_table(path).column("ledger_id").to_pylist() == list(range(10_000))


def test_rows_are_processed_only_after_the_processes_start() -> None:
    begin = (
        "import sys, pulsar_sidecar.bootstrap.audit_run; sys.exit('pyarrow' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", begin], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_a_process_has_imported_what_works_on_rows_and_nothing_that_draws_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    with audit_run._workers(worth_it=True) as (processes, _):
        (loaded,) = processes(eval, ["set(__import__('sys').modules)"])
    engine = "pulsar_sidecar.features.audit.engine"
    assert {"pulsar_sidecar.adapters.parquet.row_groups", f"{engine}.decoding", f"{engine}.judging"} <= loaded
    assert not loaded & {"jinja2", "prometheus_client", "pyarrow.dataset", "pulsar_sidecar.adapters.parquet.inputs"}
