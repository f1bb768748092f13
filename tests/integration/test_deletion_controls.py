"""Operators' controls and figures: pause, resume, rate, estimates, metrics, and the switch that is off by default."""

import json
import time

import requests
from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import SUBSCRIPTION
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import parse_topic_name

from tests.cluster.deletion import Scene
from tests.cluster.hanging import ESTIMATE
from tests.cluster.patience import holds_for, until
from tests.cluster.sidecars import BASE, SidecarProcess
from tests.cluster.topics import record

PENDING = parse_topic_name(f"persistent://{SYSTEM_NAMESPACE}/{DeletionTopic.PENDING.value}")
PREFIX = "pulsar_ledger_deletion_"


def wait_for_metric(sidecar: SidecarProcess, name: str, value: float | None) -> None:
    until(lambda: sidecar.metrics().get(PREFIX + name) == value, f"{sidecar.name} shows {name} {value}")


def test_a_pause_holds_on_all_sidecars_until_a_resume_on_one(scene: Scene) -> None:
    left = scene.orphans(scene.topic("paused"), 20)
    first, second = scene.start_together({}, {})
    assert first.inflight() == second.inflight() == 0
    first.call("POST", f"{BASE}/pause", {"reason": "bookies are being replaced"})
    for sidecar in (first, second):
        wait_for_metric(sidecar, "paused", 1)
        control = sidecar.status()["control"]
        assert control.pop("pausedSinceMs") > 0
        assert control == {
            "paused": True,
            "pausedReason": "bookies are being replaced",
            "pausedBy": None,
            "ratePerSecond": None,
        }
    scene.append(second, left.records())
    for sidecar in (first, second):
        until(lambda each=sidecar: each.inflight() >= 1, "what waits is counted")
        status = sidecar.status()
        assert {instance["name"] for instance in status["instances"]} == {first.name, second.name}
        assert 0 <= status["inflight"]["ageMs"] <= 2_000
        assert status["inflight"]["oldestAgeMs"] > 0
    holds_for(lambda: first.inflight() > 0 and second.inflight() > 0, "records wait", 2.5)
    answer = first.request("GET", ESTIMATE)
    assert answer.json() == first.inflight() > 0
    assert 0 <= int(answer.headers["X-Pulsar-Sidecar-Age-Ms"]) <= 2_000
    assert scene.workload.existing(left.data) == left.data
    second.call("POST", f"{BASE}/resume")
    finals = scene.oracles.wait_for_finals(left.data)
    assert {final.decision for final in finals.values()} == {"deleted"}
    for sidecar in (first, second):
        until(lambda each=sidecar: each.inflight() == 0, "nothing still waits")
        wait_for_metric(sidecar, "paused", 0)


def test_a_sidecar_without_a_consumer_serves_the_first_phase_only(scene: Scene) -> None:
    (in_front,) = scene.start_together({"two_phase_deletion_consumer_enabled": False})
    before = scene.orphans(scene.topic("recorded"), 3)
    scene.append(in_front, before.records())
    until(lambda: in_front.inflight() > 0, "records wait")
    assert any("no sidecar consumes" in each for each in in_front.status()["warnings"])
    holds_for(lambda: in_front.inflight() > 0, "nothing consumes them", 2.5)
    assert scene.workload.existing(before.data) == before.data
    worker = scene.sidecars.start()
    scene.oracles.wait_for_finals(before.data)
    assert not scene.workload.existing(before.data)
    instances = {each["name"]: each["consumes"] for each in worker.status()["instances"]}
    assert instances == {in_front.name: False, worker.name: True}


def test_a_rate_limits_every_sidecar(scene: Scene) -> None:
    left = scene.orphans(scene.topic("slow"), 30)
    first, second = scene.start_together({}, {})
    first.call("PUT", f"{BASE}/rate", {"ledgersPerSecond": 5})
    for sidecar in (first, second):
        wait_for_metric(sidecar, "rate_limit_per_second", 5)
    started = time.monotonic()
    scene.append(first, left.records())
    until(lambda: not scene.workload.existing(left.data), "all are gone")
    # Each may delete five at once; the other twenty take both at least two seconds.
    assert time.monotonic() - started >= 2.0
    second.call("PUT", f"{BASE}/rate", {"ledgersPerSecond": None})
    for sidecar in (first, second):
        wait_for_metric(sidecar, "rate_limit_per_second", None)
    for wrong in (0, -1, "fast", 1e300):
        assert first.request("PUT", f"{BASE}/rate", {"ledgersPerSecond": wrong}).status_code == 400


