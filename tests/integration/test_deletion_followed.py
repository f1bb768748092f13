"""A topic's deletion that cannot be completed gets a response at once, is followed, stuck, repaired or abandoned."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import STUCK_AFTER, operation_path
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import managed_ledger_path

from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.sidecars import BASE, SidecarProcess
from tests.cluster.topics import TopicLedgers

DAMAGED = b"not proto\xff"
AT_ONCE_SECONDS = 15
"""Half of a call's wait for a deletion that may succeed."""


@contextmanager
def damaged(scene: Scene, topic: TopicName) -> Iterator[TopicLedgers]:
    """Yield a topic with a node that cannot be read, until the end of the block."""
    scene.workload.fill(topic)
    scene.workload.unload(topic)
    before = scene.workload.ledgers(topic)
    path = managed_ledger_path(topic.managed_ledger_name)
    store = scene.workload.store
    node = store.read(path)
    assert node is not None
    version = store.write(path, DAMAGED, node.version)
    try:
        yield before
    finally:
        store.write(path, node.data, version)


def deletion_of(scene: Scene, sidecar: SidecarProcess, topic: TopicName) -> str:
    """Request a deletion that cannot be completed; return its location."""
    began = time.monotonic()
    answer = sidecar.request("DELETE", f"/admin/v2/{scene.workload.of_topic(topic)}")
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert answer.status_code == 202, answer.text
    assert managed_ledger_path(topic.managed_ledger_name) in answer.json()["reason"]
    location = answer.headers["Location"]
    assert location == f"{BASE}/topic-deletions/{answer.json()['operationId']}"
    return location


def ended_at(sidecar: SidecarProcess, location: str) -> str:
    """Return the state in which a deletion ended; right after its end, its note may not exist yet."""

    def look() -> str | None:
        answer = sidecar.request("GET", location)
        assert answer.status_code in (200, 404), answer.text
        return answer.json()["state"] if answer.status_code == 200 else None

    return until(look, "its end is known")


def test_a_damaged_node_makes_a_deletion_stuck_until_an_operator_abandons_it(scene: Scene) -> None:
    topic, sidecar = scene.topic("damaged"), scene.sidecar
    with damaged(scene, topic) as before:
        location = deletion_of(scene, sidecar, topic)
        stuck = until(lambda: (seen := sidecar.call("GET", location))["state"] == "stuck" and seen, "it is stuck")
        assert stuck["failures"] >= STUCK_AFTER
        assert stuck["attempts"] == 0
        assert stuck["leftNodes"] == [managed_ledger_path(topic.managed_ledger_name)]
        operation_id = stuck["operationId"]
        assert f"ledger-deletion abandon {operation_id}" in stuck["remedy"]
        status = sidecar.status()
        assert status["stuckTopicDeletions"] == 1
        assert any(operation_id in warning for warning in status["warnings"])
        until(lambda: sidecar.metrics()["pulsar_ledger_deletion_topic_deletions_stuck"] == 1, "the gauge shows it")
        lines = [line for line in sidecar.whole_log.splitlines() if "a topic deletion is stuck" in line]
        assert len([line for line in lines if operation_id in line]) == 1

        followed = sidecar.command("topics", "delete", str(topic), "--output", "json", "--wait-seconds", "1")
        assert (followed.exit_code, followed.json["operationId"]) == (4, operation_id), "no second deletion"
        ended = sidecar.command("ledger-deletion", "abandon", operation_id, "--output", "json")
        assert (ended.exit_code, ended.json["state"]) == (0, "abandoned")
        assert ended.json["leftNodes"] == stuck["leftNodes"]
        assert sidecar.call("GET", f"{BASE}/topic-deletions") == []
        assert ended_at(sidecar, location) == "abandoned"
        assert sidecar.command("ledger-deletion", "abandon", operation_id).exit_code == 1
        ends = [outcome.entry for outcome in scene.oracles.outcomes if outcome.step == "topic-deletion"]
        assert {end["operationId"]: end["state"] for end in ends}[operation_id] == "abandoned"
        assert scene.workload.existing(before.data) == before.data
    deleted = scene.delete_topic(sidecar, topic)
    scene.oracles.wait_for_finals(deleted.data)
    assert not scene.workload.existing(before.data)


def test_a_deletion_continues_once_the_node_is_repaired(scene: Scene) -> None:
    topic, sidecar = scene.topic("repaired"), scene.sidecar
    with damaged(scene, topic) as before:
        location = deletion_of(scene, sidecar, topic)
    until(lambda: not scene.workload.ledgers(topic).all, "the topic is gone")
    scene.oracles.add_accepted(before.data)
    scene.oracles.wait_for_finals(before.data)
    assert ended_at(sidecar, location) == "done"
    assert not scene.workload.existing(before.data)


def test_another_sidecar_abandons_an_unreadable_deletion(scene: Scene) -> None:
    topic = scene.topic("elsewhere")
    first, second = scene.start_together({}, {})
    with damaged(scene, topic):
        location = deletion_of(scene, first, topic)
        second.call("POST", f"{location}/abandon")
        assert first.call("GET", f"{BASE}/topic-deletions") == []
    assert scene.workload.read_all(topic)

    newer = OperationId("newer")
    scene.workload.store.create(operation_path(newer), b'{"newer":"version"}')
    (listed,) = second.call("GET", f"{BASE}/topic-deletions")
    assert (listed["operationId"], listed["state"], listed["topic"]) == (newer, "unreadable", None)
    ended = second.call("POST", f"{BASE}/topic-deletions/{newer}/abandon")
    assert (ended["state"], ended["leftNodes"]) == ("abandoned", None)
    assert "cannot be read" in ended["reason"]
    assert second.call("GET", f"{BASE}/topic-deletions") == []
