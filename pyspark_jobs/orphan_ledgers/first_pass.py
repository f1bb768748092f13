"""What one pass over nodes, ledgers and the listing tells Spark: rows of many kinds, told apart by ``tag``.

Invariant: every value comes from `audit`, which the embedded engine calls too; here rows only change form.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pulsar_sidecar.audit.arrays import Ids
from pulsar_sidecar.audit.columnar.reader import ColumnReader
from pulsar_sidecar.audit.engine.admin_nodes import admin_facts
from pulsar_sidecar.audit.engine.decoding import (
    decode_cursor_ledgers,
    decode_log_segments,
    decode_part,
    dumped_ids,
    singles_batch,
)
from pulsar_sidecar.audit.engine.protections import UnreadableNode, unknown_subtrees
from pulsar_sidecar.ledger_ownership.shadows import Shadow

from pyspark_jobs.orphan_ledgers.id_sets import IdRanges
from pyspark_jobs.orphan_ledgers.packing import pack_shares, shares_of_ledgers, shares_of_topics

Batches = Iterable[pa.RecordBatch]
Task = Callable[[Batches], Iterator[pa.RecordBatch]]

IDS, SINGLE_IDS, USAGE, OTHER, UNSIZED, UNREADABLE, LOADED, COMPACTION, READ, UNREAD, TENANT, SHADOW, RETENTION = (
    "ids",
    "single ids",
    "usage",
    "other",
    "unsized",
    "unreadable",
    "loaded",
    "compaction",
    "read",
    "unread",
    "tenant",
    "shadow",
    "retention",
)
REPORTED = (UNREADABLE, UNREAD, COMPACTION, READ, OTHER, UNSIZED, TENANT, SHADOW, RETENTION)
"""What comes to the driver: few rows, once they are summed."""
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
`audit.usage.NAMED_USAGE`, its `LOADED`, or `OTHERS`. ``ledgers`` counts what a row stands for.
"""

OTHERS = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        *(pa.field(name, pa.string()) for name in ("kind", "path", "tenant", "namespace", "topic")),
    ]
)
"""References whose ledgers' sizes are BookKeeper's to tell, and whom they belong to.

Those of lists that tell no size (`UNSIZED`) are kept apart from single ones (`OTHER`).
"""


class _IdSets:
    """The ids that one task has seen, by the tags of the sets that they belong to."""

    def __init__(self) -> None:
        self._ranges: defaultdict[str, IdRanges] = defaultdict(IdRanges)

    def add(self, ids: Ids, *tags: str) -> None:
        for tag in tags:
            self._ranges[tag].add(ids)

    def taken(self, *, only_full: bool) -> Iterator[pa.RecordBatch]:
        """The sets as `FACTS`; nothing is held of them any more."""
        for tag, ranges in self._ranges.items():
            if ranges.full() or not only_full:
                yield _facts({"tag": tag, "part": number, "content": ids} for number, ids in ranges.sets())


