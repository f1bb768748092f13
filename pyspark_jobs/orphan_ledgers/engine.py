"""The audit as a Spark plan: joins of rows, and the tables that it writes.

The driver's data does not grow with the number of ledgers: counts, unreadable nodes, missing references, of which more
than `audit.results.guards.MOST_MISSING` fail the audit, and packed sets of ids up to `_MOST_PACKED_BYTES`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from pulsar_sidecar.features.audit.arrays import Numbers
from pulsar_sidecar.features.audit.columnar.reader import SINGLES, ColumnReader
from pulsar_sidecar.features.audit.engine.admin_nodes import dangers
from pulsar_sidecar.features.audit.engine.candidates import OWNER_COLUMNS
from pulsar_sidecar.features.audit.engine.decoding import NODE_COLUMNS
from pulsar_sidecar.features.audit.engine.judging import EARLIER_COLUMNS, LISTED, WRITES, Judge
from pulsar_sidecar.features.audit.engine.leftover_nodes import PRESENT
from pulsar_sidecar.features.audit.engine.offloaded import (
    NO_EARLIER_COPIES,
    OFFLOAD_USES,
    OffloadFacts,
    deletable_copies,
    not_whole,
    numbered_copies,
    offload_summary,
    paths_of_unreferenced,
    with_statuses,
)
from pulsar_sidecar.features.audit.engine.running import AuditFindings, WrittenTables, as_of_ms
from pulsar_sidecar.features.audit.engine.usage import count_of_lengths, without_unread
from pulsar_sidecar.features.audit.requests import AuditPolicy
from pulsar_sidecar.features.audit.results.guards import AuditCounts, demand_few_missing
from pulsar_sidecar.features.audit.results.plans import PLAN_BLOCK_ROWS, copy_digests, plan_digest
from pulsar_sidecar.features.audit.results.report import LARGEST_FIRST, REPORT_LEDGERS, REPORT_ROWS, ReportRows
from pulsar_sidecar.features.audit.results.report import first_rows as rows_of_table
from pulsar_sidecar.features.audit.results.summaries import Count, LeftoverNodes, OffloadSummary, PlanSummary
from pulsar_sidecar.features.audit.results.tables import (
    CURSOR_LEDGERS,
    LEDGER_USAGE,
    LEDGERS,
    LOG_SEGMENTS,
    MISSING_LEDGERS,
    NODES,
    OFFLOADED_LEDGERS,
    OFFLOADED_OBJECTS,
    ORPHAN_LEDGERS,
    UNATTRIBUTED_LEDGERS,
    OrphanStatus,
    Subtree,
    Table,
)
from pulsar_sidecar.features.audit.sources.manifests import LEDGERS_LEFT_OUT, Manifest
from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.reports.documents import Engine
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as is usual

from pyspark_jobs.orphan_ledgers import first_pass, tasks
from pyspark_jobs.orphan_ledgers.forms import NO_IDS, PackedIds, union
from pyspark_jobs.running.directories import Directory, Rows
from pyspark_jobs.running.tasks import by_key, first_rows, group_by_tag, mapped, spark_schema, unpack, unpacked

_MOST_PACKED_BYTES = 128 * 1024 * 1024
"""Largest sets of ids that the driver and every worker hold in memory, so that only rows of these ledgers are shuffled.

Two dense sets over a span of 2**29 ids are as large, and so are 32 million ids that are far apart.
"""
_MOST_BROADCAST_ROWS = 500_000
"""Most candidates whose owners' rows are broadcast to be joined."""
_SORTED = "merge"
"""Hint for joins of unbounded tables. Spark guesses workers' rows by those of their input, and would broadcast them."""
_ROWS_PER_FILE = 1_000_000
_OWNED = (Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS)
_COUNTED = ("standing", "kind", "cause", "tenant", "age")


