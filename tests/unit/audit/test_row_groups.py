from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.parquet import row_groups
from pulsar_sidecar.adapters.parquet.row_groups import RowGroup, marked_groups, work_on_group, work_on_rows
from pulsar_sidecar.bootstrap import audit_run
from pulsar_sidecar.bootstrap.audit_run import perform_audit
from pulsar_sidecar.features.audit.engine import comparing
from pulsar_sidecar.features.audit.requests import AuditRequest
from pulsar_sidecar.features.audit.results.summaries import AuditSummary

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
        for group in marked_groups(groups, positions, {})
    ]
    assert [value for values in every for value in values] == marked
    assert all(every)
    numbered = [
        work_on_rows(["value"], lambda batch: [column.to_pylist() for column in batch.columns], group)
        for group in marked_groups(groups, positions, {"tenfold": positions * 10})
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
    dump, listing = MadeUpCluster.of(5_000, orphan_share=0.01).write(tmp_path)

    def audited(name: str, *, exact: bool = False) -> tuple[dict[str, list[dict[str, Any]]], AuditSummary]:
        perform_audit(AuditRequest(dump, listing, tmp_path / name, exact=exact), lambda text: None)
        return comparable(tmp_path / name)

    alone = audited("alone")
    assert alone[0]["orphan_ledgers"]
    assert audited("exact", exact=True) == alone
    monkeypatch.setattr(audit_run, "_WORTH_WORKERS_ROWS", 0)
    assert audited("together") == alone
    monkeypatch.setattr(comparing, "_JUDGED_AT_ONCE", 3)
    assert audited("in-shares") == alone
