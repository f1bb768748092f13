"""Search for duplicates as a Spark plan: joins of rows, and the tables that it writes.

The driver's data grows neither with the messages nor with their faults, except for the ids of a bounded number of
suspects. Row groups' sums are joined by producer in Spark's windows and sums, which spill; suspects and stored rows
meet as packed parts by their ids, of which a producer has many, and a worker holds one part at a time.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
from pulsar_sidecar.features.duplicates.extracts.judging import (
    COUNTED_AS,
    KINDS,
    MOST_IDS_HELD,
    SUMMED,
    UNPROVEN,
    demand_counted,
    demand_order,
)
from pulsar_sidecar.features.duplicates.extracts.results import DuplicateCounts
from pulsar_sidecar.features.duplicates.extracts.row_groups import NAMES, PLACE, Numbers
from pulsar_sidecar.features.duplicates.extracts.running import (
    ORDER_OF_FINDINGS,
    ORDER_OF_PRODUCERS,
    SHOWN_ROWS,
    ReportRows,
    WrittenTables,
)
from pulsar_sidecar.features.duplicates.extracts.tables import (
    FINDINGS,
    LEDGERS,
    PRODUCERS,
    SUMMARIES,
    TOPIC_PARTS,
    TOPICS,
    UNSEEN,
)
from pulsar_sidecar.features.duplicates.manifests import ExtractManifest
from pulsar_sidecar.features.duplicates.verify import TopicResult
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ledgers import UnseenCause
from pulsar_sidecar.reports.documents import Engine
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as is usual

from pyspark_jobs.duplicates import tasks
from pyspark_jobs.running.directories import Directory, Rows, groups_on_disk, numbers_of
from pyspark_jobs.running.tasks import by_key, first_rows, mapped, spark_schema, unpacked

_MESSAGES_OF_A_PART: Final = 250_000
_ID_BYTES: Final = 8
_SUMMED: Final = ("messages", "transactional", "unopened", "unopened_batches")
_OF_TOPICS: Final = ("messages", "unopened_batches")
_FIRST: Final = ("first_sequence_id", "first_publish_ms")
_LAST: Final = ("last_sequence_id", "last_publish_ms")


class SparkEngine:
    """Runs the analysis on Spark and writes its tables below an unfinished directory."""

    kind = Engine.SPARK

    def __init__(self, spark: SparkSession, extract: Directory, manifest: ExtractManifest, output: Directory) -> None:
        """Initialise; ``extract`` is on a disk shared by driver and workers, and was compared with its manifest."""
        disk = extract.on_disk()
        if disk is None:
            raise InvalidInputError(
                f"{extract.place} is on no disk that driver and executors see alike; mount it, or copy it to one"
            )
        self._spark = spark
        self._extract = extract
        self._files = sorted(file.path for file in manifest.files)
        self._groups = groups_on_disk(disk, [name for name in self._files if name.startswith("messages/")])
        self._output = output
        self.kept = ExitStack()
        """Data that Spark keeps between steps; closing it releases them."""

    @contextmanager
    def write(self) -> Iterator[WrittenTables]:
        """See `DuplicatesEngine.write`."""
        looks = self._keep(mapped(numbers_of(self._spark, self._groups), tasks.PACKED, tasks.look, self._groups))
        topic_parts = _unpacked(looks, tasks.PART, TOPIC_PARTS)
        demand_order([row["topic"] for row in _out_of_order(topic_parts).limit(1).collect()])
        summaries = self._keep(_carried(_unpacked(looks, tasks.SUMMARY, SUMMARIES)))
        doubtful = summaries.where("is_suspect")
        parts = _sum(doubtful, "messages") // _MESSAGES_OF_A_PART + 1
        again = self._keep(by_key(doubtful, "row_group", tasks.PACKED, tasks.look_again, self._groups, parts))
        judged = self._keep(self._judged(summaries, again, parts))
        counts = _unpacked(judged, tasks.COUNT, tasks.COUNTS)
        producers = self._keep(_producers(summaries, _unpacked(again, tasks.LOOKED, tasks.RANGES), counts))
        topics = self._keep(self._topics(topic_parts, producers))
        findings = _unpacked(judged, tasks.FINDING, FINDINGS)
        for table, rows in (("findings", findings), ("producers", producers), ("topics", topics)):
            rows.write.option("compression", "zstd").parquet(self._output.below(table))
        self._output.clean()
        files = self._output.digests(sorted(self._output.tables()))
        first = _unpacked(judged, tasks.FIRST, FINDINGS)
        yield WrittenTables(self._output, files, _counts(producers, topics), _shown(first, producers, topics))

    def _keep(self, frame: DataFrame) -> DataFrame:
        self.kept.callback(frame.persist(StorageLevel.MEMORY_AND_DISK).unpersist)
        return frame

    def _judged(self, summaries: DataFrame, again: DataFrame, parts: int) -> DataFrame:
        """Bring suspects and all rows with their ids together, part by part."""
        ids = _held_ids(again)
        if ids is not None and not len(ids):
            return self._spark.createDataFrame([], spark_schema(tasks.PACKED))
        least, greatest = F.min("least").alias("least"), F.max("greatest").alias("greatest")
        ranges = _unpacked(again, tasks.LOOKED, tasks.RANGES)
        bounds = ranges.groupBy(*NAMES).agg(least, greatest).alias("bounds")
        same = [F.col(f"summaries.{name}").eqNullSafe(F.col(f"bounds.{name}")) for name in NAMES]
        may_have = F.expr("lowest <= greatest and highest >= least")
        joined = summaries.alias("summaries").join(bounds, reduce(Column.__and__, [*same, may_have]))
        wanted = joined.select("summaries.*", "least", "greatest")
        stored = by_key(wanted, "row_group", tasks.PACKED, tasks.look_for_ids, self._groups, ids, parts)
        suspects = again.where(F.col("tag") == tasks.SUSPECT)
        return by_key(suspects.union(stored), "part", tasks.PACKED, tasks.judge)

    def _topics(self, parts: DataFrame, producers: DataFrame) -> DataFrame:
        ledgers, unseen = self._table("ledgers", LEDGERS), self._table("unseen", UNSEEN)
        is_trimmed = F.col("cause") == UnseenCause.TRIMMED.value
        found = reduce(Column.__add__, map(F.col, COUNTED_AS))
        sums = [
            _topic_sums(parts, rows=F.col("rows"), markers=F.col("markers")),
            _topic_sums(ledgers, counted=F.col("messages")),
            _topic_sums(unseen, unseen_ranges=(~is_trimmed).cast("int"), trimmed_ranges=is_trimmed.cast("int")),
            _topic_sums(producers, **{name: F.col(name) for name in _OF_TOPICS}, producers=F.lit(1), findings=found),
        ]
        summed = reduce(DataFrame.union, sums).groupBy("topic").agg(*(F.sum(name).alias(name) for name in SUMMED))
        summed = self._keep(summed)
        miscounted = summed.where("rows <> counted").select("topic", "rows", "counted").limit(1).collect()
        demand_counted([(row["topic"], row["rows"], row["counted"]) for row in miscounted])
        return mapped(summed, TOPICS, tasks.judge_topics)

    def _table(self, name: str, schema: object) -> DataFrame:
        names = [each for each in self._files if each.startswith(f"{name}/")]
        return Rows(self._spark, self._extract, names, schema, schema.names).frame()  # type: ignore[arg-type,attr-defined]


# --- sums of row groups --------------------------------------------------------------------------------------------


def _carried(summaries: DataFrame) -> DataFrame:
    """Return `tables.SUMMARIES` with neighbours; ``is_suspect`` marks ids that do not rise, whose gaps do not count."""
    order = Window.partitionBy(*NAMES).orderBy("row_group")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    carried = summaries.select(
        "*",
        F.max("highest").over(before).alias("highest_before"),
        F.lag("last_sequence_id").over(order).alias("last_before"),
        F.lead("first_sequence_id").over(order).alias("first_after"),
    )
    is_suspect = F.col("falls") | F.coalesce(F.expr("lowest <= highest_before"), F.lit(False))
    first, highest = F.col("first_sequence_id"), F.col("highest_before")
    # A row without an earlier id has nothing to subtract either.
    is_gap = F.when(first > highest, (first - 1 > highest).cast("int")).otherwise(0)
    gaps = F.when(is_suspect, 0).otherwise(F.col("gaps") + is_gap)
    return carried.withColumn("is_suspect", is_suspect).withColumn("gaps", gaps.cast("bigint"))


def _out_of_order(parts: DataFrame) -> DataFrame:
    first, last = (F.struct(*(F.col(f"{end}_{name}").alias(name) for name in PLACE)) for end in ("first", "last"))
    before = F.lag(last).over(Window.partitionBy("topic").orderBy("row_group"))
    checked = parts.withColumn("is_behind", before.isNull() | (first > before))
    return checked.where("not in_order or not is_behind").select("topic").orderBy("topic")


def _producers(summaries: DataFrame, ranges: DataFrame, counts: DataFrame) -> DataFrame:
    parts = [
        _part(summaries, ("row_group", *_SUMMED, "gaps", *_FIRST, *_LAST, "highest")),
        _part(ranges, ("gaps",)),
        _part(counts, COUNTED_AS),
    ]
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in (*_SUMMED, "gaps", *COUNTED_AS)]
    firsts = [F.min_by(name, "row_group").alias(name) for name in _FIRST]
    lasts = [F.max_by(name, "row_group").alias(name) for name in _LAST]
    grouped = reduce(DataFrame.unionByName, parts).groupBy(*NAMES)
    return grouped.agg(*sums, *firsts, *lasts, F.max("highest").alias("highest")).select(*PRODUCERS.names)


def _part(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    every = ("row_group", *_SUMMED, "gaps", *_FIRST, *_LAST, "highest", *COUNTED_AS)
    columns = ((F.col(name) if name in names else F.lit(None)).cast("bigint").alias(name) for name in every)
    return rows.select(*NAMES, *columns)


def _topic_sums(table: DataFrame, **sums: Column) -> DataFrame:
    return table.select("topic", *(sums.get(name, F.lit(0)).cast("bigint").alias(name) for name in SUMMED))


# --- packed rows ---------------------------------------------------------------------------------------------------


def _unpacked(packed: DataFrame, tag: str, schema: pa.Schema) -> DataFrame:
    return mapped(packed.where(F.col("tag") == tag), schema, unpacked)


def _sum(rows: DataFrame, column: str) -> int:
    found: int = rows.agg(F.coalesce(F.sum(column), F.lit(0))).collect()[0][0]
    return found


def _held_ids(again: DataFrame) -> Numbers | None:
    """Return all suspects' fingerprints, ascending; None if there are too many to hold."""
    written = again.where(F.col("tag") == tasks.IDS).select("content", F.length("content").alias("bytes"))
    if _sum(written, "bytes") > _ID_BYTES * MOST_IDS_HELD:
        return None
    ids = [np.frombuffer(bytes(row["content"]), np.int64) for row in written.toLocalIterator()]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *ids]))


