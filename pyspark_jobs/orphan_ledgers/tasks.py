"""What Spark's Python workers do with their rows: functions from Arrow batches to Arrow batches.

Invariant: every value comes from `service.audit`, which the embedded engine calls too; here rows only change form. Many
kinds of answers leave one pass over the nodes, told apart by ``tag``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from pyspark_jobs.orphan_ledgers.id_sets import IdRanges, union, write_ids
from service.audit.ages import age_label
from service.audit.batch_work import as_listed, decode_part, dumped_ids, lists_naming
from service.audit.candidates import Claimed, read_candidate
from service.audit.causes import OwnerNode, owner_node
from service.audit.decoding import REFERENCES, Reference, decode_cursor_ledgers, decode_log_segments
from service.audit.findings import earlier_looks, judge_cases, ledger_length, number_condemned, read_cases, withheld
from service.audit.judging import Judge
from service.audit.ledger_lists import Numbers
from service.audit.missing import missing_row
from service.audit.places import owner_of_managed_ledger
from service.audit.plans import block_digest
from service.audit.shields import Damage
from service.audit.tables import MISSING_LEDGERS, ORPHAN_LEDGERS
from service.audit.usage import named_usage
from service.ledger_ownership.paths import ledger_path
from service.model.ids import LedgerId

Batches = Iterable[pa.RecordBatch]
Task = Callable[[Batches], Iterator[pa.RecordBatch]]

IDS, USAGE, OTHER, DAMAGE, CURSOR, COMPACTION, READ, UNREAD = (
    "ids",
    "usage",
    "other",
    "damage",
    "cursor",
    "compaction",
    "read",
    "unread",
)
_FACTS = pa.schema(
    [
        pa.field("tag", pa.string()),
        pa.field("range_id", pa.int64()),
        pa.field("ids", pa.binary()),
        pa.field("path", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("ledger_id", pa.int64()),
        pa.field("ledgers", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("unknown_size_ledgers", pa.int64()),
        pa.field("flag", pa.bool_()),
        pa.field("reason", pa.string()),
    ]
)
FACTS = (
    "tag string, range_id bigint, ids binary, path string, kind string, ledger_id bigint, ledgers bigint, "
    "bytes bigint, unknown_size_ledgers bigint, flag boolean, reason string"
)
"""What one pass over nodes tells; columns that a tag does not need are null."""

COMPARED = "candidates binary, missing binary, range_id bigint, listed bigint, in_dump bigint, referenced bigint"
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
JUDGED = "age string, is_orphan boolean"
"""Beside the columns of the orphans' table."""


# --- one pass over nodes, ledgers and the listing ------------------------------------------------------------------


def decode_nodes_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Nodes to `FACTS`."""
    ranges = IdRanges()
    for batch in batches:
        if not batch.num_rows:
            continue
        part = decode_part(batch)
        ranges.add(part.ids)
        yield _usage_facts(part.usage)
        yield _facts(_other_facts(part.others, ranges))
        yield _facts(_damage_facts(part.damages))
        yield _facts({"tag": CURSOR, "path": name, "flag": flag} for name, flag in part.cursors.items())
        yield _facts({"tag": COMPACTION, "path": path} for path in part.compaction_cursors)
    yield _facts(_range_facts(ranges))


def decode_cursor_ledgers_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Readings of compaction cursors' ledgers to `FACTS`."""
    ranges = IdRanges()
    for batch in batches:
        rows = batch.to_pylist()
        references, damages = decode_cursor_ledgers(rows)
        yield _facts(_other_facts(references, ranges))
        yield _facts(_damage_facts(damages))
        yield _facts({"tag": READ, "path": row["cursor_path"]} for row in rows)
    yield _facts(_range_facts(ranges))


def decode_log_segments_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """DistributedLog's records to `FACTS`."""
    ranges = IdRanges()
    for batch in batches:
        references, unread = decode_log_segments(batch.to_pylist())
        yield _facts(_other_facts(references, ranges))
        yield _facts([{"tag": UNREAD, "ledgers": unread}] if unread else [])
    yield _facts(_range_facts(ranges))


def listed_ids_task(tag: str) -> Task:
    """The listing's ids to `FACTS`."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        ranges = IdRanges()
        for batch in batches:
            ranges.add(batch.column(0).to_numpy())
        yield _facts(_range_facts(ranges, tag))

    return task


def dumped_ids_task(tag: str, root: str) -> Task:
    """The ids of the dump's own ledgers, and directories that could not be read, to `FACTS`."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        ranges = IdRanges()
        for batch in batches:
            ids, unread = dumped_ids(root, batch)
            ranges.add(ids[ids >= 0])
            yield _facts({"tag": UNREAD, "path": path} for path in unread)
        yield _facts(_range_facts(ranges, tag))

    return task


