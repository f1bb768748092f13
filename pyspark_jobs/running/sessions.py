"""Spark sessions of a job."""

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
from pulsar_sidecar.model.errors import InvalidInputError, SidecarError
from pulsar_sidecar.reports.documents import EXIT_ERROR
from pyspark import SparkContext
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

SUPPORTED_VERSIONS = ("4.0", "4.1", "4.2", "4.3")
"""Versions of Spark on which the job's tests have passed (docs/audit.md)."""
_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.files.maxPartitionBytes": "64m",
    # The amount of data is known in advance: a new plan after each stage costs more than it saves.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # On a busy machine a broadcast may take long, which is no reason to give up a run.
    "spark.sql.broadcastTimeout": "36000",
}


def run_job(name: str, work: Callable[[SparkSession], tuple[str, int]]) -> int:
    """Run a job's work in a session, print its result, and return its exit code or that of an error."""
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
    """Refuse an untested version (`InvalidInputError`); 3.5, for example, lacks ``GroupedData.applyInArrow``."""
    if ".".join(version.split(".")[:2]) not in SUPPORTED_VERSIONS:
        raise InvalidInputError(
            f"Spark {version} is not supported; use {', '.join(SUPPORTED_VERSIONS)}, "
            "or pulsar-sidecar audit run, which does not need Spark"
        )


def _failed(error: SidecarError) -> int:
    print(f"error: {error}", file=sys.stderr)  # noqa: T201
    return EXIT_ERROR


def session(builder: SparkSession.Builder) -> SparkSession:
    """Return a session with the job's settings, which submitted ones override."""
    spark = builder.getOrCreate()
    set_where_not_submitted(spark, _SETTINGS)
    return spark


def set_where_not_submitted(spark: SparkSession, settings: Mapping[str, str]) -> None:
    submitted = dict(spark.sparkContext.getConf().getAll())
    for name, value in settings.items():
        if name not in submitted:
            spark.conf.set(name, value)


def _ship_wheel(context: SparkContext, directory: Path) -> None:
    """Let executors import this project from its wheel, if it runs from one (``--py-files``).

    Spark sends them the wheel, but they import only from ``.zip``, ``.egg`` and ``.jar``
    (``SparkContext.PACKAGE_EXTENSIONS`` of 4.1), so the same archive goes to them under another name, from a directory
    where it stays during the life of the context.
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
    """Parser that exits with 1 after wrong usage, because argparse's code 2 means findings."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_ERROR, f"{self.prog}: error: {message}\n")
