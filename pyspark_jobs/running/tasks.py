"""Tasks over Arrow batches in Spark's workers."""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec
from zipimport import zipimporter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pulsar_sidecar.reports.formatting import Row
from pyarrow import ipc
from pyspark.sql import Column, DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

About = ParamSpec("About")
Batches = Iterable[pa.RecordBatch]
Task = Callable[Concatenate[Batches, About], Iterator[pa.RecordBatch]]


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of the same columns, all nullable as in every file that Spark reads."""
    return StructType([StructField(field.name, field.dataType, True) for field in from_arrow_schema(schema)])


def each_batch(work: Callable[Concatenate[pa.RecordBatch, About], Iterable[pa.RecordBatch]]) -> Task[About]:
    """Return the task that does this work on one batch after the other."""

    @wraps(work)
    def task(batches: Batches, /, *args: About.args, **kwargs: About.kwargs) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from work(batch, *args, **kwargs)

    return task


def mapped(
    frame: DataFrame, schema: pa.Schema, task: Task[About], *args: About.args, **kwargs: About.kwargs
) -> DataFrame:
    """Return the result of a task on a frame's rows."""
    return frame.mapInArrow(in_worker(lambda batches: task(batches, *args, **kwargs)), spark_schema(schema))


def by_key(
    frame: DataFrame,
    key: str,
    schema: pa.Schema,
    task: Callable[Concatenate[pa.Table, About], pa.Table],
    *args: About.args,
    **kwargs: About.kwargs,
) -> DataFrame:
    """Return the results of a task on the rows of each value of a column."""
    work = in_worker(lambda rows: task(rows, *args, **kwargs))
    return frame.groupBy(key).applyInArrow(work, spark_schema(schema))


def first_rows(frame: DataFrame, order: Iterable[Column], count: int) -> tuple[Row, ...]:
    """Return the first rows in an order."""
    return tuple(row.asDict() for row in frame.orderBy(*order).limit(count).collect())


def in_worker(task: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a task that first drops the worker's importers of archives (``pyspark.zip``, wheels).

    Python recreates them on demand. Before each task Spark calls `importlib.invalidate_caches`, and each importer, one
    for each package of an archive, then reads the archive's whole directory: 0.2 s of processor time before a task of
    milliseconds.
    """

    def run(rows: Any) -> Any:
        cache: dict[str, Any] = sys.path_importer_cache
        for place in [place for place, importer in cache.items() if isinstance(importer, zipimporter)]:
            del cache[place]
        return task(rows)

    return run


def pack(batch: pa.RecordBatch) -> bytes:
    """Return a batch with its schema as bytes."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def pack_shares(batch: pa.RecordBatch, shares: npt.NDArray[np.int64]) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of each share, without empty shares."""
    for share in np.unique(shares).tolist():
        yield share, pack(batch.filter(pa.array(shares == share)))


def unpack(packed: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the packed batches."""
    for each in packed:
        with ipc.open_stream(pa.py_buffer(each)) as stream:
            yield from stream


@each_batch
def unpacked(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the batches packed in the column ``content``."""
    return unpack(batch.column("content").to_pylist())


def group_by_tag(share: pa.Table, *tags: str) -> dict[str, list[bytes]]:
    """Return the packed content of each of these tags."""
    packed: dict[str, list[bytes]] = {tag: [] for tag in tags}
    for row in share.select(["tag", "content"]).to_pylist():
        packed[row["tag"]].append(row["content"])
    return packed
