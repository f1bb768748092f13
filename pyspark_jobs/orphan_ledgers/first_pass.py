"""The first pass over nodes, ledgers and the listing, whose rows of many kinds differ by ``tag``.

Invariant: every value comes from `audit`, which the embedded engine calls too; this module only converts rows.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate

import pyarrow as pa
from pulsar_sidecar.features.audit.columnar.reader import ColumnReader
from pulsar_sidecar.features.audit.engine.admin_nodes import admin_facts
from pulsar_sidecar.features.audit.engine.decoding import (
    decode_cursor_ledgers,
    decode_log_segments,
    decode_part,
    dumped_ids,
    singles_batch,
    unread_compaction_cursors,
)
from pulsar_sidecar.features.audit.engine.leftover_nodes import Suspects, under_replication_marks
from pulsar_sidecar.features.audit.engine.protections import unknown_subtrees
from pulsar_sidecar.model.names import topic_of_managed_ledger
from pulsar_sidecar.ownership.protections import Protection, Scope, UnreadableNode
from pulsar_sidecar.ownership.shadows import Shadow
from pulsar_sidecar.reports.schemas import schema_of
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # as is usual

from pyspark_jobs.orphan_ledgers.forms import IdSets, ranges_of_ledgers, shares_of_ledgers, shares_of_topics
from pyspark_jobs.running.tasks import About, Batches, Task, pack_shares

IDS, SINGLE_IDS, LISTED, DUMPED = "ids", "single ids", "listed", "dumped"
USAGE, LOADED, OTHER, UNSIZED = "usage", "loaded", "other", "unsized"
UNREADABLE, COMPACTION, READ, UNREAD = "unreadable", "compaction", "read", "unread"
TENANT, SHADOW, RETENTION, OFFLOAD_LAG = "tenant", "shadow", "retention", "offload lag"
COPIES, OBJECTS = "copies", "objects"
PARTITIONED, PENDING_ACKS, MARK = "partitioned", "pending acks", "mark"
REFERENCES = (OTHER, UNSIZED)
"""Tags of `SINGLES`, whose ledgers' sizes only BookKeeper knows: single references, and lists' without a size."""
SUSPECTS = (PARTITIONED, PENDING_ACKS, MARK)
"""Tags in the order of `Suspects`."""
REPORTED = (UNREADABLE, UNREAD, COMPACTION, READ, TENANT, SHADOW, RETENTION, OFFLOAD_LAG, *SUSPECTS)
"""Tags of the rows for the driver, few after they are summed."""

FACTS = schema_of("""
    tag string, part bigint, content binary, path string, kind string, ledgers bigint, reason string
""")
"""Output of the pass over nodes; columns that a tag does not need are null.

