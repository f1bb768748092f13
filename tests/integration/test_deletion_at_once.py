"""PIP-186's ``deleteLedger`` on a real cluster: judged at once, by the sidecar beside the topic's owner."""

from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import TopicName

from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.sidecars import SidecarProcess
from tests.cluster.topics import record

MANAGED_LEDGER = LedgerComponent.MANAGED_LEDGER


def place(scene: Scene, topic: TopicName) -> str:
    return f"/admin/v2/{scene.workload.of_topic(topic, 'deleteLedger')}"


def beside_the_owner(scene: Scene, topic: TopicName) -> tuple[SidecarProcess, SidecarProcess]:
    """Start a sidecar beside the broker that owns the topic, and one beside the other."""
    urls = scene.cluster.addresses.web_service_urls
    sidecars = scene.start_together(*({"web_service_url": url} for url in urls))
    found = scene.workload.admin("GET", f"../../lookup/v2/topic/{scene.workload.of_topic(topic)}")
    owner = urls.index(found["httpUrl"])
    return sidecars[owner], sidecars[1 - owner]


def test_a_call_is_sent_to_the_sidecar_beside_the_owner(scene: Scene) -> None:
    topic = scene.topic("owned by somebody %")
    left = scene.orphans(topic, 3)
    first, second, third = left.records()
    beside, other = beside_the_owner(scene, topic)
    away = other.request("POST", place(scene, topic), first)
    assert (away.status_code, away.content) == (307, b"")
    assert away.headers["Location"] == f"{beside.url}{place(scene, topic)}?authoritative=true"
    assert scene.workload.existing(left.data) == left.data
    for call, payload in ((beside, first), (other, second)):
        answer = call.request("POST", place(scene, topic), payload, authoritative="true")
        assert (answer.status_code, answer.content) == (204, b"")
    # The last one was never closed, so it must be old enough first.
    until(lambda: beside.request("POST", place(scene, topic), third).status_code == 204, "the open one is deleted")
    assert not scene.workload.existing(left.data)
    # Gone already is as good as deleted.
    assert beside.request("POST", place(scene, topic), third).status_code == 204
    deciders = {outcome.ledger_id: outcome.sidecar for outcome in scene.oracles.outcomes if outcome.step == "judged"}
    assert deciders == {
        first["ledgerId"]: beside.name,
        second["ledgerId"]: other.name,
        third["ledgerId"]: beside.name,
    }


def test_referenced_ledgers_are_refused_with_the_reason(scene: Scene) -> None:
    topic, other = scene.topic("used"), scene.topic("other")
    payloads = scene.workload.fill(topic)
    sidecar = scene.sidecar
    before = scene.workload.ledgers(topic)
    for each in before.records():
        answer = sidecar.request("POST", place(scene, topic), each)
        assert (answer.status_code, answer.json()) == (409, {"reason": "ledger still in use"})
    (lie, *_) = before.records()
    refused = [
        (place(scene, other), lie, 412),
        (place(scene, other), {**lie, "topicName": str(other)}, 412),
        (place(scene, topic), {**lie, "ledgerComponent": "SCHEMA_STORAGE"}, 412),
        (place(scene, topic), {**lie, "ledgerId": -1}, 400),
        (place(scene, topic), {**lie, "surprise": True}, 400),
        (place(scene, topic), None, 400),
    ]
    for path, body, status in refused:
        answer = sidecar.request("POST", path, body, authoritative="true")
        assert (answer.status_code, bool(answer.json()["reason"])) == (status, True)
    assert scene.workload.existing(before.data) == before.data
    assert scene.workload.read_all(topic) == payloads


def test_young_ledgers_wait_for_their_age(scene: Scene) -> None:
    topic = scene.topic("young")
    scene.workload.produce(topic, [b"message"])
    scene.workload.store_schemas(topic, 1)
    left = scene.workload.ledgers(topic)
    sidecar = scene.start_alone(two_phase_deletion_unlinked_ledger_min_age_in_seconds=300)
    scene.workload.leave_ledgers_behind(topic, left)
    (schema,) = left.schema
    young = record(topic, LedgerComponent.SCHEMA_STORAGE, schema)
    answer = sidecar.request("POST", place(scene, topic), young)
    assert (answer.status_code, answer.json()["reason"].partition(":")[0]) == (503, "too-young")
    assert scene.workload.existing([schema])
    later = scene.start_alone(two_phase_deletion_unlinked_ledger_min_age_in_seconds=1)
    scene.append(later, left.records())
    scene.oracles.wait_for_finals(left.all)
    assert not scene.workload.existing(left.all)
