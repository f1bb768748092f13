"""Tasks of Spark's Python workers after the first pass: functions from Arrow batches to Arrow batches.

Invariant: every value comes from `audit`, which the embedded engine calls too; this module only converts rows.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pulsar_sidecar.features.audit.arrays import NO_LEDGER, IdTable, LedgerSets, Mask, Numbers
from pulsar_sidecar.features.audit.columnar.reader import SINGLES, ColumnReader
from pulsar_sidecar.features.audit.engine.candidates import (
    ClaimedLedger,
    OwnerNode,
    owner_nodes,
    path_marks,
    read_candidate,
)
from pulsar_sidecar.features.audit.engine.decoding import lists_naming
from pulsar_sidecar.features.audit.engine.judging import (
    EARLIER_COLUMNS,
    LISTED,
    SIZES,
    WRITES,
    Judge,
    judge_cases,
    newest_sizes,
    number_deletable,
    read_cases,
    sizes_of,
    withhold_deletable,
)
from pulsar_sidecar.features.audit.engine.leftover_nodes import PRESENT, present_paths, schemas_without_ledgers
from pulsar_sidecar.features.audit.engine.offloaded import COPIES, ComparedCopies, OffloadFacts, compare_tables
from pulsar_sidecar.features.audit.engine.usage import (
    counts_of_usage,
    missing_rows,
    negative_usage,
    single_usage,
    usage_table,
)
from pulsar_sidecar.features.audit.results.plans import block_digest
from pulsar_sidecar.features.audit.results.tables import OFFLOADED_LEDGERS, OFFLOADED_OBJECTS, ORPHAN_LEDGERS
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.reports.audit_pages import age_label
from pulsar_sidecar.reports.schemas import schema_of
from pyspark import TaskContext

from pyspark_jobs.orphan_ledgers import first_pass
from pyspark_jobs.orphan_ledgers.forms import (
    IdSets,
    PackedIds,
    shares_of_ledgers,
    shares_of_topics,
    union,
    write_ids,
)
from pyspark_jobs.running.tasks import Batches, each_batch, group_by_tag, pack, pack_shares, unpack, unpacked

COMPARED = schema_of("""
    candidates binary, missing binary, named binary, candidate_ledgers bigint, missing_ledgers bigint, part bigint,
    listed bigint, in_dump bigint, referenced bigint, newest bigint, packed_bytes bigint
""")
WANTED = schema_of("ledger_id bigint, path string")
READ_LEDGERS = schema_of("""
    ledger_id bigint, metadata binary, version bigint, ctime_ms bigint, czxid bigint, mzxid bigint, unreadable string,
    owner_path string, topic_path string, part bigint, content binary
