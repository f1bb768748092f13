"""Nodes left by a topic's deletion: each kind of the table in `docs/pip-186.md`."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.ledger_writer import LedgerWriter, Replication
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperLedgerIds
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import PENDING_ACKS_SUFFIX, TopicName
from pulsar_sidecar.ownership.paths import (
    DEFAULT_LEDGERS_ROOT,
    ledger_path,
    managed_ledger_path,
    partitioned_topic_path,
    schema_path,
    under_replication_mark_path,
)

from tests.cluster.audits import Audits
from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.fakes.bookkeeper import data_custom_metadata, managed_ledger_bytes

_POLICY = 77


@pytest.fixture
def audited(scene: Scene, tmp_path: Path) -> Callable[[], dict[str, str]]:
    """Return the nodes of the test that an audit calls leftovers: their kinds, by path."""

    def look() -> dict[str, str]:
        nodes = (
            Audits(scene.cluster.addresses, tmp_path / str(len(list(tmp_path.iterdir())))).look().summary.leftover_nodes
        )
        return {node.path: node.kind for node in nodes.nodes}

    return look


def lose(scene: Scene, *ledger_ids: LedgerId) -> None:
    """Lose ledgers by the test's hand, for which the oracles must not blame the brokers."""
    scene.oracles.expect_broken_topics_in(scene.namespace)
    for ledger_id in ledger_ids:
        scene.workload.store.delete(ledger_path(ledger_id))


def schema_answer(scene: Scene, topic: TopicName) -> int:
    """Return the status of a broker's response about the newest schema."""
    return scene.workload.request("GET", f"schemas/{topic.namespace}/{topic.local_name}/schema").status_code


def schema_node_exists(scene: Scene, topic: TopicName) -> bool:
    return scene.workload.store.read(schema_path(topic.schema_id)) is not None


# --- schemas -------------------------------------------------------------------------------------------------------


def test_brokers_alone_leave_a_schema_whose_ledger_is_gone_and_force_removes_it(
    scene: Scene, audited: Callable[[], dict[str, str]]
) -> None:
    topic, workload = scene.topic("plainly"), scene.workload
    workload.store_schemas(topic, 1)
    workload.unload(topic)
    lose(scene, *workload.ledgers(topic).schema)
    workload.delete_plainly(topic)
    assert schema_node_exists(scene, topic)
    workload.admin("PUT", workload.of_topic(topic))
    assert schema_answer(scene, topic) == 500
    assert audited()[schema_path(topic.schema_id)] == "schema"
    assert workload.delete_schemas(topic).ok
    assert not schema_node_exists(scene, topic)


@pytest.mark.parametrize("partitioned", [False, True], ids=["alone", "partitioned"])
def test_a_schema_whose_ledgers_are_gone_goes_with_its_topic(scene: Scene, partitioned: bool) -> None:
    topic, workload = scene.topic("left"), scene.workload
    if partitioned:
        workload.admin("PUT", workload.of_topic(topic, "partitions"), 2)
    written = topic.partition(0) if partitioned else topic
    workload.store_schemas(written, 2)
    workload.fill(written, 2)
    workload.unload(written)
    lose(scene, *workload.ledgers(topic).schema)
    scene.sidecar.call("DELETE", f"/admin/v2/{workload.of_topic(topic, 'partitions' if partitioned else '')}")
    assert not schema_node_exists(scene, topic)
    workload.store_schemas(topic, 1)
    assert schema_answer(scene, topic) == 200
    scene.oracles.keeps(topic, workload.fill(topic))


