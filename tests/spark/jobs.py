"""``python -m tests.spark.jobs ORDERS ANSWERS``: the Spark job for many small inputs, one by one.

A process of its own, so that Spark's threads and sockets are not the tests'. Each order is one line of JSON with the
job's places; each response is the reason why there is no result, or null. Every other job takes the ways of inputs that
are on no disk, of stores that rename nothing at once, and of ledgers that no executor can hold.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path

import pytest
from pulsar_sidecar.model.errors import InvalidInputError
from pyspark.sql import DataFrame, SparkSession

from pyspark_jobs.orphan_ledgers import engine
from pyspark_jobs.orphan_ledgers.engine import SparkEngine
from pyspark_jobs.orphan_ledgers.job import run
from pyspark_jobs.running import directories
from pyspark_jobs.running.directories import Directory
from pyspark_jobs.running.sessions import session
from tests.unit.audit.audited_clusters import NO_WAITING

_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # For a few rows, compiling costs more than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


def main(orders: Path, answers: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = session(builder)
    with answers.open("w") as output:
        for number, line in enumerate(orders.read_text().splitlines()):
            order = json.loads(line)
            with _far_and_many() if number % 2 else nullcontext():
                output.write(json.dumps(_answer(spark, order)) + "\n")
    spark.stop()


@contextmanager
def _far_and_many() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Directory, "on_disk", lambda _: None)
        patch.setattr(directories, "_RENAMES_AT_ONCE", ())
        patch.setattr(engine, "_MOST_PACKED_BYTES", -1)
        patch.setattr(engine, "_MOST_BROADCAST_ROWS", -1)
        patch.setattr(SparkEngine, "_joined", _sorting(SparkEngine._joined, joins=1))
        patch.setattr(SparkEngine, "_judged", _sorting(SparkEngine._judged, joins=2))
        yield


def _sorting(work: Callable[..., DataFrame], joins: int) -> Callable[..., DataFrame]:
    """Demand that Spark sorts what it joins, for which no memory needs to be large enough."""

    @wraps(work)
    def checked(*args: object) -> DataFrame:
        frame = work(*args)
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert plan.count("SortMergeJoin") >= joins, plan
        return frame

    return checked


def _answer(spark: SparkSession, order: dict[str, str | None]) -> str | None:
    places = (str(order[name]) for name in ("dump", "listing", "output"))
    try:
        run(spark, *places, order["previous"], NO_WAITING, offloaded=order["offloaded"])
    except InvalidInputError as error:
        return str(error)
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
