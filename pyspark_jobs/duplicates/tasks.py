"""Tasks of Spark's workers: from row groups and facts about their rows to rows of `extracts.tables`.

Invariant: every value comes from `features.duplicates.extracts`, which the embedded engine calls too; tasks only
convert rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pulsar_sidecar.features.duplicates.extracts import tables
from pulsar_sidecar.features.duplicates.extracts.judging import COUNTED_AS, KINDS, judge_suspects
from pulsar_sidecar.features.duplicates.extracts.judging import judge_topics as topics_judged
from pulsar_sidecar.features.duplicates.extracts.row_groups import (
    NAMES,
    SUMMARY_COLUMNS,
    SUSPECT_COLUMNS,
    Numbers,
    ProducerRows,
    ProducerState,
    TopicProducer,
    column,
    producers_of,
    rows_with_ids,
    summarise,
    suspects_of,
    topic_parts,
)
from pulsar_sidecar.features.duplicates.extracts.running import ORDER_OF_FINDINGS, SHOWN_ROWS
from pulsar_sidecar.features.duplicates.extracts.tables import PRODUCERS, SUMMARIES
from pulsar_sidecar.reports.schemas import schema_of

from pyspark_jobs.running.tasks import Batches, each_batch, group_by_tag, pack, pack_shares, unpack

SUMMARY, PART = "summary", "part"
SUSPECT, STORED_ROWS, IDS, LOOKED = "suspect", "stored", "ids", "looked"
FINDING, FIRST, COUNT = "finding", "first", "count"
PACKED = schema_of("tag string, part bigint, content binary")
"""Output of each pass: rows of one of these kinds, packed, or ids as bytes. All rows of an id are of the same part.

Nothing else is shuffled: a row of Spark's costs microseconds whenever it is kept, sorted or grouped.
"""
RANGES = schema_of("""
    topic string not null, producer string, replicated_from string, row_group bigint not null, gaps bigint,
    least bigint, greatest bigint
""")
"""Row of each producer in a row group with suspects: their ids' range, and the number of gaps."""
COUNTS = pa.schema([PRODUCERS.field(name) for name in (*NAMES, *COUNTED_AS)])
_ANY = np.iinfo(np.int64)

Groups = Sequence[tuple[str, int]]
"""Files of all row groups with their numbers there, in the order of their rows."""


