"""``make matrix-spark``: the Spark job's tests on several versions of PySpark, and the table in docs/audit.md.

Each version gets an environment of its own, which differs from the lock in PySpark alone.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.cluster.choosing import PROJECT
from tests.matrix.environments import environment, locked
from tests.matrix.running import fill, reports
from tests.matrix.table import Table

VERSIONS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
TABLE = Table(PROJECT / "docs" / "audit.md", "make matrix-spark", "PySpark")
TESTS = ("tests/spark",)


def main(versions: Sequence[str]) -> int:
    """Run the tests on each version; 0 if all of them passed everywhere."""
    return fill(TABLE, {version: partial(run, version) for version in versions or VERSIONS})


def run(version: str) -> list[str]:
    """Return the reports of a version."""
    with environment(Path(sys.executable), locked(without={"pyspark"}), f"pyspark=={version}") as python:
        return reports(python, TESTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
