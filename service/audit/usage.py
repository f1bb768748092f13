"""How many ledgers and bytes belong to whom.

References of single nodes are summed up by their owner; what turned out to be missing is taken off again.
"""

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from service.audit.decoding import LIST_USAGE, Reference
from service.audit.places import Owner, Place, locate, owner_of_managed_ledger, owner_of_schema
from service.audit.summaries import Count
from service.audit.tables import LEDGER_USAGE, LedgerKind

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

_KEYS = ("tenant", "namespace", "topic", "kind")
_SUMS = ("ledgers", "bytes", "unknown_size_ledgers")


def owner_at(path: str) -> Owner:
    """Whom the references of a node belong to."""
    located = locate(path)
    match located.place:
        case Place.SCHEMA:
            return owner_of_schema(located.owner)
        case Place.ODD:
            return Owner()
        case _:
            return owner_of_managed_ledger(located.owner)


def single_usage(references: Iterable[Reference], lengths: Mapping[int, int | None]) -> pa.RecordBatch:
    """`LIST_USAGE` of single references, each counted once; ``lengths`` holds the sizes that are known."""
    totals: dict[tuple[str, LedgerKind], list[int]] = {}
    for each in references:
        total = totals.setdefault((each.path, each.kind), [0, 0, 0])
        length = lengths.get(each.ledger_id)
        total[0] += 1
        total[1] += length or 0
        total[2] += length is None
    rows = [
        {"path": path, "kind": kind.value, **dict(zip(_SUMS, total, strict=True))}
        for (path, kind), total in totals.items()
    ]
    return pa.RecordBatch.from_pylist(rows, schema=LIST_USAGE)


def usage_taken_off(missing: pa.RecordBatch) -> pa.RecordBatch:
    """`LIST_USAGE` of missing ledgers of managed ledgers' lists (`service.audit.decoding.REFERENCES`), below zero."""
    listed = missing.filter(pc.equal(missing.column("kind"), LedgerKind.DATA.value))
    rows = [
        {
            "path": row["path"],
            "kind": row["kind"],
            "ledgers": -1,
            "bytes": -(row["size_bytes"] or 0),
            "unknown_size_ledgers": -(row["size_bytes"] is None),
        }
        for row in listed.to_pylist()
    ]
    return pa.RecordBatch.from_pylist(rows, schema=LIST_USAGE)


def named_usage(usage: pa.RecordBatch) -> pa.RecordBatch:
    """`NAMED_USAGE` of `LIST_USAGE`."""
    owners = [owner_at(path) for path in usage.column("path").to_pylist()]
    names = [pa.array([getattr(owner, name) for owner in owners], pa.string()) for name in Owner.__slots__]
    rest = [usage.column(name) for name in ("kind", *_SUMS)]
    return pa.RecordBatch.from_arrays([*names, *rest], schema=NAMED_USAGE)


def loaded_topics(cursors: Mapping[str, bool]) -> dict[str, bool]:
    """By topic, whether a cursor's position is in a ledger; ``cursors`` has managed ledgers' names."""
    named = ((owner_of_managed_ledger(name).topic, in_ledger) for name, in_ledger in cursors.items())
    return {topic: in_ledger for topic, in_ledger in named if topic is not None}


def usage_table(named: Iterable[pa.RecordBatch], loaded: Mapping[str, bool]) -> pa.Table:
    """`LEDGER_USAGE`, in the order of its keys."""
    sums = pa.Table.from_batches(named, NAMED_USAGE).group_by(_KEYS).aggregate([(name, "sum") for name in _SUMS])
    grouped = sums.select([*_KEYS, *(f"{name}_sum" for name in _SUMS)]).rename_columns([*_KEYS, *_SUMS])
    there = grouped.filter(pc.greater(grouped.column("ledgers"), 0)).sort_by([(name, "ascending") for name in _KEYS])
    flags = [
        None if kind == LedgerKind.SCHEMA.value or topic is None else loaded.get(topic)
        for topic, kind in zip(there.column("topic").to_pylist(), there.column("kind").to_pylist(), strict=True)
    ]
    columns = {name: there.column(name).combine_chunks() for name in (*_KEYS, *_SUMS)}
    columns["loaded"] = pa.array(flags, pa.bool_())
    batch = pa.RecordBatch.from_arrays([columns[name] for name in LEDGER_USAGE.names], schema=LEDGER_USAGE)
    return pa.Table.from_batches([batch], LEDGER_USAGE)


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
