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
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from pyspark.sql.types import StructType

from pyspark_jobs.orphan_ledgers import first_pass, tasks
from pyspark_jobs.orphan_ledgers.files import Directory
from pyspark_jobs.orphan_ledgers.id_sets import union
from pyspark_jobs.orphan_ledgers.schemas import spark_schema
from pyspark_jobs.orphan_ledgers.workers import in_worker
from service.audit.decoding import NODE_COLUMNS, unread_compaction_cursors
from service.audit.dumping import LEDGERS_LEFT_OUT
from service.audit.findings import EARLIER_COLUMNS, LEDGER_NODE_COLUMNS, LISTED_LEDGER_COLUMNS
from service.audit.guards import demand_few_missing
from service.audit.judging import Judge
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
from service.audit.varints import Numbers
from service.ledger_ownership.paths import ledger_path
from service.model.ids import LedgerId

LISTED, DUMPED = "listed", "dumped"
_MOST_BROADCAST_IDS, _MOST_BROADCAST_ROWS = 4_000_000, 500_000
"""What an executor may hold whole: ledgers' ids and paths, of which it is 80 bytes each; rows with owners."""
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
        sets = self._keep(compared(facts, self._inputs.own_ledgers))
        counts = _compared_counts(sets)
        reported = self._reported(facts)
        gone = self._missing_ids(sets, counts["missing_ledgers"], reported)
        named_in_vain = self._keep(self._missing(facts, gone))
        # As `service.audit.missing.made_before`: what is younger was made while the inputs were taken.
        missing = named_in_vain.where(F.col("ledger_id") <= counts["newest"])
        others = self._others(facts, gone)
        candidates = counts["candidate_ledgers"]
        few = candidates + _single_references(reported) <= _MOST_BROADCAST_IDS
        ledgers = self._keep(self._wanted_ledgers(sets, others, few))
        shields = _shields(reported)
        few_candidates = candidates <= _MOST_BROADCAST_ROWS
        judged = self._keep(self._judged(ledgers.where("is_candidate"), shields, few_candidates))
        lengths = ledgers.where("not is_candidate").select("ledger_id", "length")
        named = others.join(F.broadcast(lengths) if few else lengths, "ledger_id", "left")
        usage = self._keep(self._usage(facts, named, named_in_vain))
        by_usage = _counts(usage, ("kind", "tenant"), F.sum("ledgers"), F.sum("bytes"))
        by_column = _counts(judged, ("is_orphan", *_COUNTED), F.count("*"), F.sum("length_bytes"))
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
        return Findings(judged, missing, usage, found, shields, _log_segments_unread(reported))

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
            nodes.mapInArrow(in_worker(first_pass.decode_nodes_task), first_pass.FACTS),
            self._inputs.table(Table.CURSOR_LEDGERS).mapInArrow(
                in_worker(first_pass.decode_cursor_ledgers_task), first_pass.FACTS
            ),
            self._inputs.table(Table.LOG_SEGMENTS).mapInArrow(
                in_worker(first_pass.decode_log_segments_task), first_pass.FACTS
            ),
            self._inputs.ledgers(["ledger_id"]).mapInArrow(
                in_worker(first_pass.listed_ids_task(LISTED)), first_pass.FACTS
            ),
        ]
        if self._inputs.own_ledgers:
            ledgers = self._inputs.nodes((Subtree.LEDGERS,), ("path", "unreadable"))
            parts.append(
                ledgers.mapInArrow(in_worker(first_pass.dumped_ids_task(DUMPED, self._root)), first_pass.FACTS)
            )
        return reduce(DataFrame.union, parts)

    def _missing(self, facts: DataFrame, gone: Numbers) -> DataFrame:
        """Rows of the table of missing ledgers."""
        schema = spark_schema(MISSING_LEDGERS)
        if not len(gone):
            return self._spark.createDataFrame([], schema)
        nodes = self._inputs.nodes((Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS), NODE_COLUMNS)
        single = _not_replaced(_singles(facts)).join(F.broadcast(self._ids(gone)), "ledger_id", "left_semi")
        rows = single.select("ledger_id", "kind", "path").mapInArrow(in_worker(tasks.missing_rows_task), schema)
        return nodes.mapInArrow(in_worker(tasks.lists_naming_task(gone)), schema).union(rows)

    def _missing_ids(self, compared: DataFrame, count: int, reported: Sequence[Row]) -> Numbers:
        found: Numbers = np.zeros(0, np.int64)
        demand_few_missing(count)
        if not count:
            return found
        for row in compared.where("missing_ledgers > 0").select("range_id", "missing").collect():
            found = np.concatenate([found, union(row["range_id"], [bytes(row["missing"])])])
        below = tuple(
            f"{row['path']}/" for row in reported if row["tag"] == first_pass.UNREAD and row["path"] is not None
        )
        seen = [not ledger_path(LedgerId(ledger_id), self._root).startswith(below) for ledger_id in found.tolist()]
        return found[np.array(seen, np.bool_)]

    def _ids(self, ids: Numbers) -> DataFrame:
        return self._spark.createDataFrame([(ledger_id,) for ledger_id in ids.tolist()], "ledger_id bigint")

    def _others(self, facts: DataFrame, gone: Numbers) -> DataFrame:
        """Single references to ledgers that exist."""
        if not len(gone):
            return _singles(facts)
        return _singles(facts).join(F.broadcast(self._ids(gone)), "ledger_id", "left_anti")

    def _wanted_ledgers(self, compared: DataFrame, others: DataFrame, few: bool) -> DataFrame:
        """`tasks.READ_LEDGERS` of the candidates and of what single references name, each ledger once."""
        candidates = compared.where(F.length("candidates") > 1).mapInArrow(
            in_worker(tasks.ids_task("candidates", self._root)), tasks.WANTED
        )
        named = others.select("ledger_id").distinct().mapInArrow(in_worker(tasks.paths_task(self._root)), tasks.WANTED)
        wanted = candidates.withColumn("is_candidate", F.lit(True)).union(
            named.withColumn("is_candidate", F.lit(False))
        )
        if few:
            wanted = F.broadcast(wanted)
        if self._inputs.own_ledgers:
            ledgers = self._inputs.nodes((Subtree.LEDGERS,), LEDGER_NODE_COLUMNS).join(wanted, "path")
        else:
            ledgers = self._inputs.ledgers(LISTED_LEDGER_COLUMNS).join(wanted.drop("path"), "ledger_id")
        read = ledgers.drop("ledger_id") if self._inputs.own_ledgers else ledgers
        columns = LEDGER_NODE_COLUMNS if self._inputs.own_ledgers else LISTED_LEDGER_COLUMNS
        rows = read.select(*columns, "is_candidate").mapInArrow(
            in_worker(tasks.read_ledgers_task(self._root)), tasks.READ_LEDGERS
        )
        newest = F.row_number().over(_newest_first())
        return rows.withColumn("newest", newest).where("newest = 1").drop("newest")

    # --- judging -----------------------------------------------------------------------------------------------

    def _reported(self, facts: DataFrame) -> list[Row]:
        """What was not read: damages, directories, log segments, and compaction cursors without a reading.

        Beside them one row of `first_pass.OTHER` tells how many single references there are.
        """
        tags = (first_pass.DAMAGE, first_pass.UNREAD, first_pass.COMPACTION, first_pass.READ, first_pass.OTHER)
        rows = facts.where(F.col("tag").isin(*tags))
        # A cursor and the reading of its ledger fall into one group, and so do all single references.
        is_cursor = F.col("tag").isin(first_pass.COMPACTION, first_pass.READ)
        group = F.when(is_cursor, first_pass.COMPACTION).otherwise(F.col("tag")).alias("tag")
        no_reference = F.col("tag") != first_pass.OTHER
        about = (F.when(no_reference, F.col(name)).alias(name) for name in ("path", "kind", "reason"))
        summed = rows.groupBy(group, *about).agg(
            F.max(F.col("tag") == first_pass.READ).alias("was_read"),
            F.sum("ledgers").alias("ledgers"),
            F.count("*").alias("rows"),
        )
        return summed.where(f"tag != '{first_pass.COMPACTION}' or not was_read").collect()

    def _judged(self, candidates: DataFrame, shields: Shields, few: bool) -> DataFrame:
        paths = candidates.select(F.explode(F.array("owner_path", "topic_path")).alias("path")).dropna().distinct()
        nodes = self._inputs.nodes(
            (Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS), ("path", "value", "version", "mzxid")
        ).join(F.broadcast(paths) if few else paths, "path", "left_semi")
        owners = self._keep(nodes.mapInArrow(in_worker(tasks.owner_nodes_task), tasks.OWNERS))
        rows = candidates
        for prefix in ("owner", "topic"):
            renamed = owners.select(*(F.col(name).alias(f"{prefix}_node_{name}") for name in owners.columns))
            beside = F.broadcast(renamed) if few else renamed
            rows = rows.join(beside, F.col(f"{prefix}_path") == F.col(f"{prefix}_node_path"), "left")
        rows = rows.join(self._earlier_looks(), F.col("ledger_id") == F.col("earlier_ledger_id"), "left")
        judge = Judge(as_of_ms(self._inputs.dump_manifest), self._policy, shields)
        schema = spark_schema(ORPHAN_LEDGERS).add("age", "string").add("is_orphan", "boolean")
        return rows.mapInArrow(in_worker(tasks.judge_task(judge)), schema)

    def _earlier_looks(self) -> DataFrame:
        names = [f"earlier_{name}" for name in EARLIER_COLUMNS]
        if self._earlier is None:
            return self._spark.createDataFrame([], ", ".join(f"{name} bigint" for name in names))
        return self._earlier.select(*(F.col(name).alias(f"earlier_{name}") for name in EARLIER_COLUMNS))

    # --- the other tables --------------------------------------------------------------------------------------

    def _usage(self, facts: DataFrame, singles: DataFrame, named_in_vain: DataFrame) -> DataFrame:
        """Of lists and of single references, with their lengths; without what is missing."""
        listed = facts.where(F.col("tag") == first_pass.USAGE).select(*_USAGE_KEYS, *_USAGE_SUMS)
        single = singles.select(*_USAGE_KEYS, *_one_ledger("length", 1))
        gone = named_in_vain.where(F.col("kind") == LedgerKind.DATA.value)
        off = gone.select(*_USAGE_KEYS, *_one_ledger("size_bytes", -1))
        named = listed.union(single).union(off)
        summed = named.groupBy(*_USAGE_KEYS).agg(*(F.sum(name).alias(name) for name in _USAGE_SUMS))
        topics = facts.where(F.col("tag") == first_pass.LOADED).groupBy("topic").agg(F.max("flag").alias("loaded"))
        usage = summed.where("ledgers > 0").join(topics, "topic", "left")
        loaded = F.when(F.col("kind") != LedgerKind.SCHEMA.value, F.col("loaded")).alias("loaded")
        return usage.select(*_USAGE_KEYS, loaded, *_USAGE_SUMS)


