"""Both engines give the same tables, the same plan and the same summary, and refuse the same inputs."""

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pyspark_jobs.orphan_ledgers.job import run
from service.adapters.parquet.audits import AuditTables, open_audit
from service.audit.requests import AuditRequest
from service.audit.running import AUDIT_TABLES
from service.audit.summaries import AuditSummary, Engine
from service.model.errors import InvalidInputError
from tests.benchmarks.audit_clusters import MadeUpCluster
from tests.spark.worlds import changed, worlds
from tests.unit.audit.audit_worlds import NO_WAITING, World, embedded, full_world

pytestmark = pytest.mark.timeout(600)
_ROOM = "/dev/shm" if Path("/dev/shm").is_dir() else None  # in memory: audits wait for the disk


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=_ROOM) as made:
        yield Path(made)


def by_both(spark: SparkSession, base: Path, dump: Path, listing: Path, previous: Path | None) -> tuple[Any, Any]:
    """What each engine comes to: its directory, or why it made none."""
    try:
        embedded(AuditRequest(dump, listing, base / "embedded", previous, NO_WAITING))
        first: Any = base / "embedded"
    except InvalidInputError as error:
        first = str(error)
    try:
        run(
            spark, str(dump), str(listing), str(base / "spark"), None if previous is None else str(previous), NO_WAITING
        )
        second: Any = base / "spark"
    except InvalidInputError as error:
        second = str(error)
    return first, second


def told(directory: Path) -> tuple[AuditSummary, dict[str, list[dict[str, Any]]]]:
    """Everything that may not differ."""
    summary = open_audit(directory)
    tables = AuditTables(directory, summary)
    rows = {table.value: tables.table(table).to_pylist() for table in AUDIT_TABLES}
    rows["ledger_usage"].sort(key=repr)
    # Which engine it was, and the files' digests, may differ.
    return replace(summary, engine=Engine.EMBEDDED, files={}), rows


def demand_same(first: Any, second: Any) -> None:
    if isinstance(first, str):
        assert first == second
        return
    one, other = told(first), told(second)
    assert one[1] == other[1]
    assert one[0] == other[0]


def demand_agreement(spark: SparkSession, world: World, base: Path, data: st.DataObject | None) -> None:
    previous: Path | None = None
    for look in range(2):
        place = base / str(look)
        place.mkdir(parents=True)
        dump, listing = world.dump(place / "dump"), world.listing(place / "listing")
        first, second = by_both(spark, place, dump, listing, previous)
        demand_same(first, second)
        if isinstance(first, str) or data is None:
            return
        previous = first
        changed(data, world)


def test_a_cluster_without_findings(spark: SparkSession, directory: Path) -> None:
    demand_agreement(spark, full_world(), directory, None)
    assert (directory / "0" / "spark" / "report.html").exists()


def _agree_on_random_worlds(spark: SparkSession, examples: int) -> None:
    numbers = itertools.count()
    with tempfile.TemporaryDirectory(dir=_ROOM) as made:

        @settings(
            max_examples=examples, deadline=None, phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(worlds(), st.data())
        def agree(world: World, data: st.DataObject) -> None:
            demand_agreement(spark, world, Path(made) / str(next(numbers)), data)

        agree()


def test_random_worlds(spark: SparkSession) -> None:
    _agree_on_random_worlds(spark, 3)


@pytest.mark.timeout(6 * 3600)
@pytest.mark.usefixtures("full_run")
def test_a_thousand_random_worlds(spark: SparkSession) -> None:
    _agree_on_random_worlds(spark, 1_000)


@pytest.mark.usefixtures("full_run")
def test_a_large_cluster(spark: SparkSession, directory: Path) -> None:
    cluster = MadeUpCluster.of(300_000)
    dump, listing = cluster.write(directory / "cluster")
    (directory / "audits").mkdir()
    first, second = by_both(spark, directory / "audits", dump, listing, None)
    demand_same(first, second)
    summary = open_audit(first)
    assert (summary.orphans["first-look"].ledgers, summary.missing) == (cluster.orphans, cluster.lost)
    assert summary.existing.ledgers == cluster.ledgers
