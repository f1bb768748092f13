"""A sidecar that is killed while it builds a delayed index attaches nothing, and what it wrote is found and used."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import requests
from pulsar_sidecar.model.names import parse_topic_name

from tests.cluster.buckets import BUCKETS
from tests.cluster.delays import SHARED, DelayedTopic, now_ms
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.sidecars import Sidecars
from tests.cluster.topics import unique
from tests.contract.snapshot_storages import real_bookkeeper

SMALL_BUCKETS = {
    **BUCKETS,
    "delayedDeliveryMinIndexCountPerBucket": "5",
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
MESSAGES = 600
EVERYTHING = {"allMessages": "true", "orphans": "true", "settleSeconds": "0"}


def test_repair_attaches_buckets_of_a_killed_build_and_the_next_build_completes_them(
    special_cluster: ClusterFactory, tmp_path: Path
) -> None:
    with special_cluster(broker_conf=SMALL_BUCKETS) as cluster, ExitStack() as stack:
        sidecars = Sidecars(cluster.addresses, tmp_path)
        stack.callback(sidecars.close)
        sidecar = sidecars.start()
        store = real_bookkeeper(cluster, stack).store
        topic = DelayedTopic(cluster.addresses, parse_topic_name(f"killed-{unique()}"))
        stack.callback(topic.close)
        topic.subscribe("s", SHARED)
        topic.send(MESSAGES, now_ms() + 3_600_000)
        topic.unload()
        index = f"{topic.path}/delayedIndex"
        planned = sidecar.call("POST", f"{index}/build")

        def ledgers() -> int:
            return len(store.children("/ledgers/00/0000") or ())

        before = ledgers()
        with ThreadPoolExecutor(1) as threads:
            building = threads.submit(sidecar.request, "POST", f"{index}/build", None, plan=planned["plan"])
            until(lambda: ledgers() >= before + 3, "some buckets are written")
            sidecar.kill()
            assert isinstance(building.exception(), requests.ConnectionError)
        sidecar.restart()
        sidecar.wait_until_ready()
        found = sidecar.call("GET", f"{index}/fsck", **EVERYTHING)
        assert {each["kind"] for each in found["findings"]} == {"orphaned-bucket"}
        assert 2 <= len(found["findings"]) < len(planned["subscriptions"][0]["buckets"])
        assert found["checked"]["buckets"] == 0, "the cursor names none"

        repair = sidecar.call("GET", f"{index}/repair", **EVERYTHING)
        # The last one may not have been complete.
        assert [each["step"] for each in repair["actions"]].count("attach") >= len(repair["actions"]) - 1
        repaired = sidecar.call("POST", f"{index}/repair", plan=repair["plan"], **EVERYTHING)
        assert [each["problem"] for each in repaired] == [None] * len(repair["actions"])
        again = sidecar.call("POST", f"{index}/build")
        sidecar.call("POST", f"{index}/build", plan=again["plan"])
        clean = sidecar.call("GET", f"{index}/fsck", allMessages="true")
        assert clean["findings"] == []
        assert (clean["checked"]["indexes"], clean["checked"]["entries"]) == (MESSAGES, MESSAGES)