def _task(look: Callable[[pa.RecordBatch, _IdSets], Iterator[pa.RecordBatch]]) -> Task:
    """What ``look`` tells of each batch, and the sets of ids that it has filled."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        sets = _IdSets()
        for batch in batches:
            if batch.num_rows:
                yield from look(batch, sets)
                # So that memory does not grow with a task's rows.
                yield from sets.taken(only_full=True)
        yield from sets.taken(only_full=False)

    return task


def decode_nodes_task(columns: ColumnReader, shares: int) -> Task:
    """Nodes to `FACTS`."""

    def look(batch: pa.RecordBatch, sets: _IdSets) -> Iterator[pa.RecordBatch]:
        part = decode_part(columns, batch)
        sets.add(part.ids, IDS)
        yield _topic_facts(USAGE, part.usage, shares)
        yield _topic_facts(LOADED, part.loaded, shares)
        yield _single_facts(OTHER, columns, part.singles, sets, shares)
        yield _single_facts(UNSIZED, columns, part.unsized, sets, shares)
        yield _facts(_unreadable_facts(part.unreadable_nodes))
        yield _facts({"tag": COMPACTION, "path": path} for path in part.compaction_cursors)
        yield _facts(_shadow_facts(part.shadows))

    return _task(look)


def admin_nodes_task() -> Task:
    """Nodes below ``/admin`` to `FACTS`."""

    def look(batch: pa.RecordBatch, sets: _IdSets) -> Iterator[pa.RecordBatch]:
        found = admin_facts(batch)
        yield _facts({"tag": TENANT, "path": tenant} for tenant in found.tenants)
        yield _facts(_shadow_facts(found.shadows))
        yield _facts(_unreadable_facts(found.unreadable_nodes))
        yield _facts({"tag": RETENTION, "path": path, "reason": text} for path, text in found.retentions.items())

    return _task(look)


def unknown_nodes_task(foreign: Collection[str]) -> Task:
    """Nodes of no known subtree to `FACTS`."""

    def look(batch: pa.RecordBatch, sets: _IdSets) -> Iterator[pa.RecordBatch]:
        yield _facts(_unreadable_facts(unknown_subtrees(batch, foreign)))

    return _task(look)


def decode_cursor_ledgers_task(columns: ColumnReader, shares: int) -> Task:
    """Readings of compaction cursors' ledgers to `FACTS`."""

    def look(batch: pa.RecordBatch, sets: _IdSets) -> Iterator[pa.RecordBatch]:
        rows = batch.to_pylist()
        references, unreadable_nodes = decode_cursor_ledgers(rows)
        yield _single_facts(OTHER, columns, singles_batch(references), sets, shares)
        yield _facts(_unreadable_facts(unreadable_nodes))
        yield _facts({"tag": READ, "path": row["cursor_path"]} for row in rows)

    return _task(look)


def decode_log_segments_task(columns: ColumnReader, shares: int) -> Task:
    """DistributedLog's records to `FACTS`."""

    def look(batch: pa.RecordBatch, sets: _IdSets) -> Iterator[pa.RecordBatch]:
        references, unread = decode_log_segments(batch.to_pylist())
        yield _single_facts(OTHER, columns, singles_batch(references), sets, shares)
        yield _facts([{"tag": UNREAD, "ledgers": unread}] if unread else [])

    return _task(look)


def listed_ids_task(tag: str) -> Task:
    """The listing's ids to `FACTS`."""

    def look(batch: pa.RecordBatch, sets: _IdSets) -> Iterator[pa.RecordBatch]:
        sets.add(batch.column(0).to_numpy(), tag)
        yield from ()

    return _task(look)


def dumped_ids_task(columns: ColumnReader, tag: str, root: str) -> Task:
    """The ids of the dump's own ledgers, and directories that could not be read, to `FACTS`."""

    def look(batch: pa.RecordBatch, sets: _IdSets) -> Iterator[pa.RecordBatch]:
        ids, unread = dumped_ids(columns, root, batch)
        sets.add(ids[ids >= 0], tag)
        yield _facts({"tag": UNREAD, "path": path} for path in unread)

    return _task(look)


# --- forms ---------------------------------------------------------------------------------------------------------


def _facts(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=_FACTS)


def _topic_facts(tag: str, rows: pa.RecordBatch, shares: int) -> pa.RecordBatch:
    packed = pack_shares(rows, shares_of_topics(rows.column("topic"), shares))
    return _facts({"tag": tag, "part": share, "content": content} for share, content in packed)


def _single_facts(
    tag: str, columns: ColumnReader, singles: pa.RecordBatch, sets: _IdSets, shares: int
) -> pa.RecordBatch:
    ids = singles.column("ledger_id").to_numpy()
    sets.add(ids, IDS, SINGLE_IDS)
    named = pa.RecordBatch.from_arrays([*singles.columns, *columns.owners_at(singles.column("path"))], schema=OTHERS)
    share_of = shares_of_ledgers(ids, shares)
    counts = np.bincount(share_of, minlength=shares)
    return _facts(
        {"tag": tag, "part": share, "content": content, "ledgers": int(counts[share])}
        for share, content in pack_shares(named, share_of)
    )


def _unreadable_facts(unreadable_nodes: Iterable[UnreadableNode]) -> Iterator[dict[str, Any]]:
    return (
        {"tag": UNREADABLE, "path": each.path, "kind": each.scope.value, "reason": each.reason}
        for each in unreadable_nodes
    )


def _shadow_facts(shadows: Iterable[Shadow]) -> Iterator[dict[str, Any]]:
    return ({"tag": SHADOW, "path": each.topic.managed_ledger_name, "reason": each.source} for each in shadows)
