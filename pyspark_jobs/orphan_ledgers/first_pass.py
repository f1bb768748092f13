"""What one pass over nodes, ledgers and the listing tells Spark: rows of many kinds, told apart by ``tag``.

Invariant: every value comes from `service.audit`, which the embedded engine calls too; here rows only change form.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from pyspark_jobs.orphan_ledgers.id_sets import IdRanges
from service.audit.batch_work import decode_part, dumped_ids
from service.audit.decoding import decode_cursor_ledgers, decode_log_segments, singles_batch
from service.audit.owner_columns import owners_at
from service.audit.shields import Damage

Batches = Iterable[pa.RecordBatch]
Task = Callable[[Batches], Iterator[pa.RecordBatch]]

IDS, USAGE, OTHER, DAMAGE, LOADED, COMPACTION, READ, UNREAD = (
    "ids",
    "usage",
    "other",
    "damage",
    "loaded",
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
        pa.field("tenant", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("topic", pa.string()),
    ]
)
FACTS = (
    "tag string, range_id bigint, ids binary, path string, kind string, ledger_id bigint, ledgers bigint, "
    "bytes bigint, unknown_size_ledgers bigint, flag boolean, reason string, "
    "tenant string, namespace string, topic string"
)
"""What one pass over nodes tells; columns that a tag does not need are null."""


def decode_nodes_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Nodes to `FACTS`."""
    ranges = IdRanges()
    for batch in batches:
        if not batch.num_rows:
            continue
        part = decode_part(batch)
        ranges.add(part.ids)
        yield _full_ranges(ranges)
        yield _columns(USAGE, part.usage)
        yield _columns(LOADED, part.loaded.rename_columns(["topic", "flag"]))
        yield _single_facts(part.singles, ranges)
        yield _facts(_damage_facts(part.damages))
        yield _facts({"tag": COMPACTION, "path": path} for path in part.compaction_cursors)
    yield _facts(_range_facts(ranges))


def decode_cursor_ledgers_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Readings of compaction cursors' ledgers to `FACTS`."""
    ranges = IdRanges()
    for batch in batches:
        rows = batch.to_pylist()
        references, damages = decode_cursor_ledgers(rows)
        yield _single_facts(singles_batch(references), ranges)
        yield _facts(_damage_facts(damages))
        yield _facts({"tag": READ, "path": row["cursor_path"]} for row in rows)
    yield _facts(_range_facts(ranges))


def decode_log_segments_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """DistributedLog's records to `FACTS`."""
    ranges = IdRanges()
    for batch in batches:
        references, unread = decode_log_segments(batch.to_pylist())
        yield _single_facts(singles_batch(references), ranges)
        yield _facts([{"tag": UNREAD, "ledgers": unread}] if unread else [])
    yield _facts(_range_facts(ranges))


def listed_ids_task(tag: str) -> Task:
    """The listing's ids to `FACTS`."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        ranges = IdRanges()
        for batch in batches:
            ranges.add(batch.column(0).to_numpy())
            yield _full_ranges(ranges, tag)
        yield _facts(_range_facts(ranges, tag))

    return task


def dumped_ids_task(tag: str, root: str) -> Task:
    """The ids of the dump's own ledgers, and directories that could not be read, to `FACTS`."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        ranges = IdRanges()
        for batch in batches:
            ids, unread = dumped_ids(root, batch)
            ranges.add(ids[ids >= 0])
            yield _full_ranges(ranges, tag)
            yield _facts({"tag": UNREAD, "path": path} for path in unread)
        yield _facts(_range_facts(ranges, tag))

    return task


# --- forms ---------------------------------------------------------------------------------------------------------


def _facts(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=_FACTS)


def _columns(tag: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows whose columns are called as those of facts are."""
    count = rows.num_rows
    columns = {name: rows.column(name) for name in rows.schema.names} | {"tag": pa.repeat(tag, count)}
    return pa.RecordBatch.from_arrays(
        [columns[each.name] if each.name in columns else pa.nulls(count, each.type) for each in _FACTS], schema=_FACTS
    )


def _single_facts(singles: pa.RecordBatch, ranges: IdRanges) -> pa.RecordBatch:
    ranges.add(singles.column("ledger_id").to_numpy())
    owners = owners_at(singles.column("path"))
    named = pa.RecordBatch.from_arrays(
        [*singles.columns, *owners], names=[*singles.schema.names, "tenant", "namespace", "topic"]
    )
    return _columns(OTHER, named)


def _damage_facts(damages: Iterable[Damage]) -> Iterator[dict[str, Any]]:
    return ({"tag": DAMAGE, "path": each.path, "kind": each.reach.value, "reason": each.reason} for each in damages)


def _full_ranges(ranges: IdRanges, tag: str = IDS) -> pa.RecordBatch:
    """So that memory does not grow with a task's rows."""
    return _facts(_range_facts(ranges, tag) if ranges.full() else ())


def _range_facts(ranges: IdRanges, tag: str = IDS) -> Iterator[dict[str, Any]]:
    return ({"tag": tag, "range_id": number, "ids": ids} for number, ids in ranges.sets())
