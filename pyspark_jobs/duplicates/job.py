"""``spark-submit job.py --extract DIR --output DIR``: find duplicate messages in an extract on Spark.

The options and the tables are those of ``pulsar-sidecar deduplication duplicates``. Nothing here reaches a metadata
store, a broker or a bookie. Exit codes: 0 clean; 2 there are findings; 1 nothing was found, but not everything could
be read, or an error or wrong usage.
"""

import argparse
import sys
from collections.abc import Sequence

from pulsar_sidecar.features.duplicates.extracts.results import DuplicatesSummary, conclude
from pulsar_sidecar.features.duplicates.extracts.running import find_duplicates
from pulsar_sidecar.features.duplicates.manifests import ExtractManifest, parse_manifest
from pulsar_sidecar.reports.documents import MANIFEST_NAME
from pyspark.sql import SparkSession

from pyspark_jobs.duplicates.engine import SparkEngine
from pyspark_jobs.running.directories import Directory, demand_files
from pyspark_jobs.running.sessions import JobParser, installed_version, run_job, set_where_not_submitted

_ROWS_OF_A_PARTITION = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    options = _parser().parse_args(arguments)

    def work(spark: SparkSession) -> tuple[str, int]:
        concluded = conclude(run(spark, options.extract, options.output), options.output)
        return f"{concluded.sentence}\nnext: {concluded.next_step}", concluded.exit_code

    return run_job("duplicates", work)


def run(spark: SparkSession, extract: str, output: str) -> DuplicatesSummary:
    """Find the duplicates in an extract. `InvalidInputError`: the extract is incomplete; nothing is left behind."""
    with Directory(spark, output).making() as unfinished:
        place = Directory(spark, extract)
        manifest = parse_manifest(place.read_document(MANIFEST_NAME))
        demand_files(place, {file.path: file.sha256 for file in manifest.files})
        _set_partitions(spark, manifest)
        engine = SparkEngine(spark, place, manifest, unfinished)
        with engine.kept:
            sha256 = place.sha256(MANIFEST_NAME)
            return find_duplicates(engine, manifest, sha256, tool_version=installed_version(), place=output)


def _set_partitions(spark: SparkSession, manifest: ExtractManifest) -> None:
    wanted = max(manifest.messages // _ROWS_OF_A_PARTITION, min(spark.sparkContext.defaultParallelism, 2))
    set_where_not_submitted(spark, {"spark.sql.shuffle.partitions": str(wanted)})


def _parser() -> argparse.ArgumentParser:
    parser = JobParser(prog="job.py", description=__doc__)
    parser.add_argument("--extract", required=True, metavar="DIR", help="directory that `deduplication extract` wrote")
    parser.add_argument("--output", required=True, metavar="DIR", help="directory to create")
    return parser


if __name__ == "__main__":
    sys.exit(main())
