"""What Spark's Python workers do with rows after the first pass: functions from Arrow batches to Arrow batches.

Invariant: every value comes from `audit`, which the embedded engine calls too; here rows only change form.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pulsar_sidecar.audit.arrays import NO_LEDGER, IdTable, LedgerSets, Mask, Numbers
from pulsar_sidecar.audit.columnar.reader import ColumnReader
from pulsar_sidecar.audit.engine.candidates import Claimed, OwnerNode, owner_nodes, owner_nodes_at, read_candidate
from pulsar_sidecar.audit.engine.judging import (
    LISTED,
    NODE_METADATA_COLUMNS,
    Judge,
    as_listed,
    earlier_looks,
    judge_cases,
    number_deletable,
    read_cases,
    sizes_of,
    withheld,
)
from pulsar_sidecar.audit.results.formatting import age_label
from pulsar_sidecar.audit.results.plans import block_digest
from pulsar_sidecar.audit.results.tables import ORPHAN_LEDGERS
from pulsar_sidecar.ledger_ownership.paths import ledger_path
from pulsar_sidecar.model.ids import LedgerId
from pyspark import TaskContext

from pyspark_jobs.orphan_ledgers.first_pass import IDS, Batches, Task
from pyspark_jobs.orphan_ledgers.id_sets import union, write_ids
from pyspark_jobs.orphan_ledgers.packing import pack_shares, shares_of_ledgers
from pyspark_jobs.orphan_ledgers.schemas import spark_schema

COMPARED = (
    "candidates binary, missing binary, candidate_ledgers bigint, missing_ledgers bigint, part bigint, "
    "listed bigint, in_dump bigint, referenced bigint, newest bigint"
)
READ_LEDGERS = (
    "ledger_id bigint, metadata binary, version bigint, ctime_ms bigint, czxid bigint, mzxid bigint, "
    "unreadable string, owner_path string, topic_path string, part bigint, content binary"
)
"""Candidates, a row each; and of the share ``part`` the `SIZES` of other ledgers, packed as ``content``."""
_OWNERS = pa.schema(
    [
        pa.field("path", pa.string()),
        *(pa.field(name, pa.int64()) for name in ("version", "mzxid", "ledgers", "first_ledger", "last_ledger")),
        pa.field("offloaded", pa.list_(pa.int64())),
    ]
)
OWNERS = spark_schema(_OWNERS)
_READ_LEDGERS = pa.schema(
    [
        *(pa.field(name, pa.int64() if name != "metadata" else pa.binary()) for name in ("ledger_id", "metadata")),
        *(pa.field(name, pa.int64()) for name in ("version", "ctime_ms", "czxid", "mzxid")),
        pa.field("unreadable", pa.string()),
        pa.field("owner_path", pa.string()),
        pa.field("topic_path", pa.string()),
        pa.field("part", pa.int64()),
        pa.field("content", pa.binary()),
    ]
)
_WANTED = pa.schema([pa.field("ledger_id", pa.int64()), pa.field("path", pa.string())])
WANTED = "ledger_id bigint, path string"


def compare_task(listed_tag: str, dumped_tag: str, own_ledgers: bool) -> Callable[[pa.Table], pa.Table]:
    """One range of ids: which are candidates, which are missing, and how many there are."""

    def task(facts: pa.Table) -> pa.Table:
        number = facts.column("part")[0].as_py()
        written = by_tag(facts, listed_tag, dumped_tag, IDS)
        listed, referenced = union(number, written[listed_tag]), union(number, written[IDS])
        sets = LedgerSets([listed], union(number, written[dumped_tag]) if own_ledgers else listed)
        sets.refer(referenced)
        candidates, missing = sets.candidates(), sets.gone()
        row = {
            "candidates": write_ids(candidates),
            "missing": write_ids(missing),
            "candidate_ledgers": len(candidates),
            "missing_ledgers": len(missing),
            "part": number,
            "listed": sets.listed,
            "in_dump": sets.in_dump(),
            "referenced": sets.referenced_and_listed(),
            "newest": sets.newest(),
        }
        return pa.Table.from_pylist([row])

    return task


def ids_task(column: str, root: str) -> Task:
    """A column of sets of ids to ledgers and the paths of their nodes (`WANTED`)."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield _wanted(union(row["part"], [row[column]]).tolist(), root)

    return task


# --- ledgers that were looked up -----------------------------------------------------------------------------------


def read_ledgers_task(columns: ColumnReader, root: str, shares: int) -> Task:
    """Rows of ledgers with ``is_candidate`` to `READ_LEDGERS`."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            chosen = batch.column("is_candidate").to_numpy(zero_copy_only=False)
            listed = _listed(columns, batch, root)
            yield from _read(columns, listed, chosen, ~chosen, shares)

    return task


def choose_ledgers_task(columns: ColumnReader, root: str, candidates: Numbers, named: Numbers, shares: int) -> Task:
    """Rows of all ledgers to `READ_LEDGERS` of these."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        are_candidates, are_named = IdTable(candidates), IdTable(named)
        for batch in batches:
            listed = _listed(columns, batch, root)
            ids = listed.column("ledger_id").fill_null(NO_LEDGER).to_numpy()
            yield from _read(columns, listed, are_candidates.holds(ids), are_named.holds(ids), shares)

    return task