""")
"""Candidates, a row each; and `SIZES` of other ledgers, packed as ``content`` of the share ``part``."""
_OWNERS = schema_of(
    "path string, version bigint, mzxid bigint, ledgers bigint, first_ledger bigint, last_ledger bigint"
)
OWNERS = pa.schema([*_OWNERS, pa.field("offloaded", pa.list_(pa.int64()))])
JUDGED = pa.schema([*ORPHAN_LEDGERS, *schema_of("age string, is_orphan boolean")])
SHARES = schema_of("tag string, part bigint, content binary")
SETS = schema_of("part bigint, content binary")
SIZE, USE = "size", "use"
USAGE_SHARES = schema_of("content binary")
COUNTED_USAGE = ("kind", "tenant")
SUMS = ("ledgers", "bytes", "unknown_size_ledgers")
USAGE_COUNTS = schema_of("column string, value string, ledgers bigint, bytes bigint, unknown_size_ledgers bigint")
DIGESTS = schema_of("block bigint, digest binary")


# --- ids -----------------------------------------------------------------------------------------------------------


def compare(facts: pa.Table, own_ledgers: bool) -> pa.Table:
    """Map one range of ids to its candidates, its missing ledgers, and their numbers (`COMPARED`)."""
    number = facts.column("part")[0].as_py()
    written = group_by_tag(facts, first_pass.LISTED, first_pass.DUMPED, first_pass.IDS, first_pass.SINGLE_IDS)
    listed = union(number, written[first_pass.LISTED])
    sets = LedgerSets([listed], union(number, written[first_pass.DUMPED]) if own_ledgers else listed)
    sets.refer(union(number, written[first_pass.IDS]))
    candidates, missing = sets.candidates(), sets.gone()
    packed, named = write_ids(candidates), write_ids(union(number, written[first_pass.SINGLE_IDS]))
    row = {
        "candidates": packed,
        "missing": write_ids(missing),
        "named": named,
        "packed_bytes": len(packed) + len(named),
        "candidate_ledgers": len(candidates),
        "missing_ledgers": len(missing),
        "part": number,
        "listed": sets.listed,
        "in_dump": sets.in_dump(),
        "referenced": sets.referenced_and_listed(),
        "newest": sets.newest(),
    }
    return pa.Table.from_pylist([row], schema=COMPARED)


def compare_copies(facts: pa.Table, judge: Judge, about: OffloadFacts, own_ledgers: bool) -> pa.Table:
    """Map the copies in tiered storage of one range of ids, and the ids, to `SHARES` of findings and of uses."""
    number = facts.column("part")[0].as_py()
    packed = group_by_tag(facts, first_pass.LISTED, first_pass.DUMPED, first_pass.COPIES, first_pass.OBJECTS)
    ids = union(number, [*packed[first_pass.LISTED], *(packed[first_pass.DUMPED] if own_ledgers else [])])
    # Of Spark's rows every column is nullable.
    rows = [
        pa.RecordBatch.from_arrays(batch.columns, schema=OFFLOADED_OBJECTS)
        for batch in unpack(packed[first_pass.OBJECTS])
    ]
    objects = pa.Table.from_batches(rows, OFFLOADED_OBJECTS)
    references = pa.Table.from_batches(unpack(packed[first_pass.COPIES]), COPIES)
    found = ComparedCopies()
    compare_tables(judge, about, found, objects, references, IdTable(ids).holds)
    findings = pa.RecordBatch.from_pylist(found.findings, schema=OFFLOADED_LEDGERS)
    tagged = ((first_pass.COPIES, findings), (USE, found.use_rows()))
    shares = [{"tag": tag, "part": number, "content": pack(batch)} for tag, batch in tagged]
    return pa.Table.from_pylist(shares, schema=SHARES)


@each_batch
def paths_of_ids(batch: pa.RecordBatch, column: str, root: str) -> Iterator[pa.RecordBatch]:
    """Map a column of sets of ids to ledgers and the paths of their nodes (`WANTED`)."""
    for row in batch.to_pylist():
        ids = union(row["part"], [row[column]]).tolist()
        paths = [ledger_path(LedgerId(ledger_id), root) for ledger_id in ids]
        yield pa.RecordBatch.from_pydict({"ledger_id": ids, "path": paths}, schema=WANTED)


# --- ledgers that were looked up -----------------------------------------------------------------------------------


@each_batch
def read_ledgers(batch: pa.RecordBatch, columns: ColumnReader, root: str, shares: int) -> Iterator[pa.RecordBatch]:
    """Map rows of ledgers with ``is_candidate`` to `READ_LEDGERS`."""
    chosen = batch.column("is_candidate").to_numpy(zero_copy_only=False)
    yield _read(columns, _listed(columns, batch, root), chosen, ~chosen, shares)


def choose_ledgers(
    batches: Batches, columns: ColumnReader, root: str, candidates: PackedIds, named: PackedIds, shares: int
) -> Iterator[pa.RecordBatch]:
    """Map rows of all ledgers to `READ_LEDGERS` of ``candidates`` and ``named``."""
    for batch in batches:
        listed = _listed(columns, batch, root)
        ids = listed.column("ledger_id").fill_null(NO_LEDGER).to_numpy()
        yield _read(columns, listed, candidates.holds(ids), named.holds(ids), shares)


def _listed(columns: ColumnReader, batch: pa.RecordBatch, root: str) -> pa.RecordBatch:
    """Convert nodes of ledgers, if they are not rows of a listing already."""
    if "path" not in batch.schema.names:
        return batch
    rows = batch.select(["value", *WRITES]).columns
    return pa.RecordBatch.from_arrays([columns.ledger_ids(batch.column("path"), root), *rows], schema=LISTED)


def _read(
    columns: ColumnReader, listed: pa.RecordBatch, are_candidates: Mask, are_named: Mask, shares: int
) -> pa.RecordBatch:
    sizes = sizes_of(columns, listed.filter(pa.array(are_named)))
    packed = pack_shares(sizes, shares_of_ledgers(sizes.column("ledger_id").to_numpy(), shares))
    candidates = listed.filter(pa.array(are_candidates)).select(LISTED.names).to_pylist()
    rows = [*({"part": part, "content": each} for part, each in packed), *map(_candidate, candidates)]
    return pa.RecordBatch.from_pylist(rows, schema=READ_LEDGERS)


def _candidate(row: dict[str, Any]) -> dict[str, Any]:
    reading = read_candidate(row)
    if not isinstance(reading, ClaimedLedger):
        return row
    return {**row, "owner_path": reading.owner_path, "topic_path": reading.topic_path}


# --- judging -------------------------------------------------------------------------------------------------------


def mark_owners(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Map paths of candidates' owners to sets of `path_marks` (`SETS`)."""
    sets = IdSets()
    for batch in batches:
        for paths in batch.columns:
            sets.add(path_marks(paths.drop_null()), "")
    yield pa.RecordBatch.from_pylist(
        [{"part": part, "content": marks} for _, part, marks in sets.taken(only_full=False)], schema=SETS
    )