def look(batches: Batches, groups: Groups) -> Iterator[pa.RecordBatch]:
    """Map numbers of row groups to `PACKED` rows of `tables.SUMMARIES` and `tables.TOPIC_PARTS`."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            table = _read(groups, number, SUMMARY_COLUMNS)
            parts = [(SUMMARY, summarise(number, table).batch(SUMMARIES)), (PART, topic_parts(number, table))]
            yield from _packed((tag, None, pack(rows)) for tag, rows in parts).to_batches()


def look_again(carried: pa.Table, groups: Groups, parts: int) -> pa.Table:
    """Map the `row_groups.ProducerState` of each producer of one row group to its suspects, their ids and `RANGES`."""
    number, about = _about(carried, lambda row: ProducerState(*(row[name] for name in ProducerState._fields)))
    suspects, gaps = suspects_of(number, _read(groups, number, SUSPECT_COLUMNS), about)
    ids = suspects.columns["fingerprint"]
    rows = pa.RecordBatch.from_arrays(
        [pa.array(suspects.columns[name]) for name in tables.SUSPECTS.names], schema=tables.SUSPECTS
    )
    ranges = _ranges(number, suspects, gaps).batch(RANGES)
    few = ((IDS, None, np.unique(ids).tobytes()), (LOOKED, None, pack(ranges)))
    return _packed([*few, *_parted(SUSPECT, rows, ids, parts)])


def look_for_ids(bounds: pa.Table, groups: Groups, wanted: Numbers | None, parts: int) -> pa.Table:
    """Map the bounds of suspects' ids of one row group's producers to rows with such ids."""
    number, about = _about(bounds, lambda row: (row["least"], row["greatest"]))
    stored = rows_with_ids(number, _read(groups, number, SUSPECT_COLUMNS), about, wanted)
    return _packed(_parted(STORED_ROWS, stored.batch(tables.STORED), stored.columns["fingerprint"], parts))


def _ranges(number: int, suspects: ProducerRows, gaps: Mapping[TopicProducer, int]) -> ProducerRows:
    least, greatest = (np.full(len(suspects.producers), end) for end in (_ANY.max, _ANY.min))
    np.minimum.at(least, suspects.of, suspects.columns["sequence_id"])
    np.maximum.at(greatest, suspects.of, suspects.columns["sequence_id"])
    of = np.array([place for place, each in enumerate(suspects.producers) if each in gaps], np.int64)
    counted = np.array([gaps[suspects.producers[place]] for place in of.tolist()], np.int64)
    columns = {"row_group": np.full(len(of), number), "gaps": counted, "least": least[of], "greatest": greatest[of]}
    return ProducerRows(suspects.producers, of, columns)


def _parted(tag: str, rows: pa.RecordBatch, ids: Numbers, parts: int) -> Iterator[tuple[str, int | None, bytes]]:
    of = (ids.view(np.uint64) % np.uint64(parts)).astype(np.int64)
    return ((tag, part, content) for part, content in pack_shares(rows, of))


def _packed(rows: Iterable[tuple[str, int | None, bytes]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(PACKED.names, row, strict=True)) for row in rows], schema=PACKED)


def _about(rows: pa.Table, value: Callable[[Mapping[str, Any]], Any]) -> tuple[int, dict[TopicProducer, Any]]:
    some = rows.to_pylist()
    return some[0]["row_group"], {TopicProducer(*(row[name] for name in NAMES)): value(row) for row in some}


def _read(groups: Groups, number: int, columns: Sequence[str]) -> pa.Table:
    path, group = groups[number]
    with pq.ParquetFile(path) as file:
        return file.read_row_group(group, columns=list(columns), use_threads=False)


def judge(part: pa.Table) -> pa.Table:
    """Map one part's suspects, and all rows with their ids, to `tables.FINDINGS`, the first of them and `COUNTS`."""
    packed = group_by_tag(part, SUSPECT, STORED_ROWS)
    stored, suspects = (
        pa.Table.from_batches(unpack(packed[tag]), schema)
        for tag, schema in ((STORED_ROWS, tables.STORED), (SUSPECT, tables.SUSPECTS))
    )
    producers, of = producers_of(stored, np.arange(stored.num_rows))
    kept = {name: column(stored, name) for name in tables.STORED.names if name not in NAMES}
    about = {name: column(suspects, name) for name in tables.SUSPECTS.names}
    of, kinds, columns = judge_suspects({"producer": of, **kept}, about)
    counts = np.zeros((len(producers), len(KINDS)), np.int64)
    np.add.at(counts, (of, kinds), 1)
    counted = {name: counts[:, place] for place, name in enumerate(COUNTED_AS)}
    findings = ProducerRows(producers, of, columns).batch(tables.FINDINGS)
    ascending = [(name, "ascending") for name in ORDER_OF_FINDINGS]
    order = pc.sort_indices(pa.Table.from_batches([findings]), sort_keys=ascending)
    first = findings.take(order.slice(0, SHOWN_ROWS))
    rows = {FINDING: findings, FIRST: first}
    rows[COUNT] = ProducerRows(producers, np.arange(len(producers)), counted).batch(COUNTS)
    return _packed((tag, None, pack(each)) for tag, each in rows.items())


@each_batch
def judge_topics(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Map `tables.TOPIC_SUMS`, one row for each topic, to `tables.TOPICS`."""
    if batch.num_rows:
        yield topics_judged(batch)