def choose_owners_task(columns: ColumnReader, paths: pa.Array) -> Task:
    """All nodes to `OWNERS` of those at these paths."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _owners(owner_nodes_at(columns, paths, batch))

    return task


def owner_nodes_task(columns: ColumnReader) -> Task:
    """Nodes to `OWNERS`."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _owners(owner_nodes(columns, batch))

    return task


def judge_task(judge: Judge) -> Task:
    """Candidates, with their owners' nodes and the earlier look, to rows of orphans and unattributed ledgers."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = batch.to_pylist()
            nodes = {node.path: node for row in rows for node in _owners_beside(row)}
            earlier = earlier_looks(pa.Table.from_pylist(_looks_beside(rows), _EARLIER))
            for number, judged in enumerate(judge_cases(judge, read_cases(batch), nodes, earlier)):
                yield _judged(judged, is_orphan=number == 0)

    return task


_EARLIER = pa.schema(
    [pa.field(name, pa.int64()) for name in ("ledger_id", "version", "czxid", "mzxid", "first_seen_ms")]
)


def _looks_beside(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = ("version", "czxid", "mzxid", "first_seen_ms")
    return [
        {"ledger_id": row["ledger_id"], **{name: row[f"earlier_{name}"] for name in names}}
        for row in rows
        if row["earlier_ledger_id"] is not None
    ]


def _owners_beside(row: Mapping[str, Any]) -> Iterator[OwnerNode]:
    for prefix in ("owner", "topic"):
        if row[f"{prefix}_node_path"] is not None:
            node = {name: row[f"{prefix}_node_{name}"] for name in _OWNERS.names}
            yield OwnerNode(**{**node, "offloaded": tuple(node["offloaded"])})


def _judged(rows: pa.RecordBatch, *, is_orphan: bool) -> pa.RecordBatch:
    names = [*ORPHAN_LEDGERS.names, "age", "is_orphan"]
    count = rows.num_rows
    there = set(rows.schema.names)
    columns = [
        rows.column(name) if name in there else pa.nulls(count, ORPHAN_LEDGERS.field(name).type)
        for name in ORPHAN_LEDGERS.names
    ]
    ages = pa.array([age_label(age_ms) for age_ms in rows.column("age_ms").to_pylist()], pa.string())
    return pa.RecordBatch.from_arrays([*columns, ages, pa.repeat(is_orphan, count)], names=names)


def withhold_task(guards: str) -> Task:
    """Orphans to the same with no condemned ones."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from withheld(_orphans(batch), guards).to_batches()

    return task


def number_task(first_rows: Mapping[int, int]) -> Task:
    """Ordered orphans to the same, numbered; ``first_rows`` tells where each of Spark's partitions begins."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        first = first_rows.get(context.partitionId(), 0)
        for batch in batches:
            for part in _orphans(batch).to_batches():
                numbered = number_deletable(part, first)
                first += numbered.num_rows - numbered.column("row").null_count
                yield numbered

    return task


def _orphans(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch.select(ORPHAN_LEDGERS.names)]).cast(ORPHAN_LEDGERS)


def block_task(block: pa.Table) -> pa.Table:
    """The condemned rows of one block of a plan to its digest."""
    rows = block.select(ORPHAN_LEDGERS.names).cast(ORPHAN_LEDGERS).sort_by("row").combine_chunks().to_batches()[0]
    return pa.Table.from_pylist([{"block": block.column("block")[0].as_py(), "digest": block_digest(rows)}])


# --- forms ---------------------------------------------------------------------------------------------------------


def _wanted(ledger_ids: list[int], root: str) -> pa.RecordBatch:
    paths = [ledger_path(LedgerId(ledger_id), root) for ledger_id in ledger_ids]
    return pa.RecordBatch.from_arrays([pa.array(ledger_ids, pa.int64()), pa.array(paths, pa.string())], schema=_WANTED)


def _listed(columns: ColumnReader, batch: pa.RecordBatch, root: str) -> pa.RecordBatch:
    """Rows of a listing; nodes of ledgers become such rows."""
    if "path" not in batch.schema.names:
        return batch
    return as_listed(columns.ledger_ids(batch.column("path"), root), batch.select(list(NODE_METADATA_COLUMNS)))


def _read(
    columns: ColumnReader, listed: pa.RecordBatch, are_candidates: Mask, are_named: Mask, shares: int
) -> Iterator[pa.RecordBatch]:
    """`READ_LEDGERS` of some rows of a listing."""
    sizes = sizes_of(columns, listed.filter(pa.array(are_named)))
    packed = pack_shares(sizes, shares_of_ledgers(sizes.column("ledger_id").to_numpy(), shares))
    candidates = listed.filter(pa.array(are_candidates)).select(LISTED.names).to_pylist()
    rows = [*({"part": part, "content": each} for part, each in packed), *map(_candidate, candidates)]
    yield pa.RecordBatch.from_pylist(rows, schema=_READ_LEDGERS)


def _owners(nodes: Iterable[OwnerNode]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([node.row() for node in nodes], schema=_OWNERS)


def _candidate(row: dict[str, Any]) -> dict[str, Any]:
    reading = read_candidate(row)
    if not isinstance(reading, Claimed):
        return row
    return {**row, "owner_path": reading.owner_path, "topic_path": reading.topic_path}


def by_tag(share: pa.Table, *tags: str) -> dict[str, list[bytes]]:
    """What was packed under each of these tags."""
    packed: dict[str, list[bytes]] = {tag: [] for tag in tags}
    for row in share.select(["tag", "content"]).to_pylist():
        packed[row["tag"]].append(row["content"])
    return packed
