"""A rehearsal of a broker's death, and its death: each number is within a tenth of what is then counted."""

from pathlib import Path

from pulsar_sidecar.features.rehearsal.results import Consequence

from tests.cluster.buckets import SMALL_BUCKETS
from tests.cluster.plugin import ClusterFactory
from tests.cluster.rehearsing import CONF, MOST_RANGES, counts, rehearsed_and_counted, set_up, within_a_tenth


def test_what_is_rehearsed_comes_true(special_cluster: ClusterFactory, tmp_path: Path) -> None:
    with (
        special_cluster(brokers=2, broker_conf={**CONF, **SMALL_BUCKETS}) as cluster,
        set_up(cluster, tmp_path) as setup,
    ):
        told, counted = rehearsed_and_counted(setup)
        for consequence, number in counted.items():
            assert within_a_tenth(counts(told)[consequence], number), (consequence, told, number)
        assert counted[Consequence.ACKNOWLEDGED_AGAIN] >= 150 - MOST_RANGES - 1
        assert counts(told)[Consequence.NOT_PERSISTENT] == 1
        assert not told.not_known