def test_metrics_count_completed_work(scene: Scene) -> None:
    topic, workload = scene.topic("counted"), scene.workload
    kept = scene.topic("kept")
    workload.fill(kept, 1)
    (in_use,) = workload.ledgers(kept).data
    workload.fill(topic, 3)
    workload.store_schemas(topic, 1)
    left = workload.ledgers(topic)
    length_bytes = sum(workload.metadata(ledger_id).length_bytes for ledger_id in left.data | left.schema)
    sidecar = scene.start_alone()
    wait_for_metric(sidecar, "inflight", 0)
    workload.leave_ledgers_behind(topic, left)
    # The schema's ledger is too young at first: a failed try, then a deletion.
    scene.append(sidecar, [*left.records(), record(kept, LedgerComponent.MANAGED_LEDGER, in_use)])
    producer = workload.client.create_producer(str(PENDING))
    producer.send(b"malformed")
    producer.close()
    scene.oracles.wait_for_finals([*left.all, in_use])
    scene.oracles.wait_until_drained(sidecar)
    counted = until(lambda: (read := sidecar.metrics()).keys() & {f"{PREFIX}inflight"} and read, "brokers have counted")
    seen = {name.removeprefix(PREFIX): value for name, value in counted.items() if name.startswith(PREFIX)}
    assert seen["sent_total"] == 5
    assert seen["deleted_total"] == 4
    assert seen["deleted_bytes_total"] == length_bytes
    assert seen["delete_failed_total"] == 0, "what was put off was not attempted"
    assert seen["received_total"] >= seen["acknowledged_total"] >= 8
    assert seen["max_retry_reached_total"] == 0
    assert seen["batch_seconds_count"] >= 1
    assert (seen["inflight"], seen["topic_deletions_running"], seen["paused"]) == (0, 0, 0)
    text = requests.get(f"{sidecar.url}/metrics", timeout=10).text
    for line in (
        'decisions_total{cluster="local",decision="deleted",reason="unreferenced"} 4.0',
        'decisions_total{cluster="local",decision="kept",reason="ledger-still-in-use"} 1.0',
        'decisions_total{cluster="local",decision="rejected",reason="malformed"} 1.0',
        'sent_total{cluster="local",component="managed_ledger",ledger_type="offload_ledger"} 0.0',
        'deleted_total{cluster="local",component="schema_storage",ledger_type="ledger"} 1.0',
    ):
        assert PREFIX + line in text


def test_while_it_is_switched_off_nothing_is_consumed_and_calls_are_refused(scene: Scene) -> None:
    workload = scene.workload
    assert scene.sidecar.is_ready  # so that the topics exist
    left = scene.orphans(scene.topic("off"), 1)
    kept = scene.topic("kept")
    workload.fill(kept, 1)
    off = scene.start_alone(topic_two_phase_deletion_enabled="false")
    calls = [
        ("POST", f"{BASE}/pending", {"ledgers": left.records()}),
        ("DELETE", f"/admin/v2/{workload.of_topic(kept)}", None),
        ("POST", f"/admin/v2/{workload.of_topic(left.topic, 'deleteLedger')}", left.records()[0]),
        ("GET", ESTIMATE, None),
        ("POST", f"{BASE}/undelete", {"ledgerId": 1}),
        ("GET", f"{BASE}/dead-letters", None),
    ]
    for method, path, body in calls:
        answer = off.request(method, path, body)
        assert (answer.status_code, "topicTwoPhaseDeletionEnabled" in answer.json()["reason"]) == (405, True)
    status = off.status()
    assert (status["enabled"], status["inflight"]) == (False, None)
    producer = workload.client.create_producer(str(PENDING), batching_enabled=False)
    for each in left.records():
        producer.send(json.dumps(each).encode())
    producer.close()
    scene.oracles.add_accepted(left.data)

    def no_consumer() -> bool:
        stats = workload.admin("GET", workload.of_topic(PENDING, "partitioned-stats"))
        subscription = stats["subscriptions"][SUBSCRIPTION]
        return not subscription["consumers"] and subscription["msgBacklog"] >= 1

    holds_for(no_consumer, "the record waits, and nobody consumes", 2.5)
    assert workload.existing(left.data) == left.data
    assert workload.ledgers(kept).data
    scene.start_alone()
    scene.oracles.wait_for_finals(left.data)
    assert not workload.existing(left.data)