def unite(share: pa.Table) -> pa.Table:
    """Map the sets of one range (`SETS`) to their union."""
    number = share.column("part")[0].as_py()
    united = write_ids(union(number, share.column("content").to_pylist()))
    return pa.Table.from_pylist([{"part": number, "content": united}], schema=SETS)


@each_batch
def read_owners(batch: pa.RecordBatch, columns: ColumnReader, marks: PackedIds) -> Iterator[pa.RecordBatch]:
    """Map nodes whose paths have these marks to `OWNERS`."""
    nodes = owner_nodes(columns, batch.filter(pa.array(marks.holds(path_marks(batch.column("path"))))))
    yield pa.RecordBatch.from_pylist([asdict(node) for node in nodes], schema=OWNERS)


@each_batch
def judge_candidates(batch: pa.RecordBatch, judge: Judge) -> Iterator[pa.RecordBatch]:
    """Map candidates, with owners' nodes and the previous audit, to rows of orphans and unattributed ledgers."""
    rows = batch.to_pylist()
    nodes = {node.path: node for row in rows for node in _owners_beside(row)}
    looks = [{name: row[f"earlier_{name}"] for name in EARLIER_COLUMNS} for row in rows]
    earlier = {look["ledger_id"]: look for look in looks if look["ledger_id"] is not None}
    for number, judged in enumerate(judge_cases(judge, read_cases(batch), nodes, earlier)):
        yield _judged(judged, is_orphan=number == 0)


def _owners_beside(row: Mapping[str, Any]) -> Iterator[OwnerNode]:
    for prefix in ("owner", "topic"):
        if row[f"{prefix}_node_path"] is not None:
            node = {name: row[f"{prefix}_node_{name}"] for name in OWNERS.names}
            yield OwnerNode(**{**node, "offloaded": tuple(node["offloaded"])})


def _judged(rows: pa.RecordBatch, *, is_orphan: bool) -> pa.RecordBatch:
    there, count = set(rows.schema.names), rows.num_rows
    columns = [
        rows.column(field.name) if field.name in there else pa.nulls(count, field.type) for field in ORPHAN_LEDGERS
    ]
    ages = pa.array([age_label(age_ms) for age_ms in rows.column("age_ms").to_pylist()], pa.string())
    return pa.RecordBatch.from_arrays([*columns, ages, pa.repeat(is_orphan, count)], names=JUDGED.names)


@each_batch
def withhold(batch: pa.RecordBatch, guards: str) -> Iterator[pa.RecordBatch]:
    """Map orphans to the same ones, none of them deletable."""
    yield from withhold_deletable(_orphans(batch), guards).to_batches()


