"""The audit as a plan of Spark's: which rows meet which, nothing else.

What is brought to the driver does not grow with the number of ledgers: counts, damages (nodes that could not be read)
and missing references, of which more than `service.audit.guards.MOST_MISSING` make no audit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from pyspark.sql.types import StructType

from pyspark_jobs.orphan_ledgers import tasks
from pyspark_jobs.orphan_ledgers.files import Directory
from pyspark_jobs.orphan_ledgers.id_sets import union
from pyspark_jobs.orphan_ledgers.schemas import spark_schema
from service.audit.decoding import LIST_USAGE, NODE_COLUMNS, REFERENCES, unread_compaction_cursors
from service.audit.dumping import LEDGERS_LEFT_OUT
from service.audit.findings import EARLIER_COLUMNS, LEDGER_NODE_COLUMNS, LISTED_LEDGER_COLUMNS
from service.audit.guards import demand_few_missing
from service.audit.judging import Judge
from service.audit.ledger_lists import Numbers
from service.audit.manifests import Manifest
from service.audit.policies import Policy
from service.audit.shields import Damage, Reach, Shields
from service.audit.summaries import Count
from service.audit.summing_up import Found, as_of_ms
from service.audit.tables import (
    CURSOR_LEDGERS,
    LEDGERS,
    LOG_SEGMENTS,
    MISSING_LEDGERS,
    NODES,
    ORPHAN_LEDGERS,
    LedgerKind,
    Subtree,
    Table,
)
from service.audit.usage import NAMED_USAGE
from service.ledger_ownership.paths import ledger_path
from service.model.ids import LedgerId

_LISTED, _DUMPED = "listed", "dumped"
_BROADCAST_ROWS = 500_000
_USAGE_KEYS = ("tenant", "namespace", "topic", "kind")
_USAGE_SUMS = ("ledgers", "bytes", "unknown_size_ledgers")
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

    def nodes(self, subtrees: Sequence[Subtree], columns: Sequence[str]) -> DataFrame:
        """Nodes of some subtrees."""
        beginnings = tuple(f"{Table.NODES.value}/subtree={subtree.value}/" for subtree in subtrees)
        names = [file.path for file in self.dump_manifest.files if file.path.startswith(beginnings)]
        return self._read(self.dump, names, spark_schema(NODES)).select(*columns)

    def table(self, table: Table) -> DataFrame:
        """One of the dump's small tables."""
        schema = spark_schema(CURSOR_LEDGERS if table is Table.CURSOR_LEDGERS else LOG_SEGMENTS)
        names = [file.path for file in self.dump_manifest.files if file.path.startswith(f"{table.value}/")]
        return self._read(self.dump, names, schema)

    def ledgers(self, columns: Sequence[str]) -> DataFrame:
        """The listing."""
        names = [file.path for file in self.listing_manifest.files]
        return self._read(self.listing, names, spark_schema(LEDGERS)).select(*columns)

    def _read(self, directory: Directory, names: Sequence[str], schema: StructType) -> DataFrame:
        if not names:
            return self.spark.createDataFrame([], schema)
        return self.spark.read.schema(schema).parquet(*map(directory.below, names))


@dataclass(frozen=True, slots=True)
class Findings:
    """The tables, as far as they do not depend on guards, and what was counted."""

    judged: DataFrame
    missing: DataFrame
    usage: DataFrame
    found: Found
    shields: Shields
    log_segments_unread: int

    @property
    def orphans(self) -> DataFrame:
        """Not yet numbered."""
        return self.judged.where("is_orphan").drop("is_orphan", "age")

    @property
    def unattributed(self) -> DataFrame:
        """With the orphans' columns."""
        return self.judged.where("not is_orphan").drop("is_orphan", "age")


