"""Environments have what the lock names, or the newest that is allowed; every supported version has a row."""

import tomllib

from pyspark_jobs.running.sessions import SUPPORTED_VERSIONS
from tests.cluster.choosing import PROJECT
from tests.matrix import python, spark
from tests.matrix.environments import locked, newest

PROJECT_FILE = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]


def pinned(lock: str) -> set[str]:
    return {line.split("==")[0] for line in lock.splitlines() if "==" in line}


def test_the_lock_is_taken_with_what_it_includes_or_without_a_package_and_its_hashes() -> None:
    assert {"fastapi", "pyarrow", "pyspark", "pytest"} <= pinned(locked())
    less = locked(without={"pyspark"})
    assert pinned(locked()) - pinned(less) == {"pyspark"}
    assert locked().count("--hash=") > less.count("--hash=")


def test_the_newest_dependencies_are_those_that_users_may_have() -> None:
    lines = newest().splitlines()
    extras = PROJECT_FILE["optional-dependencies"]
    assert {*PROJECT_FILE["dependencies"], *extras["audit"], *extras["spark"]} - set(lines) == {"pulsar-sidecar[audit]"}
    assert sum(line.startswith("pyspark") for line in lines) == 1
    assert any(line.startswith("pytest>=") for line in lines)


def test_every_supported_version_of_spark_and_of_python_has_a_row() -> None:
    assert tuple(".".join(version.split(".")[:2]) for version in spark.VERSIONS) == SUPPORTED_VERSIONS
    assert PROJECT_FILE["requires-python"] == f">={python.VERSIONS[0]}"
