"""Shadow topics and partly created topics on real brokers: the sidecar passes no deletion on that takes others' data.

Every namespace here retains everything: with less, a shadow deletes its source's ledgers on its own (PIP-180 on 4.0.8).
"""

import json

import pytest
import requests
from msgspec.structs import replace
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import Operation, encode_operation, operation_path
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE, shadow_at, source_topic

from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.sidecars import BASE
from tests.cluster.topics import KEEP_ALL, KEEP_NOTHING, unique

_METADATA = "application/vnd.partitioned-topic-metadata+json"


def make_shadow(scene: Scene, shadow: TopicName, source: TopicName, partitions: int | None = None) -> None:
    properties = {SHADOW_SOURCE: str(source)}
    if partitions is None:
        scene.workload.admin("PUT", scene.workload.of_topic(shadow), properties)
        return
    url = f"{scene.cluster.addresses.web_service_urls[0]}/admin/v2/{scene.workload.of_topic(shadow, 'partitions')}"
    body = json.dumps({"partitions": partitions, "properties": properties})
    requests.put(url, body, headers={"Content-Type": _METADATA}, timeout=30).raise_for_status()


def refused(scene: Scene, topic: TopicName, verb: str = "", **params: str) -> str:
    answer = scene.sidecar.request("DELETE", f"/admin/v2/{scene.workload.of_topic(topic, verb)}", **params)
    assert answer.status_code == 409, f"{answer.status_code} {answer.text[:300]}"
    assert scene.sidecar.call("GET", f"{BASE}/topic-deletions") == []
    reason = answer.json()["reason"]
    assert isinstance(reason, str)
    return reason


def test_a_shadow_is_refused_and_its_source_keeps_every_ledger(scene: Scene) -> None:
    workload, source, shadow = scene.workload, scene.topic("source"), scene.topic("shadow")
    payloads = workload.fill(source, 4)
    workload.unload(source)
    make_shadow(scene, shadow, source)
    assert workload.read_all(shadow) == payloads
    before = workload.ledgers(source).data
    for params in ({}, {"force": "true"}, {"force": "true", "confirmSourceDataLoss": str(shadow)}):
        reason = refused(scene, shadow, **params)
        assert f"shadow of {source}" in reason
        assert f"topics delete-shadow {shadow}" in reason
    assert before <= workload.ledgers(source).data
    assert workload.existing(before) == before
    workload.unload(source)
    assert workload.read_all(source) == payloads


@pytest.mark.parametrize("place", ["beside", "elsewhere", "elsewhere and listed"])
def test_a_source_is_refused_until_its_loss_is_confirmed(scene: Scene, place: str) -> None:
    workload, source = scene.workload, scene.topic("source")
    payloads = workload.fill(source, 3)
    workload.unload(source)
    shadow = scene.topic("shadow") if place == "beside" else _elsewhere(scene)
    make_shadow(scene, shadow, source)
    if place == "elsewhere and listed":
        path = workload.of_topic(source, "shadowTopics")
        workload.admin("PUT", path, [str(shadow)])
        until(lambda: workload.admin("GET", path) == [str(shadow)], "brokers list the shadow")
    assert f"source of the shadow {shadow}" in refused(scene, source, force="true")
    refused_name = scene.sidecar.request(
        "DELETE", f"/admin/v2/{workload.of_topic(source)}", force="true", confirmSourceDataLoss="true"
    )
    assert refused_name.status_code == 400
    assert workload.read_all(source) == payloads
    ledgers = workload.ledgers(source)
    scene.sidecar.call(
        "DELETE", f"/admin/v2/{workload.of_topic(source)}", force="true", confirmSourceDataLoss=str(source)
    )
    scene.oracles.add_accepted(ledgers.all)
    scene.oracles.wait_for_finals(ledgers.data)
    assert not workload.existing(ledgers.data)
    # Its source is gone, so there is nothing left that it could take along.
    scene.oracles.expect_broken_topics_in(shadow.namespace)
    workload.admin("DELETE", workload.of_topic(shadow), force="true")


def _elsewhere(scene: Scene) -> TopicName:
    namespace = f"public/elsewhere-{unique()}"
    scene.workload.create_namespace(namespace)
    return parse_topic_name(f"persistent://{namespace}/shadow")


def test_a_partitioned_shadow_is_refused_as_a_whole_and_in_parts(scene: Scene) -> None:
    workload, source, shadow = scene.workload, scene.topic("source"), scene.topic("shadow")
    workload.admin("PUT", workload.of_topic(source, "partitions"), 2)
    payloads = [workload.fill(source.partition(index), 3) for index in range(2)]
    for index in range(2):
        workload.unload(source.partition(index))
    make_shadow(scene, shadow, source, partitions=2)
    node = workload.store.read(partitioned_topic_path(shadow))
    assert node is not None
    found = shadow_at(node.path, node.data)
    assert found is not None
    assert source_topic(found.source) == source
    assert f"shadow of {source}" in refused(scene, shadow, "partitions", force="true")
    assert workload.read_all(shadow.partition(0)) == payloads[0]
    for index in range(2):
        assert "shadow of" in refused(scene, shadow.partition(index), force="true")
    assert f"source of the shadow {shadow}" in refused(scene, source, "partitions", force="true")
    assert f"source of the shadow {shadow}" in refused(scene, source.partition(1), force="true")
    for index in range(2):
        workload.unload(source.partition(index))
        assert workload.read_all(source.partition(index)) == payloads[index]


