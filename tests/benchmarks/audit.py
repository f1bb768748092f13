"""Audits: made-up clusters of millions of ledgers through both engines, and the bare join by DuckDB and by Spark.

An engine's figure is for the whole audit: every file compared with its manifest, nodes decoded, ledgers compared,
orphans judged, tables and report written. The comparisons are given ids that were decoded for them, and answer how
many are left over: the engines' own sets of ids, Spark's join and DuckDB's. Each runs in a process of its own, so that
memory is its own; Spark's is asked twice, the second time with everything started and compiled.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from tests.benchmarks.audit_processes import largest_process_mb, processor_seconds
from tests.made_clusters import LISTS, MadeUpCluster
from tests.reporting import Table

NAME = "audit"
_DRIVER_MEMORY = "3g"
_LOCAL, _EXECUTORS = "local[2]", "local-cluster[2,1,1024]"
_AS_SUBMITTED = "-XX:TieredStopAtLevel=1"
"""Java's options of `deploy/spark/submit.sh` in local mode."""
_FINISHED = (0, 2)
_IDS = ("ids", "references")
_ID = pa.schema([("ledger_id", pa.int64())])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ledgers", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--orphans", type=float, nargs="+", default=[0.001], help="as a share of referenced ledgers")
    parser.add_argument("--of-a-topic", type=int, help="ledgers of each topic's list; 4 to 150 by default")
    parser.add_argument("--wide", action="store_true", help="spread ids over 32 bits, not over 28")
    parser.add_argument("--engines", nargs="+", default=_DEFAULT, choices=list(_ENGINES))
    parser.add_argument("--scratch", type=Path, default=None, help="where the made-up clusters lie meanwhile")


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    lists = (arguments.of_a_topic,) * len(LISTS) if arguments.of_a_topic else LISTS
    clusters = (
        MadeUpCluster.of(count, share, lists, is_wide=arguments.wide)
        for count in arguments.ledgers
        for share in arguments.orphans
    )
    return [_measured(cluster, arguments.engines, arguments.scratch) for cluster in clusters]


def _measured(cluster: MadeUpCluster, engines: Sequence[str], scratch: Path | None) -> Table:
    rows = []
    notes = []
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-audit-", dir=scratch) as made:
        place = Path(made)
        dump, listing = cluster.write(place)
        _write_ids(cluster, place)
        size_mb = sum(file.stat().st_size for each in (dump, listing) for file in each.rglob("*.parquet")) / 1e6
        for name in engines:
            if name == "duckdb" and importlib.util.find_spec("duckdb") is None:
                notes.append("DuckDB is not installed here; `make bench` installs it.")
                continue
            for figures, when in zip(_in_a_process(name, place), ("", ", again"), strict=False):
                if figures["left_over"] != cluster.orphans:
                    raise RuntimeError(f"{name} found {figures['left_over']} orphans of {cluster.orphans}")
                times = (f"{figures[unit]:,.1f}" for unit in ("seconds", "cpu_seconds"))
                rows.append((f"{_ENGINES[name]}{when}", *times, f"{figures['memory_mb']:,.0f}"))
                if "shuffled_mb" in figures:
                    sums = (f"{figures[each]:,.0f} MB" for each in ("shuffled_mb", "spilled_mb", "on_disk_mb"))
                    notes.append("{}: shuffled {}; spilled {}, as {} on disks.".format(_ENGINES[name], *sums))
        notes += _same_findings(place)
    references = cluster.referenced + cluster.lost
    title = f"{cluster.ledgers:,} ledgers, {references:,} references, {cluster.orphans:,} orphans, {size_mb:,.0f} MB"
    return Table(title, ("", "seconds", "seconds of processor time", "largest process, MB"), rows, notes)


_ENGINES = {
    "embedded": "embedded engine, whole audit",
    "exact": "embedded engine, whole audit, --exact",
    "spark": f"Spark job, whole audit (local, {_DRIVER_MEMORY} driver)",
    "spark-executors": "Spark job, whole audit, two executors of 1 GB",
    "spark-shuffle": "Spark job, whole audit, every ledger's metadata shuffled, executors of 1 GB with 72 MB to sort",
    "spark-s3": "Spark job, whole audit, all directories on an S3 server",
    "sets": "embedded engine's comparison of ids alone",
    "spark-sets": "Spark job's comparison of ids alone",
    "spark-join": "Spark's left_anti join of ids alone",
    "duckdb": "DuckDB's anti join of ids alone",
}


_DEFAULT = [name for name in _ENGINES if name not in ("spark-shuffle", "spark-s3")]


def _write_ids(cluster: MadeUpCluster, place: Path) -> None:
    for name, ids in zip(_IDS, (cluster.ids(), cluster.references()), strict=True):
        with pq.ParquetWriter(place / f"{name}.parquet", _ID) as file:
            for some in ids:
                file.write_batch(pa.RecordBatch.from_arrays([pa.array(some)], schema=_ID))


