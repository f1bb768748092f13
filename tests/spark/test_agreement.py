"""Both engines give the same tables, the same plan and the same summary, and refuse the same inputs."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from pulsar_sidecar.adapters.parquet.directories import open_audit
from pulsar_sidecar.features.audit.requests import AuditRequest

from tests.made_audits import comparable
from tests.made_clusters import MadeUpCluster
from tests.spark.comparing import Comparison
from tests.spark.random_clusters import changed, damaged, random_clusters
from tests.unit.audit.audited_clusters import NO_WAITING, AuditedCluster, embedded, full_cluster

_ROOM = "/dev/shm" if Path("/dev/shm").is_dir() else None  # in memory: audits wait for the disk
_SECONDS_OF_SPARK = 6 * 3600


class Audits(Comparison):
    """Audits by both engines."""

    def audit(
        self, dump: Path, listing: Path, previous: Path | None = None, offloaded: Path | None = None
    ) -> Path | None:
        output = dump.parent / "embedded"
        request = AuditRequest(dump, listing, output, previous, NO_WAITING, offloaded=offloaded)
        order = {"dump": dump, "listing": listing, "output": dump.parent / "spark", "previous": previous}
        order["offloaded"] = offloaded
        return self.add(lambda: embedded(request), output, **order)

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
        assert list(self.agreed(comparable))


@pytest.fixture
def comparison() -> Iterator[Audits]:
    with tempfile.TemporaryDirectory(dir=_ROOM) as made:
        yield Audits(Path(made), _SECONDS_OF_SPARK)


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
