"""What Spark's Python workers do with rows after the first pass: functions from Arrow batches to Arrow batches.

Invariant: every value comes from `service.audit`, which the embedded engine calls too; here rows only change form.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from pyspark_jobs.orphan_ledgers.first_pass import IDS, LOADED, OTHER, OTHERS, USAGE, Batches, Task
from pyspark_jobs.orphan_ledgers.id_sets import union, write_ids
from pyspark_jobs.orphan_ledgers.packing import pack, pack_shares, shares_of_ledgers, shares_of_topics, unpack
from pyspark_jobs.orphan_ledgers.schemas import spark_schema
from service.audit.ages import age_label
from service.audit.batch_work import (
    LISTED,
    NO_LEDGER,
    SIZES,
    as_listed,
    lists_naming,
    newest_sizes,
    owner_nodes,
    owner_nodes_at,
    sizes_of,
)
from service.audit.candidates import Claimed, read_candidate
from service.audit.causes import OwnerNode
from service.audit.findings import (
    NODE_METADATA_COLUMNS,
    earlier_looks,
    judge_cases,
    number_condemned,
    read_cases,
    withheld,
)
from service.audit.id_tables import IdTable
from service.audit.judging import Judge
from service.audit.ledger_ids import ledger_ids
from service.audit.ledger_sets import LedgerSets
from service.audit.missing import missing_row
from service.audit.plans import block_digest
from service.audit.tables import MISSING_LEDGERS, ORPHAN_LEDGERS, LedgerKind
from service.audit.usage import NAMED_USAGE, counts_of_usage, usage_table
from service.audit.varints import Mask, Numbers
from service.ledger_ownership.paths import ledger_path
from service.model.ids import LedgerId

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
_SHARES = pa.schema([pa.field("tag", pa.string()), pa.field("part", pa.int64()), pa.field("content", pa.binary())])
SHARES = "tag string, part bigint, content binary"
SIZE = "size"
USAGE_SHARES = "content binary"
COUNTED_USAGE = ("kind", "tenant")
_COUNTS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("column", "value")),
        *(pa.field(name, pa.int64()) for name in ("ledgers", "bytes")),
    ]
)
COUNTS = "column string, value string, ledgers bigint, bytes bigint"


def compare_task(listed_tag: str, dumped_tag: str, own_ledgers: bool) -> Callable[[pa.Table], pa.Table]:
    """One range of ids: which are candidates, which are missing, and how many there are."""

    def task(facts: pa.Table) -> pa.Table:
        number = facts.column("part")[0].as_py()
        written = _by_tag(facts, listed_tag, dumped_tag, IDS)
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


def read_ledgers_task(root: str, shares: int) -> Task:
    """Rows of ledgers with ``is_candidate`` to `READ_LEDGERS`."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            chosen = batch.column("is_candidate").to_numpy(zero_copy_only=False)
            listed = _listed(batch, root)
            yield from _read(listed, chosen, ~chosen, shares)

    return task


def choose_ledgers_task(root: str, candidates: Numbers, named: Numbers, shares: int) -> Task:
    """Rows of all ledgers to `READ_LEDGERS` of these."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        are_candidates, are_named = IdTable(candidates), IdTable(named)
        for batch in batches:
            listed = _listed(batch, root)
            ids = listed.column("ledger_id").fill_null(NO_LEDGER).to_numpy()
            yield from _read(listed, are_candidates.holds(ids), are_named.holds(ids), shares)

    return task


def choose_owners_task(paths: pa.Array) -> Task:
    """All nodes to `OWNERS` of those at these paths."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _owners(owner_nodes_at(paths, batch))

    return task


def owner_nodes_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Nodes to `OWNERS`."""
    for batch in batches:
        yield _owners(owner_nodes(batch))


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


def unpack_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """What was packed as ``content``."""
    for batch in batches:
        yield from unpack(batch.column("content").to_pylist())


def singles_about_task(wanted: Numbers) -> Task:
    """Packed `first_pass.OTHERS` to those that name one of these ledgers or a compacted one."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        table = IdTable(wanted)
        for singles in unpack_task(batches):
            is_wanted = pa.array(table.holds(singles.column("ledger_id").to_numpy()))
            yield singles.filter(pc.or_(is_wanted, pc.equal(singles.column("kind"), LedgerKind.COMPACTED.value)))

    return task


