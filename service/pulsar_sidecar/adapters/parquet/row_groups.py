"""Row groups: the pieces of tables that are processed together, here or in a worker process.

A worker process imports this module before there is work, so it imports little.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pulsar_sidecar.features.audit.arrays import Numbers
from pulsar_sidecar.features.audit.ports import Beside, Work, Worked
from pulsar_sidecar.reports.documents import FileDigest

ROWS_AT_ONCE = 16_384


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Row group of a file."""

    path: Path
    number: int
    rows: int


@dataclass(frozen=True, slots=True)
class MarkedGroup:
    """Some rows of a row group, by their positions in it; ``beside`` are further columns of these rows."""

    group: RowGroup
    places: Numbers
    beside: Beside


def row_groups(directory: Path, files: Iterable[FileDigest], beginning: str) -> list[RowGroup]:
    """Return the row groups of the files whose names have this beginning, in order."""
    groups = []
    for name in sorted(file.path for file in files if file.path.startswith(beginning)):
        metadata = pq.read_metadata(directory / name)
        groups += [
            RowGroup(directory / name, number, metadata.row_group(number).num_rows)
            for number in range(metadata.num_row_groups)
        ]
    return groups


def marked_groups(groups: Sequence[RowGroup], positions: Numbers, beside: Beside) -> list[MarkedGroup]:
    """Return the groups with rows at these positions, which ascend and count through all groups."""
    starts = np.cumsum([0, *(group.rows for group in groups)])
    cuts = np.searchsorted(positions, starts)
    return [
        MarkedGroup(group, positions[first:last] - start, {name: each[first:last] for name, each in beside.items()})
        for group, start, first, last in zip(groups, starts, cuts, cuts[1:], strict=False)
        if last > first
    ]


def work_on_group(columns: Sequence[str], work: Work[Worked], group: RowGroup) -> list[Worked]:
    return [work(batch) for batch in _batches(columns, group)]


def work_on_rows(columns: Sequence[str], work: Work[Worked], marked: MarkedGroup) -> Worked:
    """Do the work on the marked rows alone."""
    first, chosen = 0, []
    for batch in _batches(columns, marked.group):
        cuts = np.searchsorted(marked.places, [first, first + batch.num_rows])
        chosen.append(batch.take(pa.array(marked.places[slice(*cuts)] - first)))
        first += batch.num_rows
    rows = pa.concat_batches(chosen)
    more = [pa.array(each) for each in marked.beside.values()]
    return work(pa.RecordBatch.from_arrays([*more, *rows.columns], names=[*marked.beside, *rows.schema.names]))


def _batches(columns: Sequence[str], group: RowGroup) -> Iterator[pa.RecordBatch]:
    # In batches, because fresh memory is expensive.
    with pq.ParquetFile(group.path) as file:
        for batch in file.iter_batches(
            ROWS_AT_ONCE, row_groups=[group.number], columns=list(columns), use_threads=False
        ):
            yield batch.select(list(columns))
