"""The hash of a plan: the same however the rows were cut, another for every change that matters."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.audit.results.plans import (
    PLAN_BLOCK_ROWS,
    PLAN_COLUMNS,
    PlanDigest,
    block_digest,
    plan_digest,
)
from pulsar_sidecar.features.audit.results.tables import ORPHAN_LEDGERS
from pulsar_sidecar.model.errors import InvalidInputError

from tests.unit.audit.findings import AUDIT_ID, INSTANCE_ID, orphan, orphan_table, plan_of

_ROWS = [orphan(number, cursor_name="sub-é" if number % 3 else None) for number in range(40)]
_TABLE = orphan_table(_ROWS)


@given(st.integers(1, 41))
def test_the_hash_does_not_depend_on_batches(rows: int) -> None:
    assert plan_of(_TABLE, rows=rows) == plan_of(_TABLE)


@pytest.mark.parametrize("count", [PLAN_BLOCK_ROWS - 1, PLAN_BLOCK_ROWS, PLAN_BLOCK_ROWS + 1, 2 * PLAN_BLOCK_ROWS])
def test_blocks_hashed_apart_give_the_same_plan(count: int) -> None:
    table = orphan_table([orphan(number) for number in range(count)])
    whole = table.combine_chunks().to_batches()[0]
    blocks = [block_digest(whole.slice(first, PLAN_BLOCK_ROWS)) for first in range(0, count, PLAN_BLOCK_ROWS)]
    plan = plan_of(table, rows=1009)
    assert plan_digest(AUDIT_ID, INSTANCE_ID, count, blocks) == plan.sha256
    assert plan == plan_of(table, rows=10**6)


@pytest.mark.parametrize(("first", "rows"), [(1, 3), (0, PLAN_BLOCK_ROWS + 1)])
def test_incomplete_block_is_refused(first: int, rows: int) -> None:
    whole = orphan_table([orphan(number) for number in range(PLAN_BLOCK_ROWS + 5)]).combine_chunks().to_batches()[0]
    with pytest.raises(InvalidInputError, match="not a block"):
        block_digest(whole.slice(first, rows))


def test_the_plan_counts_rows_and_known_bytes() -> None:
    plan = plan_of(orphan_table([orphan(1), orphan(2, length_bytes=None), orphan(3, standing="changed")]))
    assert (plan.rows, plan.bytes) == (2, 1001)


def test_an_empty_plan_has_a_hash_of_its_own() -> None:
    assert plan_of(orphan_table([])).rows == 0
    assert plan_of(orphan_table([])).sha256 != plan_of(orphan_table([]), audit_id="another").sha256


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "cursor"},
        {"topic": "persistent://public/default/other"},
        {"topic": None},
        {"managed_ledger": None},
        {"cursor_name": ""},
        {"schema_id": "a/b/c"},
        {"length_bytes": 0},
        {"length_bytes": None},
        {"ctime_ms": 1},
        {"version": 2},
        {"czxid": 1},
        {"mzxid": None},
        {"ledger_id": 5},
    ],
)
def test_every_column_of_the_plan_counts(change: dict[str, Any]) -> None:
    rows = [orphan(3, length_bytes=7), orphan(6)]
    before = plan_of(orphan_table(rows))
    assert plan_of(orphan_table([rows[0], rows[1] | change])).sha256 != before.sha256


def test_text_that_moves_from_one_row_to_the_next_is_another_plan() -> None:
    before = plan_of(orphan_table([orphan(1, topic="ab"), orphan(2, topic="c")]))
    after = plan_of(orphan_table([orphan(1, topic="a"), orphan(2, topic="bc")]))
    assert before.sha256 != after.sha256


def test_the_audit_and_the_ledger_storage_count() -> None:
    hashes = {
        plan_of(orphan_table(_ROWS)).sha256,
        plan_of(orphan_table(_ROWS), audit_id="x").sha256,
        plan_of(orphan_table(_ROWS), instance_id="x").sha256,
    }
    assert len(hashes) == 3


def test_the_hash_stays_what_it_was_in_earlier_versions() -> None:
    # A plan that was approved before an upgrade must be the same after it.
    assert plan_of(orphan_table([orphan(1), orphan(2, cursor_name="sub", topic=None)])).sha256 == (
        "11524f3d1ddffd5f68913cbdf8e6672d9267e03e3221ef23de543d98855f73c3"
    )


def test_only_the_columns_of_the_plan_are_needed_and_no_rows_add_nothing() -> None:
    digest = PlanDigest(AUDIT_ID, INSTANCE_ID)
    (rows,) = _TABLE.select(PLAN_COLUMNS).combine_chunks().to_batches()
    digest.add(rows)
    digest.add(rows.slice(13, 0))
    assert digest.plan() == plan_of(_TABLE)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([orphan(1, row=0), orphan(2, row=1, standing="changed")], "not deletable"),
        ([orphan(1, row=1)], "not numbered without a gap"),
        ([orphan(1, row=0), orphan(2, row=2)], "not numbered without a gap"),
        ([orphan(1, row=0), orphan(2, row=None)], "not numbered without a gap"),
        ([orphan(2, row=0), orphan(1, row=1)], "not in the order"),
        ([orphan(2, row=0), orphan(2, row=1)], "not in the order"),
    ],
)
def test_rows_that_are_no_plan_are_refused(rows: list[dict[str, Any]], message: str) -> None:
    batch = pa.RecordBatch.from_pylist(rows, ORPHAN_LEDGERS)
    with pytest.raises(InvalidInputError, match=message):
        PlanDigest(AUDIT_ID, INSTANCE_ID).add(batch)


def test_order_is_demanded_across_batches() -> None:
    digest = PlanDigest(AUDIT_ID, INSTANCE_ID)
    digest.add(pa.RecordBatch.from_pylist([orphan(5, row=0)], ORPHAN_LEDGERS))
    with pytest.raises(InvalidInputError, match="not in the order"):
        digest.add(pa.RecordBatch.from_pylist([orphan(5, row=1)], ORPHAN_LEDGERS))