# --- results -------------------------------------------------------------------------------------------------------


def _counts(producers: DataFrame, topics: DataFrame) -> DuplicateCounts:
    names = ("rows", "markers", "messages", "producers", "unopened_batches")
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names]
    wrong = F.count_if(F.col("findings") > 0).alias("wrong")
    unproven = F.count_if(reduce(Column.__add__, map(F.col, UNPROVEN)) > 0).alias("unproven")
    of_topics = topics.agg(*sums, wrong, unproven).collect()[0]
    counted = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("gaps", *COUNTED_AS)]
    gaps, *of_kinds = producers.agg(*counted).collect()[0]
    return DuplicateCounts(
        topics_with_findings=of_topics["wrong"],
        topics_not_proven=of_topics["unproven"],
        gaps=gaps,
        findings={kind.value: count for kind, count in zip(KINDS, of_kinds, strict=True)},
        **{name: of_topics[name] for name in names},
    )


def _shown(findings: DataFrame, producers: DataFrame, topics: DataFrame) -> ReportRows:
    found = reduce(Column.__add__, map(F.col, COUNTED_AS)).alias("findings")
    of_producers = producers.select("*", found).where("findings > 0")
    not_clean = topics.where(F.col("verdict") != TopicResult.CLEAN.value)
    most = F.desc("findings")
    return ReportRows(
        first_rows(findings, map(F.asc, ORDER_OF_FINDINGS), SHOWN_ROWS),
        first_rows(of_producers, (most, *map(F.asc_nulls_last, ORDER_OF_PRODUCERS)), SHOWN_ROWS),
        first_rows(not_clean, (most, F.asc("topic")), SHOWN_ROWS),
    )