@dataclass(frozen=True, slots=True)
class Inputs:
    """A dump and one or two listings, each compared with its manifest."""

    spark: SparkSession
    dump: Directory
    listing: Directory
    dump_manifest: Manifest
    listing_manifest: Manifest
    offloaded: Directory | None = None
    offload_manifest: Manifest | None = None

    @property
    def own_ledgers(self) -> bool:
        """True if the dump contains BookKeeper's ledgers."""
        return LEDGERS_LEFT_OUT not in self.dump_manifest.left_out

    def nodes(self, columns: Sequence[str], *subtrees: Subtree) -> Rows:
        return self._dumped(NODES, columns, *(f"{Table.NODES.value}/subtree={each.value}/" for each in subtrees))

    def table(self, table: Table, schema: pa.Schema) -> Rows:
        return self._dumped(schema, schema.names, f"{table.value}/")

    def ledgers(self, columns: Sequence[str]) -> Rows:
        names = [file.path for file in self.listing_manifest.files]
        return Rows(self.spark, self.listing, names, LEDGERS, columns)

    def objects(self) -> Rows | None:
        """Return the objects of tiered storage, if they were listed."""
        if self.offloaded is None or self.offload_manifest is None:
            return None
        names = [file.path for file in self.offload_manifest.files]
        return Rows(self.spark, self.offloaded, names, OFFLOADED_OBJECTS, OFFLOADED_OBJECTS.names)

    def _dumped(self, schema: pa.Schema, columns: Sequence[str], *beginnings: str) -> Rows:
        names = [file.path for file in self.dump_manifest.files if file.path.startswith(beginnings)]
        return Rows(self.spark, self.dump, names, schema, columns)


@dataclass(frozen=True, slots=True)
class SparkTables:
    """Tables, most of them still in Spark; orphans and copies have no numbers yet."""

    orphans: DataFrame
    missing: DataFrame
    unattributed: DataFrame
    usage_shares: DataFrame
    offloaded: pa.Table

    @property
    def usage(self) -> DataFrame:
        return mapped(self.usage_shares, LEDGER_USAGE, unpacked)


