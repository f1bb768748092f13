"""What every job does with Spark before and around its work."""

import argparse
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import pulsar_sidecar
from pulsar_sidecar.analysis.documents import EXIT_ERROR
from pulsar_sidecar.model.errors import InvalidInputError, SidecarError
from pyspark import SparkContext
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

SUPPORTED_VERSIONS = ("4.0", "4.1", "4.2", "4.3")
"""Of Spark: those that the jobs' tests have passed on (docs/audit.md)."""
_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.files.maxPartitionBytes": "64m",
    # How much there is is known before: planning anew after each stage costs more than it saves.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # On a busy machine what is broadcast may be long in the making; a run is never worth giving up for that.
    "spark.sql.broadcastTimeout": "36000",
}


def run_job(name: str, work: Callable[[SparkSession], tuple[str, int]]) -> int:
    """Do a job's work in a session and print what it answers; the exit code that it answers, or that of an error."""
    try:
        check_spark_version(spark_version)
    except InvalidInputError as error:
        return _failed(error)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with TemporaryDirectory() as scratch:
        spark = session(SparkSession.builder.appName(name))
        try:
            _ship_wheel(spark.sparkContext, Path(scratch))
            text, exit_code = work(spark)
        except SidecarError as error:
            return _failed(error)
        finally:
            spark.stop()
    print(text)  # noqa: T201
    return exit_code


def check_spark_version(version: str) -> None:
    """Refuse a version of Spark that no test has passed on, such as 3.5, which has no ``GroupedData.applyInArrow``.

    Raises:
        InvalidInputError: it is none of `SUPPORTED_VERSIONS`.
    """
    if ".".join(version.split(".")[:2]) not in SUPPORTED_VERSIONS:
        raise InvalidInputError(
            f"Spark {version} is not supported; use {', '.join(SUPPORTED_VERSIONS)}, "
            "or pulsar-sidecar audit run and deduplication duplicates, which do without Spark"
        )


def _failed(error: SidecarError) -> int:
    print(f"error: {error}", file=sys.stderr)  # noqa: T201
    return EXIT_ERROR


def session(builder: SparkSession.Builder) -> SparkSession:
    """A session with the settings that the job needs; what was submitted wins over them."""
    spark = builder.getOrCreate()
    set_where_not_submitted(spark, _SETTINGS)
    return spark


def set_where_not_submitted(spark: SparkSession, settings: Mapping[str, str]) -> None:
    submitted = dict(spark.sparkContext.getConf().getAll())
    for name, value in settings.items():
        if name not in submitted:
            spark.conf.set(name, value)


def _ship_wheel(context: SparkContext, directory: Path) -> None:
    """If this project runs from a wheel (``--py-files``), let executors import it from there too.

    Spark sends each of them the wheel, but lets them import from ``.zip``, ``.egg`` and ``.jar`` alone
    (``SparkContext.PACKAGE_EXTENSIONS`` of 4.1), so the same archive goes to them under another name, from a directory
    in which it stays while the context lives.
    """
    archive = Path(pulsar_sidecar.__file__).parents[1]
    if archive.suffix == ".whl" and archive.is_file():
        context.addPyFile(str(shutil.copy(archive, directory / f"{archive.stem}.zip")))


def installed_version() -> str:
    try:
        return importlib.metadata.version("pulsar-sidecar")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class JobParser(argparse.ArgumentParser):
    """Ends with 1 after wrong usage: argparse's own code for it, 2, means that there are findings."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_ERROR, f"{self.prog}: error: {message}\n")
