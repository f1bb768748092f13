"""``spark-submit job.py --dump DIR --listing DIR [--previous AUDIT] --output AUDIT``: audit on Spark.

The options and the tables are those of ``pulsar-sidecar audit run``. Nothing here reaches a metadata store or a bookie.
Exit codes: 0 clean, 2 findings, 1 an error, wrong usage, or a guard that did not pass.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pulsar_sidecar.features.audit.columnar.reader import ColumnReader
from pulsar_sidecar.features.audit.engine.offloaded import EARLIER_COPY, NO_EARLIER_COPIES
from pulsar_sidecar.features.audit.engine.running import AuditOptions, OpenedInputs, input_of, input_of_audit, run_audit
from pulsar_sidecar.features.audit.requests import HOUR_MS, AuditPolicy
from pulsar_sidecar.features.audit.results.guards import EarlierCounts, exit_code, trusted
from pulsar_sidecar.features.audit.results.summaries import AuditSummary, parse_summary
from pulsar_sidecar.features.audit.results.tables import SCHEMAS, OffloadFinding, Table
from pulsar_sidecar.features.audit.results.verdicts import conclude
from pulsar_sidecar.features.audit.sources.manifests import InputKind, Manifest, parse_manifest
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.documents import MANIFEST_NAME, SUMMARY_NAME
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as is usual

from pyspark_jobs.orphan_ledgers.engine import Inputs, SparkEngine
from pyspark_jobs.running.directories import Directory, demand_files
from pyspark_jobs.running.sessions import JobParser, installed_version, run_job, set_where_not_submitted
from pyspark_jobs.running.tasks import spark_schema

_SETTINGS_ON_DISK = {
    # Python's workers read all inputs, and Spark's rows are too few to be worth compiling for.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_FEW_ROWS = 50_000
_ROWS_OF_A_PARTITION = 8_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    options = _parser().parse_args(arguments)

    def work(spark: SparkSession) -> tuple[str, int]:
        summary = run(
            spark,
            options.dump,
            options.listing,
            options.output,
            options.previous,
            _policy(options),
            options.exact,
            options.offloaded,
        )
        conclusion = conclude(summary, options.output)
        text = f"{conclusion.verdict.value}: {conclusion.sentence}\nnext: {conclusion.next_step}"
        return text, exit_code(summary)

    return run_job("orphan-ledgers", work)


def _set_partitions(spark: SparkSession, *manifests: Manifest) -> None:
    """Set the partitions after a shuffle by the size of the inputs: each costs a start of Python."""
    rows = sum(file.rows for manifest in manifests for file in manifest.files)
    wanted = max(1, min(spark.sparkContext.defaultParallelism, rows // _FEW_ROWS), rows // _ROWS_OF_A_PARTITION)
    set_where_not_submitted(spark, {"spark.sql.shuffle.partitions": str(wanted)})


def run(
    spark: SparkSession,
    dump: str,
    listing: str,
    output: str,
    previous: str | None,
    policy: AuditPolicy,
    exact: bool = False,
    offloaded: str | None = None,
) -> AuditSummary:
    """Run the audit. `InvalidInputError`: these inputs cannot be audited; nothing is left behind."""
    with Directory(spark, output).making() as unfinished:
        inputs, opened, earlier = _opened(spark, dump, listing, previous, offloaded)
        engine = SparkEngine(unfinished, inputs, policy, earlier.orphans, ColumnReader(exact), earlier.copies)
        with engine.kept:
            return run_audit(engine, opened, AuditOptions(policy, installed_version(), output, exact))


@dataclass(frozen=True, slots=True)
class _Earlier:
    """Earlier audit; neither orphans nor copies if it cannot be trusted."""

    counts: EarlierCounts | None = None
    orphans: DataFrame | None = None
    copies: pa.Table = field(default_factory=lambda: NO_EARLIER_COPIES)


def _opened(
    spark: SparkSession, dump: str, listing: str, previous: str | None, offloaded: str | None
) -> tuple[Inputs, OpenedInputs, _Earlier]:
    dumps, listings = Directory(spark, dump), Directory(spark, listing)
    dumped, listed = _manifest(dumps, InputKind.DUMP), _manifest(listings, InputKind.LISTING)
    _set_partitions(spark, dumped, listed)
    if dumps.on_disk() is not None and listings.on_disk() is not None:
        set_where_not_submitted(spark, _SETTINGS_ON_DISK)
    named = {
        "dump": input_of(dumped, dumps.sha256(MANIFEST_NAME)),
        "listing": input_of(listed, listings.sha256(MANIFEST_NAME)),
    }
    earlier, third, objects = _Earlier(), None, None
    if previous is not None:
        place = Directory(spark, previous)
        summary, earlier = _earlier(spark, place)
        named["previous"] = input_of_audit(summary, place.sha256(SUMMARY_NAME))
    if offloaded is not None:
        third = Directory(spark, offloaded)
        objects = _manifest(third, InputKind.OFFLOADED)
        named["offloaded"] = input_of(objects, third.sha256(MANIFEST_NAME))
    opened = OpenedInputs(dumped, listed, named, earlier.counts, objects)
    return Inputs(spark, dumps, listings, dumped, listed, third, objects), opened, earlier


def _manifest(directory: Directory, kind: InputKind) -> Manifest:
    manifest = parse_manifest(directory.read_document(MANIFEST_NAME))
    if manifest.kind is not kind:
        raise InvalidInputError(f"{directory.place} is a {manifest.kind.value}, not a {kind.value}")
    demand_files(directory, {file.path: file.sha256 for file in manifest.files})
    return manifest


def _earlier(spark: SparkSession, place: Directory) -> tuple[AuditSummary, _Earlier]:
    summary = parse_summary(place.read_document(SUMMARY_NAME))
    demand_files(place, summary.files)

    def read(table: Table) -> DataFrame:
        names = sorted(name for name in summary.files if name.startswith(f"{table.value}/"))
        return spark.read.schema(spark_schema(SCHEMAS[table])).parquet(*map(place.below, names))

    usage = read(Table.LEDGER_USAGE).groupBy("kind").sum("ledgers").collect()
    counts = EarlierCounts(summary, {row["kind"]: row["sum(ledgers)"] for row in usage})
    if not trusted(summary):
        return summary, _Earlier(counts)
    if not any(summary.offload.standings):
        return summary, _Earlier(counts, read(Table.ORPHAN_LEDGERS))
    unreferenced = read(Table.OFFLOADED_LEDGERS).where(F.col("finding") == OffloadFinding.UNREFERENCED.value)
    return summary, _Earlier(counts, read(Table.ORPHAN_LEDGERS), unreferenced.select(*EARLIER_COPY).toArrow())


def _parser() -> argparse.ArgumentParser:
    default = AuditPolicy()
    parser = JobParser(prog="job.py", description=__doc__)
    add, switch = parser.add_argument, partial(parser.add_argument, action="store_true")
    add("--dump", required=True, metavar="DIR", help="directory that metadata dump wrote")
    add("--listing", required=True, metavar="DIR", help="directory that ledgers list wrote, before the dump")
    add("--output", required=True, metavar="DIR", help="directory to create; it must not exist")
    add("--previous", metavar="DIR", help="the previous audit; without it nothing is deletable")
    add("--min-age-hours", type=float, default=default.min_age_ms / HOUR_MS, metavar="HOURS")
    add("--look-window-hours", type=float, default=default.look_window_ms / HOUR_MS, metavar="HOURS")
    add("--max-share", type=float, default=default.max_share, metavar="SHARE")
    add("--max-shrink", type=float, default=default.max_shrink, metavar="SHARE")
    switch("--allow-young", help="allow --min-age-hours below 24")
    foreign = "path in the metadata store below which no node is Pulsar's; may be repeated"
    add("--foreign-subtree", action="append", default=[], metavar="PATH", help=foreign)
    exclusive = "this BookKeeper serves only this Pulsar cluster; without it nothing is deletable"
    switch("--bookkeeper-exclusive-to-cluster", help=exclusive)
    add("--offloaded", metavar="DIR", help="directory that offload list wrote, before the dump")
    lone = "no other Pulsar cluster of this name offloads to the listed buckets, and none at all to the directories"
    switch("--offload-exclusive-to-cluster", help=lone)
    add("--offload-deletion-lag-hours", type=float, default=default.offload_lag_ms / HOUR_MS, metavar="HOURS")
    add("--price-per-gib-month", type=float, default=default.price_per_gib_month, metavar="PRICE")
    exact = "decode every node by itself with the exact decoder, not whole columns; slower, with the same result"
    switch("--exact", help=exact)
    return parser


def _policy(options: argparse.Namespace) -> AuditPolicy:
    return AuditPolicy(
        min_age_ms=round(options.min_age_hours * HOUR_MS),
        look_window_ms=round(options.look_window_hours * HOUR_MS),
        max_share=options.max_share,
        max_shrink=options.max_shrink,
        allow_young=options.allow_young,
        foreign_subtrees=tuple(options.foreign_subtree),
        bookkeeper_exclusive=options.bookkeeper_exclusive_to_cluster,
        offload_exclusive=options.offload_exclusive_to_cluster,
        offload_lag_ms=round(options.offload_deletion_lag_hours * HOUR_MS),
        price_per_gib_month=options.price_per_gib_month,
    )


if __name__ == "__main__":
    sys.exit(main())
