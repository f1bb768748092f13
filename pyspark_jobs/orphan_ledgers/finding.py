"""The audit as a plan of Spark's: which rows meet which, nothing else.

What is brought to the driver does not grow with the number of ledgers: counts, nodes that could not be read,
missing references, of which more than `audit.guards.MOST_MISSING` make no audit, and what is to be looked up,
unless it is so much that it has to be shuffled.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
from pulsar_sidecar.audit.arrays import Numbers
from pulsar_sidecar.audit.columnar.reader import ColumnReader
from pulsar_sidecar.audit.engine.candidates import OWNER_COLUMNS
from pulsar_sidecar.audit.engine.decoding import NODE_COLUMNS
from pulsar_sidecar.audit.engine.judging import EARLIER_COLUMNS, LEDGER_NODE_COLUMNS, LISTED_LEDGER_COLUMNS, Judge
from pulsar_sidecar.audit.engine.protections import Protection
from pulsar_sidecar.audit.engine.running import Findings, as_of_ms
from pulsar_sidecar.audit.requests import Policy
from pulsar_sidecar.audit.results.guards import Found, demand_few_missing
from pulsar_sidecar.audit.results.summaries import Count
from pulsar_sidecar.audit.results.tables import (
    CURSOR_LEDGERS,
    LEDGER_USAGE,
    LEDGERS,
    LOG_SEGMENTS,
    MISSING_LEDGERS,
    NODES,
    ORPHAN_LEDGERS,
    LedgerKind,
    Subtree,
    Table,
)
from pulsar_sidecar.audit.sources.manifests import LEDGERS_LEFT_OUT, Manifest
from pulsar_sidecar.ledger_ownership.paths import ledger_path
from pulsar_sidecar.model.ids import LedgerId
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from pyspark_jobs.orphan_ledgers import first_pass, tasks, usage_tasks
from pyspark_jobs.orphan_ledgers.counting import compared_counts, judged_counts, usage_counts
from pyspark_jobs.orphan_ledgers.files import Directory
from pyspark_jobs.orphan_ledgers.id_sets import union
from pyspark_jobs.orphan_ledgers.reported import (
    REFERENCES,
    dangers_of,
    log_segments_unread_of,
    protection_of,
    shadows_of,
    unsized_references,
)
from pyspark_jobs.orphan_ledgers.rows import Rows
from pyspark_jobs.orphan_ledgers.schemas import spark_schema
from pyspark_jobs.orphan_ledgers.workers import in_worker

LISTED, DUMPED = "listed", "dumped"
_MOST_BROADCAST_IDS, _MOST_BROADCAST_ROWS = 4_000_000, 500_000
"""What the driver and every worker may hold whole: ids of ledgers, 8 bytes each; candidates' owners."""
_USAGE_KEYS = ("tenant", "namespace", "topic", "kind")
_COUNTED = ("standing", "kind", "cause", "tenant", "age")


@dataclass(frozen=True, slots=True)
class Inputs:
    """A dump and a listing that were opened."""

    spark: SparkSession
    dump: Directory
    listing: Directory
    dump_manifest: Manifest
    listing_manifest: Manifest

    @property
    def own_ledgers(self) -> bool:
        """Whether the dump holds BookKeeper's ledgers itself."""
        return LEDGERS_LEFT_OUT not in self.dump_manifest.left_out

    def nodes(self, subtrees: Sequence[Subtree], columns: Sequence[str]) -> Rows:
        """Nodes of some subtrees."""
        beginnings = tuple(f"{Table.NODES.value}/subtree={subtree.value}/" for subtree in subtrees)
        return self._dumped(beginnings, NODES, columns)

    def table(self, table: Table) -> Rows:
        """One of the dump's small tables."""
        schema = CURSOR_LEDGERS if table is Table.CURSOR_LEDGERS else LOG_SEGMENTS
        return self._dumped((f"{table.value}/",), schema, schema.names)

    def ledgers(self, columns: Sequence[str]) -> Rows:
        """The listing."""
        names = [file.path for file in self.listing_manifest.files]
        return Rows(self.spark, self.listing, names, LEDGERS, columns)

    def _dumped(self, beginnings: tuple[str, ...], schema: pa.Schema, columns: Sequence[str]) -> Rows:
        names = [file.path for file in self.dump_manifest.files if file.path.startswith(beginnings)]
        return Rows(self.spark, self.dump, names, schema, columns)


@dataclass(frozen=True, slots=True)
class SparkTables:
    """Still where Spark keeps them."""

    judged: DataFrame
    missing: DataFrame
    usage_shares: DataFrame

    @property
    def orphans(self) -> DataFrame:
        """Not yet numbered."""
        return self.judged.where("is_orphan").drop("is_orphan", "age")

    @property
    def usage(self) -> DataFrame:
        """Ordered within each share."""
        return self.usage_shares.mapInArrow(in_worker(usage_tasks.unpack_task), spark_schema(LEDGER_USAGE))

    @property
    def unattributed(self) -> DataFrame:
        """With the orphans' columns."""
        return self.judged.where("not is_orphan").drop("is_orphan", "age")


