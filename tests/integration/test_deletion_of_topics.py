"""Two-phase topic deletion on a real cluster: everything a topic references goes, and nothing else does."""

import pulsar
import pytest
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.ownership.paths import partitioned_topic_path

from tests.cluster.choosing import line_under_test
from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.sidecars import BASE
from tests.cluster.topics import connected_consumer


def test_every_kind_of_ledger_of_a_loaded_topic_goes(scene: Scene) -> None:
    topic, neighbour = scene.topic("all"), scene.topic("neighbour")
    scene.workload.fill_with_everything(topic)
    scene.workload.fill_with_everything(neighbour)
    deleted = scene.delete_topic(scene.sidecar, topic)
    assert all(deleted.of(component) for component in LedgerComponent)
    finals = scene.oracles.wait_for_finals(deleted.all)
    assert {final.decision for final in finals.values()} <= {"deleted", "kept"}
    assert {final.reason for final in finals.values()} <= {"unreferenced", "already-gone"}
    assert not scene.workload.existing(deleted.all)
    assert not scene.workload.ledgers(topic).all
    kept = scene.workload.ledgers(neighbour).all
    assert scene.workload.existing(kept) == kept


def test_every_kind_of_ledger_of_an_unloaded_topic_goes(scene: Scene) -> None:
    topic = scene.topic("unloaded")
    loaded = scene.workload.fill_with_everything(topic)
    scene.workload.unload(topic)
    deleted = scene.delete_topic(scene.sidecar, topic)
    # Cursors were closed into their nodes; everything else is still in ledgers.
    for component in set(LedgerComponent) - {LedgerComponent.MANAGED_CURSOR}:
        assert deleted.of(component) == loaded.of(component)
    scene.oracles.wait_for_finals(deleted.all)
    assert not scene.workload.existing(loaded.all)


def test_an_open_cursor_of_a_connected_consumer_goes_with_force(scene: Scene) -> None:
    topic = scene.topic("forced")
    scene.workload.fill(topic, 4)
    scene.workload.subscribe(topic, "busy", acknowledge=1)
    with connected_consumer(scene.workload, topic, "busy"):
        deleted = scene.delete_topic(scene.sidecar, topic, force=True)
        assert set(deleted.cursors) == {"busy"}
        scene.oracles.wait_for_finals(deleted.all)
        assert not scene.workload.existing(deleted.all)


def test_an_unknown_topic_is_not_found(scene: Scene) -> None:
    answer = scene.sidecar.request("DELETE", f"/admin/v2/{scene.workload.of_topic(scene.topic('nobody'))}")
    assert (answer.status_code, "reason" in answer.json()) == (404, True)
    answer = scene.sidecar.request("DELETE", f"/admin/v2/{scene.workload.of_topic(scene.topic('no'), 'partitions')}")
    assert answer.status_code == 404
    assert scene.sidecar.call("GET", f"{BASE}/topic-deletions") == []


def test_a_refusal_of_the_broker_is_passed_on_and_nothing_is_deleted(scene: Scene) -> None:
    topic = scene.topic("in-use")
    payloads = scene.workload.fill(topic)
    with connected_consumer(scene.workload, topic, "busy"):
        before = scene.workload.ledgers(topic)
        path = scene.workload.of_topic(topic)
        brokers_own = scene.workload.request("DELETE", path)
        answer = scene.sidecar.request("DELETE", f"/admin/v2/{path}")
        assert answer.status_code == brokers_own.status_code == 412
        assert answer.json() == brokers_own.json()
        # Nothing was recorded: a broker looks at its clients first.
        assert scene.sidecar.call("GET", f"{BASE}/topic-deletions") == []
        assert scene.sidecar.inflight() == 0
    assert scene.workload.ledgers(topic).data == before.data
    assert scene.workload.existing(before.all) == before.all
    assert scene.workload.read_all(topic) == payloads


def test_a_client_of_one_partition_keeps_them_all(scene: Scene) -> None:
    topic, workload = scene.topic("in-use"), scene.workload
    path = workload.of_topic(topic, "partitions")
    workload.admin("PUT", path, 3)
    partitions = [topic.partition(index) for index in range(3)]
    payloads = [workload.fill(partition) for partition in partitions]
    with connected_consumer(workload, partitions[2], "busy"):
        answer = scene.sidecar.request("DELETE", f"/admin/v2/{path}")
        kept = [workload.read_all(partition) for partition in partitions]
        # A broker that is called directly refuses in the same words, and has deleted the other two by then.
        brokers_own = workload.request("DELETE", path)
    assert (answer.status_code, answer.json()) == (brokers_own.status_code, brokers_own.json())
    assert answer.status_code == 412
    assert kept == payloads
    assert scene.sidecar.inflight() == 0


def test_partitions_that_are_left_without_their_topic_go(scene: Scene) -> None:
    topic, workload = scene.topic("left"), scene.workload
    path = f"/admin/v2/{workload.of_topic(topic, 'partitions')}"
    workload.admin("PUT", workload.of_topic(topic, "partitions"), 3)
    for index in range(3):
        workload.fill(topic.partition(index))
    before = frozenset().union(*(workload.ledgers(topic.partition(index)).all for index in range(3)))
    # As when clients that still know the partitions had brokers make them again.
    workload.store.delete(partitioned_topic_path(topic))
    until(
        lambda: workload.request("DELETE", workload.of_topic(topic, "partitions")).status_code == 404, "brokers see it"
    )
    scene.sidecar.call("DELETE", path, force="true")
    scene.oracles.add_accepted(before)
    scene.oracles.wait_for_finals(before)
    assert not workload.existing(before)
    assert scene.sidecar.request("DELETE", path).status_code == 404
    workload.admin("PUT", workload.of_topic(topic, "partitions"), 2)