def test_a_schema_with_a_ledger_that_exists_is_reported_and_force_removes_it(scene: Scene) -> None:
    topic, workload = scene.topic("half-left"), scene.workload
    workload.store_schemas(topic, 2)
    workload.unload(topic)
    older, newest = sorted(workload.ledgers(topic).schema)
    lose(scene, newest)
    scene.delete_topic(scene.sidecar, topic)
    finals = scene.oracles.wait_for_finals([older])
    assert finals[older].reason == "ledger-still-in-use"
    reported = [each.reason for each in scene.oracles.outcomes if each.step == "topic-deletion"]
    assert len(reported) == 1
    assert f"its ledgers {older} exist" in reported[0]
    assert f"pulsar-admin schemas delete --force {topic}" in reported[0]
    assert schema_node_exists(scene, topic)
    assert workload.delete_schemas(topic).ok
    assert not schema_node_exists(scene, topic)
    until(lambda: not workload.existing({older}), "the broker has deleted the older version")


# --- brokers' removals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioned", [False, True], ids=["alone", "partitioned"])
def test_topic_policies_do_not_come_back_with_the_name(scene: Scene, partitioned: bool) -> None:
    topic, workload = scene.topic("with-policies"), scene.workload
    suffix = "partitions" if partitioned else ""

    def make() -> None:
        if partitioned:
            workload.admin("PUT", workload.of_topic(topic, "partitions"), 2)
        workload.fill(topic.partition(0) if partitioned else topic, 1)

    make()
    place = workload.of_topic(topic, "maxConsumers")
    until(lambda: workload.request("POST", place, _POLICY).ok, "the policy is set")
    until(lambda: workload.admin("GET", place) == _POLICY, "the policy is in force")
    scene.sidecar.call("DELETE", f"/admin/v2/{workload.of_topic(topic, suffix)}")
    make()
    until(lambda: workload.admin("GET", place) is None, "the new topic has no policy of its own")


def test_a_partitioned_topic_without_partitions_is_listed_and_goes(
    scene: Scene, audited: Callable[[], dict[str, str]]
) -> None:
    topic, workload = scene.topic("no-partitions"), scene.workload
    workload.admin("PUT", workload.of_topic(topic, "partitions"), 2)
    path = partitioned_topic_path(topic)
    assert path not in audited()
    for index in range(2):
        workload.delete_plainly(topic.partition(index))
    assert audited()[path] == "partitioned-topic"
    scene.sidecar.call("DELETE", f"/admin/v2/{workload.of_topic(topic, 'partitions')}")
    assert workload.store.read(path) is None


# --- an audit's list -------------------------------------------------------------------------------------------------


def test_pending_acknowledgements_without_a_topic_are_listed_and_go_in_two_phases(
    scene: Scene, audited: Callable[[], dict[str, str]]
) -> None:
    workload = scene.workload
    topic, pending = scene.topic("orders"), scene.topic(f"orders-sub{PENDING_ACKS_SUFFIX}")
    workload.fill(topic)
    path = managed_ledger_path(pending.managed_ledger_name)
    with closing(BookieConnections(workload.store)) as bookies:
        ids = ZooKeeperLedgerIds(workload.store, DEFAULT_LEDGERS_ROOT)
        custom_metadata = data_custom_metadata(pending.managed_ledger_name)
        ledger_id = LedgerWriter(workload.store, ids.next, bookies).write([b"1"], custom_metadata, Replication())
    workload.store.create(path, managed_ledger_bytes([ledger_id]))
    assert path not in audited()
    workload.delete_plainly(topic)
    assert audited()[path] == "pending-acks"
    scene.delete_topic(scene.sidecar, pending)
    scene.oracles.wait_for_finals([ledger_id])
    assert workload.store.read(path) is None
    assert not workload.existing({ledger_id})


def test_a_mark_of_a_ledger_that_is_gone_is_listed(scene: Scene, audited: Callable[[], dict[str, str]]) -> None:
    topic, workload = scene.topic("marked"), scene.workload
    workload.fill(topic, 2)
    deleted = scene.delete_topic(scene.sidecar, topic)
    scene.oracles.wait_for_finals(deleted.data)
    marks = [under_replication_mark_path(ledger_id) for ledger_id in deleted.data]
    workload.switch_repair(on=False)
    for mark in marks:
        workload.store.create(mark, b"")
    assert {*marks} <= audited().keys()
    for mark in marks:
        workload.store.delete(mark)
    workload.switch_repair(on=True)
