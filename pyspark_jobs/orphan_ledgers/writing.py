"""An audit's directory, written by Spark: tables first, the summary last, whole or not at all."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pulsar_sidecar.audit.engine.running import Findings, Written
from pulsar_sidecar.audit.results.formatting import Row
from pulsar_sidecar.audit.results.plans import PLAN_BLOCK_ROWS, plan_digest
from pulsar_sidecar.audit.results.report import EXTRACT_ROWS, Extract
from pulsar_sidecar.audit.results.summaries import Count, Engine, Plan
from pulsar_sidecar.audit.results.tables import (
    LEDGER_USAGE,
    MISSING_LEDGERS,
    ORPHAN_LEDGERS,
    UNATTRIBUTED_LEDGERS,
    OrphanStatus,
    Table,
)
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from pyspark_jobs.orphan_ledgers import tasks
from pyspark_jobs.orphan_ledgers.directories import Directory
from pyspark_jobs.orphan_ledgers.finding import Finding, SparkTables
from pyspark_jobs.orphan_ledgers.forms import by_part, mapped

_ROWS_PER_FILE = 1_000_000


class SparkEngine:
    """Finds on Spark, and writes tables below a directory that is unfinished yet."""

    kind = Engine.SPARK

    def __init__(self, directory: Directory, finding: Finding) -> None:
        self._directory = directory
        self._finding = finding

    def find(self) -> Findings[SparkTables]:
        """See `AuditEngine.find`."""
        return self._finding.find()

    @contextmanager
    def write(
        self, findings: Findings[SparkTables], audit_id: str, instance_id: str, failed_guards: str
    ) -> Iterator[Written]:
        """See `AuditEngine.write`; whoever made the directory removes it."""
        deletable = findings.found.deletable
        orphans = self._write_orphans(findings, audit_id, deletable, failed_guards)
        self._write_others(findings, audit_id)
        plan = None if failed_guards else _plan(orphans, deletable, audit_id, instance_id)
        self._directory.clean()
        files = self._directory.digests(sorted(self._directory.tables()))
        yield Written(self._directory, files, plan, _extract(findings, orphans))

    def _write_orphans(
        self, findings: Findings[SparkTables], audit_id: str, deletable: Count, failed_guards: str
    ) -> DataFrame:
        """The orphans as they were written."""
        rows = findings.tables.orphans
        if failed_guards:
            rows = mapped(rows, ORPHAN_LEDGERS, tasks.withhold, failed_guards)
        ordered = self._ordered(rows, ("ledger_id",), findings.found.orphans.ledgers)
        if deletable.ledgers:
            ordered = self._finding.keep(ordered)
        first_rows = _first_rows(ordered) if deletable.ledgers else {}
        numbered = self._finding.keep(mapped(ordered, ORPHAN_LEDGERS, tasks.number_rows, first_rows))
        self._write(numbered, Table.ORPHAN_LEDGERS, audit_id)
        return numbered

    def _write_others(self, findings: Findings[SparkTables], audit_id: str) -> None:
        found, tables = findings.found, findings.tables
        missing = self._ordered(tables.missing, ("ledger_id", "kind", "referenced_by"), found.missing)
        self._write(missing.select(*MISSING_LEDGERS.names), Table.MISSING_LEDGERS, audit_id)
        unattributed = self._ordered(tables.unattributed, ("ledger_id",), found.unattributed.ledgers)
        self._write(unattributed.select(*UNATTRIBUTED_LEDGERS.names), Table.UNATTRIBUTED_LEDGERS, audit_id)
        # Ordered by share: the order of the whole table means nothing to anybody.
        self._write(tables.usage, Table.LEDGER_USAGE, audit_id)

    def _write(self, rows: DataFrame, table: Table, audit_id: str) -> None:
        place = self._directory.below(f"{table.value}/audit_id={audit_id}")
        rows.write.option("compression", "zstd").parquet(place)

    @staticmethod
    def _ordered(rows: DataFrame, order: Sequence[str], count: int) -> DataFrame:
        columns = [F.col(name).asc_nulls_last() for name in order]
        files = count // _ROWS_PER_FILE + 1
        parts = rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, *columns)
        return parts.sortWithinPartitions(*columns)


def _plan(orphans: DataFrame, deletable: Count, audit_id: str, instance_id: str) -> Plan:
    """The plan of orphans that were numbered; its blocks are hashed where they are."""
    digests: list[bytes] = []
    if deletable.ledgers:
        blocks = orphans.where("row is not null").withColumn("part", F.floor(F.col("row") / PLAN_BLOCK_ROWS))
        hashed = by_part(blocks, tasks.DIGESTS, tasks.digest_block)
        digests = [bytes(row["digest"]) for row in hashed.orderBy("block").toLocalIterator()]
    return Plan.of(deletable, plan_digest(audit_id, instance_id, deletable.ledgers, digests))


def _extract(findings: Findings[SparkTables], orphans: DataFrame) -> Extract:
    """The rows that a report shows."""
    found, tables = findings.found, findings.tables
    longest = (F.desc_nulls_last("length_bytes"), F.asc("ledger_id"))
    unattributed = tables.unattributed.select(*(name for name in UNATTRIBUTED_LEDGERS.names if name != "metadata"))
    by_id = (F.asc("ledger_id"), F.asc("referenced_by"))
    largest = mapped(tables.usage_shares, LEDGER_USAGE, tasks.largest_usage, EXTRACT_ROWS)
    return Extract(
        orphans=_first(orphans.drop("metadata"), longest) if found.orphans.ledgers else (),
        missing=_first(tables.missing, by_id) if found.missing else (),
        unattributed=_first(unattributed, longest) if found.unattributed.ledgers else (),
        owners=_first(largest, (F.desc("bytes"), F.asc_nulls_last("topic"), F.asc("kind"))),
    )


def _first(rows: DataFrame, order: Sequence[object]) -> tuple[Row, ...]:
    return tuple(row.asDict() for row in rows.orderBy(*order).limit(EXTRACT_ROWS).collect())  # type: ignore[arg-type]


def _first_rows(ordered: DataFrame) -> dict[int, int]:
    """The number of the first deletable row of each of Spark's partitions."""
    deletable = ordered.where(F.col("standing") == OrphanStatus.DELETABLE.value)
    counted = deletable.groupBy(F.spark_partition_id().alias("part")).count().collect()
    first = 0
    starts = {}
    for part, count in sorted((row["part"], row["count"]) for row in counted):
        starts[part] = first
        first += count
    return starts