def compared(facts: DataFrame, own_ledgers: bool) -> DataFrame:
    """`tasks.COMPARED` of the sets of ids among `first_pass.FACTS`; without own ledgers the dump has what is listed."""
    sets = facts.where(F.col("tag").isin(LISTED, DUMPED, first_pass.IDS)).select("tag", "range_id", "ids")
    task = tasks.compare_task(LISTED, DUMPED, own_ledgers)
    return sets.groupBy("range_id").applyInArrow(in_worker(task), tasks.COMPARED)


def _singles(facts: DataFrame) -> DataFrame:
    """Each single reference once, and whom it belongs to."""
    columns = ("ledger_id", "kind", "path", "tenant", "namespace", "topic")
    return facts.where(F.col("tag") == first_pass.OTHER).select(*columns).distinct()


def _not_replaced(singles: DataFrame) -> DataFrame:
    """As `service.audit.missing.not_replaced`."""
    is_compacted = F.col("kind") == LedgerKind.COMPACTED.value
    youngest = singles.where(is_compacted).groupBy("path").agg(F.max("ledger_id").alias("youngest"))
    return singles.join(youngest, "path", "left").where(~is_compacted | (F.col("ledger_id") == F.col("youngest")))


def _one_ledger(size: str, sign: int) -> list[Column]:
    sums = (F.lit(1), F.coalesce(size, F.lit(0)), F.isnull(size))
    return [(column.cast("bigint") * sign).alias(name) for column, name in zip(sums, _USAGE_SUMS, strict=True)]


