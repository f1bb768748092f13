"""Rows of a dump or a listing on their way to the tasks that look at every one of them.

From a disk that driver and workers see alike, a worker reads row groups itself: rows that Spark has read become Arrow's
again at several times the price of reading them. From everywhere else (HDFS, object stores) Spark reads them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_jobs.orphan_ledgers.files import Directory
from pyspark_jobs.orphan_ledgers.first_pass import Batches, Task
from pyspark_jobs.orphan_ledgers.schemas import spark_schema
from pyspark_jobs.orphan_ledgers.workers import in_worker

_ROW_GROUPS_OF_A_TASK = 8
_ROWS_AT_ONCE = 131_072
"""As many as a row group of ours has at most; another writer's may be larger."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some columns of some files of a directory; ``schema`` is that of the files."""

    spark: SparkSession
    directory: Directory
    names: Sequence[str]
    schema: pa.Schema
    columns: Sequence[str]

    def frame(self) -> DataFrame:
        """As Spark reads them, to be joined."""
        schema = spark_schema(self.schema)
        if not self.names:
            return self.spark.createDataFrame([], schema).select(*self.columns)
        return self.spark.read.schema(schema).parquet(*map(self.directory.below, self.names)).select(*self.columns)

    def mapped(self, task: Task, schema: StructType | str) -> DataFrame:
        """What a task makes of them."""
        disk = self.directory.on_disk()
        if disk is None:
            return self.frame().mapInArrow(in_worker(task), schema)
        paths = [f"{disk}/{name}" for name in self.names]
        groups = [(path, number) for path in paths for number in range(_row_groups(path))]
        if not groups:
            return self.spark.createDataFrame([], schema)
        wanted = max(len(groups) // _ROW_GROUPS_OF_A_TASK, self.spark.sparkContext.defaultParallelism)
        numbers = self.spark.range(0, len(groups), 1, min(len(groups), wanted))
        return numbers.mapInArrow(in_worker(_reading(groups, self.columns, task)), schema)


def _row_groups(path: str) -> int:
    groups: int = pq.read_metadata(path).num_row_groups
    return groups


def _reading(groups: Sequence[tuple[str, int]], columns: Sequence[str], task: Task) -> Task:
    """From the numbers of row groups to what the task makes of their rows."""

    def rows(numbers: Batches) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                path, group = groups[number]
                with pq.ParquetFile(path) as file:
                    for some in file.iter_batches(
                        _ROWS_AT_ONCE, row_groups=[group], columns=list(columns), use_threads=False
                    ):
                        yield some.select(columns)

    return lambda numbers: task(rows(numbers))
