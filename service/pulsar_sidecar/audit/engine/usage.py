"""How many ledgers and bytes belong to whom.

References of single nodes are summed up by their owner; what turned out to be missing is taken off again.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.arrays import Numbers, sums_between
from pulsar_sidecar.audit.columnar.reader import ColumnReader
from pulsar_sidecar.audit.engine.decoding import LIST_USAGE
from pulsar_sidecar.audit.results.summaries import Count
from pulsar_sidecar.audit.results.tables import LEDGER_USAGE, LedgerKind

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

_PARTITION = "-partition-[0-9]+$"
_KEYS = ("tenant", "namespace", "topic", "kind")
_SUMS = ("ledgers", "bytes", "unknown_size_ledgers")


def single_usage(singles: pa.Table, sizes: pa.Table) -> pa.RecordBatch:
    """`LIST_USAGE` of single references, a row each; ``sizes`` has ``ledger_id`` and ``length``, as known."""
    ids, lengths = (sizes.column(name).combine_chunks() for name in ("ledger_id", "length"))
    named, kinds, paths = (singles.column(name).combine_chunks() for name in ("ledger_id", "kind", "path"))
    found = lengths.take(pc.index_in(named, value_set=ids))
    counts = (pa.repeat(1, len(named)), found.fill_null(0), found.is_null().cast(pa.int64()))
    return pa.RecordBatch.from_arrays([paths, kinds, *counts], schema=LIST_USAGE)


def usage_taken_off(missing: pa.RecordBatch) -> pa.RecordBatch:
    """`LIST_USAGE` of missing ledgers with a size in managed ledgers' lists (``REFERENCES``), below zero.

    Missing ledgers of other lists are `audit.decoding.DecodedNodes.unsized`, which are counted one by one.
    """
    listed = missing.filter(
        pc.and_(pc.equal(missing.column("kind"), LedgerKind.DATA.value), pc.is_valid(missing.column("size_bytes")))
    )
    taken = (pa.repeat(1, listed.num_rows), listed.column("size_bytes"), pa.repeat(0, listed.num_rows))
    columns = [listed.column("path"), listed.column("kind"), *map(pc.negate, taken)]
    return pa.RecordBatch.from_arrays(columns, schema=LIST_USAGE)


def named_usage(columns: ColumnReader, usage: pa.RecordBatch) -> pa.RecordBatch:
    """`NAMED_USAGE` of `LIST_USAGE`."""
    rest = [usage.column(name) for name in ("kind", *_SUMS)]
    return pa.RecordBatch.from_arrays([*columns.owners_at(usage.column("path")), *rest], schema=NAMED_USAGE)


def loaded_topics(columns: ColumnReader, cursors: pa.RecordBatch) -> pa.RecordBatch:
    """`LOADED` of `audit.decoding.CURSORS`."""
    _, _, topics = columns.owners_of(cursors.column("managed_ledger"))
    loaded = pa.RecordBatch.from_arrays([topics, cursors.column("in_ledger")], schema=LOADED)
    return loaded.filter(pc.is_valid(topics))


def usage_table(
    named: Iterable[pa.RecordBatch], loaded: Iterable[pa.RecordBatch], shadows: Collection[str] = ()
) -> pa.Table:
    """`LEDGER_USAGE`, in the order of its keys; ``shadows`` are shadow topics, partitioned ones by their own names."""
    rows = _without_copies(pa.Table.from_batches(named, NAMED_USAGE), shadows)
    encoded = {name: _encoded(rows.column(name)) for name in _KEYS}
    # There are nearly as many owners as rows: to put them in order takes half as long as to look each one up.
    order, starts = _in_order([_ranks(texts) for texts in encoded.values()])
    sums = {name: sums_between(rows.column(name).to_numpy()[order], starts) for name in _SUMS}
    there = sums["ledgers"] > 0
    owners = pa.array(order[starts][there])
    columns = {name: texts.take(owners).dictionary_decode() for name, texts in encoded.items()}
    columns.update((name, pa.array(summed[there])) for name, summed in sums.items())
    nothing_known = pc.equal(columns["ledgers"], columns["unknown_size_ledgers"])
    columns["bytes"] = pc.if_else(nothing_known, pa.scalar(None, pa.int64()), columns["bytes"])
    flags = _loaded(encoded["topic"], pa.Table.from_batches(loaded, LOADED)).take(owners)
    is_schema = pc.equal(columns["kind"], LedgerKind.SCHEMA.value)
    columns["loaded"] = pc.if_else(is_schema, pa.scalar(None, pa.bool_()), flags)
    batch = pa.RecordBatch.from_arrays([columns[name] for name in LEDGER_USAGE.names], schema=LEDGER_USAGE)
    return pa.Table.from_batches([batch], LEDGER_USAGE)


def _without_copies(named: pa.Table, shadows: Collection[str]) -> pa.Table:
    """Without the lists of shadows' partitions: brokers write the source into the partitioned topic's node only."""
    if not shadows:
        return named
    bases = pc.replace_substring_regex(named.column("topic").combine_chunks(), _PARTITION, "")
    copies = pc.and_(
        pc.equal(named.column("kind"), LedgerKind.DATA.value),
        pc.is_in(bases, value_set=pa.array(sorted(shadows), pa.string())),
    )
    return named.filter(pc.invert(copies))


def _encoded(texts: pa.ChunkedArray) -> Any:
    return pc.dictionary_encode(texts.combine_chunks())  # type: ignore[attr-defined]  # the stubs lack it


def _ranks(texts: Any) -> Numbers:
    """Numbers in the order of the encoded texts, none last: comparing four texts at a time takes ten times as long."""
    ranks = pc.rank(texts.dictionary, tiebreaker="dense")
    found: Numbers = ranks.take(texts.indices).cast(pa.int64()).fill_null(len(ranks) + 1).to_numpy()
    return found


def _in_order(ranks: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """The rows' order by their ranks, and where in it each group of equal ones starts."""
    order: Numbers = np.lexsort(ranks[::-1])
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = np.any([np.diff(ranked[order]) != 0 for ranked in ranks], axis=0)
    return order, np.flatnonzero(is_first)