class SparkEngine:
    """Runs the analysis on Spark and writes its tables below an unfinished directory."""

    kind = Engine.SPARK

    def __init__(
        self,
        directory: Directory,
        inputs: Inputs,
        policy: AuditPolicy,
        earlier_orphans: DataFrame | None,
        columns: ColumnReader,
        earlier_copies: pa.Table = NO_EARLIER_COPIES,
    ) -> None:
        self._directory = directory
        self._inputs = inputs
        self._spark = inputs.spark
        self._policy = policy
        self._earlier = earlier_orphans
        self._earlier_copies = earlier_copies
        self._columns = columns
        self._root = inputs.dump_manifest.ledgers_root
        # More shares than partitions, so that partitions have about the same size.
        self._shares = 4 * int(str(self._spark.conf.get("spark.sql.shuffle.partitions")))
        self.kept = ExitStack()
        """Data that Spark keeps between steps; closing it releases them."""

    def find(self) -> AuditFindings[SparkTables]:
        """See `AuditEngine.find`."""
        facts = self._keep(self._facts())
        sets = self._keep(compared(facts, self._inputs.own_ledgers))
        counts = _compared_counts(sets)
        reported = first_pass.Reported(facts)
        gone = self._missing_ids(sets, counts["missing_ledgers"], reported)
        dangling = self._keep(self._missing(facts, gone))
        # Younger ledgers were created while the inputs were taken (`audit.engine.usage`).
        missing = dangling.where(F.col("ledger_id") <= counts["newest"])
        candidates = counts["candidate_ledgers"]
        few = counts["packed_bytes"] <= _MOST_PACKED_BYTES
        ledgers = self._keep(self._wanted_ledgers(sets, few))
        protection = reported.protection()
        few_candidates = candidates <= _MOST_BROADCAST_ROWS
        judge = Judge(as_of_ms(self._inputs.dump_manifest), self._policy, protection)
        offloaded, offload, broken = self._tiered_storage(facts, judge, reported.offload_lags_ms())
        judge = replace(judge, not_whole=broken)
        judged = self._keep(self._judged(_newest(ledgers.where("content is null")), judge, few_candidates))
        sizes = ledgers.where("content is not null").select(F.lit(tasks.SIZE).alias("tag"), "part", "content")
        shares = self._usage(facts, sizes, gone, dangling)
        shadows = reported.shadows()
        names = {str(shadow.topic) for shadow in shadows}
        usage = self._keep(by_key(shares, "part", tasks.USAGE_SHARES, tasks.sum_usage, names))
        by_usage = _usage_counts(usage)
        by_column = _judged_counts(judged, ("is_orphan", *_COUNTED))
        found = AuditCounts(
            listed=counts["listed"],
            in_dump=counts["in_dump"],
            referenced=counts["referenced"],
            usage_by_kind=by_usage["kind"],
            usage_by_tenant=by_usage["tenant"],
            orphans_by={name: by_column[name] for name in _COUNTED},
            unattributed=by_column["is_orphan"].get("false", Count()),
            missing=0 if not len(gone) else missing.count(),
            offload=offload,
        )
        orphans, others = (judged.where(one).drop("is_orphan", "age") for one in ("is_orphan", "not is_orphan"))
        tables = SparkTables(orphans, missing, others, usage, offloaded)
        unread = reported.log_segments_unread()
        shadow_dangers = dangers(shadows, reported.retentions())
        leftover_nodes = self._leftover_nodes(reported, missing, gone)
        return AuditFindings(tables, found, protection, unread, shadow_dangers, leftover_nodes)

    def _tiered_storage(
        self, facts: DataFrame, judge: Judge, lags_ms: Mapping[str, int | None]
    ) -> tuple[pa.Table, OffloadSummary, frozenset[int]]:
        """Return the findings in tiered storage, which the driver holds, their summary, and `not_whole`."""
        manifest = self._inputs.offload_manifest
        findings: list[dict[str, Any]] = []
        uses = OFFLOAD_USES.empty_table()
        if manifest is not None:
            tags = (first_pass.LISTED, first_pass.DUMPED, first_pass.COPIES, first_pass.OBJECTS)
            about = (judge, OffloadFacts.of(manifest, lags_ms), self._inputs.own_ledgers)
            shares = by_key(_packed(facts, *tags), "part", tasks.SHARES, tasks.compare_copies, *about)
            packed = group_by_tag(shares.toArrow(), first_pass.COPIES, tasks.USE)
            findings = [row for batch in unpack(packed[first_pass.COPIES]) for row in batch.to_pylist()]
            uses = pa.Table.from_batches(unpack(packed[tasks.USE]), OFFLOAD_USES)
        paths = pa.array(paths_of_unreferenced(findings), pa.string())
        present = {
            path for batch in self._present(Subtree.MANAGED_LEDGERS, paths) for path in batch.column("path").to_pylist()
        }
        offloaded = with_statuses(judge, findings, present, self._earlier_copies)
        summary = offload_summary(manifest, offloaded, uses, self._policy)
        return offloaded, summary, not_whole(findings)

    def _leftover_nodes(self, reported: first_pass.Reported, missing: DataFrame, gone: Numbers) -> LeftoverNodes:
        named = []
        if len(gone):
            rows = missing.where(F.col("kind") == LedgerKind.SCHEMA.value).select("referenced_by").distinct().collect()
            named = [row["referenced_by"] for row in rows]
        schemas = []
        if named:
            nodes = self._inputs.nodes(NODE_COLUMNS, Subtree.SCHEMAS)
            schemas = [row["path"] for row in nodes.mapped(PRESENT, tasks.find_schemas, named, gone).collect()]
        suspects = reported.suspects(self._root, schemas)
        looks = ((Subtree.MANAGED_LEDGERS, suspects.topics), (Subtree.LEDGERS, suspects.ledgers))
        return suspects.without([batch for look in looks for batch in self._present(*look)])

    def _present(self, subtree: Subtree, wanted: pa.Array) -> list[pa.RecordBatch]:
        if not len(wanted):
            return []
        found = self._inputs.nodes(["path", "unreadable"], subtree).mapped(PRESENT, tasks.find_paths, wanted)
        return list(found.distinct().toArrow().to_batches())

    def _keep(self, frame: DataFrame) -> DataFrame:
        self.kept.callback(frame.persist(StorageLevel.DISK_ONLY).unpersist)
        return frame

    @contextmanager
    def write(
        self, findings: AuditFindings[SparkTables], audit_id: str, instance_id: str, failed_guards: str
    ) -> Iterator[WrittenTables]:
        """See `AuditEngine.write`; the caller that created the directory removes it."""
        deletable = findings.found.deletable
        orphans = self._write_orphans(findings, audit_id, deletable, failed_guards)
        self._write_others(findings, audit_id)
        copies = numbered_copies(findings.tables.offloaded, deletable.ledgers, failed_guards)
        frame = self._spark.createDataFrame(copies.to_pylist(), spark_schema(OFFLOADED_LEDGERS))
        self._write(frame.coalesce(1), Table.OFFLOADED_LEDGERS, audit_id)
        plan = None if failed_guards else _plan(orphans, deletable, copies, audit_id, instance_id)
        self._directory.clean()
        files = self._directory.digests(sorted(self._directory.tables()))
        yield WrittenTables(self._directory, files, plan, _report_rows(findings, orphans, copies))

    def _write_orphans(
        self, findings: AuditFindings[SparkTables], audit_id: str, deletable: Count, failed_guards: str
    ) -> DataFrame:
        rows = findings.tables.orphans
        if failed_guards:
            rows = mapped(rows, ORPHAN_LEDGERS, tasks.withhold, failed_guards)
        ordered = self._ordered(rows, ("ledger_id",), findings.found.orphans.ledgers)
        if deletable.ledgers:
            ordered = self._keep(ordered)
        starts = _numbers_at_starts(ordered) if deletable.ledgers else {}
        numbered = self._keep(mapped(ordered, ORPHAN_LEDGERS, tasks.number_rows, starts))
        self._write(numbered, Table.ORPHAN_LEDGERS, audit_id)
        return numbered

    def _write_others(self, findings: AuditFindings[SparkTables], audit_id: str) -> None:
        found, tables = findings.found, findings.tables
        missing = self._ordered(tables.missing, ("ledger_id", "kind", "referenced_by"), found.missing)
        self._write(missing.select(*MISSING_LEDGERS.names), Table.MISSING_LEDGERS, audit_id)
        unattributed = self._ordered(tables.unattributed, ("ledger_id",), found.unattributed.ledgers)
        self._write(unattributed.select(*UNATTRIBUTED_LEDGERS.names), Table.UNATTRIBUTED_LEDGERS, audit_id)
        # Ordered by share, since the order of the whole table has no meaning.
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

    # --- what there is -----------------------------------------------------------------------------------------

    def _facts(self) -> DataFrame:
        inputs, schema = self._inputs, first_pass.FACTS
        readings = inputs.table(Table.CURSOR_LEDGERS, CURSOR_LEDGERS)
        segments = inputs.table(Table.LOG_SEGMENTS, LOG_SEGMENTS)
        unknown = inputs.nodes(NODE_COLUMNS, Subtree.OTHER)
        facts = [
            inputs.nodes(NODE_COLUMNS, *_OWNED).mapped(schema, first_pass.decode_nodes, self._columns, self._shares),
            unknown.mapped(schema, first_pass.report_unknown_nodes, self._policy.foreign_subtrees),
            inputs.nodes(NODE_COLUMNS, Subtree.ADMIN).mapped(schema, first_pass.decode_admin_nodes),
            readings.mapped(schema, first_pass.decode_readings, self._shares),
            segments.mapped(schema, first_pass.decode_segments, self._shares),
            inputs.ledgers(["ledger_id"]).mapped(schema, first_pass.collect_listed, first_pass.LISTED),
        ]
        if inputs.own_ledgers:
            ledgers = inputs.nodes(["path", "unreadable"], Subtree.LEDGERS)
            facts.append(ledgers.mapped(schema, first_pass.collect_dumped, self._columns, self._root))
            facts.append(inputs.nodes(["path"], Subtree.BOOKKEEPER).mapped(schema, first_pass.report_marks))
        if (objects := inputs.objects()) is not None:
            facts.append(objects.mapped(schema, first_pass.collect_objects))
        return reduce(DataFrame.union, facts)

    def _missing(self, facts: DataFrame, gone: Numbers) -> DataFrame:
        if not len(gone):
            return self._spark.createDataFrame([], spark_schema(MISSING_LEDGERS))
        about = mapped(_packed(facts, first_pass.OTHER), SINGLES, tasks.singles_about, gone)
        ids = self._spark.createDataFrame([(ledger_id,) for ledger_id in gone.tolist()], "ledger_id bigint")
        single = _drop_replaced(about.distinct()).join(F.broadcast(ids), "ledger_id", "left_semi")
        rows = mapped(single.select(*SINGLES.names), MISSING_LEDGERS, tasks.missing_of_singles)
        nodes = self._inputs.nodes(NODE_COLUMNS, *_OWNED)
        return nodes.mapped(MISSING_LEDGERS, tasks.missing_of_lists, self._columns, gone).union(rows)

    def _missing_ids(self, compared: DataFrame, count: int, reported: first_pass.Reported) -> Numbers:
        demand_few_missing(count)
        if not count:
            return NO_IDS
        found = np.concatenate([NO_IDS, *(union(part, [ids]) for part, ids in _written(compared, "missing").items())])
        return without_unread(found, reported.unread_directories(), self._root)

    def _wanted_ledgers(self, compared: DataFrame, few: bool) -> DataFrame:
        if self._inputs.own_ledgers:
            ledgers = self._inputs.nodes(("path", "value", *WRITES), Subtree.LEDGERS)
        else:
            ledgers = self._inputs.ledgers(LISTED.names)
        reading = (self._columns, self._root)
        if few:
            ids, named = (PackedIds(_written(compared, column)) for column in ("candidates", "named"))
            return ledgers.mapped(tasks.READ_LEDGERS, tasks.choose_ledgers, *reading, ids, named, self._shares)
        joined = self._joined(ledgers, compared)
        return mapped(joined, tasks.READ_LEDGERS, tasks.read_ledgers, *reading, self._shares)

    def _joined(self, ledgers: Rows, compared: DataFrame) -> DataFrame:
        """Join the rows of ledgers with wanted ids that exceed an executor's memory."""
        key, other = ("path", "ledger_id") if self._inputs.own_ledgers else ("ledger_id", "path")
        wanted = [
            mapped(compared, tasks.WANTED, tasks.paths_of_ids, column, self._root).withColumn(
                "is_candidate", F.lit(column == "candidates")
            )
            for column in ("candidates", "named")
        ]
        beside = reduce(DataFrame.union, wanted).drop(other)
        return ledgers.frame().join(beside.hint(_SORTED), key).select(*ledgers.columns, "is_candidate")

    # --- judging -----------------------------------------------------------------------------------------------

    def _judged(self, candidates: DataFrame, judge: Judge, few: bool) -> DataFrame:
        marks = mapped(candidates.select("owner_path", "topic_path"), tasks.SETS, tasks.mark_owners)
        marked = PackedIds(_written(by_key(marks, "part", tasks.SETS, tasks.unite), "content"))
        nodes = self._inputs.nodes(OWNER_COLUMNS, *_OWNED)
        owners = self._keep(nodes.mapped(tasks.OWNERS, tasks.read_owners, self._columns, marked))
        rows = candidates
        for prefix in ("owner", "topic"):
            renamed = owners.select(*(F.col(name).alias(f"{prefix}_node_{name}") for name in owners.columns))
            beside = F.broadcast(renamed) if few else renamed.hint(_SORTED)
            rows = rows.join(beside, F.col(f"{prefix}_path") == F.col(f"{prefix}_node_path"), "left")
        rows = rows.join(self._earlier_orphans(), F.col("ledger_id") == F.col("earlier_ledger_id"), "left")
        return mapped(rows, tasks.JUDGED, tasks.judge_candidates, judge)

    def _earlier_orphans(self) -> DataFrame:
        if self._earlier is None:
            return self._spark.createDataFrame([], ", ".join(f"earlier_{name} bigint" for name in EARLIER_COLUMNS))
        return self._earlier.select(*(F.col(name).alias(f"earlier_{name}") for name in EARLIER_COLUMNS))

    def _usage(self, facts: DataFrame, sizes: DataFrame, gone: Numbers, dangling: DataFrame) -> DataFrame:
        """Return `tasks.SHARES` of lists with sizes, and of other references, without missing ledgers."""
        singles = _packed(facts, *first_pass.REFERENCES).union(sizes)
        single = by_key(singles, "part", tasks.SHARES, tasks.usage_of_singles, self._columns, gone, self._shares)
        of_lists = dangling.select("kind", F.col("referenced_by").alias("path"), "size_bytes")
        off = mapped(of_lists, tasks.SHARES, tasks.subtract_usage, self._columns, self._shares)
        return _packed(facts, first_pass.USAGE, first_pass.LOADED).union(single).union(off)