def _compared_counts(compared: DataFrame) -> dict[str, int]:
    names = ("listed", "in_dump", "referenced", "candidate_ledgers", "missing_ledgers")
    row = compared.agg(*(F.sum(name).alias(name) for name in names), F.max("newest").alias("newest")).first()
    assert row is not None
    return {"newest": -1 if row["newest"] is None else row["newest"], **{name: row[name] or 0 for name in names}}


def _shields(reported: Sequence[Row]) -> Shields:
    damages = [
        Damage(row["path"], Reach(row["kind"]), row["reason"]) for row in reported if row["tag"] == first_pass.DAMAGE
    ]
    unread = [row["path"] for row in reported if row["tag"] == first_pass.COMPACTION]
    return Shields([*damages, *unread_compaction_cursors(unread, ())])


def _single_references(reported: Sequence[Row]) -> int:
    """How many there are, with repetitions."""
    return sum(row["rows"] for row in reported if row["tag"] == first_pass.OTHER)


def _log_segments_unread(reported: Sequence[Row]) -> int:
    return sum(row["ledgers"] or 0 for row in reported if row["tag"] == first_pass.UNREAD and row["path"] is None)


def _newest_first() -> Any:
    from pyspark.sql import Window

    order = (F.coalesce(name, F.lit(0)).desc() for name in ("czxid", "mzxid"))
    return Window.partitionBy("ledger_id").orderBy(*order)


def _counts(rows: DataFrame, columns: Sequence[str], ledgers: Column, size: Column) -> dict[str, dict[str, Count]]:
    """Ledgers and bytes by the values of each column, all in one pass; the empty text stands for none.

    All columns after ``is_orphan`` count orphans only.
    """
    orphans = F.col("is_orphan") if "is_orphan" in columns else F.lit(True)
    labels = [
        F.when(
            F.lit(name == "is_orphan") | orphans,
            F.struct(F.lit(name).alias("name"), F.col(name).cast("string").alias("value")),
        )
        for name in columns
    ]
    labelled = rows.withColumn("label", F.explode(F.array_compact(F.array(*labels))))
    counted = labelled.groupBy("label").agg(ledgers.alias("ledgers"), size.alias("bytes")).collect()
    found: dict[str, dict[str, Count]] = {name: {} for name in columns}
    for row in counted:
        found[row["label"]["name"]][row["label"]["value"] or ""] = Count(row["ledgers"], row["bytes"] or 0)
    return found


def names_of(files: Iterable[str], table: Table) -> list[str]:
    """The files of one table of an audit."""
    return sorted(name for name in files if name.startswith(f"{table.value}/"))
