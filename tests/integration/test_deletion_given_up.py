"""Records that fail too often end on the dead-letter topic as Java would leave them, and go back once repaired."""

import json
from collections.abc import Iterator

import pulsar
from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path

from tests.cluster.dead_letters import listed, redrive
from tests.cluster.deletion import Scene
from tests.cluster.oracles import Outcome
from tests.cluster.patience import until
from tests.cluster.topics import record
from tests.faults.load import pause

PENDING = f"persistent://{SYSTEM_NAMESPACE}/{DeletionTopic.PENDING.value}"
DEAD_LETTER = f"persistent://{SYSTEM_NAMESPACE}/{DeletionTopic.DEAD_LETTER.value}"
TRIES = 3
FAILING_SOON = {"two_phase_deletion_max_retry_delete_count": TRIES}


def dead_letters(scene: Scene) -> Iterator[pulsar.Message]:
    """Yield all records on the dead-letter topic, taken off or not."""
    reader = scene.workload.client.create_reader(DEAD_LETTER, pulsar.MessageId.earliest)
    while reader.has_message_available():
        yield reader.read_next(timeout_millis=20_000)
    reader.close()


def dead_letter_of(scene: Scene, ledger_id: int) -> pulsar.Message:
    (found,) = [each for each in dead_letters(scene) if json.loads(each.data())["ledgerId"] == ledger_id]
    return found


def tries_of(scene: Scene, ledger_id: int) -> list[Outcome]:
    processed = [outcome for outcome in scene.oracles.outcomes if outcome.step == "settled"]
    return [outcome for outcome in processed if outcome.ledger_id == ledger_id]


def test_a_record_whose_owner_cannot_be_read_is_given_up_redriven_and_done(scene: Scene) -> None:
    topic = scene.topic("unreadable")
    workload = scene.workload
    (ledger_id,) = scene.orphans(topic, 1).data
    owner = managed_ledger_path(topic.managed_ledger_name)
    sidecar = scene.start_alone(**FAILING_SOON)
    workload.store.create(owner, b"\x00 this is no ManagedLedgerInfo")
    payload = json.dumps(record(topic, LedgerComponent.MANAGED_LEDGER, ledger_id)).encode()
    producer = workload.client.create_producer(PENDING, batching_enabled=False)
    sent = producer.send(payload, properties={"note": "by hand"})
    producer.close()
    scene.oracles.add_accepted([ledger_id])
    origin = f"{sent.ledger_id()}:{sent.entry_id()}:{sent.partition()}"

    final = scene.oracles.wait_for_finals([ledger_id])[ledger_id]
    assert (final.decision, final.reason) == ("dead-letter", "references-unknown")
    decisions = [outcome.decision for outcome in tries_of(scene, ledger_id)]
    assert decisions == ["retry"] * TRIES + ["dead-letter"]
    assert workload.existing([ledger_id])
    assert sidecar.metrics()["pulsar_ledger_deletion_max_retry_reached_total"] == 1

    dead = dead_letter_of(scene, ledger_id)
    properties = dict(dead.properties())
    assert "references-unknown" in properties.pop("PULSAR_SIDECAR_REASON")
    assert properties == {
        "DELAY_TIME": "1000",
        "ORIGIN_MESSAGE_ID": origin,
        "ORIGIN_MESSAGE_IDY_TIME": origin,
        "REAL_SUBSCRIPTION": "ledger-deletion-worker",
        "REAL_TOPIC": PENDING,
        "RECONSUMETIMES": str(TRIES + 1),
        "note": "by hand",
    }
    assert dead.data() == payload

    (letter,) = listed(sidecar, ledger_id)
    assert letter["tries"] == TRIES + 1
    assert owner in letter["reason"]
    workload.store.delete(owner)
    redrive(sidecar, ledger_id)
    until(lambda: not workload.existing([ledger_id]), "the redriven record is done")
    until(lambda: scene.oracles.finals(ledger_id)[-1].decision == "deleted", "its outcome is kept")
    assert listed(sidecar, ledger_id) == []


def test_a_ledger_that_is_almost_old_enough_costs_one_try(scene: Scene) -> None:
    topic = scene.topic("young")
    sidecar = scene.start_alone(**FAILING_SOON)
    (ledger_id,) = scene.orphans(topic, 1).data
    pause(2.2)  # of the three seconds that an open ledger must be old; brokers deliver at once what is due in a second
    scene.append(sidecar, [record(topic, LedgerComponent.MANAGED_LEDGER, ledger_id)])
    assert scene.oracles.wait_for_finals([ledger_id])[ledger_id].decision == "deleted"
    assert [outcome.reason for outcome in tries_of(scene, ledger_id)] in (
        ["too-young", "unreferenced"],
        ["unreferenced"],
    )


def test_a_compacted_view_that_cannot_be_looked_up_is_never_taken_for_unreferenced(scene: Scene) -> None:
    topic = scene.topic("compacted")
    workload = scene.workload
    workload.produce(topic, [b"first", b"second", b"third"], key="key")
    workload.compact(topic)
    found = until(lambda: (each := workload.ledgers(topic)).compacted and each, "the compacted ledger is linked")
    (compacted,) = found.compacted
    sidecar = scene.start_alone(**FAILING_SOON)
    cursor_ledger = found.cursors["__compaction"]
    node = workload.ledger_nodes([cursor_ledger])[cursor_ledger]
    workload.store.delete(node.path)
    try:
        scene.append(sidecar, [record(topic, LedgerComponent.COMPACTED_LEDGER, compacted)])
        final = scene.oracles.wait_for_finals([compacted])[compacted]
        assert (final.decision, final.reason) == ("dead-letter", "references-unknown")
        assert workload.existing([compacted])
    finally:
        workload.store.create(ledger_path(cursor_ledger), node.data)
    redrive(sidecar, compacted)
    until(lambda: scene.oracles.finals(compacted)[-1].decision == "kept", "it was found to be in use")
    assert scene.oracles.finals(compacted)[-1].reason == "ledger-still-in-use"
    assert b"third" in workload.read_all(topic, compacted=True)


def test_an_offloaded_copy_outside_the_allowed_places_is_given_up_untouched(scene: Scene) -> None:
    context = {"msb": 1, "lsb": -2, "driverName": "filesystem", "metadata": {"storageBasePath": "/etc"}}
    lie = {
        **record(scene.topic("offloaded"), LedgerComponent.MANAGED_LEDGER, 1),
        "ledgerType": "OFFLOAD_LEDGER",
        "offloadContext": context,
    }
    sidecar = scene.start_alone(**FAILING_SOON)
    sidecar.append([lie])
    final = scene.oracles.wait_for_finals([1])[1]
    assert (final.decision, final.reason) == ("dead-letter", "refused-by-storage")
    assert "offloadAllowedLocations" in final.entry["detail"]
