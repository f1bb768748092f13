"""`topics delete-shadow` on a real cluster: the shadow goes, and its source keeps every ledger and every message."""

import pytest
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import shadow_deletion_path
from pulsar_sidecar.ownership.paths import managed_ledger_path

from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.shadows import Pair, Shadows
from tests.cluster.topics import KEEP_NOTHING, connected_consumer


@pytest.fixture
def shadows(scene: Scene) -> Shadows:
    """Shadows in a namespace without retention of consumed messages."""
    scene.workload.admin("POST", f"namespaces/{scene.namespace}/retention", KEEP_NOTHING)
    return Shadows(scene.workload, scene.cluster.addresses.web_service_urls)


def delete(scene: Scene, pair: Pair) -> dict[str, object]:
    ended = scene.sidecar.command("topics", "delete-shadow", str(pair.shadow), "--output", "json")
    assert ended.exit_code == 0, f"{ended}\n{scene.sidecar.log()}"
    assert "next: remove the source's ledgers from the shadow's list" in ended.stderr
    return ended.json


def check(scene: Scene, pair: Pair) -> None:
    """Demand that only the source is left of the pair, also for a broker that reloads it."""
    for source in pair.sources:
        scene.workload.unload(source)
    pair.demand_only_the_source(scene.workload)


def test_shadows_go_and_their_sources_stay_while_brokers_load_them(scene: Scene, shadows: Shadows) -> None:
    pairs = [
        shadows.pair(scene.topic("one-ledger"), ledgers=1),
        shadows.pair(scene.topic("several"), ledgers=4),
        shadows.pair(scene.topic("replicated"), ledgers=3, listed=True),
        shadows.pair(scene.topic("partitioned"), ledgers=2, partitions=2, listed=True),
    ]
    scene.workload.client.subscribe(str(pairs[1].shadow), "sub").close()
    for pair in pairs:
        before = frozenset().union(*(scene.workload.ledgers(source).data for source in pair.sources))
        with shadows.reloading(pair.shadows):
            answer = delete(scene, pair)
        assert answer["sourceLedgers"] >= len(before)
        assert (answer["missingLedgers"], answer["missingBefore"], answer["missingSources"]) == ([], [], [])
        assert scene.workload.existing(before) == before
        check(scene, pair)
    # The sidecar has received the shadow's removal, so its source's deletion takes no confirmation.
    source = pairs[1].source
    ledgers = scene.workload.ledgers(source)
    scene.sidecar.call("DELETE", f"/admin/v2/{scene.workload.of_topic(source)}", force="true")
    scene.oracles.add_accepted(ledgers.all)
    scene.oracles.wait_for_finals(ledgers.data)
    # The report can be requested again, and a source without shadows is an ordinary topic that can be deleted.
    again = scene.sidecar.call("POST", f"/admin/v2/{scene.workload.of_topic(pairs[0].shadow, 'deleteShadow')}")
    assert again["stage"] == "done"
    scene.workload.admin("DELETE", scene.workload.of_topic(pairs[0].source))


def test_brokers_trim_nothing_from_the_second_call_on(scene: Scene, shadows: Shadows) -> None:
    pair = shadows.pair(scene.topic("unprotected"), ledgers=4, kept=False)
    workload, path = scene.workload, f"/admin/v2/{scene.workload.of_topic(pair.shadow, 'deleteShadow')}"
    assert scene.sidecar.call("POST", path)["stage"] == "protecting"
    assert scene.sidecar.call("POST", path)["stage"] == "disconnecting"
    workload.client.subscribe(str(pair.shadow), "latest").close()
    with shadows.reloading(pair.shadows):
        for _ in range(3):
            workload.unload(pair.shadow)
        delete(scene, pair)
    check(scene, pair)


def test_connected_clients_refuse_the_deletion_and_nothing_changes(scene: Scene, shadows: Shadows) -> None:
    pair, workload = shadows.pair(scene.topic("busy"), ledgers=2), scene.workload
    with connected_consumer(workload, pair.shadow, "sub"):
        before = workload.store.read(managed_ledger_path(pair.shadow.managed_ledger_name))
        ended = scene.sidecar.command("topics", "delete-shadow", str(pair.shadow))
        assert ended.exit_code == 1
        assert "1 consumer or reader" in ended.stderr
        assert workload.store.read(shadow_deletion_path(pair.shadow)) is None
        assert workload.store.read(managed_ledger_path(pair.shadow.managed_ledger_name)) == before
    delete(scene, pair)
    check(scene, pair)


def test_plain_topics_are_refused_as_shadows(scene: Scene) -> None:
    topic = scene.topic("ordinary")
    payloads = scene.workload.fill(topic)
    ended = scene.sidecar.command("topics", "delete-shadow", str(topic))
    assert (ended.exit_code, "not a shadow topic" in ended.stderr) == (1, True)
    ended = scene.sidecar.command("topics", "delete-shadow", str(scene.topic("nobody")))
    assert (ended.exit_code, "there is no topic" in ended.stderr) == (1, True)
    assert scene.workload.read_all(topic) == payloads


def test_another_sidecar_resumes_after_a_kill(scene: Scene, shadows: Shadows) -> None:
    pair, workload = shadows.pair(scene.topic("resumed"), ledgers=3, listed=True), scene.workload
    path = f"/admin/v2/{workload.of_topic(pair.shadow, 'deleteShadow')}"
    first, second = scene.start_together({}, {})
    while first.call("POST", path)["stage"] != "removing":
        pass
    first.kill()
    with shadows.reloading(pair.shadows):
        until(lambda: second.call("POST", path)["stage"] == "done", "the second sidecar has deleted the shadow")
    check(scene, pair)
