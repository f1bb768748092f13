"""A rehearsal of a broker's death where only its memory knows which messages are delayed."""

from pathlib import Path

from pulsar_sidecar.features.rehearsal.results import Consequence

from tests.cluster.plugin import ClusterFactory
from tests.cluster.rehearsing import CONF, counts, rehearsed_and_counted, set_up, within_a_tenth
from tests.cluster.running import BROKERS


def test_what_is_rehearsed_of_in_memory_trackers_comes_true(
    special_cluster: ClusterFactory, tmp_path: Path, full_run: None
) -> None:
    with special_cluster(brokers=2, broker_conf=CONF) as cluster, set_up(cluster, tmp_path) as setup:
        told, counted = rehearsed_and_counted(setup)
        for consequence, number in counted.items():
            assert within_a_tenth(counts(told)[consequence], number), (consequence, told, number)
        assert counts(told)[Consequence.READ_FOR_INDEX] == counted[Consequence.DELAYED]
        survivor = next(name for name in BROKERS if cluster.is_running(name))
        cluster.stop(survivor)
        answer = setup.sidecar.request("GET", setup.path(survivor))
        cluster.cont(survivor)
        assert (answer.status_code, "what is stored can" in answer.text) == (503, True), answer.text