def test_the_status_names_a_shadow_until_its_retention_is_infinite(scene: Scene) -> None:
    workload, source, shadow = scene.workload, scene.topic("source"), scene.topic("shadow")
    workload.admin("PUT", workload.of_topic(source, "partitions"), 2)
    payloads = [workload.fill(source.partition(index), 3) for index in range(2)]
    make_shadow(scene, shadow, source, partitions=2)
    _retain(scene, shadow, KEEP_NOTHING)
    (warning,) = _warned_at_start(scene, shadow)
    assert f"shadow topic {shadow} has no infinite retention" in warning
    assert f"ledgers of its source {source};" in warning
    _retain(scene, shadow, KEEP_ALL)
    assert _warned_at_start(scene, shadow) == []
    for index in range(2):
        workload.unload(source.partition(index))
        assert workload.read_all(source.partition(index)) == payloads[index]


def _retain(scene: Scene, topic: TopicName, retention: dict[str, int]) -> None:
    path = scene.workload.of_topic(topic, "retention")
    scene.workload.admin("POST", path, retention)
    until(lambda: scene.workload.admin("GET", path) == retention, "brokers apply the retention")


def _warned_at_start(scene: Scene, shadow: TopicName) -> list[str]:
    """Return a new sidecar's first warnings about the shadow."""
    sidecar = scene.start_alone()
    until(lambda: not any("not known yet" in warning for warning in sidecar.status()["warnings"]), "a look has ended")
    return [warning for warning in sidecar.status()["warnings"] if str(shadow) in warning]


def _operation_of_a_dead_sidecar(scene: Scene, topic: TopicName, partitions: int) -> Operation:
    """Leave the operation of a sidecar that died after it had requested the broker to delete a partitioned topic."""
    operation = Operation(
        operation_id=OperationId(f"left-{unique()}"),
        topic_name=str(topic),
        partitions=partitions,
        force=True,
        requested_by=None,
        requested_ms=1,
        incarnations={},
        recorded=(),
        attempts=1,
        last_reason=None,
        not_before_ms=0,
    )
    nodes = scene.workload.store.read_many(operation.node_paths)
    incarnations = {node.path: node.created_order for node in nodes if node is not None}
    return replace(operation, incarnations=incarnations)


@pytest.mark.parametrize("new_partitions", [2, 3])
def test_a_partly_created_topic_keeps_its_new_data(scene: Scene, new_partitions: int) -> None:
    workload, topic = scene.workload, scene.topic("orders")
    path = workload.of_topic(topic, "partitions")
    workload.admin("PUT", path, 3)
    workload.store_schemas(topic.partition(0), 1)
    for index in range(3):
        workload.fill(topic.partition(index), 2)
    straggler = workload.ledgers(topic.partition(2)).data
    operation = _operation_of_a_dead_sidecar(scene, topic, 3)
    kept_node = workload.store.read(managed_ledger_path(topic.partition(2).managed_ledger_name))
    # The broker has deleted two partitions and the topic's node when it dies; producers create the topic again.
    for index in range(2):
        workload.delete_plainly(topic.partition(index))
    workload.store.delete(partitioned_topic_path(topic))
    # Not through a broker: it returns 409 while the straggler is there.
    workload.store.create(partitioned_topic_path(topic), b'{"partitions":%d,"deleted":false}' % new_partitions)
    until(lambda: workload.admin("GET", path)["partitions"] == new_partitions, "brokers know the new topic")
    written = [workload.fill(topic.partition(index), 2) for index in range(2)]
    workload.admin("POST", workload.of_topic(topic, "maxConsumers"), 77)
    if new_partitions == 3:
        workload.produce(topic.partition(2), [b"new in an old ledger"])
    assert kept_node is not None
    new = frozenset().union(*(workload.ledgers(topic.partition(index)).data for index in range(2)))
    schema = workload.ledgers(topic).schema
    workload.store.create(operation_path(operation.operation_id), encode_operation(operation))
    scene.sidecar.call("GET", f"{BASE}/status")
    until(lambda: workload.store.read(operation_path(operation.operation_id)) is None, "the operation has ended")
    assert new <= workload.existing(new)
    assert workload.existing(schema) == schema
    assert json.loads(_data(scene, partitioned_topic_path(topic)))["partitions"] == new_partitions
    assert [workload.read_all(topic.partition(index)) for index in range(2)] == written
    assert workload.admin("GET", workload.of_topic(topic, "maxConsumers")) == 77
    if new_partitions == 3:
        assert workload.read_all(topic.partition(2))[-1] == b"new in an old ledger"
        assert workload.existing(straggler) == straggler
        return
    until(lambda: not workload.existing(straggler), "the straggler is gone")
    scene.oracles.add_accepted(straggler)


def _data(scene: Scene, path: str) -> bytes:
    node = scene.workload.store.read(path)
    assert node is not None
    return node.data
