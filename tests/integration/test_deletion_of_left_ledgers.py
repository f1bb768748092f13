"""Ledgers that brokers left behind are deleted, referenced ones are kept, and what was deleted can come back."""

from typing import Any

import pulsar
import pytest
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import ledger_path

from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.sidecars import BASE, SidecarProcess
from tests.cluster.topics import TopicLedgers, Workload


def test_orphans_of_every_kind_are_deleted(scene: Scene) -> None:
    topic = scene.topic("left")
    left = scene.workload.fill_with_everything(topic)
    scene.workload.leave_ledgers_behind(topic, left)
    assert left.all <= scene.oracles.reference_scan().orphans
    scene.append(scene.sidecar, left.records())
    finals = scene.oracles.wait_for_finals(left.all)
    assert not scene.workload.existing(left.all)
    assert {final.decision for final in finals.values()} == {"deleted"}
    for component in LedgerComponent:
        for ledger_id in left.of(component):
            assert finals[ledger_id].entry["ledgerComponent"] == component.value


def demand_everything_works(scene: Scene, topic: TopicName, found: TopicLedgers) -> None:
    """Read everything that the ledgers are for, through a broker that has loaded the topic afresh."""
    workload = scene.workload
    workload.unload(topic)
    assert workload.read_all(topic)[:5] == [f"value {n}".encode() for n in range(5)]
    assert b"value 4" in workload.read_all(topic, compacted=True)
    assert workload.first(topic, "plain") == b"value 2"
    place = f"schemas/{topic.namespace}/{topic.local_name}/schemas"
    assert len(workload.admin("GET", place)["getSchemaResponses"]) == len(found.schema)
    consumer = workload.client.subscribe(str(topic), "delayed", consumer_type=pulsar.ConsumerType.Shared)
    # Closing while the broker recovers the buckets may block it (`tests.cluster.buckets`): first it has to have them.
    delayed = until(lambda: _with_delayed_messages(workload, topic), "the delayed index is recovered")
    assert workload.ledgers(topic).buckets == found.buckets
    assert delayed["msgBacklog"] == 12
    consumer.close()


def _with_delayed_messages(workload: Workload, topic: TopicName) -> dict[str, Any] | None:
    stats = workload.admin("GET", workload.of_topic(topic, "stats"))
    found: dict[str, Any] = stats["subscriptions"]["delayed"]
    return found if found["msgDelayed"] else None


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "unloaded"])
def test_referenced_ledgers_are_kept_and_stay_readable(scene: Scene, loaded: bool) -> None:
    topic = scene.topic("kept")
    found = scene.workload.fill_with_everything(topic)
    if not loaded:
        scene.workload.unload(topic)
        found = scene.workload.ledgers(topic)
    scene.append(scene.sidecar, found.records())
    finals = scene.oracles.wait_for_finals(found.all)
    assert {(final.decision, final.reason) for final in finals.values()} == {("kept", "ledger-still-in-use")}
    assert scene.workload.existing(found.all) == found.all
    demand_everything_works(scene, topic, found)


def test_a_deleted_ledger_comes_back_with_its_entries(scene: Scene) -> None:
    # Protected for longer than the requests below take on a busy machine.
    sidecar = scene.start_alone(two_phase_deletion_undelete_protection_in_seconds=30)
    workload = scene.workload
    topic = scene.topic("back")
    left = scene.orphans(topic, 2)
    nodes = workload.ledger_nodes(left.data)
    scene.append(sidecar, left.records())
    scene.oracles.wait_for_finals(left.data)
    assert not workload.existing(left.data)
    for ledger_id, node in nodes.items():
        answer = sidecar.call("POST", f"{BASE}/undelete", {"ledgerId": ledger_id})
        assert (answer["ledgerId"], answer["readable"]) == (ledger_id, True)
        assert {"ledgerId": ledger_id, "untilMs": answer["protectedUntilMs"]} in protected(sidecar)
        restored = workload.store.read(ledger_path(ledger_id))
        assert restored is not None
        assert restored.data == node.data
        again = sidecar.request("POST", f"{BASE}/undelete", {"ledgerId": ledger_id})
        assert (again.status_code, "exists" in again.json()["reason"]) == (409, True)
    unknown = sidecar.request("POST", f"{BASE}/undelete", {"ledgerId": 2**40})
    assert unknown.status_code == 404
    # What came back can be read, entry by entry, is protected for a while, and can be deleted again then.
    assert entries_of(scene, left) == [f"back {n}".encode() for n in range(3)]
    kept, first = sorted(left.data)
    sidecar.call("POST", f"{BASE}/end-protection", {"ledgerId": first})
    assert sidecar.request("POST", f"{BASE}/end-protection", {"ledgerId": first}).status_code == 404
    scene.append(sidecar, left.records())
    until(lambda: workload.existing(left.data) == {kept}, "the one whose protection was ended is deleted")
    scene.oracles.wait_until_drained(sidecar)
    assert not workload.existing(left.data)
    waits = [outcome.reason for outcome in scene.oracles.outcomes if outcome.ledger_id == kept]
    assert "brought-back" in waits


def protected(sidecar: SidecarProcess) -> list[dict[str, int]]:
    """Return the protected ledgers of the status."""
    return sidecar.call("GET", f"{BASE}/status")["protectedLedgers"]


def entries_of(scene: Scene, ledgers: TopicLedgers) -> list[bytes]:
    """Return the payloads of a topic's entries, read from the bookies."""
    found = []
    for ledger_id in sorted(ledgers.data):
        metadata = scene.workload.metadata(ledger_id)
        found += [entry.payload for entry in scene.workload.entries.read_tail(ledger_id, metadata, 10)]
    return [payload[-len(b"back 0") :] for payload in found]