def singles_usage_task(gone: Numbers, shares: int) -> Callable[[pa.Table], pa.Table]:
    """One share of single references and of ledgers' sizes (`SHARES`) to `SHARES` of usage, without what is gone."""

    def task(share: pa.Table) -> pa.Table:
        packed = _by_tag(share, OTHER, SIZE)
        every = pa.Table.from_batches(unpack(packed[OTHER]), OTHERS).group_by(OTHERS.names).aggregate([])
        singles = every.filter(pa.array(~IdTable(gone).holds(every.column("ledger_id").to_numpy())))
        sizes = newest_sizes(pa.Table.from_batches(unpack(packed[SIZE]), SIZES))
        places = pc.index_in(singles.column("ledger_id"), value_set=sizes.column("ledger_id").combine_chunks())
        lengths = sizes.column("length").take(places)
        return pa.Table.from_batches(
            [_usage_of_each(batch, 1, shares) for batch in singles.append_column("size", lengths).to_batches()],
            _SHARES,
        )

    return task


def usage_taken_off_task(shares: int) -> Task:
    """Rows of missing ledgers to `SHARES` of usage below zero."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        return (_usage_of_each(batch, -1, shares) for batch in batches)

    return task


def _usage_of_each(rows: pa.RecordBatch, sign: int, shares: int) -> pa.RecordBatch:
    """`SHARES` of usage: a ledger for each row, which has an owner and a ``size`` (null: unknown)."""
    size = rows.column("size")
    sums = (pa.repeat(1, rows.num_rows), size.fill_null(0), size.is_null().cast(pa.int64()))
    keys = (rows.column(name) for name in NAMED_USAGE.names[: -len(sums)])
    usage = pa.RecordBatch.from_arrays([*keys, *(pc.multiply(each, sign) for each in sums)], schema=NAMED_USAGE)
    packed = pack_shares(usage, shares_of_topics(usage.column("topic"), shares))
    return pa.RecordBatch.from_pylist(
        [{"tag": USAGE, "part": part, "content": content} for part, content in packed], schema=_SHARES
    )


def _by_tag(share: pa.Table, *tags: str) -> dict[str, list[bytes]]:
    packed: dict[str, list[bytes]] = {tag: [] for tag in tags}
    for row in share.select(["tag", "content"]).to_pylist():
        packed[row["tag"]].append(row["content"])
    return packed


def usage_task(share: pa.Table) -> pa.Table:
    """One share of usage and of loaded topics (`SHARES`) to one of the table of usage (`USAGE_SHARES`)."""
    packed = _by_tag(share, USAGE, LOADED)
    usage = usage_table(unpack(packed[USAGE]), unpack(packed[LOADED]))
    return pa.table({"content": pa.array([pack(batch) for batch in usage.to_batches()], pa.binary())})


def usage_counts_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """`USAGE_SHARES` to `COUNTS`."""
    for usage in unpack_task(batches):
        counts = {name: counts_of_usage(pa.Table.from_batches([usage]), name) for name in COUNTED_USAGE}
        rows = [
            {"column": name, "value": value, "ledgers": count.ledgers, "bytes": count.bytes}
            for name, by_value in counts.items()
            for value, count in by_value.items()
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_COUNTS)


def largest_usage_task(rows: int) -> Task:
    """`USAGE_SHARES` to the largest rows of each."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for usage in unpack_task(batches):
            ordered = pa.Table.from_batches([usage]).sort_by(
                [("bytes", "descending"), ("topic", "ascending"), ("kind", "ascending")]
            )
            yield from ordered.slice(0, rows).to_batches()

    return task


# --- forms ---------------------------------------------------------------------------------------------------------


def _wanted(ledger_ids: list[int], root: str) -> pa.RecordBatch:
    paths = [ledger_path(LedgerId(ledger_id), root) for ledger_id in ledger_ids]
    return pa.RecordBatch.from_arrays([pa.array(ledger_ids, pa.int64()), pa.array(paths, pa.string())], schema=_WANTED)


def _listed(batch: pa.RecordBatch, root: str) -> pa.RecordBatch:
    """Rows of a listing; nodes of ledgers become such rows."""
    if "path" not in batch.schema.names:
        return batch
    return as_listed(ledger_ids(batch.column("path"), root), batch.select(list(NODE_METADATA_COLUMNS)))


def _read(listed: pa.RecordBatch, are_candidates: Mask, are_named: Mask, shares: int) -> Iterator[pa.RecordBatch]:
    """`READ_LEDGERS` of some rows of a listing."""
    sizes = sizes_of(listed.filter(pa.array(are_named)))
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