``content`` is a set of ids of the range ``part``, or rows of this range, of `audit.engine.offloaded.COPIES` or
`OFFLOADED_OBJECTS`, or rows of the share ``part`` (`forms`): of `audit.engine.usage.NAMED_USAGE`, its `LOADED`, or
`SINGLES`. ``ledgers`` is the count of a summed row.
"""


def _reporting(
    look: Callable[Concatenate[pa.RecordBatch, IdSets, About], Iterable[pa.RecordBatch]],
) -> Task[About]:
    """Return the task that yields, as `FACTS`, the findings of ``look`` in each batch, and its sets of ids."""

    @wraps(look)
    def task(batches: Batches, /, *args: About.args, **kwargs: About.kwargs) -> Iterator[pa.RecordBatch]:
        sets = IdSets()
        for batch in batches:
            if batch.num_rows:
                yield from look(batch, sets, *args, **kwargs)
                # Memory must not grow with a task's rows.
                yield _id_facts(sets, only_full=True)
        yield _id_facts(sets, only_full=False)

    return task


@_reporting
def decode_nodes(batch: pa.RecordBatch, sets: IdSets, columns: ColumnReader, shares: int) -> Iterator[pa.RecordBatch]:
    part = decode_part(columns, batch)
    sets.add(part.ids, IDS)
    yield _topic_facts(USAGE, part.usage, shares)
    yield _topic_facts(LOADED, part.loaded, shares)
    yield _single_facts(OTHER, part.singles, sets, shares)
    yield _single_facts(UNSIZED, part.unsized, sets, shares)
    yield _facts(_unreadable_facts(part.unreadable_nodes))
    yield _facts({"tag": COMPACTION, "path": path} for path in part.compaction_cursors)
    yield _facts(_shadow_facts(part.shadows))
    yield _facts({"tag": PENDING_ACKS, "path": path} for path in part.pending_acks)
    yield _range_facts(COPIES, part.copies)


@_reporting
def decode_admin_nodes(batch: pa.RecordBatch, _: IdSets) -> Iterator[pa.RecordBatch]:
    found = admin_facts(batch)
    yield _facts({"tag": TENANT, "path": tenant} for tenant in found.tenants)
    yield _facts(_shadow_facts(found.shadows))
    yield _facts(_unreadable_facts(found.unreadable_nodes))
    yield _facts({"tag": RETENTION, "path": path, "reason": text} for path, text in found.retentions.items())
    lags = found.offload_lags_ms.items()
    yield _facts({"tag": OFFLOAD_LAG, "path": path, "reason": None if ms is None else str(ms)} for path, ms in lags)
    yield _facts({"tag": PARTITIONED, "path": path} for path in found.partitioned_topics)


@_reporting
def report_marks(batch: pa.RecordBatch, _: IdSets) -> Iterator[pa.RecordBatch]:
    yield _facts({"tag": MARK, "path": path} for path in under_replication_marks(batch))


@_reporting
def report_unknown_nodes(batch: pa.RecordBatch, _: IdSets, foreign: Collection[str]) -> Iterator[pa.RecordBatch]:
    yield _facts(_unreadable_facts(unknown_subtrees(batch, foreign)))


@_reporting
def decode_readings(batch: pa.RecordBatch, sets: IdSets, shares: int) -> Iterator[pa.RecordBatch]:
    rows = batch.to_pylist()
    references, unreadable_nodes = decode_cursor_ledgers(rows)
    yield _single_facts(OTHER, singles_batch(references), sets, shares)
    yield _facts(_unreadable_facts(unreadable_nodes))
    yield _facts({"tag": READ, "path": row["cursor_path"]} for row in rows)


@_reporting
def decode_segments(batch: pa.RecordBatch, sets: IdSets, shares: int) -> Iterator[pa.RecordBatch]:
    references, unread = decode_log_segments(batch.to_pylist())
    yield _single_facts(OTHER, singles_batch(references), sets, shares)
    yield _facts([{"tag": UNREAD, "ledgers": unread}] if unread else [])


@_reporting
def collect_listed(batch: pa.RecordBatch, sets: IdSets, tag: str) -> Iterable[pa.RecordBatch]:
    sets.add(batch.column(0).to_numpy(), tag)
    return ()


@_reporting
def collect_objects(batch: pa.RecordBatch, _: IdSets) -> Iterator[pa.RecordBatch]:
    yield _range_facts(OBJECTS, batch)


@_reporting
def collect_dumped(batch: pa.RecordBatch, sets: IdSets, columns: ColumnReader, root: str) -> Iterator[pa.RecordBatch]:
    """Collect the ids of the dump's own ledgers, and yield directories that could not be read."""
    ids, unread = dumped_ids(columns, root, batch)
    sets.add(ids[ids >= 0], DUMPED)
    yield _facts({"tag": UNREAD, "path": path} for path in unread)


# --- forms ---------------------------------------------------------------------------------------------------------


def _facts(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=FACTS)


def _id_facts(sets: IdSets, *, only_full: bool) -> pa.RecordBatch:
    return _facts({"tag": tag, "part": number, "content": ids} for tag, number, ids in sets.taken(only_full=only_full))