class Finding:
    """One audit's way from the inputs to the findings."""

    def __init__(
        self, inputs: Inputs, policy: Policy, earlier_orphans: DataFrame | None, columns: ColumnReader
    ) -> None:
        self._inputs = inputs
        self._spark = inputs.spark
        self._policy = policy
        self._earlier = earlier_orphans
        self._columns = columns
        self._root = inputs.dump_manifest.ledgers_root
        # More than partitions, so that these are of about one size.
        self._shares = 4 * int(str(self._spark.conf.get("spark.sql.shuffle.partitions")))
        self._kept: list[DataFrame] = []

    def find(self) -> Findings[SparkTables]:
        facts = self._keep(self._facts())
        sets = self._keep(compared(facts, self._inputs.own_ledgers))
        counts = compared_counts(sets)
        reported = self._reported(facts)
        gone = self._missing_ids(sets, counts["missing_ledgers"], reported)
        named_in_vain = self._keep(self._missing(facts, gone))
        # As `audit.usage.made_before`: what is younger was made while the inputs were taken.
        missing = named_in_vain.where(F.col("ledger_id") <= counts["newest"])
        candidates = counts["candidate_ledgers"]
        few = candidates + unsized_references(reported) <= _MOST_BROADCAST_IDS
        ledgers = self._keep(self._wanted_ledgers(sets, facts, few))
        protection = protection_of(reported)
        few_candidates = candidates <= _MOST_BROADCAST_ROWS
        judged = self._keep(self._judged(_newest(ledgers.where("content is null")), protection, few_candidates))
        sizes = ledgers.where("content is not null").select(F.lit(usage_tasks.SIZE).alias("tag"), "part", "content")
        shares = self._usage(facts, sizes, gone, named_in_vain)
        task = usage_tasks.usage_task({str(shadow.topic) for shadow in shadows_of(reported)})
        usage = self._keep(shares.groupBy("part").applyInArrow(in_worker(task), usage_tasks.USAGE_SHARES))
        by_usage = usage_counts(usage)
        by_column = judged_counts(judged, ("is_orphan", *_COUNTED))
        found = Found(
            listed=counts["listed"],
            in_dump=counts["in_dump"],
            referenced=counts["referenced"],
            usage_by_kind=by_usage["kind"],
            usage_by_tenant=by_usage["tenant"],
            orphans_by={name: by_column[name] for name in _COUNTED},
            unattributed=by_column["is_orphan"].get("false", Count()),
            missing=0 if not len(gone) else missing.count(),
        )
        tables = SparkTables(judged, missing, usage)
        return Findings(tables, found, protection, log_segments_unread_of(reported), dangers_of(reported))

    def release(self) -> None:
        """Give back what was kept between steps."""
        while self._kept:
            self._kept.pop().unpersist()

    def keep(self, frame: DataFrame) -> DataFrame:
        """Keep a frame until `release`, on disk: it is needed more than once."""
        return self._keep(frame)

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist(StorageLevel.DISK_ONLY))
        return frame

    # --- what there is -----------------------------------------------------------------------------------------

    def _facts(self) -> DataFrame:
        nodes = self._inputs.nodes((Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS), NODE_COLUMNS)
        looked_at: list[tuple[Rows, first_pass.Task]] = [
            (nodes, first_pass.decode_nodes_task(self._columns, self._shares)),
            (
                self._inputs.nodes((Subtree.OTHER,), NODE_COLUMNS),
                first_pass.unknown_nodes_task(self._policy.foreign_subtrees),
            ),
            (self._inputs.nodes((Subtree.ADMIN,), NODE_COLUMNS), first_pass.admin_nodes_task()),
            (
                self._inputs.table(Table.CURSOR_LEDGERS),
                first_pass.decode_cursor_ledgers_task(self._columns, self._shares),
            ),
            (self._inputs.table(Table.LOG_SEGMENTS), first_pass.decode_log_segments_task(self._columns, self._shares)),
            (self._inputs.ledgers(["ledger_id"]), first_pass.listed_ids_task(LISTED)),
        ]
        if self._inputs.own_ledgers:
            ledgers = self._inputs.nodes((Subtree.LEDGERS,), ["path", "unreadable"])
            looked_at.append((ledgers, first_pass.dumped_ids_task(self._columns, DUMPED, self._root)))
        return reduce(DataFrame.union, (rows.mapped(task, first_pass.FACTS) for rows, task in looked_at))

    def _missing(self, facts: DataFrame, gone: Numbers) -> DataFrame:
        """Rows of the table of missing ledgers."""
        schema = spark_schema(MISSING_LEDGERS)
        if not len(gone):
            return self._spark.createDataFrame([], schema)
        nodes = self._inputs.nodes((Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS), NODE_COLUMNS)
        about = _packed(facts, first_pass.OTHER).mapInArrow(
            in_worker(usage_tasks.singles_about_task(gone)), spark_schema(first_pass.OTHERS)
        )
        single = _not_replaced(about.distinct()).join(F.broadcast(self._ids(gone)), "ledger_id", "left_semi")
        rows = single.select("ledger_id", "kind", "path").mapInArrow(in_worker(usage_tasks.missing_rows_task), schema)
        return nodes.mapped(usage_tasks.lists_naming_task(self._columns, gone), schema).union(rows)

    def _missing_ids(self, compared: DataFrame, count: int, reported: Sequence[Row]) -> Numbers:
        demand_few_missing(count)
        if not count:
            return np.zeros(0, np.int64)
        found = _ids_of(compared.where("missing_ledgers > 0"), "missing")
        below = tuple(
            f"{row['path']}/" for row in reported if row["tag"] == first_pass.UNREAD and row["path"] is not None
        )
        seen = [not ledger_path(LedgerId(ledger_id), self._root).startswith(below) for ledger_id in found.tolist()]
        return found[np.array(seen, np.bool_)]

    def _ids(self, ids: Numbers) -> DataFrame:
        return self._spark.createDataFrame([(ledger_id,) for ledger_id in ids.tolist()], "ledger_id bigint")

    def _wanted_ledgers(self, compared: DataFrame, facts: DataFrame, few: bool) -> DataFrame:
        """`tasks.READ_LEDGERS` of the candidates and of what single references name."""
        candidates = compared.where(F.length("candidates") > 1)
        named = _packed(facts, first_pass.SINGLE_IDS)
        if self._inputs.own_ledgers:
            ledgers = self._inputs.nodes((Subtree.LEDGERS,), LEDGER_NODE_COLUMNS)
        else:
            ledgers = self._inputs.ledgers(LISTED_LEDGER_COLUMNS)
        if few:
            chosen = (_ids_of(candidates, "candidates"), np.unique(_ids_of(named, "content")))
            chooses = tasks.choose_ledgers_task(self._columns, self._root, *chosen, self._shares)
            return ledgers.mapped(chooses, tasks.READ_LEDGERS)
        task = tasks.read_ledgers_task(self._columns, self._root, self._shares)
        return self._joined(ledgers, candidates, named).mapInArrow(in_worker(task), tasks.READ_LEDGERS)

    def _joined(self, ledgers: Rows, candidates: DataFrame, named: DataFrame) -> DataFrame:
        """The rows of ledgers that an executor cannot hold whole."""
        sets = ((candidates, "candidates", True), (named, "content", False))
        wanted = reduce(
            DataFrame.union,
            (
                frame.mapInArrow(in_worker(tasks.ids_task(column, self._root)), tasks.WANTED)
                .distinct()
                .withColumn("is_candidate", F.lit(is_candidate))
                for frame, column, is_candidate in sets
            ),
        )
        beside, key = (
            (wanted.drop("ledger_id"), "path") if self._inputs.own_ledgers else (wanted.drop("path"), "ledger_id")
        )
        return ledgers.frame().join(beside, key).select(*ledgers.columns, "is_candidate")

    # --- judging -----------------------------------------------------------------------------------------------

    def _reported(self, facts: DataFrame) -> list[Row]:
        """Tenants, shadows, and what was not read: nodes, directories, log segments, cursors without a reading.

        Beside them one row each counts `first_pass.OTHER` and `first_pass.UNSIZED`.
        """
        rows = facts.where(F.col("tag").isin(*first_pass.REPORTED))
        # A cursor and the reading of its ledger fall into one group, and so do references, which are many.
        is_cursor = F.col("tag").isin(first_pass.COMPACTION, first_pass.READ)
        group = F.when(is_cursor, first_pass.COMPACTION).otherwise(F.col("tag")).alias("tag")
        no_reference = ~F.col("tag").isin(*REFERENCES)
        about = (F.when(no_reference, F.col(name)).alias(name) for name in ("path", "kind", "reason"))
        summed = rows.groupBy(group, *about).agg(
            F.max(F.col("tag") == first_pass.READ).alias("was_read"),
            F.sum("ledgers").alias("ledgers"),
        )
        return summed.where(f"tag != '{first_pass.COMPACTION}' or not was_read").collect()

    def _judged(self, candidates: DataFrame, protection: Protection, few: bool) -> DataFrame:
        paths = candidates.select(F.explode(F.array("owner_path", "topic_path")).alias("path")).dropna().distinct()
        nodes = self._inputs.nodes((Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS), OWNER_COLUMNS)
        if few:
            named = paths.toArrow().column("path").combine_chunks()
            owners = nodes.mapped(tasks.choose_owners_task(self._columns, named), tasks.OWNERS)
        else:
            joined = nodes.frame().join(paths, "path", "left_semi").select(*nodes.columns)
            owners = joined.mapInArrow(in_worker(tasks.owner_nodes_task(self._columns)), tasks.OWNERS)
        owners = self._keep(owners)
        rows = candidates
        for prefix in ("owner", "topic"):
            renamed = owners.select(*(F.col(name).alias(f"{prefix}_node_{name}") for name in owners.columns))
            beside = F.broadcast(renamed) if few else renamed
            rows = rows.join(beside, F.col(f"{prefix}_path") == F.col(f"{prefix}_node_path"), "left")
        rows = rows.join(self._earlier_looks(), F.col("ledger_id") == F.col("earlier_ledger_id"), "left")
        judge = Judge(as_of_ms(self._inputs.dump_manifest), self._policy, protection)
        schema = spark_schema(ORPHAN_LEDGERS).add("age", "string").add("is_orphan", "boolean")
        return rows.mapInArrow(in_worker(tasks.judge_task(judge)), schema)

    def _earlier_looks(self) -> DataFrame:
        names = [f"earlier_{name}" for name in EARLIER_COLUMNS]
        if self._earlier is None:
            return self._spark.createDataFrame([], ", ".join(f"{name} bigint" for name in names))
        return self._earlier.select(*(F.col(name).alias(f"earlier_{name}") for name in EARLIER_COLUMNS))

    # --- the other tables --------------------------------------------------------------------------------------

    def _usage(self, facts: DataFrame, sizes: DataFrame, gone: Numbers, named_in_vain: DataFrame) -> DataFrame:
        """`usage_tasks.SHARES` of lists that tell sizes, and of other references; without what is missing."""
        singles = _packed(facts, *REFERENCES).union(sizes).groupBy("part")
        single = singles.applyInArrow(in_worker(usage_tasks.singles_usage_task(gone, self._shares)), usage_tasks.SHARES)
        # As `audit.usage.usage_taken_off`.
        of_lists = named_in_vain.where((F.col("kind") == LedgerKind.DATA.value) & F.col("size_bytes").isNotNull())
        taken_off = of_lists.select(*_USAGE_KEYS, F.col("size_bytes").alias("size"))
        off = taken_off.mapInArrow(in_worker(usage_tasks.usage_taken_off_task(self._shares)), usage_tasks.SHARES)
        return _packed(facts, first_pass.USAGE, first_pass.LOADED).union(single).union(off)


