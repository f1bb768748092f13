"""What Spark's Python workers do with rows after the first pass: functions from Arrow batches to Arrow batches.

Invariant: every value comes from `service.audit`, which the embedded engine calls too; here rows only change form.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from pyspark_jobs.orphan_ledgers.first_pass import IDS, Batches, Task
from pyspark_jobs.orphan_ledgers.id_sets import union, write_ids
from service.audit.ages import age_label
from service.audit.batch_work import LISTED, as_listed, lists_naming, owner_nodes
from service.audit.candidates import Claimed, read_candidate
from service.audit.causes import OwnerNode
from service.audit.findings import earlier_looks, judge_cases, number_condemned, read_cases, withheld
from service.audit.judging import Judge
from service.audit.ledger_lengths import ledger_lengths
from service.audit.ledger_sets import LedgerSets
from service.audit.missing import missing_row
from service.audit.plans import block_digest
from service.audit.tables import MISSING_LEDGERS, ORPHAN_LEDGERS
from service.audit.varints import Numbers
from service.ledger_ownership.paths import ledger_path
from service.model.ids import LedgerId

COMPARED = (
    "candidates binary, missing binary, candidate_ledgers bigint, missing_ledgers bigint, range_id bigint, "
    "listed bigint, in_dump bigint, referenced bigint, newest bigint"
)
READ_LEDGERS = (
    "ledger_id bigint, metadata binary, version bigint, ctime_ms bigint, czxid bigint, mzxid bigint, "
    "unreadable string, is_candidate boolean, length bigint, owner_path string, topic_path string"
)
OWNERS = "path string, version bigint, mzxid bigint, ledgers bigint, first_ledger bigint, last_ledger bigint"
_OWNERS = pa.schema(
    [
        pa.field(name, pa.string() if name == "path" else pa.int64())
        for name in ("path", "version", "mzxid", "ledgers", "first_ledger", "last_ledger")
    ]
)
_READ = pa.schema(
    [
        *(pa.field(name, pa.int64() if name != "metadata" else pa.binary()) for name in ("ledger_id", "metadata")),
        *(pa.field(name, pa.int64()) for name in ("version", "ctime_ms", "czxid", "mzxid")),
        pa.field("unreadable", pa.string()),
        pa.field("is_candidate", pa.bool_()),
        pa.field("length", pa.int64()),
        pa.field("owner_path", pa.string()),
        pa.field("topic_path", pa.string()),
    ]
)
_WANTED = pa.schema([pa.field("ledger_id", pa.int64()), pa.field("path", pa.string())])
WANTED = "ledger_id bigint, path string"


def compare_task(listed_tag: str, dumped_tag: str, own_ledgers: bool) -> Callable[[pa.Table], pa.Table]:
    """One range of ids: which are candidates, which are missing, and how many there are."""

    def task(facts: pa.Table) -> pa.Table:
        number = facts.column("range_id")[0].as_py()
        written: dict[str, list[bytes]] = {listed_tag: [], dumped_tag: [], IDS: []}
        for row in facts.select(["tag", "ids"]).to_pylist():
            written[row["tag"]].append(row["ids"])
        listed, referenced = union(number, written[listed_tag]), union(number, written[IDS])
        sets = LedgerSets(listed, union(number, written[dumped_tag]) if own_ledgers else listed, referenced)
        candidates, missing = sets.dumped[sets.candidates()], sets.gone()
        row = {
            "candidates": write_ids(candidates),
            "missing": write_ids(missing),
            "candidate_ledgers": len(candidates),
            "missing_ledgers": len(missing),
            "range_id": number,
            "listed": len(sets.listed),
            "in_dump": sets.in_dump(),
            "referenced": sets.referenced_and_listed(),
            "newest": sets.newest(),
        }
        return pa.Table.from_pylist([row])

    return task


def ids_task(column: str, root: str) -> Task:
    """`COMPARED` to ledgers and the paths of their nodes (`WANTED`)."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield _wanted(union(row["range_id"], [row[column]]).tolist(), root)

    return task


def paths_task(root: str) -> Task:
    """Ledger ids to `WANTED`."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _wanted(batch.column("ledger_id").to_pylist(), root)

    return task


# --- ledgers that were looked up -----------------------------------------------------------------------------------


def read_ledgers_task(root: str) -> Task:
    """Rows of ledgers with ``is_candidate`` to `READ_LEDGERS`."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            chosen = batch.column("is_candidate")
            listed = as_listed(batch, root) if "path" in batch.schema.names else batch
            yield _sized(listed.filter(pc.invert(chosen)))
            candidates = listed.filter(chosen).select(LISTED.names).to_pylist()
            yield pa.RecordBatch.from_pylist([_candidate(row) for row in candidates], schema=_READ)

    return task


def owner_nodes_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Nodes to `OWNERS`."""
    for batch in batches:
        yield pa.RecordBatch.from_pylist([node.row() for node in owner_nodes(batch)], schema=_OWNERS)


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
            yield OwnerNode(*(row[f"{prefix}_node_{name}"] for name in _OWNERS.names))


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
                numbered = number_condemned(part, first)
                first += numbered.num_rows - numbered.column("row").null_count
                yield numbered

    return task


def _orphans(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch.select(ORPHAN_LEDGERS.names)]).cast(ORPHAN_LEDGERS)


def block_task(block: pa.Table) -> pa.Table:
    """The condemned rows of one block of a plan to its digest."""
    rows = block.select(ORPHAN_LEDGERS.names).cast(ORPHAN_LEDGERS).sort_by("row").combine_chunks().to_batches()[0]
    return pa.Table.from_pylist([{"block": block.column("block")[0].as_py(), "digest": block_digest(rows)}])


# --- missing ledgers and usage -------------------------------------------------------------------------------------


def lists_naming_task(wanted: Numbers) -> Task:
    """Nodes to rows of missing ledgers, of which their lists name some."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield _missing(lists_naming(wanted, batch).to_pylist())

    return task


def missing_rows_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Single references to missing ledgers to rows of their table."""
    for batch in batches:
        yield _missing([{**row, "entries": None, "size_bytes": None} for row in batch.to_pylist()])


def _missing(references: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([missing_row(row) for row in references], schema=MISSING_LEDGERS)


# --- forms ---------------------------------------------------------------------------------------------------------


def _wanted(ledger_ids: list[int], root: str) -> pa.RecordBatch:
    paths = [ledger_path(LedgerId(ledger_id), root) for ledger_id in ledger_ids]
    return pa.RecordBatch.from_arrays([pa.array(ledger_ids, pa.int64()), pa.array(paths, pa.string())], schema=_WANTED)


def _candidate(row: dict[str, Any]) -> dict[str, Any]:
    reading = read_candidate(row)
    if not isinstance(reading, Claimed):
        return {**row, "is_candidate": True}
    return {**row, "is_candidate": True, "owner_path": reading.owner_path, "topic_path": reading.topic_path}


def _sized(ledgers: pa.RecordBatch) -> pa.RecordBatch:
    count = ledgers.num_rows
    lengths = ledger_lengths(ledgers.column("metadata"))
    columns = {name: ledgers.column(name) for name in ("ledger_id", "version", "ctime_ms", "czxid", "mzxid")}
    columns |= {"is_candidate": pa.repeat(False, count), "length": lengths}
    arrays = [columns[each.name] if each.name in columns else pa.nulls(count, each.type) for each in _READ]
    return pa.RecordBatch.from_arrays(arrays, schema=_READ)
