"""What Spark's Python workers do with references: who names missing ledgers, and who uses how much.

Invariant: every value comes from `audit`, which the embedded engine calls too; here rows only change form.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pulsar_sidecar.audit.arrays import IdTable, Numbers
from pulsar_sidecar.audit.columnar.reader import ColumnReader
from pulsar_sidecar.audit.engine.decoding import lists_naming
from pulsar_sidecar.audit.engine.judging import SIZES, newest_sizes
from pulsar_sidecar.audit.engine.usage import NAMED_USAGE, counts_of_usage, missing_row, usage_table
from pulsar_sidecar.audit.results.tables import MISSING_LEDGERS, LedgerKind

from pyspark_jobs.orphan_ledgers.first_pass import LOADED, OTHER, OTHERS, UNSIZED, USAGE, Batches, Task
from pyspark_jobs.orphan_ledgers.packing import pack, pack_shares, shares_of_topics, unpack
from pyspark_jobs.orphan_ledgers.tasks import by_tag

_SHARES = pa.schema([pa.field("tag", pa.string()), pa.field("part", pa.int64()), pa.field("content", pa.binary())])
SHARES = "tag string, part bigint, content binary"
SIZE = "size"
USAGE_SHARES = "content binary"
COUNTED_USAGE = ("kind", "tenant")
_COUNTS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("column", "value")),
        *(pa.field(name, pa.int64()) for name in ("ledgers", "bytes", "unknown_size_ledgers")),
    ]
)
COUNTS = "column string, value string, ledgers bigint, bytes bigint, unknown_size_ledgers bigint"


def lists_naming_task(columns: ColumnReader, wanted: Numbers) -> Task:
    """Nodes to rows of missing ledgers, of which their lists name some."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield _missing(lists_naming(columns, wanted, batch).to_pylist())

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
    """One share of references and of their ledgers' sizes (`SHARES`) to `SHARES` of usage, without what is gone."""

    def task(share: pa.Table) -> pa.Table:
        packed = by_tag(share, OTHER, UNSIZED, SIZE)
        named = pa.Table.from_batches(unpack([*packed[OTHER], *packed[UNSIZED]]), OTHERS)
        every = named.group_by(OTHERS.names).aggregate([])
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


def usage_task(shadows: Collection[str]) -> Callable[[pa.Table], pa.Table]:
    """One share of usage and of loaded topics (`SHARES`) to one of the table of usage (`USAGE_SHARES`)."""

    def task(share: pa.Table) -> pa.Table:
        packed = by_tag(share, USAGE, LOADED)
        usage = usage_table(unpack(packed[USAGE]), unpack(packed[LOADED]), shadows)
        return pa.table({"content": pa.array([pack(batch) for batch in usage.to_batches()], pa.binary())})

    return task


def usage_counts_task(batches: Batches) -> Iterator[pa.RecordBatch]:
    """`USAGE_SHARES` to `COUNTS`."""
    for usage in unpack_task(batches):
        counts = {name: counts_of_usage(pa.Table.from_batches([usage]), name) for name in COUNTED_USAGE}
        rows = [
            {"column": name, "value": value, **msgspec.structs.asdict(count)}
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
