"""Both engines give the same tables, the same plan and the same summary, and refuse the same inputs."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from pulsar_sidecar.adapters.parquet.directories import open_audit
from pulsar_sidecar.audit.requests import AuditRequest
from pulsar_sidecar.model.errors import InvalidInputError

from tests.benchmarks.audit_clusters import MadeUpCluster
from tests.made_audits import comparable, open_to_others
from tests.spark.random_clusters import changed, damaged, random_clusters
from tests.unit.audit.audited_clusters import NO_WAITING, AuditedCluster, embedded, full_cluster

_ROOM = "/dev/shm" if Path("/dev/shm").is_dir() else None  # in memory: audits wait for the disk
_SECONDS_OF_SPARK = 6 * 3600


@dataclass
class Comparison:
    """Audits by the embedded engine, to be repeated by Spark all at once."""

    directory: Path
    orders: list[dict[str, str | None]] = field(default_factory=list)
    outcomes: list[Path | str] = field(default_factory=list)

    def place(self) -> Path:
        """An empty directory for the next one."""
        place = self.directory / str(len(self.orders))
        place.mkdir()
        return place

    def add(self, dump: Path, listing: Path, previous: Path | None = None) -> Path | None:
        """Audit with the embedded engine; None if no audit can be made of these inputs."""
        output = dump.parent / "embedded"
        order = {"dump": dump, "listing": listing, "output": dump.parent / "spark", "previous": previous}
        self.orders.append({name: None if path is None else str(path) for name, path in order.items()})
        try:
            embedded(AuditRequest(dump, listing, output, previous, NO_WAITING))
        except InvalidInputError as error:
            self.outcomes.append(str(error))
            return None
        self.outcomes.append(output)
        return output

    def add_two_looks(self, cluster: AuditedCluster, random: Random) -> None:
        damaged(random, cluster)
        place = self.place()
        first = self.add(cluster.dump(place / "dump"), cluster.listing(place / "listing"))
        if first is not None:
            changed(random, cluster)
            place = self.place()
            self.add(cluster.dump(place / "dump"), cluster.listing(place / "listing"), first)

    def demand_agreement(self) -> None:
        orders, answers = self.directory / "orders", self.directory / "answers"
        orders.write_text("".join(f"{json.dumps(order)}\n" for order in self.orders))
        command = [sys.executable, "-m", "tests.spark.jobs", str(orders), str(answers)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS_OF_SPARK)
        assert ran.returncode == 0, ran.stderr[-3000:]
        reasons = [json.loads(line) for line in answers.read_text().splitlines()]
        for order, outcome, reason in zip(self.orders, self.outcomes, reasons, strict=True):
            if isinstance(outcome, str):
                assert reason == outcome, order
            else:
                assert reason is None, order
                assert comparable(Path(str(order["output"]))) == comparable(outcome), order
                assert open_to_others(Path(str(order["output"]))) == []


@pytest.fixture
def comparison() -> Iterator[Comparison]:
    with tempfile.TemporaryDirectory(dir=_ROOM) as made:
        yield Comparison(Path(made))


def add_random_clusters(comparison: Comparison, dumps: int, clusters: int) -> None:
    """So many dumps of so many random clusters each: an audit by Spark costs nearly the same for one as for many."""
    for number in range(dumps):
        comparison.add_two_looks(random_clusters(clusters), Random(number))


def test_twenty_random_clusters(comparison: Comparison) -> None:
    add_random_clusters(comparison, dumps=1, clusters=20)
    comparison.demand_agreement()


@pytest.mark.usefixtures("full_run")
def test_a_clean_cluster(comparison: Comparison) -> None:
    cluster, place = full_cluster(), comparison.place()
    comparison.add(cluster.dump(place / "dump"), cluster.listing(place / "listing"))
    comparison.demand_agreement()


@pytest.mark.timeout(_SECONDS_OF_SPARK)
@pytest.mark.usefixtures("full_run")
def test_a_thousand_random_clusters(comparison: Comparison) -> None:
    add_random_clusters(comparison, dumps=10, clusters=100)
    comparison.demand_agreement()


@pytest.mark.usefixtures("full_run")
def test_a_large_cluster(comparison: Comparison) -> None:
    cluster = MadeUpCluster.of(300_000)
    audited = comparison.add(*cluster.write(comparison.place()))
    comparison.demand_agreement()
    assert audited is not None
    summary = open_audit(audited)
    assert (summary.orphans["first-look"].ledgers, summary.missing) == (cluster.orphans, cluster.lost)
    assert summary.existing.ledgers == cluster.ledgers
