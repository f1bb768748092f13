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
from pulsar_sidecar.features.audit.requests import AuditRequest
from pulsar_sidecar.model.errors import InvalidInputError

from tests.made_audits import comparable, open_to_others
from tests.made_clusters import MadeUpCluster
from tests.spark.random_clusters import changed, damaged, random_clusters
from tests.unit.audit.audited_clusters import NO_WAITING, AuditedCluster, embedded, full_cluster

_ROOM = "/dev/shm" if Path("/dev/shm").is_dir() else None  # in memory: audits wait for the disk
_SECONDS_OF_SPARK = 6 * 3600


@dataclass
class Audits:
    """Audits by the embedded engine, for Spark to repeat all at once.

    An outcome is the audit's directory, or the reason why there is none.
    """

    directory: Path
    orders: list[dict[str, str | None]] = field(default_factory=list)
    outcomes: list[Path | str] = field(default_factory=list)

    def place(self) -> Path:
        """Return an empty directory for the next one."""
        place = self.directory / str(len(self.orders))
        place.mkdir()
        return place

    def audit(
        self, dump: Path, listing: Path, previous: Path | None = None, offloaded: Path | None = None
    ) -> Path | None:
        output = dump.parent / "embedded"
        request = AuditRequest(dump, listing, output, previous, NO_WAITING, offloaded=offloaded)
        order = {"dump": dump, "listing": listing, "output": dump.parent / "spark", "previous": previous}
        order["offloaded"] = offloaded
        self.orders.append({name: None if path is None else str(path) for name, path in order.items()})
        try:
            embedded(request)
        except InvalidInputError as error:
            self.outcomes.append(str(error))
            return None
        self.outcomes.append(output)
        return output

    def audit_twice(self, cluster: AuditedCluster, random: Random) -> None:
        damaged(random, cluster)
        first = self.audit_cluster(cluster)
        if first is not None:
            changed(random, cluster)
            self.audit_cluster(cluster, first)

    def audit_cluster(self, cluster: AuditedCluster, previous: Path | None = None) -> Path | None:
        place = self.place()
        dump, listing = cluster.dump(place / "dump"), cluster.listing(place / "listing")
        return self.audit(dump, listing, previous, cluster.offloaded(place / "offloaded"))

    def demand_agreement(self) -> None:
        """Demand the same outcomes of Spark, at least one of them an audit."""
        orders, answers = self.directory / "orders", self.directory / "answers"
        orders.write_text("".join(f"{json.dumps(order)}\n" for order in self.orders))
        command = [sys.executable, "-m", "tests.spark.jobs", str(orders), str(answers)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS_OF_SPARK)
        assert ran.returncode == 0, ran.stderr[-3000:]
        reasons = [json.loads(line) for line in answers.read_text().splitlines()]
        for order, outcome, reason in zip(self.orders, self.outcomes, reasons, strict=True):
            assert reason == (outcome if isinstance(outcome, str) else None), order
            if isinstance(outcome, Path):
                output = Path(str(order["output"]))
                assert comparable(output) == comparable(outcome), order
                assert open_to_others(output) == []
        assert any(isinstance(outcome, Path) for outcome in self.outcomes)


@pytest.fixture
def comparison() -> Iterator[Audits]:
    with tempfile.TemporaryDirectory(dir=_ROOM) as made:
        yield Audits(Path(made))


def add_random_clusters(comparison: Audits, dumps: int, clusters: int) -> None:
    """Add dumps of several random clusters each: an audit by Spark costs nearly the same for one as for many."""
    for number in range(dumps):
        comparison.audit_twice(random_clusters(clusters), Random(number))


def test_twenty_random_clusters(comparison: Audits) -> None:
    add_random_clusters(comparison, dumps=1, clusters=20)
    comparison.demand_agreement()


@pytest.mark.usefixtures("full_run")
def test_a_clean_cluster(comparison: Audits) -> None:
    comparison.audit_cluster(full_cluster())
    comparison.demand_agreement()


@pytest.mark.timeout(_SECONDS_OF_SPARK)
@pytest.mark.usefixtures("full_run")
def test_a_thousand_random_clusters(comparison: Audits) -> None:
    add_random_clusters(comparison, dumps=10, clusters=100)
    comparison.demand_agreement()


@pytest.mark.usefixtures("full_run")
def test_a_large_cluster(comparison: Audits) -> None:
    cluster = MadeUpCluster.of(300_000)
    audited = comparison.audit(*cluster.write(comparison.place()))
    comparison.demand_agreement()
    assert audited is not None
    summary = open_audit(audited)
    assert (summary.orphans["first-look"].ledgers, summary.missing) == (cluster.orphans, cluster.lost)
    assert summary.existing.ledgers == cluster.ledgers