def _loaded(topics: Any, loaded: pa.Table) -> pa.Array:
    """Whether some cursor's position is in a ledger, for each of the encoded topics; null without a cursor."""
    elsewhere = len(topics.dictionary)
    places = pc.index_in(loaded.column("topic"), value_set=topics.dictionary).fill_null(elsewhere).to_numpy()
    has_cursor = np.zeros(elsewhere + 1, np.bool_)
    in_ledger = has_cursor.copy()
    has_cursor[places] = True
    in_ledger[places[loaded.column("in_ledger").to_numpy()]] = True
    return pa.array(in_ledger, mask=~has_cursor).take(topics.indices)


def counts_of_usage(usage: pa.Table, column: str) -> dict[str, Count]:
    """`LEDGER_USAGE` counted by the values of a column; the empty text stands for none."""
    summed = usage.group_by([column]).aggregate([(name, "sum") for name in _SUMS])
    return {row[column] or "": Count.of(*(row[f"{name}_sum"] for name in _SUMS)) for row in summed.to_pylist()}


def counts_of_rows(rows: pa.Table, column: str) -> dict[str, Count]:
    """Rows with a ``length_bytes`` each, counted by the values of a column."""
    # ``count`` leaves nulls out.
    summed = rows.group_by([column]).aggregate([([], "count_all"), ("length_bytes", "sum"), ("length_bytes", "count")])
    return {
        row[column] or "": Count.of(
            row["count_all"], row["length_bytes_sum"], row["count_all"] - row["length_bytes_count"]
        )
        for row in summed.to_pylist()
    }


def count_of_lengths(lengths: pa.ChunkedArray | pa.Array) -> Count:
    """Ledgers of these lengths; null where one is not known."""
    return Count.of(len(lengths), pc.sum(lengths).as_py(), lengths.null_count)