def _same_findings(place: Path) -> list[str]:
    """Demand the same tables and counts of all audits."""
    from pulsar_sidecar.adapters.parquet.directories import open_audit
    from pulsar_sidecar.adapters.parquet.inputs import AuditTables
    from pulsar_sidecar.features.audit.engine.running import AUDIT_TABLES
    from pulsar_sidecar.features.audit.results.tables import SCHEMAS, Table
    from pulsar_sidecar.reports.documents import SUMMARY_NAME, Engine

    audits = sorted(file.parent for file in place.glob(f"*/{SUMMARY_NAME}"))
    summaries = [open_audit(audit) for audit in audits]
    counts = [replace(summary, engine=Engine.EMBEDDED, files={}) for summary in summaries]
    same = all(each == counts[0] for each in counts)
    for table in AUDIT_TABLES:
        rows = [AuditTables(audit, summary).table(table) for audit, summary in zip(audits, summaries, strict=True)]
        if table is Table.LEDGER_USAGE:  # its rows have no order
            rows = [each.sort_by([(name, "ascending") for name in SCHEMAS[table].names]) for each in rows]
        same = same and all(each.equals(rows[0]) for each in rows)
    if not same:
        raise RuntimeError(f"{', '.join(audit.name for audit in audits)} have different findings")
    return [f"The tables of {len(audits)} audits are the same, row by row."] if len(audits) > 1 else []