def compared(facts: DataFrame, own_ledgers: bool) -> DataFrame:
    """Return `tasks.COMPARED` of the sets of ids in `first_pass.FACTS`; listed ids stand in for missing own ledgers."""
    sets = _packed(facts, first_pass.LISTED, first_pass.DUMPED, first_pass.IDS, first_pass.SINGLE_IDS)
    return by_key(sets, "part", tasks.COMPARED, tasks.compare, own_ledgers)


def _written(sets: DataFrame, column: str) -> dict[int, bytes]:
    """Return the written sets that have ids, by the number of their range."""
    rows = sets.where(F.length(column) > 1).select("part", column).toLocalIterator()
    return {row[0]: bytes(row[1]) for row in rows}


def _packed(facts: DataFrame, *tags: str) -> DataFrame:
    return facts.where(F.col("tag").isin(*tags)).select("tag", "part", "content")


def _drop_replaced(singles: DataFrame) -> DataFrame:
    """Like `audit.engine.usage.without_replaced`."""
    is_compacted = F.col("kind") == LedgerKind.COMPACTED.value
    youngest = singles.where(is_compacted).groupBy("path").agg(F.max("ledger_id").alias("youngest"))
    return singles.join(youngest, "path", "left").where(~is_compacted | (F.col("ledger_id") == F.col("youngest")))


