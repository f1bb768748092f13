"""A retention sweep of real topics: what it promises, frees, leaves, and how it ends after a kill."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName

from tests.cluster.deletion import Scene
from tests.cluster.patience import OPERATION_SECONDS, until
from tests.cluster.sidecars import SidecarProcess
from tests.cluster.topics import KEEP_NOTHING

LOADED = "/pulsar-sidecar/retention-sweep/loaded"
SWEEP = ("retention", "sweep", "--execute", "--rate", "600", "--max-load", "100", "--output-format", "json")


def swept(scene: Scene, topics: list[TopicName]) -> dict[str, set[LedgerId]]:
    """Fill and unload topics, lower their retention, and return the untrimmed ledgers of each."""
    for topic in topics:
        scene.workload.fill(topic)
    for topic in topics:
        scene.workload.unload(topic)
    scene.workload.admin("POST", f"namespaces/{scene.namespace}/retention", KEEP_NOTHING)
    return {str(topic): set(scene.workload.ledgers(topic).data) for topic in topics}


def dry_run(scene: Scene, sidecar: SidecarProcess) -> dict[str, Any]:
    ran = sidecar.command("retention", "sweep", scene.namespace, "--output-format", "json")
    assert ran.exit_code == 0, ran
    return dict(json.loads(ran.stdout))


def loaded(scene: Scene) -> set[str]:
    """Return the topics of the test that a broker has loaded, except the brokers' own."""
    found: set[str] = set()
    for url in scene.cluster.addresses.web_service_urls:
        listed = requests.get(f"{url}/admin/v2/broker-stats/bookieops", timeout=OPERATION_SECONDS).json()
        found |= {name for topics in listed.values() for name in topics if scene.namespace in name}
    return {name for name in found if "/__" not in name}


def test_a_sweep_frees_what_its_dry_run_promised_though_it_is_killed(scene: Scene) -> None:
    idle = [scene.topic(f"idle-{number}") for number in range(3)]
    needed = scene.topic("needed")
    scene.workload.subscribe(needed, "slow")
    ledgers = swept(scene, [*idle, needed])
    sidecar = scene.start_alone()

    plan = dry_run(scene, sidecar)
    assert {topic["topic"]: set(topic["ledgerIds"]) for topic in plan["topics"]} == {
        str(topic): ledgers[str(topic)] for topic in idle
    }
    promised = [LedgerId(ledger_id) for topic in plan["topics"] for ledger_id in topic["ledgerIds"]]
    metadata = [scene.workload.metadata(ledger_id) for ledger_id in promised]
    on_bookies = sum(each.length_bytes * each.write_quorum_size for each in metadata)
    assert (plan["freed"]["ledgers"], plan["freed"]["onBookiesBytes"]) == (len(promised), on_bookies)
    assert not loaded(scene), "a dry run loads nothing"

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(sidecar.command, *SWEEP, scene.namespace)
        until(lambda: scene.workload.store.read(LOADED), "a topic is loaded", pause_seconds=0.005)
        sidecar.kill()
        assert running.result().exit_code == 3
    sidecar.restart()
    sidecar.wait_until_ready()
    until(lambda: sidecar.command(*SWEEP, scene.namespace).exit_code == 0, "a repeated sweep has finished")

    assert not scene.workload.existing(promised)
    assert set(scene.workload.ledgers(needed).data) >= ledgers[str(needed)]
    assert not loaded(scene), "what the sweep loaded it has unloaded"
    assert scene.workload.store.read(LOADED) is None
    assert dry_run(scene, sidecar)["freed"]["ledgers"] == 0


def test_a_topic_that_brokers_would_delete_is_left(scene: Scene) -> None:
    topic = scene.topic("inactive")
    policy = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 1}
    path = f"namespaces/{scene.namespace}/inactiveTopicPolicies"
    (ids,) = swept(scene, [topic]).values()
    scene.workload.admin("POST", path, {**policy, "deleteWhileInactive": True})
    sidecar = scene.sidecar

    def is_left() -> bool:
        (found,) = dry_run(scene, sidecar)["topics"]
        return bool(found["obstacle"] == "deleted-while-inactive")

    until(is_left, "the policy is seen")
    assert sidecar.command(*SWEEP, scene.namespace).exit_code == 0
    path = f"/admin/v2/persistent/{topic.namespace}/{topic.local_name}/pastRetention"
    assert sidecar.call("POST", path, maxLoadPercent="100")["state"] == "obstacle"
    assert not loaded(scene)
    assert scene.workload.existing(ids) == ids


def test_neither_a_dry_run_nor_pins_make_a_broker_load_the_topics_of_a_bundle(scene: Scene) -> None:
    topics = [scene.topic(f"cold-{number}") for number in range(8)]
    ledgers = swept(scene, topics)
    scene.workload.unload_namespace(scene.namespace)
    plan = dry_run(scene, scene.sidecar)
    assert {topic["topic"] for topic in plan["topics"] if topic["obstacle"] == "unowned-bundle"} == {*ledgers}
    pins = scene.sidecar.call("GET", f"/admin/v2/pins/namespaces/{scene.namespace}")
    assert {pin["cause"] for topic in pins["largest"] for pin in topic["pins"]} == {"unreadable-retention"}
    assert not loaded(scene)
    scene.workload.request("GET", scene.workload.of_topic(topics[0], "stats"))
    until(lambda: str(topics[0]) in loaded(scene), "a broker asked for the topic's statistics loads its bundle")
