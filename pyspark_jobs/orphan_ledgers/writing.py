"""An audit's directory, written by Spark: tables first, the summary last, whole or not at all."""

from collections.abc import Sequence

from pulsar_sidecar.audit.results.formatting import Row
from pulsar_sidecar.audit.results.plans import PLAN_BLOCK_ROWS, plan_digest
from pulsar_sidecar.audit.results.report import EXTRACT_ROWS, Extract
from pulsar_sidecar.audit.results.summaries import Count, Plan
from pulsar_sidecar.audit.results.tables import (
    LEDGER_USAGE,
    MISSING_LEDGERS,
    ORPHAN_LEDGERS,
    UNATTRIBUTED_LEDGERS,
    Table,
)
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from pyspark_jobs.orphan_ledgers import tasks, usage_tasks
from pyspark_jobs.orphan_ledgers.files import Directory
from pyspark_jobs.orphan_ledgers.finding import Finding, Findings
from pyspark_jobs.orphan_ledgers.schemas import spark_schema
from pyspark_jobs.orphan_ledgers.workers import in_worker

_ROWS_PER_FILE = 1_000_000


class Writing:
    """Writes one audit's tables below an unfinished directory."""

    def __init__(self, directory: Directory, audit_id: str, finding: Finding) -> None:
        self._directory = directory
        self._audit_id = audit_id
        self._finding = finding

    def orphans(self, findings: Findings, failed_guards: str) -> DataFrame:
        """Withhold if guards said no, number, write; the orphans as they were written."""
        schema = spark_schema(ORPHAN_LEDGERS)
        rows = findings.orphans
        if failed_guards:
            rows = rows.mapInArrow(in_worker(tasks.withhold_task(failed_guards)), schema)
        ordered = self._ordered(rows, ("ledger_id",), findings.found.orphans.ledgers)
        condemned = 0 if failed_guards else findings.found.measured().deletable.ledgers
        if condemned:
            ordered = self._finding.keep(ordered)
        first_rows = _first_rows(ordered) if condemned else {}
        numbered = self._finding.keep(ordered.mapInArrow(in_worker(tasks.number_task(first_rows)), schema))
        self._write(numbered, Table.ORPHAN_LEDGERS)
        return numbered

    def others(self, findings: Findings) -> None:
        """Write the other tables."""
        found = findings.found
        missing = self._ordered(findings.missing, ("ledger_id", "kind", "referenced_by"), found.missing)
        self._write(missing.select(*MISSING_LEDGERS.names), Table.MISSING_LEDGERS)
        unattributed = self._ordered(findings.unattributed, ("ledger_id",), found.unattributed.ledgers)
        self._write(unattributed.select(*UNATTRIBUTED_LEDGERS.names), Table.UNATTRIBUTED_LEDGERS)
        # Ordered by share: the order of the whole table means nothing to anybody.
        self._write(findings.usage, Table.LEDGER_USAGE)

    def plan(self, orphans: DataFrame, condemned: Count, instance_id: str) -> Plan:
        """The plan of orphans that were numbered; its blocks are hashed where they are."""
        digests: list[bytes] = []
        if condemned.ledgers:
            blocks = orphans.where("row is not null").withColumn("block", F.floor(F.col("row") / PLAN_BLOCK_ROWS))
            hashed = blocks.groupBy("block").applyInArrow(in_worker(tasks.block_task), "block bigint, digest binary")
            digests = [bytes(row["digest"]) for row in hashed.orderBy("block").toLocalIterator()]
        digest = plan_digest(self._audit_id, instance_id, condemned.ledgers, digests)
        return Plan.of(condemned, digest)

    def _write(self, rows: DataFrame, table: Table) -> None:
        place = self._directory.below(f"{table.value}/audit_id={self._audit_id}")
        rows.write.option("compression", "zstd").parquet(place)

    @staticmethod
    def _ordered(rows: DataFrame, order: Sequence[str], count: int) -> DataFrame:
        columns = [F.col(name).asc_nulls_last() for name in order]
        files = count // _ROWS_PER_FILE + 1
        parts = rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, *columns)
        return parts.sortWithinPartitions(*columns)


def extract(findings: Findings, orphans: DataFrame) -> Extract:
    """The rows that a report shows."""
    found = findings.found
    longest = (F.desc_nulls_last("length_bytes"), F.asc("ledger_id"))
    unattributed = findings.unattributed.select(*(name for name in UNATTRIBUTED_LEDGERS.names if name != "metadata"))
    by_id = (F.asc("ledger_id"), F.asc("referenced_by"))
    largest = findings.usage_shares.mapInArrow(
        in_worker(usage_tasks.largest_usage_task(EXTRACT_ROWS)), spark_schema(LEDGER_USAGE)
    )
    return Extract(
        orphans=_first(orphans.drop("metadata"), longest) if found.orphans.ledgers else (),
        missing=_first(findings.missing, by_id) if found.missing else (),
        unattributed=_first(unattributed, longest) if found.unattributed.ledgers else (),
        owners=_first(largest, (F.desc("bytes"), F.asc_nulls_last("topic"), F.asc("kind"))),
    )


def _first(rows: DataFrame, order: Sequence[object]) -> tuple[Row, ...]:
    return tuple(row.asDict() for row in rows.orderBy(*order).limit(EXTRACT_ROWS).collect())  # type: ignore[arg-type]


def _first_rows(ordered: DataFrame) -> dict[int, int]:
    """The number of the first condemned row of each of Spark's partitions."""
    condemned = ordered.where(F.col("standing") == "condemned")
    counted = condemned.groupBy(F.spark_partition_id().alias("part")).count().collect()
    first = 0
    starts = {}
    for part, count in sorted((row["part"], row["count"]) for row in counted):
        starts[part] = first
        first += count
    return {part: _start(starts, part, first) for part in range(max(starts, default=-1) + 1)}


def _start(starts: dict[int, int], part: int, end: int) -> int:
    return min((first for other, first in starts.items() if other >= part), default=end)