def _newest(ledgers: DataFrame) -> DataFrame:
    order = (F.coalesce(name, F.lit(0)).desc() for name in ("czxid", "mzxid"))
    newest = F.row_number().over(Window.partitionBy("ledger_id").orderBy(*order))
    return ledgers.withColumn("newest", newest).where("newest = 1").drop("newest", "part", "content")


def _compared_counts(compared: DataFrame) -> dict[str, int]:
    names = ("listed", "in_dump", "referenced", "candidate_ledgers", "missing_ledgers", "packed_bytes")
    row = compared.agg(*(F.sum(name).alias(name) for name in names), F.max("newest").alias("newest")).first()
    assert row is not None
    return {"newest": -1 if row["newest"] is None else row["newest"], **{name: row[name] or 0 for name in names}}


def _usage_counts(usage: DataFrame) -> dict[str, dict[str, Count]]:
    """Return sums by kind and by tenant; the empty string stands for none."""
    counted = mapped(usage, tasks.USAGE_COUNTS, tasks.count_usage).groupBy("column", "value")
    found: dict[str, dict[str, Count]] = {name: {} for name in tasks.COUNTED_USAGE}
    for row in counted.agg(*(F.sum(name).alias(name) for name in tasks.SUMS)).collect():
        found[row["column"]][row["value"]] = Count.of(*(row[name] for name in tasks.SUMS))
    return found


