"""The producer under exactly-once publishing, on the wire: ids, receipts, refusals, pings while no call comes."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_wire.sequenced_producers import BrokerSequencedProducers
from pulsar_sidecar.features.publishing.messages import Batch, OutgoingMessage
from pulsar_sidecar.features.publishing.ports import Receipt
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import (
    NotFoundError,
    OutcomeUnknownError,
    PermanentError,
    ProducerBusyError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

from tests.cluster.patience import until
from tests.fakes.binary_brokers import (
    Answers,
    BinaryBroker,
    closed_producer,
    owners_at,
    receipt,
    refusal,
    send_error,
    usual,
)
from tests.fakes.delayed_messages import TOPIC
from tests.fakes.http_servers import NO_CLIENTS, Answer, HttpServer, http_server, json_answer

KINDS = api.BaseCommand
BATCH = Batch([OutgoingMessage(b"a", 5), OutgoingMessage(b"b", 7)], 5, 7)
LARGE = Batch([OutgoingMessage(b"x" * 2_500, 8)], 8, 8)
NOWHERE = 2**64 - 1
PATIENCE_SECONDS = 5.0


@dataclass
class Cluster:
    broker: BinaryBroker
    web: HttpServer
    producers: BrokerSequencedProducers


@pytest.fixture
def cluster(broker: BinaryBroker) -> Iterator[Cluster]:
    with (
        http_server(lambda arrived: Answer(404)) as web,
        owners_at(broker, read_seconds=2) as owners,
        closing(BrokerSequencedProducers(owners, AdminRest([web.url]), SystemClock())) as producers,
    ):
        yield Cluster(broker, web, producers)


def opened_with(came: api.BaseCommand, name: str, last: int) -> api.BaseCommand:
    reply = api.CommandProducerSuccess(request_id=came.producer.request_id, producer_name=name, last_sequence_id=last)
    return KINDS(type=KINDS.PRODUCER_SUCCESS, producer_success=reply)


def takes_small_messages(cluster: Cluster, send: Callable[[api.BaseCommand], Answers]) -> None:
    connected = api.CommandConnected(server_version="4.0.8", max_message_size=1_500)

    def answer(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        if came.type == KINDS.CONNECT:
            return [KINDS(type=KINDS.CONNECTED, connected=connected)]
        return send(came) if came.type == KINDS.SEND else usual(of, came)

    cluster.broker.answer = answer


# --- opening -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "name"), [("mine", "mine"), (None, "given")])
def test_an_opened_producer_knows_its_name_and_the_last_id_pushed(
    asked: str | None, name: str, cluster: Cluster
) -> None:
    cluster.broker.on(KINDS.PRODUCER, lambda came: [opened_with(came, "given", 41)])
    producer = cluster.producers.open(TOPIC, asked)
    assert (producer.name, producer.last_sequence_id) == (name, 41)
    (command,) = cluster.broker.commands(KINDS.PRODUCER)
    assert command.producer.HasField("producer_name") == (asked is not None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (api.ProducerBusy, ProducerBusyError),
        (api.ServiceNotReady, TemporaryError),
        (api.TopicTerminatedError, PermanentError),
        (api.TopicNotFound, NotFoundError),
    ],
)
def test_a_refused_producer_leaves_no_connection(error: int, kind: type[SidecarError], cluster: Cluster) -> None:
    cluster.broker.on(KINDS.PRODUCER, lambda came: [refusal(came.producer.request_id, error)])
    with pytest.raises(kind, match="for this test"):
        cluster.producers.open(TOPIC, "mine")


def test_the_owner_is_looked_up_for_every_opening(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.producers.open(TOPIC, "mine").close()
    assert len(cluster.broker.commands(KINDS.LOOKUP)) == 3
    assert len(cluster.broker.commands(KINDS.CLOSE_PRODUCER)) == 3


# --- sending -------------------------------------------------------------------------------------------------------


def test_a_batch_is_sent_with_both_ids_and_its_receipt_comes_back(cluster: Cluster) -> None:
    cluster.broker.on(KINDS.SEND, lambda came: [receipt(came, 3, 9)])
    producer = cluster.producers.open(TOPIC, "mine")
    producer.send(BATCH, 4)
    assert producer.receive(PATIENCE_SECONDS) == Receipt(5, Position(LedgerId(3), EntryId(9)))
    (command,) = cluster.broker.commands(KINDS.SEND)
    assert (command.send.sequence_id, command.send.highest_sequence_id, command.send.num_messages) == (5, 7, 2)
    assert producer.receive(0) is None


def test_a_duplicates_receipt_has_no_position(cluster: Cluster) -> None:
    cluster.broker.on(KINDS.SEND, lambda came: [receipt(came, NOWHERE, NOWHERE)])
    producer = cluster.producers.open(TOPIC, "mine")
    producer.send(BATCH, 7)
    assert producer.receive(PATIENCE_SECONDS) == Receipt(5, None)


def test_the_receipt_of_the_last_chunk_is_the_messages(cluster: Cluster) -> None:
    numbers = iter(range(100))
    takes_small_messages(cluster, lambda came: [receipt(came, 3, next(numbers))])
    producer = cluster.producers.open(TOPIC, "mine")
    producer.send(LARGE, 4)
    assert producer.receive(PATIENCE_SECONDS) == Receipt(8, Position(LedgerId(3), EntryId(2)))
    assert [(came.send.sequence_id, came.send.is_chunk) for came in cluster.broker.commands(KINDS.SEND)] == [
        (8, True)
    ] * 3


def test_a_chunk_that_is_sent_to_be_refused_must_not_be_stored(cluster: Cluster) -> None:
    takes_small_messages(cluster, lambda came: [receipt(came, 3, 1)])
    producer = cluster.producers.open(TOPIC, "mine")
    producer.send(LARGE, 8)
    with pytest.raises(OutcomeUnknownError, match="that it had before"):
        producer.receive(PATIENCE_SECONDS)
    assert len(cluster.broker.commands(KINDS.SEND)) == 1


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (lambda came: [send_error(came, api.PersistenceError)], TemporaryError, "PersistenceError"),
        (lambda came: [send_error(came, api.NotAllowedError)], PermanentError, "NotAllowedError"),
        (lambda came: None, TemporaryError, "failed"),
        (lambda came: [b"\x00\x00\x00\x00"], TemporaryError, "binary port"),
    ],
)
def test_a_refusal_ends_the_producer(
    answer: Callable[[api.BaseCommand], Answers], kind: type[SidecarError], text: str, cluster: Cluster
) -> None:
    cluster.broker.on(KINDS.SEND, answer)
    producer = cluster.producers.open(TOPIC, "mine")
    producer.send(BATCH, 4)
    for _ in range(2):
        with pytest.raises(kind, match=text):
            producer.receive(PATIENCE_SECONDS)
    with pytest.raises(kind, match=text):
        producer.send(BATCH, 4)
    producer.close()
    producer.close()


def test_receipts_out_of_order_are_an_error(cluster: Cluster) -> None:
    cluster.broker.on(
        KINDS.SEND, lambda came: [receipt(came, 3, 1)] if came.send.sequence_id == LARGE.first_sequence_id else []
    )
    producer = cluster.producers.open(TOPIC, "mine")
    producer.send(BATCH, 4)
    producer.send(LARGE, 7)
    with pytest.raises(OutcomeUnknownError, match="out of order"):
        producer.receive(PATIENCE_SECONDS)


# --- in between ----------------------------------------------------------------------------------------------------


def test_pings_are_answered_while_the_program_does_something_else(cluster: Cluster) -> None:
    ping = KINDS(type=KINDS.PING, ping=api.CommandPing())
    cluster.broker.on(KINDS.SEND, lambda came: [ping, receipt(came, 3, 9)])
    producer = cluster.producers.open(TOPIC, "mine")
    producer.send(BATCH, 4)
    until(lambda: cluster.broker.commands(KINDS.PONG), "the ping is answered")
    assert producer.receive(0) == Receipt(5, Position(LedgerId(3), EntryId(9)))


def test_topic_moved_while_sending_is_noticed_at_the_next_call(cluster: Cluster) -> None:
    producer = cluster.producers.open(TOPIC, "mine")
    cluster.broker.on(KINDS.SEND, lambda came: [closed_producer(came)])
    producer.send(BATCH, 4)
    with pytest.raises(TemporaryError, match="moving"):
        producer.receive(PATIENCE_SECONDS)


# --- what is asked over REST ---------------------------------------------------------------------------------------


def answer_with(cluster: Cluster, status: int, document: object) -> None:
    cluster.web.answer = lambda arrived: json_answer(document, status)


def test_the_status_is_the_topics_own(cluster: Cluster) -> None:
    answer_with(cluster, 200, {"deduplicationStatus": "Enabled", **NO_CLIENTS})
    assert cluster.producers.deduplication_status(TOPIC) == "Enabled"
    assert cluster.web.arrived[0].target.startswith(f"/admin/v2/persistent/{TOPIC.namespace}/")


@pytest.mark.parametrize(
    ("status", "document"),
    [
        (200, NO_CLIENTS),
        (200, {"deduplicationStatus": None, **NO_CLIENTS}),
        (200, {"deduplicationStatus": 1, **NO_CLIENTS}),
        (200, []),
        (404, {"reason": "no topic"}),
    ],
)
def test_a_status_that_is_not_answered_is_asked_for_again(status: int, document: object, cluster: Cluster) -> None:
    answer_with(cluster, status, document)
    with pytest.raises(TemporaryError):
        cluster.producers.deduplication_status(TOPIC)


def test_the_number_of_partitions_of_a_topic_that_exists(cluster: Cluster) -> None:
    answer_with(cluster, 200, {"partitions": 3})
    assert cluster.producers.partitions(TOPIC) == 3
    answer_with(cluster, 404, {"reason": "Topic not found"})
    with pytest.raises(NotFoundError, match="create it"):
        cluster.producers.partitions(TOPIC)
