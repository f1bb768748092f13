"""How many ledgers and bytes belong to whom.

References of single nodes are summed up by their owner; what turned out to be missing is taken off again.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.audit.decoding import LIST_USAGE
from service.audit.owner_columns import owners_at, topics_of_managed_ledgers
from service.audit.summaries import Count
from service.audit.tables import LEDGER_USAGE, LedgerKind
from service.audit.varints import Numbers

NAMED_USAGE = pa.schema(
    [
        pa.field("tenant", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("ledgers", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("unknown_size_ledgers", pa.int64(), nullable=False),
    ]
)
"""`LIST_USAGE` with the owners' names; several rows for one owner."""

LOADED = pa.schema([pa.field("topic", pa.string()), pa.field("in_ledger", pa.bool_())])
"""Topics with a cursor, and whether its position is in a ledger; several rows for one topic."""

_KEYS = ("tenant", "namespace", "topic", "kind")
_SUMS = ("ledgers", "bytes", "unknown_size_ledgers")
# Groups are as many as rows, nearly; threads that have to put theirs together take twice as long.


def single_usage(singles: pa.Table, sizes: pa.Table) -> pa.RecordBatch:
    """`LIST_USAGE` of single references, each counted once; ``sizes`` has ``ledger_id`` and ``length``, as known."""
    ids = sizes.column("ledger_id").combine_chunks()
    lengths = sizes.column("length").take(pc.index_in(singles.column("ledger_id"), value_set=ids))
    rows = pa.table(
        {
            "path": singles.column("path"),
            "kind": singles.column("kind"),
            "ledgers": pa.repeat(1, singles.num_rows),
            "bytes": lengths.fill_null(0),
            "unknown_size_ledgers": lengths.is_null().cast(pa.int64()),
        }
    )
    summed = rows.group_by(["path", "kind"], use_threads=False).aggregate([(name, "sum") for name in _SUMS])
    columns = [summed.column(name).combine_chunks() for name in ("path", "kind", *(f"{name}_sum" for name in _SUMS))]
    return pa.RecordBatch.from_arrays(columns, schema=LIST_USAGE)


def usage_taken_off(missing: pa.RecordBatch) -> pa.RecordBatch:
    """`LIST_USAGE` of missing ledgers of managed ledgers' lists (`service.audit.decoding.REFERENCES`), below zero."""
    listed = missing.filter(pc.equal(missing.column("kind"), LedgerKind.DATA.value))
    sizes = listed.column("size_bytes")
    taken = (pa.repeat(1, listed.num_rows), sizes.fill_null(0), sizes.is_null().cast(pa.int64()))
    columns = [listed.column("path"), listed.column("kind"), *map(pc.negate, taken)]
    return pa.RecordBatch.from_arrays(columns, schema=LIST_USAGE)


def named_usage(usage: pa.RecordBatch) -> pa.RecordBatch:
    """`NAMED_USAGE` of `LIST_USAGE`."""
    rest = [usage.column(name) for name in ("kind", *_SUMS)]
    return pa.RecordBatch.from_arrays([*owners_at(usage.column("path")), *rest], schema=NAMED_USAGE)


def loaded_topics(cursors: pa.RecordBatch) -> pa.RecordBatch:
    """`LOADED` of `service.audit.decoding.CURSORS`."""
    topics = topics_of_managed_ledgers(cursors.column("managed_ledger"))
    loaded = pa.RecordBatch.from_arrays([topics, cursors.column("in_ledger")], schema=LOADED)
    return loaded.filter(pc.is_valid(topics))


def usage_table(named: Iterable[pa.RecordBatch], loaded: Iterable[pa.RecordBatch]) -> pa.Table:
    """`LEDGER_USAGE`, in the order of its keys."""
    sums = (
        pa.Table.from_batches(named, NAMED_USAGE)
        .group_by(_KEYS, use_threads=False)
        .aggregate([(name, "sum") for name in _SUMS])
    )
    grouped = sums.select([*_KEYS, *(f"{name}_sum" for name in _SUMS)]).rename_columns([*_KEYS, *_SUMS])
    there = grouped.filter(pc.greater(grouped.column("ledgers"), 0))
    there = there.take(pa.array(np.lexsort([_ranks(there.column(name)) for name in reversed(_KEYS)])))
    columns = {name: there.column(name).combine_chunks() for name in (*_KEYS, *_SUMS)}
    columns["loaded"] = _loaded(columns["topic"], columns["kind"], pa.Table.from_batches(loaded, LOADED))
    batch = pa.RecordBatch.from_arrays([columns[name] for name in LEDGER_USAGE.names], schema=LEDGER_USAGE)
    return pa.Table.from_batches([batch], LEDGER_USAGE)


def _ranks(texts: pa.ChunkedArray) -> Numbers:
    """Numbers in the order of the texts, none last: comparing four texts at a time takes ten times as long."""
    encoded = pc.dictionary_encode(texts.combine_chunks())  # type: ignore[attr-defined]  # the stubs lack it
    ranks = pc.rank(encoded.dictionary, tiebreaker="dense")
    found: Numbers = ranks.take(encoded.indices).cast(pa.int64()).fill_null(len(ranks) + 1).to_numpy()
    return found


def _loaded(topics: pa.Array, kinds: pa.Array, loaded: pa.Table) -> pa.Array:
    by_topic = loaded.group_by("topic").aggregate([("in_ledger", "max")])
    places = pc.index_in(topics, value_set=by_topic.column("topic").combine_chunks())
    flags = by_topic.column("in_ledger_max").combine_chunks().take(places)
    return pc.if_else(pc.equal(kinds, LedgerKind.SCHEMA.value), pa.scalar(None, pa.bool_()), flags)


def counts_of_usage(usage: pa.Table, column: str) -> dict[str, Count]:
    """Ledgers and bytes of `LEDGER_USAGE` by the values of a column; the empty text stands for none."""
    summed = usage.group_by([column]).aggregate([("ledgers", "sum"), ("bytes", "sum")])
    return {row[column] or "": Count(row["ledgers_sum"], row["bytes_sum"]) for row in summed.to_pylist()}


def counts_of_rows(rows: pa.Table, column: str) -> dict[str, Count]:
    """Rows with a ``length_bytes`` each, and their bytes, by the values of a column."""
    summed = rows.group_by([column]).aggregate([("length_bytes", "sum"), ([], "count_all")])
    return {row[column] or "": Count(row["count_all"], row["length_bytes_sum"] or 0) for row in summed.to_pylist()}


def total(counts: Mapping[str, Count]) -> Count:
    """All of them together."""
    return Count(sum(count.ledgers for count in counts.values()), sum(count.bytes for count in counts.values()))
