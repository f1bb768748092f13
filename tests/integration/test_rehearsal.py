"""A rehearsal of a broker's death, and its death: each number is within a tenth of what is then counted."""

from pathlib import Path

from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import SUBSCRIPTION
from pulsar_sidecar.features.rehearsal.results import Consequence

from tests.cluster.buckets import SMALL_BUCKETS
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.rehearsing import CONF, MOST_RANGES, counts, rehearsed_and_counted, set_up, within_a_tenth
from tests.cluster.running import BROKERS
from tests.cluster.sidecars import BASE

_PARTITIONS = 40
_NAMESPACES = 3


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


def test_what_is_rehearsed_of_pending_deletions_comes_true(special_cluster: ClusterFactory, tmp_path: Path) -> None:
    """Records of a topic's ledgers are in flight, and deletions of namespaces wait, because an operator paused them."""
    conf = {**CONF, "forceDeleteNamespaceAllowed": "true"}
    with special_cluster(broker_conf=conf) as cluster, set_up(cluster, tmp_path) as setup:
        broker, sidecar, workload = BROKERS[0], setup.sidecar, setup.workload
        sidecar.call("POST", f"{BASE}/pause", {"reason": "a broker will be restarted"})
        until(lambda: sidecar.metrics()["pulsar_ledger_deletion_paused"] == 1, "the sidecar has paused")
        topic = setup.topic("orders")
        partitions = [topic.partition(index) for index in range(_PARTITIONS)]
        workload.admin("PUT", workload.of_topic(topic, "partitions"), _PARTITIONS)
        ledgers = [ledger_id for each in partitions for ledger_id in workload.ledgers(each).all]
        sidecar.call("DELETE", f"/admin/v2/{workload.of_topic(topic, 'partitions')}")
        namespaces = [f"{setup.namespace}-{number}" for number in range(_NAMESPACES)]
        for namespace in namespaces:
            workload.admin("PUT", f"namespaces/{namespace}", {"bundles": {"numBundles": 1}})
            workload.admin("PUT", f"persistent/{namespace}/orders")
            sidecar.call("DELETE", f"/admin/v2/namespaces/{namespace}", force="true", wait="false")

        pending = f"persistent/{SYSTEM_NAMESPACE}/{DeletionTopic.PENDING.value}/partitioned-stats"

        def in_flight() -> int:
            answer = workload.request("GET", pending)
            return int(answer.json()["subscriptions"][SUBSCRIPTION]["unackedMessages"]) if answer.ok else 0

        until(lambda: in_flight() >= len(ledgers), "the records are in flight")
        told = until(lambda: setup.settled(broker, in_flight()), "the rehearsal is stable")
        cluster.kill(broker)
        cluster.restart(broker)
        rehearsed = counts(told)[Consequence.IN_FLIGHT]
        until(lambda: within_a_tenth(rehearsed, in_flight()), f"the {rehearsed} records are in flight again")
        running = sidecar.call("GET", f"{BASE}/namespace-deletions")
        assert {each.subject for each in told.deletions} == {each["namespace"] for each in running} == {*namespaces}
        sidecar.call("POST", f"{BASE}/resume")
        until(lambda: sidecar.call("GET", f"{BASE}/namespace-deletions") == [], "the deletions have gone on")
        left = [each for each in namespaces if workload.request("GET", f"namespaces/{each}").status_code != 404]
        assert within_a_tenth(counts(told)[Consequence.DELETIONS], len(namespaces) - len(left)), told
        until(lambda: sidecar.inflight() == 0, "every record is handled")
        assert not workload.existing(ledgers)