def _judged_counts(judged: DataFrame, columns: Sequence[str]) -> dict[str, dict[str, Count]]:
    """Return ledgers and bytes by the values of each column in one pass; the empty string stands for none.

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
    sums = (
        each.alias(name) for name, each in zip(tasks.SUMS, (F.count("*"), F.sum("length_bytes"), unknown), strict=True)
    )
    found: dict[str, dict[str, Count]] = {name: {} for name in columns}
    for row in labelled.groupBy("label").agg(*sums).collect():
        found[row["label"]["name"]][row["label"]["value"] or ""] = Count.of(*(row[name] for name in tasks.SUMS))
    return found


def _plan(orphans: DataFrame, deletable: Count, copies: pa.Table, audit_id: str, instance_id: str) -> PlanSummary:
    digests: list[bytes] = []
    if deletable.ledgers:
        blocks = orphans.where("row is not null").withColumn("part", F.floor(F.col("row") / PLAN_BLOCK_ROWS))
        hashed = by_key(blocks, "part", tasks.DIGESTS, tasks.digest_block)
        digests = [bytes(row["digest"]) for row in hashed.orderBy("block").toLocalIterator()]
    planned = deletable_copies(copies)
    digests += copy_digests(planned)
    every = Count.sum((deletable, count_of_lengths(planned.column("length_bytes"))))
    return PlanSummary.of(every, plan_digest(audit_id, instance_id, every.ledgers, digests))


def _report_rows(findings: AuditFindings[SparkTables], orphans: DataFrame, copies: pa.Table) -> ReportRows:
    found, tables = findings.found, findings.tables
    longest = (F.desc_nulls_last("length_bytes"), F.asc("ledger_id"))
    unattributed = tables.unattributed.select(*(name for name in UNATTRIBUTED_LEDGERS.names if name != "metadata"))
    by_id = (F.asc("ledger_id"), F.asc("referenced_by"))
    largest = mapped(tables.usage_shares, LEDGER_USAGE, tasks.largest_usage, REPORT_LEDGERS)
    return ReportRows(
        orphans=first_rows(orphans.drop("metadata"), longest, REPORT_LEDGERS) if found.orphans.ledgers else (),
        missing=first_rows(tables.missing, by_id, REPORT_ROWS) if found.missing else (),
        unattributed=first_rows(unattributed, longest, REPORT_ROWS) if found.unattributed.ledgers else (),
        owners=first_rows(largest, (F.desc("bytes"), F.asc_nulls_last("topic"), F.asc("kind")), REPORT_LEDGERS),
        offloaded=rows_of_table(copies, LARGEST_FIRST["offloaded"]),
    )


def _numbers_at_starts(ordered: DataFrame) -> dict[int, int]:
    deletable = ordered.where(F.col("standing") == OrphanStatus.DELETABLE.value)
    counted = deletable.groupBy(F.spark_partition_id().alias("part")).count().collect()
    first = 0
    starts = {}
    for part, count in sorted((row["part"], row["count"]) for row in counted):
        starts[part] = first
        first += count
    return starts