def _in_a_process(name: str, place: Path) -> list[dict[str, float]]:
    command = [sys.executable, "-m", "tests.benchmarks.audit", name, str(place)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{name} failed: {ran.stderr[-2000:]}")
    figures: list[dict[str, float]] = json.loads(ran.stdout.splitlines()[-1])
    return figures


# --- in the process ------------------------------------------------------------------------------------------------


def _embedded(place: Path, *more: str) -> int:
    from pulsar_sidecar.adapters.parquet.directories import read_summary

    places = [f"--{name}={place / name}" for name in ("dump", "listing")]
    output = place / f"embedded-{os.getpid()}"
    command = [sys.executable, "-m", "pulsar_sidecar", "audit", "run", *places, *more, f"--output={output}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode not in _FINISHED:
        raise RuntimeError(ran.stderr[-2000:])
    return sum(count.ledgers for count in read_summary(output).orphans.values())


def _exact(place: Path) -> int:
    return _embedded(place, "--exact")


def _spark(place: Path, master: str = _LOCAL, memory_fraction: float = 0.6) -> int:
    from pulsar_sidecar.features.audit.requests import AuditPolicy

    from pyspark_jobs.orphan_ledgers.job import run as audit
    from pyspark_jobs.running.sessions import session

    places = [str(place / name) for name in ("dump", "listing", f"spark-{os.getpid()}")]
    builder = _spark_builder(_AS_SUBMITTED, master).config("spark.eventLog.dir", str(_events(place)))
    builder = builder.config("spark.memory.fraction", memory_fraction)
    for name, value in {"enabled": "true", "rolling.enabled": "false", "compress": "false"}.items():
        builder = builder.config(f"spark.eventLog.{name}", value)
    spark = session(builder)
    summary = audit(spark, *places, None, AuditPolicy())
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # then the log of events is written
    return sum(count.ledgers for count in summary.orphans.values())


def _events(place: Path) -> Path:
    directory = place / f"events-{os.getpid()}"
    directory.mkdir(exist_ok=True)
    return directory


def _moved_mb(place: Path) -> dict[str, float]:
    """Megabytes that Spark's tasks shuffled, and spilled, in memory and on disks; nothing if no Spark job ran."""
    lines = [line for file in _events(place).iterdir() for line in file.open() if '"SparkListenerTaskEnd"' in line]
    tasks = [json.loads(line).get("Task Metrics", {}) for line in lines]
    shuffled = sum(task.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0) for task in tasks)
    spilled, on_disk = (sum(task.get(f"{each} Bytes Spilled", 0) for task in tasks) for each in ("Memory", "Disk"))
    return {"shuffled_mb": shuffled / 1e6, "spilled_mb": spilled / 1e6, "on_disk_mb": on_disk / 1e6} if tasks else {}


def _spark_executors(place: Path) -> int:
    return _spark(place, _EXECUTORS)


def _spark_shuffle(place: Path) -> int:
    """As if the sets of wanted ids were larger than an executor may hold, so that it sorts every row to join them."""
    from pyspark_jobs.orphan_ledgers import engine

    engine._MOST_PACKED_BYTES = -1
    return _spark(place, _EXECUTORS, memory_fraction=0.1)


def _spark_s3(place: Path) -> int:
    """Needs hadoop-aws with the AWS SDK, which Spark gets from Maven Central once."""
    import pyspark
    from pulsar_sidecar.features.audit.requests import AuditPolicy

    from pyspark_jobs.orphan_ledgers.job import run as audit
    from pyspark_jobs.running.sessions import session
    from tests.contract.offload_storages import ACCESS_KEY, BUCKET, S3Storage, s3_server

    (client,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    package = f"org.apache.hadoop:hadoop-aws:{client.stem.rpartition('-')[2]}"
    builder = _spark_builder(_AS_SUBMITTED).config("spark.jars.packages", package)
    with s3_server() as endpoint:
        bucket = S3Storage(endpoint)
        for file in (file for name in ("dump", "listing") for file in (place / name).rglob("*.*")):
            bucket.write(str(file.relative_to(place)), file.read_bytes(), {})
        settings = {
            "endpoint": endpoint,
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "access.key": ACCESS_KEY.key_id,
            "secret.key": ACCESS_KEY.secret,
        }
        for name, value in settings.items():
            builder = builder.config(f"spark.hadoop.fs.s3a.{name}", value)
        places = [f"s3a://{BUCKET}/{name}" for name in ("dump", "listing", "audits/monday")]
        summary = audit(session(builder), *places, None, AuditPolicy())
        objects = (name for name in bucket.object_names() if not name.endswith("/"))  # marks of directories
        written = {name for name in objects if not name.startswith(("dump/", "listing/"))}
    beside = {"summary.json", "report.html", "metrics.prom"}
    if written != {f"audits/monday/{name}" for name in {*summary.files, *beside}}:
        raise RuntimeError(f"the audit left {sorted(written)}")
    return sum(count.ledgers for count in summary.orphans.values())


def _sets(place: Path) -> int:
    from pulsar_sidecar.features.audit.arrays import LedgerSets

    ids, references = (pq.read_table(place / f"{name}.parquet")["ledger_id"].to_numpy() for name in _IDS)
    sets = LedgerSets([ids], ids)
    sets.refer(references)
    return len(sets.candidates())


def _spark_sets(place: Path) -> int:
    from pyspark.sql import functions as F  # noqa: N812  # the usual name

    from pyspark_jobs.orphan_ledgers.engine import compared
    from pyspark_jobs.orphan_ledgers.first_pass import FACTS, IDS, LISTED, collect_listed
    from pyspark_jobs.running.directories import Directory, Rows
    from pyspark_jobs.running.sessions import session

    spark = session(_spark_builder(_AS_SUBMITTED))
    directory = Directory(spark, str(place))
    ids, references = (
        Rows(spark, directory, [f"{name}.parquet"], _ID, _ID.names).mapped(FACTS, collect_listed, tag)
        for name, tag in zip(_IDS, (LISTED, IDS), strict=True)
    )
    counted = compared(ids.union(references), own_ledgers=False).agg(F.sum("candidate_ledgers")).first()
    return int(counted[0])


def _spark_join(place: Path) -> int:
    spark = _spark_builder().getOrCreate()
    ids, references = (spark.read.parquet(str(place / f"{name}.parquet")) for name in _IDS)
    return int(ids.join(references, "ledger_id", "left_anti").count())


def _spark_builder(java_options: str = "", master: str = _LOCAL):  # type: ignore[no-untyped-def]  # pyspark is not there for every benchmark
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).config("spark.driver.memory", _DRIVER_MEMORY)
    builder = builder.config("spark.driver.extraJavaOptions", java_options).config("spark.executor.memory", "1g")
    return builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")


def _duckdb(place: Path) -> int:
    import duckdb

    ids, references = place / "ids.parquet", place / "references.parquet"
    query = f"select count(*) from '{ids}' anti join '{references}' using (ledger_id)"
    [(found,)] = duckdb.sql(query).fetchall()
    return int(found)


def _main(name: str, place: Path) -> None:
    work = {
        "embedded": _embedded,
        "exact": _exact,
        "spark": _spark,
        "spark-executors": _spark_executors,
        "spark-shuffle": _spark_shuffle,
        "spark-s3": _spark_s3,
        "sets": _sets,
        "spark-sets": _spark_sets,
        "spark-join": _spark_join,
        "duckdb": _duckdb,
    }[name]
    times = 2 if name in ("spark-sets", "spark-join", "duckdb", "sets") else 1
    sys.stdout.write(f"{json.dumps([_figures(work, place) for _ in range(times)])}\n")


def _figures(work: Callable[[Path], int], place: Path) -> dict[str, float]:
    started, used = time.perf_counter(), processor_seconds()
    left_over = work(place)
    return {
        "left_over": left_over,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": processor_seconds() - used,
        "memory_mb": largest_process_mb(),
        **_moved_mb(place),
    }


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
