"""Forged, foreign, malformed and poisonous records, produced straight onto the system topic by a stranger.

Each ends with a reason, nothing is deleted for it, and the worker continues.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerState
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.protobuf import DataFormats_pb2 as bookkeeper

from tests.cluster.deletion import Scene
from tests.cluster.oracles import Outcome
from tests.cluster.patience import until
from tests.cluster.topics import connected_consumer, record

MANAGED_LEDGER, MANAGED_CURSOR = LedgerComponent.MANAGED_LEDGER, LedgerComponent.MANAGED_CURSOR
PENDING = f"persistent://{SYSTEM_NAMESPACE}/{DeletionTopic.PENDING.value}"
RETRY = f"persistent://{SYSTEM_NAMESPACE}/{DeletionTopic.RETRY.value}"


@dataclass(frozen=True, slots=True)
class Stranger:
    """Writes whatever it likes onto the service's topics."""

    scene: Scene

    def send(self, payload: bytes, topic: str = PENDING, properties: Mapping[str, str] | None = None) -> str:
        """Produce a message, and return its id as outcomes spell it."""
        producer = self.scene.workload.client.create_producer(topic, batching_enabled=False)
        sent = producer.send(payload, properties=dict(properties or {}))
        producer.close()
        return f"{sent.ledger_id()}:{sent.entry_id()}:{sent.partition()}"

    def send_record(self, document: Mapping[str, Any]) -> str:
        return self.send(json.dumps(document).encode())

    def outcome_of(self, message_id: str) -> Outcome:
        """Return the final outcome of the message."""

        def look() -> Outcome | None:
            ended = [outcome for outcome in self.scene.oracles.outcomes if outcome.step == "settled"]
            return next((outcome for outcome in ended if outcome.message_id == message_id), None)

        return until(look, f"message {message_id} has an outcome")


@pytest.fixture
def stranger(scene: Scene) -> Stranger:
    assert scene.sidecar.is_ready
    return Stranger(scene)


def demand_untouched(scene: Scene, topic: TopicName, before: frozenset[LedgerId]) -> None:
    assert scene.workload.ledgers(topic).all == before
    assert scene.workload.existing(before) == before
    assert scene.sidecar.is_running
    assert scene.sidecar.is_ready


# --- well-formed lies ----------------------------------------------------------------------------------------------


def test_a_record_about_another_topics_ledger_is_refused(scene: Scene, stranger: Stranger) -> None:
    victim, other = scene.topic("victim"), scene.topic("other")
    scene.workload.fill(victim)
    scene.workload.subscribe(victim, "sub", acknowledge=1)
    before = scene.workload.ledgers(victim)
    lies = [
        *(record(other, MANAGED_LEDGER, ledger_id) for ledger_id in before.data),
        *(record(victim, MANAGED_CURSOR, ledger_id, cursorName="sub") for ledger_id in before.data),
        *(record(victim, MANAGED_CURSOR, ledger_id, cursorName="another") for ledger_id in before.cursors.values()),
        *(record(victim, LedgerComponent.SCHEMA_STORAGE, ledger_id) for ledger_id in before.data),
        *(record(victim, LedgerComponent.COMPACTED_LEDGER, ledger_id) for ledger_id in before.data),
        *(record(victim, LedgerComponent.DELAYED_INDEX_BUCKET, ledger_id) for ledger_id in before.data),
    ]
    outcomes = [stranger.outcome_of(message_id) for message_id in [stranger.send_record(lie) for lie in lies]]
    assert {(outcome.decision, outcome.reason) for outcome in outcomes} == {("kept", "metadata-mismatch")}
    demand_untouched(scene, victim, before.all)


def test_the_ledgers_of_a_topic_in_use_are_kept(scene: Scene, stranger: Stranger) -> None:
    topic = scene.topic("busy")
    payloads = scene.workload.fill(topic)
    with connected_consumer(scene.workload, topic, "sub"):
        before = scene.workload.ledgers(topic)
        states = {scene.workload.metadata(ledger_id).state for ledger_id in before.data}
        assert states == {LedgerState.OPEN, LedgerState.CLOSED}
        sent = [stranger.send_record(lie) for lie in before.records()]
        # Marked as unreferenced already, so that no sidecar waits for a list to shrink.
        sure = [{**lie, "sidecar": {"unreferenced": True}} for lie in before.records()]
        sent += [stranger.send_record(lie) for lie in sure]
        outcomes = [stranger.outcome_of(message_id) for message_id in sent]
        final = [scene.oracles.wait_for_finals([ledger_id])[ledger_id] for ledger_id in before.data]
        assert {outcome.reason for outcome in final} == {"ledger-still-in-use"}
        assert {outcome.reason for outcome in outcomes} <= {"ledger-still-in-use", "in-use-before-list-shrinks"}
        scene.oracles.wait_until_drained(scene.sidecar)
        demand_untouched(scene, topic, before.all)
        assert scene.workload.read_all(topic) == payloads


def test_a_ledger_that_does_not_name_pulsar_as_its_owner_is_kept(scene: Scene, stranger: Stranger) -> None:
    workload = scene.workload
    topic = scene.topic("none-of-pulsars")
    model = scene.orphans(scene.topic("model"), 2)
    # DistributedLog's ledgers look so: no custom metadata, and no node under /managed-ledgers that names them.
    foreign = LedgerId(2**31 + min(model.data))
    node = workload.ledger_nodes(model.data)[min(model.data)]
    workload.store.create(ledger_path(foreign), without_custom_metadata(node.data))
    try:
        sent = stranger.send_record(record(topic, MANAGED_LEDGER, foreign))
        outcome = stranger.outcome_of(sent)
        assert (outcome.decision, outcome.reason) == ("kept", "not-pulsars")
        assert workload.existing([foreign])
    finally:
        workload.store.delete(ledger_path(foreign))
    scene.append(scene.sidecar, model.records())