def number_rows(batches: Batches, first_rows: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
    """Number ordered orphans; ``first_rows`` has the first number of each Spark partition."""
    context = TaskContext.get()
    assert context is not None
    first = first_rows.get(context.partitionId(), 0)
    for batch in batches:
        for part in _orphans(batch).to_batches():
            numbered = number_deletable(part, first)
            first += numbered.num_rows - numbered.column("row").null_count
            yield numbered


def digest_block(block: pa.Table) -> pa.Table:
    """Map the deletable rows of one block of a plan, whose number is their ``part``, to its digest."""
    rows = _orphans(block).sort_by("row").combine_chunks().to_batches()[0]
    return pa.Table.from_pylist([{"block": block.column("part")[0].as_py(), "digest": block_digest(rows)}])


def _orphans(rows: pa.RecordBatch | pa.Table) -> pa.Table:
    chosen = rows.select(ORPHAN_LEDGERS.names)
    table = chosen if isinstance(chosen, pa.Table) else pa.Table.from_batches([chosen])
    return table.cast(ORPHAN_LEDGERS)


# --- nodes with dangling references --------------------------------------------------------------------------------


@each_batch
def find_paths(batch: pa.RecordBatch, wanted: pa.Array) -> Iterator[pa.RecordBatch]:
    """Map nodes to those at these paths (`PRESENT`)."""
    yield present_paths(wanted, batch)


@each_batch
def find_schemas(batch: pa.RecordBatch, wanted: Sequence[str], gone: Numbers) -> Iterator[pa.RecordBatch]:
    """Map nodes to those of these schemas that name only missing ledgers."""
    paths = schemas_without_ledgers(wanted, gone, batch)
    yield pa.RecordBatch.from_pylist([{"path": path, "unreadable": False} for path in paths], schema=PRESENT)


# --- missing ledgers and usage -------------------------------------------------------------------------------------


@each_batch
def missing_of_lists(batch: pa.RecordBatch, columns: ColumnReader, wanted: Numbers) -> Iterator[pa.RecordBatch]:
    """Map nodes to rows of the missing ledgers that their lists name."""
    if batch.num_rows:
        yield missing_rows(lists_naming(columns, wanted, batch).to_pylist())


@each_batch
def missing_of_singles(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Map single references to missing ledgers to rows of the table."""
    yield missing_rows({**row, "entries": None, "size_bytes": None} for row in batch.to_pylist())


def singles_about(batches: Batches, wanted: Numbers) -> Iterator[pa.RecordBatch]:
    """Map packed `SINGLES` to those that name one of these ledgers or a compacted one."""
    table = IdTable(wanted)
    for singles in unpacked(batches):
        is_wanted = pa.array(table.holds(singles.column("ledger_id").to_numpy()))
        yield singles.filter(pc.or_(is_wanted, pc.equal(singles.column("kind"), LedgerKind.COMPACTED.value)))


def usage_of_singles(share: pa.Table, columns: ColumnReader, gone: Numbers, shares: int) -> pa.Table:
    """Map a share of references and their ledgers' sizes (`SHARES`) to `SHARES` of usage, without missing ledgers."""
    packed = group_by_tag(share, *first_pass.REFERENCES, SIZE)
    named = pa.Table.from_batches(unpack(each for tag in first_pass.REFERENCES for each in packed[tag]), SINGLES)
    every = named.group_by(SINGLES.names).aggregate([])
    singles = every.filter(pa.array(~IdTable(gone).holds(every.column("ledger_id").to_numpy())))
    sizes = newest_sizes(pa.Table.from_batches(unpack(packed[SIZE]), SIZES))
    return pa.Table.from_batches([_usage_shares(single_usage(columns, singles, sizes), shares)])


@each_batch
def subtract_usage(batch: pa.RecordBatch, columns: ColumnReader, shares: int) -> Iterator[pa.RecordBatch]:
    """Map missing ledgers' ``kind``, ``path`` and ``size_bytes`` to `SHARES` of negative usage."""
    yield _usage_shares(negative_usage(columns, batch), shares)


def _usage_shares(usage: pa.RecordBatch, shares: int) -> pa.RecordBatch:
    packed = pack_shares(usage, shares_of_topics(usage.column("topic"), shares))
    rows = [{"tag": first_pass.USAGE, "part": part, "content": content} for part, content in packed]
    return pa.RecordBatch.from_pylist(rows, schema=SHARES)


def sum_usage(share: pa.Table, shadows: Collection[str]) -> pa.Table:
    """Map a share of usage and of loaded topics (`SHARES`) to a share of the usage table (`USAGE_SHARES`)."""
    packed = group_by_tag(share, first_pass.USAGE, first_pass.LOADED)
    usage = usage_table(unpack(packed[first_pass.USAGE]), unpack(packed[first_pass.LOADED]), shadows)
    return pa.table({"content": pa.array([pack(batch) for batch in usage.to_batches()], pa.binary())})


def count_usage(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Map `USAGE_SHARES` to `USAGE_COUNTS`."""
    for usage in unpacked(batches):
        rows = [
            {"column": name, "value": value, **msgspec.structs.asdict(count)}
            for name in COUNTED_USAGE
            for value, count in counts_of_usage(pa.Table.from_batches([usage]), name).items()
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=USAGE_COUNTS)


def largest_usage(batches: Batches, rows: int) -> Iterator[pa.RecordBatch]:
    """Map `USAGE_SHARES` to the largest rows of each."""
    order = [("bytes", "descending"), ("topic", "ascending"), ("kind", "ascending")]
    for usage in unpacked(batches):
        yield from pa.Table.from_batches([usage]).sort_by(order).slice(0, rows).to_batches()