def compare_task(listed_tag: str, dumped_tag: str, own_ledgers: bool) -> Callable[[pa.Table], pa.Table]:
    """One range of ids: which are candidates, which are missing, and how many there are."""

    def task(facts: pa.Table) -> pa.Table:
        number = facts.column("range_id")[0].as_py()
        sets: dict[str, list[bytes]] = {listed_tag: [], dumped_tag: [], IDS: []}
        for row in facts.select(["tag", "ids"]).to_pylist():
            sets[row["tag"]].append(row["ids"])
        listed, referenced = union(number, sets[listed_tag]), union(number, sets[IDS])
        dumped = union(number, sets[dumped_tag]) if own_ledgers else listed
        is_referenced = np.isin(listed, referenced)
        in_dump = np.isin(listed, dumped)
        missing = referenced[~(np.isin(referenced, listed) | np.isin(referenced, dumped))]
        row = {
            "candidates": write_ids(listed[in_dump & ~is_referenced]),
            "missing": write_ids(missing),
            "range_id": number,
            "listed": len(listed),
            "in_dump": int(in_dump.sum()),
            "referenced": int(is_referenced.sum()),
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
            rows = [
                _candidate(row) if is_candidate else _sized(row)
                for row, is_candidate in zip(listed.to_pylist(), chosen.to_pylist(), strict=True)
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=_READ)

    return task


def owner_nodes_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Nodes to `OWNERS`."""
    for batch in batches:
        yield pa.RecordBatch.from_pylist([owner_node(node).row() for node in batch.to_pylist()], schema=_OWNERS)


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
    """Nodes to references of their lists to these ledgers."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield lists_naming(wanted, batch) if batch.num_rows else REFERENCES.empty_table().to_batches()[0]

    return task


def missing_rows_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """References to missing ledgers to rows of their table."""
    for batch in batches:
        yield pa.RecordBatch.from_pylist([missing_row(row) for row in batch.to_pylist()], schema=MISSING_LEDGERS)


def named_usage_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Usage by node to usage by owner."""
    for batch in batches:
        yield named_usage(batch)


def loaded_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Managed ledgers' names to topics."""
    for batch in batches:
        topics = [owner_of_managed_ledger(name).topic for name in batch.column("path").to_pylist()]
        yield pa.RecordBatch.from_arrays([pa.array(topics, pa.string()), batch.column("flag")], names=["topic", "flag"])


# --- forms ---------------------------------------------------------------------------------------------------------


def _facts(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=_FACTS)


def _usage_facts(usage: pa.RecordBatch) -> pa.RecordBatch:
    count = usage.num_rows
    columns = {name: usage.column(name) for name in usage.schema.names} | {"tag": pa.repeat(USAGE, count)}
    return pa.RecordBatch.from_arrays(
        [columns[each.name] if each.name in columns else pa.nulls(count, each.type) for each in _FACTS], schema=_FACTS
    )


def _other_facts(others: Iterable[Reference], ranges: IdRanges) -> list[dict[str, Any]]:
    rows = [{"tag": OTHER, "ledger_id": each.ledger_id, "kind": each.kind.value, "path": each.path} for each in others]
    ranges.add(np.array([row["ledger_id"] for row in rows], np.int64))
    return rows


def _damage_facts(damages: Iterable[Damage]) -> Iterator[dict[str, Any]]:
    return ({"tag": DAMAGE, "path": each.path, "kind": each.reach.value, "reason": each.reason} for each in damages)


def _range_facts(ranges: IdRanges, tag: str = IDS) -> Iterator[dict[str, Any]]:
    return ({"tag": tag, "range_id": number, "ids": ids} for number, ids in ranges.sets())


def _wanted(ledger_ids: list[int], root: str) -> pa.RecordBatch:
    paths = [ledger_path(LedgerId(ledger_id), root) for ledger_id in ledger_ids]
    return pa.RecordBatch.from_arrays([pa.array(ledger_ids, pa.int64()), pa.array(paths, pa.string())], schema=_WANTED)


def _candidate(row: dict[str, Any]) -> dict[str, Any]:
    reading = read_candidate(row)
    if not isinstance(reading, Claimed):
        return {**row, "is_candidate": True}
    return {**row, "is_candidate": True, "owner_path": reading.owner_path, "topic_path": reading.topic_path}


def _sized(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "metadata": None,
        "unreadable": None,
        "is_candidate": False,
        "length": ledger_length(row["metadata"]),
    }