def without_custom_metadata(data: bytes) -> bytes:
    header, _, body = data.partition(b"\n")
    message = bookkeeper.LedgerMetadataFormat()
    message.ParseFromString(body[_varint_bytes(body) :])
    message.ClearField("customMetadata")
    assert decode_ledger_metadata(data).custom_metadata
    stripped = message.SerializeToString()
    assert len(stripped) < 2**14
    prefix = bytes([len(stripped)]) if len(stripped) < 128 else bytes([len(stripped) & 0x7F | 0x80, len(stripped) >> 7])
    return header + b"\n" + prefix + stripped


def _varint_bytes(body: bytes) -> int:
    return next(index for index, byte in enumerate(body) if byte < 0x80) + 1


def test_a_record_of_another_cluster_is_refused(scene: Scene, stranger: Stranger) -> None:
    topic = scene.topic("here")
    left = scene.orphans(topic, 2)
    for lie in left.records():
        foreign = {**lie, "sidecar": {"instanceId": "7d3f6c1e-0000-4000-8000-000000000000"}}
        outcome = stranger.outcome_of(stranger.send_record(foreign))
        assert (outcome.decision, outcome.reason) == ("kept", "other-cluster")
    assert scene.workload.existing(left.data) == left.data
    # The same ledgers, meant by this cluster, are orphans and go.
    scene.append(scene.sidecar, left.records())
    scene.oracles.wait_until_drained(scene.sidecar)
    assert not scene.workload.existing(left.data)


# --- malformed and poisonous ---------------------------------------------------------------------------------------


def good(scene: Scene) -> dict[str, Any]:
    """Return a well-formed record of a ledger that never was."""
    return record(scene.topic("nobody"), MANAGED_LEDGER, 2**50)


def test_malformed_records_are_rejected_with_the_reason(scene: Scene, stranger: Stranger) -> None:
    fine = good(scene)
    whole = json.dumps(fine).encode()
    payloads = [
        b"",
        b"\x00\xff\xfe random \x80 bytes",
        whole[: len(whole) // 2],
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"null",
        b"NaN",
        b'{"ledgerId": 1, "ledgerId": 2}',
        whole + whole,
        b"\xef\xbb\xbf" + whole,
        json.dumps(fine).encode("utf-16"),
        *(json.dumps(document).encode() for document in wrong_documents(fine)),
        b'{"topicName": "' + b"x" * 1_000_000 + b'"}',
        b"9" * 1_000_000,
    ]
    sent = [stranger.send(payload) for payload in payloads]
    outcomes = [stranger.outcome_of(message_id) for message_id in sent]
    assert {(outcome.decision, outcome.reason) for outcome in outcomes} == {("rejected", "malformed")}
    assert all(0 < len(outcome.entry["detail"]) <= 500 for outcome in outcomes)
    assert scene.sidecar.is_ready
    assert "Traceback" not in scene.sidecar.log(10_000)


def wrong_documents(fine: Mapping[str, Any]) -> list[Any]:
    changes: list[dict[str, Any]] = [
        {"ledgerId": -1},
        {"ledgerId": 2**63},
        {"ledgerId": 1.0},
        {"ledgerId": "1"},
        {"ledgerId": True},
        {"ledgerId": None},
        {"ledgerId": [1]},
        {"topicName": 5},
        {"topicName": ""},
        {"topicName": "persistent://../../x"},
        {"topicName": "non-persistent://public/default/x"},
        {"topicName": "x" * 10_000},
        {"topicName": "persistent://public/default/\ud800"},
        {"ledgerComponent": "EVERYTHING"},
        {"ledgerType": "ANY"},
        {"ledgerType": "OFFLOAD_LEDGER"},
        {"ledgerComponent": "MANAGED_CURSOR"},
        {"surprise": 1},
        {"sidecar": {"operationId": "../../../admin"}},
        {"sidecar": {"surprise": 1}},
        {"sidecar": []},
        {"offloadContext": "s3"},
    ]
    return [*({**fine, **change} for change in changes), [fine], "text", 7, {}]


def test_forged_properties_on_the_retry_topic_do_no_harm(scene: Scene, stranger: Stranger) -> None:
    whole = json.dumps(good(scene)).encode()
    properties = [
        {"RECONSUMETIMES": "many", "DELAY_TIME": "-5", "REAL_TOPIC": "", "ORIGIN_MESSAGE_ID": "none"},
        {"RECONSUMETIMES": "9" * 5_000},
        {"RECONSUMETIMES": "-1", "PULSAR_SIDECAR_IN_USE_SINCE_MS": "never"},
        {"PULSAR_SIDECAR_IN_USE_SINCE_MS": "9" * 40, "x" * 1_000: "y" * 10_000},
    ]
    sent = [stranger.send(whole, RETRY, each) for each in properties]
    sent += [stranger.send(b"\x00 poison", RETRY, each) for each in properties]
    reasons = [stranger.outcome_of(message_id).reason for message_id in sent]
    assert reasons == ["already-gone"] * len(properties) + ["malformed"] * len(properties)


def test_good_records_between_bad_ones_are_done(scene: Scene, stranger: Stranger) -> None:
    left = scene.orphans(scene.topic("between"), 3)
    for lie in left.records():
        stranger.send(b"\x00 poison before")
        stranger.send_record(lie)
        stranger.send(b"{} poison after")
    scene.oracles.add_accepted(left.data)
    finals = scene.oracles.wait_for_finals(left.data)
    assert {final.decision for final in finals.values()} == {"deleted"}
    assert not scene.workload.existing(left.data)
