"""Whole namespaces deleted on a real cluster: topics come meanwhile, members die, and no ledger is left."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest
import requests
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName, topic_of_managed_ledger
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, PARTITIONED_TOPICS, POLICIES, SCHEMAS

from tests.cluster.background import in_parallel, running_until
from tests.cluster.deletion import Scene
from tests.cluster.patience import OPERATION_SECONDS, until
from tests.cluster.running import BROKERS
from tests.cluster.shadows import Shadows
from tests.cluster.sidecars import BASE, SidecarProcess
from tests.cluster.topics import Workload, numbered_topics, unique

TOPICS = 30
MAKERS = 8
SECONDS = 600.0
"""For ten thousand topics on two processors, which clients and brokers share."""
RUNNING = f"{BASE}/namespace-deletions"


def path_of(namespace: str) -> str:
    return f"/admin/v2/namespaces/{namespace}"


def ledgers_in(workload: Workload, namespace: str) -> frozenset[LedgerId]:
    """Return the ledgers that the namespace's topics reference, including the broker's own topics."""
    names = workload.store.children(f"{MANAGED_LEDGERS}/{namespace}/persistent") or []
    topics = [topic_of_managed_ledger(f"{namespace}/persistent/{name}") for name in names]
    bases = {topic.base for topic in topics if topic is not None}
    return frozenset().union(*(workload.ledgers(topic).all for topic in {*topics, *bases} if topic is not None))


def left_of(workload: Workload, namespace: str) -> list[str]:
    """Return nodes of the namespace that name a ledger or a topic, and its policies."""
    found = [path for path in (f"{POLICIES}/{namespace}",) if workload.store.read(path) is not None]
    for parent in (f"{root}/{namespace}/persistent" for root in (MANAGED_LEDGERS, PARTITIONED_TOPICS)):
        found += [f"{parent}/{name}" for name in workload.store.children(parent) or []]
    return found + [f"{SCHEMAS}/{namespace}/{name}" for name in workload.store.children(f"{SCHEMAS}/{namespace}") or []]


def check_gone(
    scene: Scene, sidecar: SidecarProcess, before: Iterable[LedgerId], recorded: Iterable[LedgerId] | None = None
) -> None:
    """Demand that nothing is left of the namespace, and that all ledgers, or the `recorded` ones, have an outcome."""
    recorded = before if recorded is None else recorded
    until(lambda: sidecar.call("GET", RUNNING) == [], f"the namespace's deletion has ended\n{sidecar.log()}", SECONDS)
    assert left_of(scene.workload, scene.namespace) == []
    scene.oracles.add_accepted(recorded)
    scene.oracles.wait_for_finals(recorded)
    scene.oracles.wait_until_drained(sidecar)
    assert not scene.workload.existing(before)
    assert scene.oracles.leaks_in(scene.namespace) == (frozenset(), frozenset())


def filled(scene: Scene, count: int = TOPICS) -> Sequence[TopicName]:
    """Create topics of two ledgers each, every tenth one with ten partitions, two with policies of their own."""
    workload, topics = scene.workload, numbered_topics(scene.namespace, count)
    for number, topic in enumerate(topics):
        if number % 10 == 5:
            workload.admin("PUT", workload.of_topic(topic, "partitions"), 10)
            workload.store_schemas(topic.partition(0), 1)
            workload.fill(topic.partition(3), 2)
        else:
            workload.fill(topic, 2)
    for topic in topics[:2]:
        workload.admin("POST", workload.of_topic(topic, "maxProducers"), 7)
    return topics


def unfilled(scene: Scene, count: int) -> None:
    """Create more topics, without a message."""
    paths = [scene.workload.of_topic(scene.topic(f"unfilled-{number}")) for number in range(count)]
    in_parallel(lambda path: scene.workload.admin("PUT", path), paths, MAKERS)


def begin(scene: Scene, sidecar: SidecarProcess) -> dict[str, Any]:
    """Begin the deletion and do not wait for it."""
    answer = sidecar.request("DELETE", path_of(scene.namespace), force="true", wait="false")
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def until_deleted(sidecar: SidecarProcess, count: int) -> None:
    def look() -> bool:
        running = sidecar.call("GET", RUNNING)
        return not running or running[0]["topicsDeleted"] >= count

    until(look, f"{count} topics are deleted\n{sidecar.log()}", SECONDS)


def test_the_sidecar_refuses_like_a_broker(scene: Scene) -> None:
    topic = scene.topic("orders")
    payloads = scene.workload.fill(topic)
    before = scene.workload.ledgers(topic)
    for namespace in (scene.namespace, f"public/none-{unique()}"):
        brokers_own = scene.workload.request("DELETE", f"namespaces/{namespace}")
        answer = scene.sidecar.request("DELETE", path_of(namespace))
        assert (answer.status_code, answer.json()["reason"]) == (
            brokers_own.status_code,
            brokers_own.json()["reason"],
        )
    assert scene.sidecar.call("GET", RUNNING) == []
    assert scene.workload.ledgers(topic) == before
    assert scene.workload.read_all(topic) == payloads


@pytest.fixture
def remote(scene: Scene) -> Iterator[str]:
    """Another cluster, where nothing responds."""
    name, workload = f"remote-{unique()}", scene.workload
    tenant = workload.admin("GET", "tenants/public")
    addresses = {"serviceUrl": "http://127.0.0.1:9", "brokerServiceUrl": "pulsar://127.0.0.1:9"}
    workload.admin("PUT", f"clusters/{name}", addresses)
    workload.admin("POST", "tenants/public", {**tenant, "allowedClusters": [*tenant["allowedClusters"], name]})
    yield name
    workload.admin("POST", f"namespaces/{scene.namespace}/replication", tenant["allowedClusters"][:1])
    workload.admin("POST", "tenants/public", tenant)
    workload.admin("DELETE", f"clusters/{name}")


def replicate(scene: Scene, *clusters: str) -> None:
    scene.workload.admin("POST", f"namespaces/{scene.namespace}/replication", clusters)


def check_kept(scene: Scene, topic: TopicName, payloads: Sequence[bytes]) -> None:
    assert scene.sidecar.call("GET", RUNNING) == []
    assert scene.sidecar.call("GET", f"{BASE}/topic-deletions") == []
    assert scene.workload.read_all(topic) == payloads


@pytest.mark.parametrize("force", ["true", "false"])
def test_a_replicated_namespace_is_refused_and_keeps_its_messages(scene: Scene, remote: str, force: str) -> None:
    topic = scene.topic("orders")
    payloads = scene.workload.fill(topic)
    replicate(scene, scene.cluster.addresses.cluster_name, remote)
    brokers_own = scene.workload.request("DELETE", f"namespaces/{scene.namespace}", force=force)
    answer = scene.sidecar.request("DELETE", path_of(scene.namespace), force=force)
    assert (answer.status_code, answer.json()) == (brokers_own.status_code, brokers_own.json())
    assert answer.status_code == 412
    assert scene.sidecar.inflight() == 0
    check_kept(scene, topic, payloads)


def test_a_namespace_elsewhere_is_not_deleted_here(scene: Scene, remote: str) -> None:
    replicate(scene, remote)
    url = f"{scene.cluster.addresses.web_service_urls[0]}{path_of(scene.namespace)}"
    brokers_own = requests.delete(url, params={"force": "true"}, timeout=OPERATION_SECONDS, allow_redirects=False)
    assert (brokers_own.status_code, urlsplit(brokers_own.headers["Location"]).netloc) == (307, "127.0.0.1:9")
    answer = scene.sidecar.request("DELETE", path_of(scene.namespace), force="true")
    assert answer.status_code == 502
    assert f"brokers redirect the deletion of {scene.namespace} to http://127.0.0.1:9" in answer.json()["reason"]
    assert scene.sidecar.call("GET", RUNNING) == []


def test_a_replication_cluster_added_meanwhile_ends_the_deletion(scene: Scene, remote: str) -> None:
    workload, sidecar = scene.workload, scene.sidecar
    kept = scene.topic("kept")
    payloads = workload.fill(kept)
    # Each pass waits for this shadow's reader, before the first topic.
    pair = Shadows(workload, scene.cluster.addresses.web_service_urls).pair(scene.topic("orders"))
    with closing(workload.client.create_reader(str(pair.shadow), pulsar.MessageId.earliest)):
        place = f"{path_of(scene.namespace)}/deletions/{begin(scene, sidecar)['operationId']}"
        until(lambda: sidecar.call("GET", place)["passes"] > 0, "a pass has ended")
        replicate(scene, scene.cluster.addresses.cluster_name, remote)
        until(lambda: sidecar.call("GET", place)["state"] == "refused", f"it has ended\n{sidecar.log()}")
    assert "There are still more than one replication clusters configured" in sidecar.call("GET", place)["reason"]
    check_kept(scene, kept, payloads)


def test_a_topic_that_is_not_persistent_needs_force_too(scene: Scene) -> None:
    topic = f"non-persistent://{scene.namespace}/alive"
    with closing(scene.workload.client.create_producer(topic)):
        answer = scene.sidecar.request("DELETE", path_of(scene.namespace))
        # The topic's owner, for each broker knows of its own non-persistent topics only.
        owner = scene.workload.admin("GET", f"../../lookup/v2/topic/non-persistent/{scene.namespace}/alive")["httpUrl"]
        brokers_own = requests.delete(f"{owner}{path_of(scene.namespace)}", timeout=OPERATION_SECONDS)
    assert (answer.status_code, answer.json()["reason"]) == (409, "Cannot delete non empty namespace")
    assert brokers_own.status_code == 409


def test_a_namespace_goes_with_everything_in_it(scene: Scene) -> None:
    workload, topic = scene.workload, scene.topic("all")
    workload.fill_with_everything(topic)
    filled(scene, 10)
    unloaded = scene.topic("unloaded")
    workload.fill(unloaded)
    workload.unload(unloaded)
    before = ledgers_in(workload, scene.namespace)
    ran = scene.sidecar.command("namespaces", "delete", scene.namespace, "--force")
    assert ran.exit_code == 0, ran.stderr
    assert ran.stderr.splitlines()[-1].startswith(f"deleted {scene.namespace}: 12 topics, ")
    check_gone(scene, scene.sidecar, before)
    assert scene.sidecar.request("DELETE", path_of(scene.namespace), force="true").status_code == 404


def test_a_namespace_with_brokers_own_topics_only_needs_no_force(scene: Scene) -> None:
    topic = scene.topic("policies")
    scene.workload.fill(topic)
    scene.workload.admin("POST", scene.workload.of_topic(topic, "maxProducers"), 7)
    scene.delete_topic(scene.sidecar, topic)
    before = ledgers_in(scene.workload, scene.namespace)
    assert before
    scene.sidecar.call("DELETE", path_of(scene.namespace))
    check_gone(scene, scene.sidecar, before)


def test_topics_created_meanwhile_are_deleted_too(scene: Scene) -> None:
    workload, sidecar = scene.workload, scene.sidecar
    filled(scene)
    before = ledgers_in(workload, scene.namespace)
    stop, made = threading.Event(), threading.Event()

    def make_more() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            # Until brokers have marked the namespace as deleted they make it.
            if workload.request("PUT", workload.of_topic(scene.topic(f"late-{number}"))).ok:
                made.set()

    with running_until(stop, [make_more]):
        begin(scene, sidecar)
        check_gone(scene, sidecar, before)
    assert made.is_set()


def test_records_are_judged_during_the_deletion_and_a_recreated_namespace_stays(scene: Scene) -> None:
    workload, sidecar = scene.workload, scene.sidecar
    filled(scene, 10)
    unfilled(scene, 20)
    before = ledgers_in(workload, scene.namespace)
    begin(scene, sidecar)
    until(lambda: sidecar.call("GET", RUNNING) == [], f"the namespace's deletion has ended\n{sidecar.log()}", SECONDS)
    workload.create_namespace(scene.namespace)
    topic = scene.topic("topic-0")
    payloads = workload.fill(topic)
    kept = workload.ledgers(topic).all
    scene.oracles.add_accepted(before)
    scene.oracles.wait_for_finals(before)
    scene.oracles.wait_until_drained(sidecar)
    # A topic vanishes between its broker's list and the question about it again and again: that puts off no record.
    put_off = [line for line in sidecar.whole_log.splitlines() if "postponed" in line and scene.namespace in line]
    assert put_off == []
    assert not workload.existing(before)
    assert workload.existing(kept) == kept
    assert workload.read_all(topic) == payloads


def test_a_deletion_survives_kills_of_any_member(scene: Scene, pytestconfig: pytest.Config) -> None:
    first, second = scene.start_together({}, {})
    topics = filled(scene)
    unfilled(scene, pytestconfig.getoption("--namespace-topics"))
    before = ledgers_in(scene.workload, scene.namespace)
    # A broker that loads a topic after another has died deletes the empty last ledger itself
    # (`ManagedLedgerImpl.initializeBookKeeper`): no record is made of that one.
    with_messages = frozenset().union(*(scene.workload.ledgers(topic).data for topic in topics))
    assert with_messages
    count = begin(scene, first)["topicsFound"]
    until_deleted(second, count // 4)
    first.kill()
    until_deleted(second, count // 2)
    scene.cluster.kill(BROKERS[1])
    scene.cluster.restart(BROKERS[1])
    until_deleted(second, 3 * count // 4)
    scene.cluster.kill(BROKERS[0])
    second.kill()
    scene.cluster.restart(BROKERS[0])
    check_gone(scene, scene.start_alone(), before, with_messages)
