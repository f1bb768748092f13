"""``python -m tests.spark.jobs ORDERS ANSWERS``: the Spark job for many small clusters, one after the other.

A process of its own, so that Spark's threads and sockets are not the tests'. Each order is one line of JSON with the
job's places; each answer is the reason why there is no audit, or null.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_jobs.orphan_ledgers.job import run, session
from service.model.errors import InvalidInputError
from tests.unit.audit.audit_worlds import NO_WAITING


def main(orders: Path, answers: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "1g").config("spark.driver.host", "127.0.0.1")
    spark = session(builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.log.level", "ERROR"))
    with answers.open("w") as told:
        for line in orders.read_text().splitlines():
            told.write(json.dumps(_answer(spark, json.loads(line))) + "\n")
    spark.stop()


def _answer(spark: SparkSession, order: dict[str, str | None]) -> str | None:
    places = (str(order[name]) for name in ("dump", "listing", "output"))
    try:
        run(spark, *places, order["previous"], NO_WAITING)
    except InvalidInputError as error:
        return str(error)
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
