"""Tasks of Spark's workers: from row groups and facts about their rows to rows of `extracts.tables`.

Invariant: every value comes from `features.duplicates.extracts`, which the embedded engine calls too; tasks only
convert rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pulsar_sidecar.features.duplicates.extracts.judging import NOWHERE, FirstRows, findings_of
from pulsar_sidecar.features.duplicates.extracts.judging import judge_topics as topics_judged
from pulsar_sidecar.features.duplicates.extracts.row_groups import (
    NAMES,
    PLACE,
    SUMMARY_COLUMNS,
    SUSPECT_COLUMNS,
    Numbers,
    ProducerRows,
    ProducerState,
    TopicProducer,
    rows_with_ids,
    summarise,
    suspects_of,
    topic_parts,
)
from pulsar_sidecar.features.duplicates.extracts.tables import FINDINGS, SUMMARIES, SUSPECTS
from pulsar_sidecar.reports.schemas import schema_of

from pyspark_jobs.running.tasks import Batches, each_batch, pack

SUMMARY, PART = "summary", "part"
LOOKS = schema_of("tag string, content binary")
"""Output of the first pass over all row groups: `tables.SUMMARIES` and `tables.TOPIC_PARTS`, packed."""
COMPARED = (
    *(field.name for field in SUSPECTS if field.name not in ("fingerprint", "row_group", "gaps")),
    "unread_row",
    *(f"{which}_{name}" for which in ("any", "same") for name in ("row", *PLACE)),
)
"""Columns of suspects joined with the first rows of their ids, the input of `judge`."""

Groups = Sequence[tuple[str, int]]
"""Files of all row groups with their numbers there, in the order of their rows."""


def look(batches: Batches, groups: Groups) -> Iterator[pa.RecordBatch]:
    """Map numbers of row groups to `LOOKS`."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            table = _read(groups, number, SUMMARY_COLUMNS)
            parts = [(SUMMARY, summarise(number, table).batch(SUMMARIES)), (PART, topic_parts(number, table))]
            yield pa.RecordBatch.from_pylist([{"tag": tag, "content": pack(rows)} for tag, rows in parts], schema=LOOKS)


def look_again(carried: pa.Table, groups: Groups) -> pa.Table:
    """Map the `row_groups.ProducerState` of each producer of one row group to `tables.SUSPECTS`."""
    number, about = _about(carried, lambda row: ProducerState(*(row[name] for name in ProducerState._fields)))
    parts, gaps = suspects_of(number, _read(groups, number, SUSPECT_COLUMNS), about)
    counted = {"row_group": np.full(len(gaps), number), "gaps": np.fromiter(gaps.values(), np.int64, len(gaps))}
    counts = ProducerRows(list(gaps), np.arange(len(gaps)), counted)
    return pa.Table.from_batches([parts.batch(SUSPECTS), counts.batch(SUSPECTS)])


def look_for_ids(bounds: pa.Table, groups: Groups, wanted: Numbers | None) -> pa.Table:
    """Map the bounds of suspects' ids of one row group's producers to rows with such ids, as `tables.SUSPECTS`."""
    number, about = _about(bounds, lambda row: (row["least"], row["greatest"]))
    return pa.Table.from_batches(
        [rows_with_ids(number, _read(groups, number, SUSPECT_COLUMNS), about, wanted).batch(SUSPECTS)]
    )


def _about(rows: pa.Table, value: Callable[[Mapping[str, Any]], Any]) -> tuple[int, dict[TopicProducer, Any]]:
    some = rows.to_pylist()
    return some[0]["row_group"], {TopicProducer(*(row[name] for name in NAMES)): value(row) for row in some}


def _read(groups: Groups, number: int, columns: Sequence[str]) -> pa.Table:
    path, group = groups[number]
    with pq.ParquetFile(path) as file:
        return file.read_row_group(group, columns=list(columns), use_threads=False)


@each_batch
def judge(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Map `COMPARED` to `tables.FINDINGS`."""
    rows = {name: batch.column(name) for name in COMPARED}
    numbers = {name: rows[name].fill_null(NOWHERE).to_numpy() for name in ("any_row", "unread_row", "same_row")}
    places = {
        name: tuple(rows[f"{which}_{name}"].fill_null(NOWHERE).to_numpy() for which in ("any", "same"))
        for name in PLACE
    }
    suspects = {
        name: rows[name].to_numpy(zero_copy_only=False) for name in SUSPECTS.names if name in rows and name not in NAMES
    }
    every, _, columns = findings_of(suspects, FirstRows(*numbers.values()), places)
    names = {name: rows[name].take(pa.array(every)) for name in NAMES}
    arrays = [({**names, **columns})[field.name].cast(field.type) for field in FINDINGS]
    yield pa.RecordBatch.from_arrays(arrays, schema=FINDINGS)


@each_batch
def judge_topics(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Map `tables.TOPIC_SUMS`, one row for each topic, to `tables.TOPICS`."""
    if batch.num_rows:
        yield topics_judged(batch)
