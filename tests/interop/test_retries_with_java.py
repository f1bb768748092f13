"""Retries and dead letters shared with Pulsar's own Java client: either side continues what the other has begun.

Both do it as Pulsar's ``reconsumeLater`` does: a copy on the retry topic with the tries counted in its properties, and
one on the dead-letter topic when they are used up. Whose turn it is, the tests decide by letting only one side consume.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import pulsar
import pytest
from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import REASON, SUBSCRIPTION
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.request_traces import REQUEST_ID
from pulsar_sidecar.ownership.paths import managed_ledger_path

from tests.cluster.choosing import version_under_test
from tests.cluster.dead_letters import giving_up_after, listed, redrive
from tests.cluster.deletion import Scene
from tests.cluster.oracles import Outcome
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import QUICK
from tests.cluster.topics import record, unique
from tests.interop.java_client import JavaClient, JavaMessage, java_client, received_record

PENDING, RETRY, DEAD_LETTER = (
    f"persistent://{SYSTEM_NAMESPACE}/{kind.value}"
    for kind in (DeletionTopic.PENDING, DeletionTopic.RETRY, DeletionTopic.DEAD_LETTER)
)
NO_MANAGED_LEDGER = b"\x00 this is no ManagedLedgerInfo"
EVENT_TIME_MS = 1_700_000_000_000
DELAY_MS = 300
RECONSUME_LATER_MS = 1000 * int(str(QUICK["two_phase_deletion_reconsume_later_in_seconds"]))


@pytest.fixture(scope="module")
def java(deletion_cluster: ClusterUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    url = deletion_cluster.addresses.broker_service_url
    with java_client(version_under_test(), url, tmp_path_factory.mktemp("java")) as client:
        yield client


@contextmanager
def consuming(java: JavaClient, max_redeliver_count: int) -> Iterator[None]:
    """Have Java consume as one of the sidecars, with the dead-letter policy that they follow."""
    java.subscribe(
        PENDING,
        SUBSCRIPTION,
        retry_letter_topic=RETRY,
        dead_letter_topic=DEAD_LETTER,
        max_redeliver_count=max_redeliver_count,
    )
    try:
        yield
    finally:
        java.leave()


@contextmanager
def unreadable_orphan(scene: Scene) -> Iterator[tuple[LedgerId, str]]:
    """Yield an orphan that cannot be judged, and its record, which is retried again and again."""
    topic = scene.topic("unreadable")
    (ledger_id,) = scene.orphans(topic, 1).data
    owner = managed_ledger_path(topic.managed_ledger_name)
    scene.workload.store.create(owner, NO_MANAGED_LEDGER)
    try:
        yield ledger_id, json.dumps(record(topic, LedgerComponent.MANAGED_LEDGER, ledger_id))
    finally:
        scene.workload.store.delete(owner)


def tries_of(scene: Scene, ledger_id: int) -> list[Outcome]:
    """Return the outcomes of a ledger's record, try by try."""
    return [each for each in scene.oracles.outcomes if each.step == "settled" and each.ledger_id == ledger_id]


def dead_letter_of(java: JavaClient, ledger_id: int) -> JavaMessage:
    """Return the one dead letter about a ledger, as Java reads it."""

    def look() -> list[JavaMessage]:
        return [message for message in java.read_all(DEAD_LETTER) if message.ledger_id == ledger_id]

    (found,) = until(look, f"ledger {ledger_id} has a dead letter")
    return found


def unacknowledged(scene: Scene) -> int:
    """Return the number of records that consumers received and brokers have no acknowledgement of."""
    workload = scene.workload
    stats = [
        workload.admin("GET", workload.of_topic(parse_topic_name(topic), verb))
        for topic, verb in ((PENDING, "partitioned-stats"), (RETRY, "stats"))
    ]
    return sum(each["subscriptions"][SUBSCRIPTION]["unackedMessages"] for each in stats)


def leave_the_topics_to_java(scene: Scene) -> None:
    """Have a sidecar create the topics, and end all sidecars."""
    if not scene.sidecars.running:
        assert scene.sidecar.is_ready
    scene.sidecars.end_all()


def counted(message: JavaMessage, tries: int, delay_ms: int) -> dict[str, str]:
    """Return the message's properties after this many tries."""
    return {**message.properties, "RECONSUMETIMES": str(tries), "DELAY_TIME": str(delay_ms)}


def without_reason(message: JavaMessage) -> dict[str, str]:
    """Return the properties without the one that Java does not know."""
    return {name: value for name, value in message.properties.items() if name != REASON}


