"""What one pass over nodes, ledgers and the listing tells Spark: rows of many kinds, told apart by ``tag``.

Invariant: every value comes from `service.audit`, which the embedded engine calls too; here rows only change form.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_jobs.orphan_ledgers.id_sets import IdRanges
from pyspark_jobs.orphan_ledgers.packing import pack_shares, shares_of_ledgers, shares_of_topics
from service.audit.batch_work import decode_part, dumped_ids
from service.audit.decoding import decode_cursor_ledgers, decode_log_segments, singles_batch
from service.audit.owner_columns import owners_at
from service.audit.shields import Damage
from service.audit.varints import Numbers

Batches = Iterable[pa.RecordBatch]
Task = Callable[[Batches], Iterator[pa.RecordBatch]]

IDS, SINGLE_IDS, USAGE, OTHER, DAMAGE, LOADED, COMPACTION, READ, UNREAD = (
    "ids",
    "single ids",
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
        pa.field("part", pa.int64()),
        pa.field("content", pa.binary()),
        pa.field("path", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("ledgers", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)
FACTS = "tag string, part bigint, content binary, path string, kind string, ledgers bigint, reason string"
"""What one pass over nodes tells; columns that a tag does not need are null.

``content`` is a set of ids of the range ``part``, or rows of the share ``part`` (`packing`): of
`service.audit.usage.NAMED_USAGE`, its `LOADED`, or `OTHERS`. ``ledgers`` counts what a row stands for.
"""

OTHERS = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        *(pa.field(name, pa.string()) for name in ("kind", "path", "tenant", "namespace", "topic")),
    ]
)
"""Single references, and whom they belong to."""


class _Ids:
    """The ids of all references that one task has seen, and of those that are in no managed ledger's list."""

    def __init__(self) -> None:
        self._sets = {IDS: IdRanges(), SINGLE_IDS: IdRanges()}

    def add(self, ids: Numbers, *, single: bool = False) -> None:
        self._sets[IDS].add(ids)
        if single:
            self._sets[SINGLE_IDS].add(ids)

    def full_ranges(self) -> Iterator[pa.RecordBatch]:
        return (_full_ranges(ranges, tag) for tag, ranges in self._sets.items())

    def ranges(self) -> Iterator[pa.RecordBatch]:
        return (_facts(_range_facts(ranges, tag)) for tag, ranges in self._sets.items())


def decode_nodes_task(shares: int) -> Task:
    """Nodes to `FACTS`."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        ids = _Ids()
        for batch in batches:
            if not batch.num_rows:
                continue
            part = decode_part(batch)
            ids.add(part.ids)
            yield _topic_facts(USAGE, part.usage, shares)
            yield _topic_facts(LOADED, part.loaded, shares)
            yield _single_facts(part.singles, ids, shares)
            yield _facts(_damage_facts(part.damages))
            yield _facts({"tag": COMPACTION, "path": path} for path in part.compaction_cursors)
            yield from ids.full_ranges()
        yield from ids.ranges()

    return task


def decode_cursor_ledgers_task(shares: int) -> Task:
    """Readings of compaction cursors' ledgers to `FACTS`."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        ids = _Ids()
        for batch in batches:
            rows = batch.to_pylist()
            references, damages = decode_cursor_ledgers(rows)
            yield _single_facts(singles_batch(references), ids, shares)
            yield _facts(_damage_facts(damages))
            yield _facts({"tag": READ, "path": row["cursor_path"]} for row in rows)
        yield from ids.ranges()

    return task


def decode_log_segments_task(shares: int) -> Task:
    """DistributedLog's records to `FACTS`."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        ids = _Ids()
        for batch in batches:
            references, unread = decode_log_segments(batch.to_pylist())
            yield _single_facts(singles_batch(references), ids, shares)
            yield _facts([{"tag": UNREAD, "ledgers": unread}] if unread else [])
        yield from ids.ranges()

    return task


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


def _topic_facts(tag: str, rows: pa.RecordBatch, shares: int) -> pa.RecordBatch:
    packed = pack_shares(rows, shares_of_topics(rows.column("topic"), shares))
    return _facts({"tag": tag, "part": share, "content": content} for share, content in packed)


def _single_facts(singles: pa.RecordBatch, seen: _Ids, shares: int) -> pa.RecordBatch:
    ids = singles.column("ledger_id").to_numpy()
    seen.add(ids, single=True)
    columns = [singles.column(name) for name in ("ledger_id", "kind", "path")]
    named = pa.RecordBatch.from_arrays([*columns, *owners_at(singles.column("path"))], schema=OTHERS)
    counts = np.bincount(shares_of_ledgers(ids, shares), minlength=shares)
    return _facts(
        {"tag": OTHER, "part": share, "content": content, "ledgers": int(counts[share])}
        for share, content in pack_shares(named, shares_of_ledgers(ids, shares))
    )


def _damage_facts(damages: Iterable[Damage]) -> Iterator[dict[str, Any]]:
    return ({"tag": DAMAGE, "path": each.path, "kind": each.reach.value, "reason": each.reason} for each in damages)


def _full_ranges(ranges: IdRanges, tag: str = IDS) -> pa.RecordBatch:
    """So that memory does not grow with a task's rows."""
    return _facts(_range_facts(ranges, tag) if ranges.full() else ())


def _range_facts(ranges: IdRanges, tag: str = IDS) -> Iterator[dict[str, Any]]:
    return ({"tag": tag, "part": number, "content": ids} for number, ids in ranges.sets())