def compared(facts: DataFrame, own_ledgers: bool) -> DataFrame:
    """`tasks.COMPARED` of the sets of ids among `first_pass.FACTS`; without own ledgers the dump has what is listed."""
    sets = _packed(facts, LISTED, DUMPED, first_pass.IDS)
    task = tasks.compare_task(LISTED, DUMPED, own_ledgers)
    return sets.groupBy("part").applyInArrow(in_worker(task), tasks.COMPARED)


def _ids_of(sets: DataFrame, column: str) -> Numbers:
    """The ids of all ranges; the caller knows that they are few."""
    rows = sets.select("part", column).collect()
    return np.concatenate([np.zeros(0, np.int64), *(union(row[0], [bytes(row[1])]) for row in rows)])


def _packed(facts: DataFrame, *tags: str) -> DataFrame:
    """The sets of ids, or the shares, of some tags."""
    return facts.where(F.col("tag").isin(*tags)).select("tag", "part", "content")


def _not_replaced(singles: DataFrame) -> DataFrame:
    """As `audit.usage.not_replaced`."""
    is_compacted = F.col("kind") == LedgerKind.COMPACTED.value
    youngest = singles.where(is_compacted).groupBy("path").agg(F.max("ledger_id").alias("youngest"))
    return singles.join(youngest, "path", "left").where(~is_compacted | (F.col("ledger_id") == F.col("youngest")))


def _newest(ledgers: DataFrame) -> DataFrame:
    """Each ledger once: one that was deleted and made again meanwhile is there twice, and the newer one counts."""
    order = (F.coalesce(name, F.lit(0)).desc() for name in ("czxid", "mzxid"))
    newest = F.row_number().over(Window.partitionBy("ledger_id").orderBy(*order))
    return ledgers.withColumn("newest", newest).where("newest = 1").drop("newest", "part", "content")


def names_of(files: Iterable[str], table: Table) -> list[str]:
    """The files of one table of an audit."""
    return sorted(name for name in files if name.startswith(f"{table.value}/"))
