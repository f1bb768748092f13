"""One small Spark for all tests, started when the first one wants it."""

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pyspark_jobs.orphan_ledgers.job import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[1]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", "/nonexistent")
        .config("spark.log.level", "ERROR")
    )
    started = session(builder)
    yield started
    started.stop()