class Finding:
    """One audit's way from the inputs to the findings."""

    def __init__(self, inputs: Inputs, policy: Policy, earlier_orphans: DataFrame | None) -> None:
        self._inputs = inputs
        self._spark = inputs.spark
        self._policy = policy
        self._earlier = earlier_orphans
        self._root = inputs.dump_manifest.ledgers_root
        self._kept: list[DataFrame] = []

    def find(self) -> Findings:
        facts = self._keep(self._facts())
        compared = self._keep(self._compared(facts))
        counts = compared.agg(*(F.sum(name) for name in ("listed", "in_dump", "referenced"))).first()
        assert counts is not None
        listed, in_dump, referenced = (count or 0 for count in counts)
        missing = self._keep(self._missing(facts, compared))
        others = self._others(facts, missing)
        ledgers = self._keep(self._wanted_ledgers(compared, others))
        shields = self._shields(facts)
        judged = self._keep(self._judged(ledgers.where("is_candidate"), shields))
        usage = self._keep(self._usage(facts, others, ledgers, missing))
        by_kind, by_tenant = (_usage_counts(usage, name) for name in ("kind", "tenant"))
        orphans = judged.where("is_orphan")
        found = Found(
            listed=listed,
            in_dump=in_dump,
            referenced=referenced,
            usage_by_kind=by_kind,
            usage_by_tenant=by_tenant,
            orphans_by={name: _row_counts(orphans, name) for name in _COUNTED},
            unattributed=_count(judged.where("not is_orphan")),
            missing=missing.count(),
        )
        return Findings(judged, self._missing_rows(missing), usage, found, shields, self._unread(facts))

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
        parts = [
            nodes.mapInArrow(tasks.decode_nodes_task, tasks.FACTS),
            self._inputs.table(Table.CURSOR_LEDGERS).mapInArrow(tasks.decode_cursor_ledgers_task, tasks.FACTS),
            self._inputs.table(Table.LOG_SEGMENTS).mapInArrow(tasks.decode_log_segments_task, tasks.FACTS),
            self._inputs.ledgers(["ledger_id"]).mapInArrow(tasks.listed_ids_task(_LISTED), tasks.FACTS),
        ]
        if self._inputs.own_ledgers:
            ledgers = self._inputs.nodes((Subtree.LEDGERS,), ("path", "unreadable"))
            parts.append(ledgers.mapInArrow(tasks.dumped_ids_task(_DUMPED, self._root), tasks.FACTS))
        return reduce(DataFrame.union, parts)

    def _compared(self, facts: DataFrame) -> DataFrame:
        sets = facts.where(F.col("tag").isin(_LISTED, _DUMPED, tasks.IDS)).select("tag", "range_id", "ids")
        task = tasks.compare_task(_LISTED, _DUMPED, self._inputs.own_ledgers)
        return sets.groupBy("range_id").applyInArrow(task, tasks.COMPARED)

    def _missing(self, facts: DataFrame, compared: DataFrame) -> DataFrame:
        gone = self._missing_ids(facts, compared)
        if not len(gone):
            return self._spark.createDataFrame([], spark_schema(REFERENCES))
        listed = self._inputs.nodes((Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS), NODE_COLUMNS)
        wanted = self._spark.createDataFrame([(ledger_id,) for ledger_id in gone.tolist()], "ledger_id bigint")
        single = facts.where(F.col("tag") == tasks.OTHER).join(F.broadcast(wanted), "ledger_id", "left_semi")
        null = F.lit(None).cast("bigint")
        return listed.mapInArrow(tasks.lists_naming_task(gone), spark_schema(REFERENCES)).union(
            single.select("ledger_id", "kind", "path", null.alias("entries"), null.alias("size_bytes")).distinct()
        )

    def _missing_ids(self, facts: DataFrame, compared: DataFrame) -> Numbers:
        sets = compared.where(F.length("missing") > 1).select("range_id", "missing")
        found: Numbers = np.zeros(0, np.int64)
        for row in sets.toLocalIterator():
            found = np.concatenate([found, union(row["range_id"], [bytes(row["missing"])])])
            demand_few_missing(len(found))
        unread = facts.where((F.col("tag") == tasks.UNREAD) & F.col("path").isNotNull()).select("path").collect()
        below = tuple(f"{row['path']}/" for row in unread)
        seen = [not ledger_path(LedgerId(ledger_id), self._root).startswith(below) for ledger_id in found.tolist()]
        return found[np.array(seen, np.bool_)]

    def _others(self, facts: DataFrame, missing: DataFrame) -> DataFrame:
        """Existing ledgers that single references name, once for each reference."""
        single = facts.where(F.col("tag") == tasks.OTHER).select("ledger_id", "kind", "path").distinct()
        return single.join(F.broadcast(missing.select("ledger_id").distinct()), "ledger_id", "left_anti")

    def _wanted_ledgers(self, compared: DataFrame, others: DataFrame) -> DataFrame:
        """`tasks.READ_LEDGERS` of the candidates and of what single references name, each ledger once."""
        candidates = compared.where(F.length("candidates") > 1).mapInArrow(
            tasks.ids_task("candidates", self._root), tasks.WANTED
        )
        named = others.select("ledger_id").distinct().mapInArrow(tasks.paths_task(self._root), tasks.WANTED)
        wanted = self._keep(
            candidates.withColumn("is_candidate", F.lit(True)).union(named.withColumn("is_candidate", F.lit(False)))
        )
        if wanted.count() <= _BROADCAST_ROWS:
            wanted = F.broadcast(wanted)
        if self._inputs.own_ledgers:
            ledgers = self._inputs.nodes((Subtree.LEDGERS,), LEDGER_NODE_COLUMNS).join(wanted, "path")
        else:
            ledgers = self._inputs.ledgers(LISTED_LEDGER_COLUMNS).join(wanted.drop("path"), "ledger_id")
        read = ledgers.drop("ledger_id") if self._inputs.own_ledgers else ledgers
        columns = LEDGER_NODE_COLUMNS if self._inputs.own_ledgers else LISTED_LEDGER_COLUMNS
        rows = read.select(*columns, "is_candidate").mapInArrow(tasks.read_ledgers_task(self._root), tasks.READ_LEDGERS)
        newest = F.row_number().over(_newest_first())
        return rows.withColumn("newest", newest).where("newest = 1").drop("newest")

    # --- judging -----------------------------------------------------------------------------------------------

    def _shields(self, facts: DataFrame) -> Shields:
        rows = facts.where(F.col("tag") == tasks.DAMAGE).select("path", "kind", "reason").distinct().collect()
        damages = [Damage(row["path"], Reach(row["kind"]), row["reason"]) for row in rows]
        cursors = facts.where(F.col("tag") == tasks.COMPACTION).select("path")
        read = facts.where(F.col("tag") == tasks.READ).select("path")
        unread = [row["path"] for row in cursors.join(read, "path", "left_anti").collect()]
        return Shields([*damages, *unread_compaction_cursors(unread, ())])

    def _judged(self, candidates: DataFrame, shields: Shields) -> DataFrame:
        paths = candidates.select(F.explode(F.array("owner_path", "topic_path")).alias("path")).dropna().distinct()
        nodes = self._inputs.nodes(
            (Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS), ("path", "value", "version", "mzxid")
        ).join(self._small(paths), "path", "left_semi")
        owners = self._keep(nodes.mapInArrow(tasks.owner_nodes_task, tasks.OWNERS))
        rows = candidates
        for prefix in ("owner", "topic"):
            renamed = owners.select(*(F.col(name).alias(f"{prefix}_node_{name}") for name in owners.columns))
            rows = rows.join(renamed, F.col(f"{prefix}_path") == F.col(f"{prefix}_node_path"), "left")
        rows = rows.join(self._earlier_looks(), F.col("ledger_id") == F.col("earlier_ledger_id"), "left")
        judge = Judge(as_of_ms(self._inputs.dump_manifest), self._policy, shields)
        schema = spark_schema(ORPHAN_LEDGERS).add("age", "string").add("is_orphan", "boolean")
        return rows.mapInArrow(tasks.judge_task(judge), schema)

    def _earlier_looks(self) -> DataFrame:
        names = [f"earlier_{name}" for name in EARLIER_COLUMNS]
        if self._earlier is None:
            return self._spark.createDataFrame([], ", ".join(f"{name} bigint" for name in names))
        return self._earlier.select(*(F.col(name).alias(f"earlier_{name}") for name in EARLIER_COLUMNS))

    def _small(self, frame: DataFrame) -> DataFrame:
        kept = self._keep(frame)
        return F.broadcast(kept) if kept.count() <= _BROADCAST_ROWS else kept

    # --- the other tables --------------------------------------------------------------------------------------

    def _usage(self, facts: DataFrame, others: DataFrame, ledgers: DataFrame, missing: DataFrame) -> DataFrame:
        listed = facts.where(F.col("tag") == tasks.USAGE).select(*LIST_USAGE.names)
        lengths = ledgers.where("not is_candidate").select("ledger_id", "length")
        single = (
            others.join(lengths, "ledger_id", "left")
            .groupBy("path", "kind")
            .agg(
                F.count("*").alias("ledgers"),
                F.coalesce(F.sum("length"), F.lit(0)).alias("bytes"),
                F.sum(F.isnull("length").cast("bigint")).alias("unknown_size_ledgers"),
            )
        )
        off = missing.where(F.col("kind") == LedgerKind.DATA.value).select(
            "path",
            "kind",
            F.lit(-1).cast("bigint").alias("ledgers"),
            (-F.coalesce("size_bytes", F.lit(0))).cast("bigint").alias("bytes"),
            (-F.isnull("size_bytes").cast("bigint")).alias("unknown_size_ledgers"),
        )
        named = listed.union(single).union(off).mapInArrow(tasks.named_usage_task, spark_schema(NAMED_USAGE))
        summed = named.groupBy(*_USAGE_KEYS).agg(*(F.sum(name).alias(name) for name in _USAGE_SUMS))
        usage = summed.where("ledgers > 0").join(self._loaded(facts), "topic", "left")
        loaded = F.when(F.col("kind") != LedgerKind.SCHEMA.value, F.col("loaded")).alias("loaded")
        return usage.select(*_USAGE_KEYS, loaded, *_USAGE_SUMS)

    def _loaded(self, facts: DataFrame) -> DataFrame:
        cursors = facts.where(F.col("tag") == tasks.CURSOR).select("path", "flag")
        topics = cursors.mapInArrow(tasks.loaded_task, "topic string, flag boolean").where("topic is not null")
        return topics.groupBy("topic").agg(F.max("flag").alias("loaded"))

    def _missing_rows(self, missing: DataFrame) -> DataFrame:
        return missing.mapInArrow(tasks.missing_rows_task, spark_schema(MISSING_LEDGERS))

    def _unread(self, facts: DataFrame) -> int:
        row = facts.where((F.col("tag") == tasks.UNREAD) & F.col("path").isNull()).agg(F.sum("ledgers")).first()
        return 0 if row is None else row[0] or 0


def _newest_first() -> Any:
    from pyspark.sql import Window

    order = (F.coalesce(name, F.lit(0)).desc() for name in ("czxid", "mzxid"))
    return Window.partitionBy("ledger_id").orderBy(*order)


def _usage_counts(usage: DataFrame, column: str) -> dict[str, Count]:
    rows = usage.groupBy(column).agg(F.sum("ledgers").alias("ledgers"), F.sum("bytes").alias("bytes")).collect()
    return {row[column] or "": Count(row["ledgers"], row["bytes"]) for row in rows}


def _row_counts(rows: DataFrame, column: str) -> dict[str, Count]:
    counted = rows.groupBy(column).agg(F.count("*").alias("ledgers"), F.sum("length_bytes").alias("bytes")).collect()
    return {row[column] or "": Count(row["ledgers"], row["bytes"] or 0) for row in counted}


def _count(rows: DataFrame) -> Count:
    counted = rows.agg(F.count("*"), F.sum("length_bytes")).first()
    assert counted is not None
    return Count(counted[0], counted[1] or 0)


def names_of(files: Iterable[str], table: Table) -> list[str]:
    """The files of one table of an audit."""
    return sorted(name for name in files if name.startswith(f"{table.value}/"))
