"""What is counted over all rows and brought to the driver."""

from collections.abc import Sequence

from pulsar_sidecar.audit.results.summaries import Count
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from pyspark_jobs.orphan_ledgers import usage_tasks
from pyspark_jobs.orphan_ledgers.workers import in_worker

_SUMS = ("ledgers", "bytes", "unknown_size_ledgers")


def compared_counts(compared: DataFrame) -> dict[str, int]:
    """What all ranges of `tasks.COMPARED` come to."""
    names = ("listed", "in_dump", "referenced", "candidate_ledgers", "missing_ledgers")
    row = compared.agg(*(F.sum(name).alias(name) for name in names), F.max("newest").alias("newest")).first()
    assert row is not None
    return {"newest": -1 if row["newest"] is None else row["newest"], **{name: row[name] or 0 for name in names}}


def usage_counts(usage: DataFrame) -> dict[str, dict[str, Count]]:
    """What `usage_tasks.USAGE_SHARES` come to by kind and by tenant; the empty text stands for none."""
    counted = usage.mapInArrow(in_worker(usage_tasks.usage_counts_task), usage_tasks.COUNTS).groupBy("column", "value")
    found: dict[str, dict[str, Count]] = {name: {} for name in usage_tasks.COUNTED_USAGE}
    for row in counted.agg(*(F.sum(name).alias(name) for name in _SUMS)).collect():
        found[row["column"]][row["value"]] = Count.of(*(row[name] for name in _SUMS))
    return found


def judged_counts(judged: DataFrame, columns: Sequence[str]) -> dict[str, dict[str, Count]]:
    """Ledgers and bytes by the values of each column, all in one pass; the empty text stands for none.

    All columns but ``is_orphan`` count orphans only.
    """
    labels = [
        F.when(
            F.lit(name == "is_orphan") | F.col("is_orphan"),
            F.struct(F.lit(name).alias("name"), F.col(name).cast("string").alias("value")),
        )
        for name in columns
    ]
    labelled = judged.withColumn("label", F.explode(F.array_compact(F.array(*labels))))
    unknown = F.count_if(F.col("length_bytes").isNull())
    sums = (each.alias(name) for name, each in zip(_SUMS, (F.count("*"), F.sum("length_bytes"), unknown), strict=True))
    found: dict[str, dict[str, Count]] = {name: {} for name in columns}
    for row in labelled.groupBy("label").agg(*sums).collect():
        found[row["label"]["name"]][row["label"]["value"] or ""] = Count.of(*(row[name] for name in _SUMS))
    return found