def test_the_kind_of_a_topic_is_looked_at_first(scene: Scene) -> None:
    workload, plain, parts = scene.workload, scene.topic("plain"), scene.topic("parts")
    workload.admin("PUT", workload.of_topic(plain))
    workload.admin("PUT", workload.of_topic(parts, "partitions"), 2)
    cases = [
        (workload.of_topic(parts), 409, f"pulsar-sidecar topics delete --partitioned {parts}"),
        (workload.of_topic(plain, "partitions"), 409, f"pulsar-sidecar topics delete {plain}"),
        (workload.of_topic(parts.partition(0), "partitions"), 412, "should not contain '-partition-'"),
    ]
    for path, status, words in cases:
        answer = scene.sidecar.request("DELETE", f"/admin/v2/{path}")
        assert answer.status_code == workload.request("DELETE", path).status_code == status
        assert words in answer.json()["reason"]


@pytest.mark.parametrize(
    "local_name", ["orders", "a b", "p%20q%", "dots.and..dots", "uni-ünïcødé-日本", "hash#;?&='\"", "x" * 200]
)
def test_a_partitioned_topic_goes_with_all_partitions_and_its_schema(scene: Scene, local_name: str) -> None:
    topic = scene.topic(local_name)
    workload = scene.workload
    workload.admin("PUT", workload.of_topic(topic, "partitions"), 3)
    partitions = [topic.partition(index) for index in range(3)]
    workload.store_schemas(partitions[0], 2)
    for partition in partitions:
        workload.fill(partition, 2)
        workload.subscribe(partition, "sub / ü" if local_name == "orders" else "sub%", acknowledge=1)
    before = frozenset().union(*(workload.ledgers(each).all for each in (topic, *partitions)))
    assert len(before) == 3 * (2 + 1) + 2
    scene.sidecar.call("DELETE", f"/admin/v2/{workload.of_topic(topic, 'partitions')}")
    scene.oracles.add_accepted(before)
    scene.oracles.wait_for_finals(before)
    assert not workload.existing(before)
    assert workload.request("GET", workload.of_topic(topic, "stats")).status_code == 404
    assert workload.request("DELETE", workload.of_topic(topic, "partitions")).status_code == 404


def test_one_partition_leaves_its_siblings_and_the_schema_alone(scene: Scene) -> None:
    topic = scene.topic("siblings")
    workload = scene.workload
    workload.admin("PUT", workload.of_topic(topic, "partitions"), 2)
    workload.store_schemas(topic.partition(0), 2)
    written = [workload.fill(topic.partition(index), 2) for index in range(2)]
    gone, kept = workload.ledgers(topic.partition(0)), workload.ledgers(topic.partition(1))
    scene.sidecar.call("DELETE", f"/admin/v2/{workload.of_topic(topic.partition(0))}")
    scene.oracles.add_accepted(gone.data)
    scene.oracles.wait_for_finals(gone.data)
    assert not workload.existing(gone.data)
    assert workload.existing(kept.all) == kept.all
    assert workload.read_all(topic.partition(1)) == written[1]


def test_a_topic_that_only_looks_like_a_partition_goes(scene: Scene) -> None:
    lookalike, others = scene.topic("orders-partition-3"), scene.topic("orders-partition-4")
    if line_under_test() >= (4, 2):
        with pytest.raises(pulsar.exceptions.NotAllowedError):  # brokers make no such topic any more
            scene.workload.fill(lookalike)
        return
    scene.workload.fill(lookalike)
    payloads = scene.workload.fill(others)
    deleted = scene.delete_topic(scene.sidecar, lookalike)
    scene.oracles.wait_for_finals(deleted.all)
    assert not scene.workload.existing(deleted.all)
    assert scene.workload.read_all(others) == payloads


def test_a_topic_made_again_while_records_wait_keeps_its_new_ledgers(scene: Scene) -> None:
    topic = scene.topic("again")
    workload, sidecar = scene.workload, scene.sidecar
    old = workload.fill_with_everything(topic)
    sidecar.call("POST", f"{BASE}/pause", {"reason": "until the topic is there again"})
    old_nodes = workload.ledger_nodes(old.all)
    scene.delete_topic(sidecar, topic)
    until(lambda: not workload.existing(old.all), "the broker has deleted what it could")
    # As if the broker's deletions had failed: the old incarnation's ledgers are there, without an owner.
    for node in old_nodes.values():
        workload.store.create(node.path, node.data)
    new = workload.fill_with_everything(topic)
    assert not new.all & old.all
    # A client also names the new ledgers, and means the old ones.
    births = {ledger_id: node.created_ms for ledger_id, node in old_nodes.items()}
    stale = [{**record, "sidecar": {"createdMs": min(births.values())}} for record in new.records()]
    scene.append(sidecar, stale + new.records())
    sidecar.call("POST", f"{BASE}/resume")
    scene.append(sidecar, old.records())
    # While a broker has the delayed index of the new incarnation loaded, no bucket under that name goes.
    buckets = old.of(LedgerComponent.DELAYED_INDEX_BUCKET)
    until(lambda: workload.existing(old.all) == buckets, "only the old buckets are left")
    workload.unload(topic)
    scene.oracles.wait_until_drained(sidecar)
    assert not workload.existing(old.all)
    # Unloading has closed the new cursors, so their ledgers went by the broker.
    kept = new.all - new.of(LedgerComponent.MANAGED_CURSOR)
    assert workload.existing(new.all) == kept
    reasons = {outcome.reason for ledger_id in kept for outcome in scene.oracles.finals(ledger_id)}
    assert reasons == {"id-belongs-to-another-ledger", "ledger-still-in-use"}
    assert len(workload.read_all(topic)) == 5 + 12
    assert b"value 4" in workload.read_all(topic, compacted=True)