def _range_facts(tag: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Pack rows by the ranges of sets of ids; rows without a ledger are in the first range."""
    packed = pack_shares(rows, ranges_of_ledgers(rows.column("ledger_id").fill_null(0).to_numpy()))
    return _facts({"tag": tag, "part": number, "content": content} for number, content in packed)


def _topic_facts(tag: str, rows: pa.RecordBatch, shares: int) -> pa.RecordBatch:
    packed = pack_shares(rows, shares_of_topics(rows.column("topic"), shares))
    return _facts({"tag": tag, "part": share, "content": content} for share, content in packed)


def _single_facts(tag: str, singles: pa.RecordBatch, sets: IdSets, shares: int) -> pa.RecordBatch:
    ids = singles.column("ledger_id").to_numpy()
    sets.add(ids, IDS, SINGLE_IDS)
    packed = pack_shares(singles, shares_of_ledgers(ids, shares))
    return _facts({"tag": tag, "part": share, "content": content} for share, content in packed)


def _unreadable_facts(unreadable_nodes: Iterable[UnreadableNode]) -> Iterator[dict[str, Any]]:
    return (
        {"tag": UNREADABLE, "path": each.path, "kind": each.scope.value, "reason": each.reason}
        for each in unreadable_nodes
    )


def _shadow_facts(shadows: Iterable[Shadow]) -> Iterator[dict[str, Any]]:
    return ({"tag": SHADOW, "path": each.topic.managed_ledger_name, "reason": each.source} for each in shadows)


class Reported:
    """Reports of the first pass besides ids: few rows after they are summed, which the driver reads whole.

    They are tenants, shadows, and unread parts: nodes, directories, log segments, cursors without a reading.
    """

    def __init__(self, facts: DataFrame) -> None:
        rows = facts.where(F.col("tag").isin(*REPORTED))
        # A cursor and the reading of its ledger are in one group.
        is_cursor = F.col("tag").isin(COMPACTION, READ)
        group = F.when(is_cursor, COMPACTION).otherwise(F.col("tag")).alias("tag")
        was_read = F.max(F.col("tag") == READ).alias("was_read")
        summed = rows.groupBy(group, "path", "kind", "reason").agg(was_read, F.sum("ledgers").alias("ledgers"))
        self._rows = summed.where(f"tag != '{COMPACTION}' or not was_read").collect()

    def _rows_tagged(self, *tags: str) -> list[Row]:
        return [row for row in self._rows if row["tag"] in tags]

    def protection(self) -> Protection:
        unreadable = (
            UnreadableNode(row["path"], Scope(row["kind"]), row["reason"]) for row in self._rows_tagged(UNREADABLE)
        )
        unread = unread_compaction_cursors([row["path"] for row in self._rows_tagged(COMPACTION)], ())
        return Protection([*unreadable, *unread], [row["path"] for row in self._rows_tagged(TENANT)])

    def shadows(self) -> list[Shadow]:
        """Return shadow topics, partitioned ones by their own names."""
        # By the managed ledger's name: a full name with a slash in its last part reads like a V1 topic's.
        named = ((topic_of_managed_ledger(row["path"]), row["reason"]) for row in self._rows_tagged(SHADOW))
        return [Shadow(topic, source) for topic, source in named if topic is not None]

    def retentions(self) -> dict[str, str]:
        return {row["path"]: row["reason"] for row in self._rows_tagged(RETENTION)}

    def offload_lags_ms(self) -> dict[str, int | None]:
        """Return namespaces' `AdminFacts.offload_lags_ms`."""
        found = ((row["path"], row["reason"]) for row in self._rows_tagged(OFFLOAD_LAG))
        return {path: None if text is None else int(text) for path, text in found}

    def suspects(self, ledgers_root: str, schemas: Sequence[str]) -> Suspects:
        """Return nodes that may have dangling references; ``schemas`` have only such."""
        return Suspects(ledgers_root, schemas, *([row["path"] for row in self._rows_tagged(tag)] for tag in SUSPECTS))

    def log_segments_unread(self) -> int:
        return sum(row["ledgers"] or 0 for row in self._rows_tagged(UNREAD) if row["path"] is None)

    def unread_directories(self) -> list[str]:
        return [row["path"] for row in self._rows_tagged(UNREAD) if row["path"] is not None]