def references_unknown(message: JavaMessage) -> bool:
    return message.properties[REASON].startswith("references-unknown: ")


def sidecars_copies(reader: pulsar.Reader, count: int) -> list[dict[str, str]]:
    """Return the properties of the next messages that reach the retry topic."""
    return [dict(reader.read_next(20_000).properties()) for _ in range(count)]


def unsubscribe(scene: Scene, subscription: str) -> None:
    topic = parse_topic_name(PENDING)
    scene.workload.admin("DELETE", scene.workload.of_topic(topic, f"subscription/{subscription}"), force="true")


def by_origin(retries: Iterable[Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    return {properties["ORIGIN_MESSAGE_ID"]: properties for properties in retries}


def test_java_continues_the_sidecars_retries_and_the_sidecar_redrives_javas_dead_letters(
    scene: Scene, java: JavaClient
) -> None:
    with unreadable_orphan(scene) as (ledger_id, payload):
        sidecar = scene.start_alone()
        scene.append(sidecar, [json.loads(payload)])
        until(lambda: len(tries_of(scene, ledger_id)) >= 2, "it was tried twice")
        assert sidecar.terminate() == 0
        origin, tries = tries_of(scene, ledger_id)[0].message_id, len(tries_of(scene, ledger_id))
        with consuming(java, max_redeliver_count=tries + 2):
            first = received_record(java, ledger_id)
            assert first.topic == RETRY
            assert references_unknown(first)
            assert without_reason(first) == {
                "DELAY_TIME": "1000",
                "ORIGIN_MESSAGE_ID": origin,
                "ORIGIN_MESSAGE_IDY_TIME": origin,
                REQUEST_ID: first.properties[REQUEST_ID],
                "REAL_SUBSCRIPTION": SUBSCRIPTION,
                "REAL_TOPIC": PENDING,
                "RECONSUMETIMES": str(tries),
            }
            message = first
            for again in (1, 2):
                java.reconsume_later(message, DELAY_MS)
                message = received_record(java, ledger_id)
                assert message.properties == counted(first, tries + again, DELAY_MS)
                assert (message.topic, message.payload) == (RETRY, first.payload)
                assert (message.key, message.ordering_key) == (first.key, first.ordering_key)
            java.reconsume_later(message, DELAY_MS)
            dead = dead_letter_of(java, ledger_id)
            assert dead.properties == counted(first, tries + 3, DELAY_MS)
            assert (dead.payload, dead.ordering_key) == (first.payload, first.ordering_key)
            assert java.receive_if_any(2 * DELAY_MS) is None
    sidecar = scene.sidecar
    (letter,) = listed(sidecar, ledger_id)
    assert (letter["tries"], letter["messageId"]) == (tries + 3, dead.message_id)
    assert letter["reason"] == first.properties[REASON]
    redrive(sidecar, ledger_id)
    assert scene.oracles.wait_for_finals([ledger_id])[ledger_id].decision == "deleted"
    assert listed(sidecar, ledger_id) == []


def test_the_sidecar_continues_javas_retries_and_java_reads_its_dead_letters(scene: Scene, java: JavaClient) -> None:
    leave_the_topics_to_java(scene)
    with unreadable_orphan(scene) as (ledger_id, payload):
        with consuming(java, max_redeliver_count=10):
            (origin,) = java.send(
                PENDING, [payload], key="by hand", event_time_ms=EVENT_TIME_MS, properties={"note": "from Java"}
            )
            scene.oracles.add_accepted([ledger_id])
            message = received_record(java, ledger_id)
            for _ in range(2):
                java.reconsume_later(message, DELAY_MS)
                message = received_record(java, ledger_id)
            # Java groups acknowledgements for 100 ms; one that is under way when its consumer closes may be lost.
            until(lambda: unacknowledged(scene) == 1, "brokers have every acknowledgement but the last copy's")
        assert message.properties["RECONSUMETIMES"] == "2"
        assert message.properties["ORIGIN_MESSAGE_ID"] == origin
        sidecar = scene.start_alone(**giving_up_after(4))
        assert scene.oracles.wait_for_finals([ledger_id])[ledger_id].decision == "dead-letter"
        assert [outcome.decision for outcome in tries_of(scene, ledger_id)] == ["retry", "retry", "dead-letter"]
        dead = dead_letter_of(java, ledger_id)
        assert references_unknown(dead)
        assert without_reason(dead) == counted(message, 5, 1000)
        assert (dead.payload, dead.event_time_ms) == (payload, EVENT_TIME_MS)
        # Brokers compact the topics of this namespace, so what came with a partition key goes on with an ordering key.
        assert (message.key, dead.key, dead.ordering_key) == ("by hand", None, "by hand")
        (letter,) = listed(sidecar, ledger_id)
        assert (letter["tries"], letter["messageId"]) == (5, dead.message_id)
        assert letter["reason"] == dead.properties[REASON]
    redrive(sidecar, ledger_id)
    until(lambda: scene.oracles.finals(ledger_id)[-1].decision == "deleted", "the redriven record is done")


def test_of_one_message_both_make_the_same_retry(scene: Scene, java: JavaClient) -> None:
    # Java has a subscription of its own, so both get the same messages; these share a batch, so their ids show where.
    leave_the_topics_to_java(scene)
    subscription, retries = f"java-{unique()}", str(scene.topic("retries-of-java"))
    java.subscribe(
        PENDING,
        subscription,
        retry_letter_topic=retries,
        dead_letter_topic=f"{retries}-DLQ",
        max_redeliver_count=10,
    )
    reader = scene.workload.client.create_reader(RETRY, pulsar.MessageId.latest)
    with unreadable_orphan(scene) as (ledger_id, payload):
        sent = java.send(PENDING, [payload] * 3, batching=True, properties={"note": "sent once"})
        assert all(message_id.count(":") == 3 for message_id in sent)
        scene.oracles.add_accepted([ledger_id])
        originals = [received_record(java, ledger_id) for _ in sent]
        for message in originals:
            java.reconsume_later(message, RECONSUME_LATER_MS)
        theirs = [received_record(java, ledger_id).properties for _ in sent]
        java.leave()
        scene.start_alone()
        copies = sidecars_copies(reader, len(sent))
        assert all(copy.pop(REASON) for copy in copies)
        ours = [{**copy, "REAL_SUBSCRIPTION": subscription} for copy in copies]
        assert by_origin(ours) == by_origin(theirs)
        assert set(by_origin(theirs)) == set(sent)
    reader.close()
    unsubscribe(scene, subscription)


def test_dead_letters_that_java_never_read_are_listed_and_redriven(scene: Scene, java: JavaClient) -> None:
    # Java gives up without a count what was delivered too often: negative acknowledgements count there, not here.
    leave_the_topics_to_java(scene)
    left = scene.orphans(scene.topic("unread"), 1)
    (document,) = left.records()
    ledger_id = document["ledgerId"]
    with consuming(java, max_redeliver_count=2):
        (origin,) = java.send(PENDING, [json.dumps(document)])
        scene.oracles.add_accepted([ledger_id])
        for deliveries in range(3):
            message = java.receive()
            assert (message.ledger_id, message.redelivery_count) == (ledger_id, deliveries)
            java.negative_acknowledge(message)
        assert java.receive_if_any(RECONSUME_LATER_MS) is None
        dead = dead_letter_of(java, ledger_id)
    assert "RECONSUMETIMES" not in dead.properties
    assert dead.properties["ORIGIN_MESSAGE_ID"] == origin
    sidecar = scene.sidecar
    (letter,) = listed(sidecar, ledger_id)
    assert (letter["tries"], letter["messageId"]) == (0, dead.message_id)
    assert letter["reason"] == "written by another client without a reason"
    redrive(sidecar, ledger_id)
    assert scene.oracles.wait_for_finals([ledger_id])[ledger_id].decision == "deleted"


def test_both_may_consume_at_once_and_nothing_is_lost(scene: Scene, java: JavaClient) -> None:
    left = scene.orphans(scene.topic("shared"), 30)
    sidecar = scene.sidecar
    handed_on = 0

    def hand_on() -> bool:
        nonlocal handed_on
        message = java.receive_if_any(DELAY_MS)
        if message is not None:
            java.reconsume_later(message, DELAY_MS)
            handed_on += 1
        return all(scene.oracles.finals(ledger_id) for ledger_id in left.data)

    with consuming(java, max_redeliver_count=1000):
        for document in left.records():
            # One entry each: brokers hand out entries, so a batch would go to one of the two as a whole.
            scene.append(sidecar, [document])
        until(hand_on, "all records have ended")
    finals = scene.oracles.wait_for_finals(left.data)
    assert {final.decision for final in finals.values()} == {"deleted"}
    assert not scene.workload.existing(left.data)
    assert handed_on > 0
