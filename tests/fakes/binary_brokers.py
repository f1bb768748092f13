"""A broker's binary port, which connects clients, looks up topics, admits consumers and confirms acknowledgements.

Tests replace ``answer`` to refuse, to stay silent or to break the connection.
"""

import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnections, TopicOwners
from pulsar_sidecar.adapters.pulsar_wire.encoding import FrameReader, encode
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

Answers = Sequence[api.BaseCommand | bytes] | None
"""Responses to a command, whole frames as bytes; None breaks the connection."""


@dataclass(slots=True)
class BinaryBroker:
    """A broker; ``seen`` commands and their ``messages``, ``acked`` positions, ``open`` consumers."""

    url: str = ""
    seen: list[api.BaseCommand] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    acked: list[tuple[int, int]] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    connections: int = 0
    answer: Callable[["BinaryBroker", api.BaseCommand], Answers] | None = None

    def kinds(self) -> list[str]:
        return [api.BaseCommand.Type.Name(came.type) for came in self.seen]

    def commands(self, kind: int) -> list[api.BaseCommand]:
        return [came for came in self.seen if came.type == kind]

    def on(self, kind: int, answer: Callable[[api.BaseCommand], Answers], times: int = -1) -> None:
        """Respond so to the next commands of a kind, by default all, and to the others as usual."""
        left = itertools.count() if times < 0 else iter(range(times))
        self.answer = lambda of, came: (
            answer(came) if came.type == kind and next(left, None) is not None else usual(of, came)
        )


def usual(broker: BinaryBroker, came: api.BaseCommand) -> Answers:
    """Return a healthy broker's responses."""
    kind = api.BaseCommand
    match came.type:
        case kind.CONNECT:
            return [kind(type=kind.CONNECTED, connected=api.CommandConnected(server_version="4.0.8"))]
        case kind.LOOKUP:
            found = api.CommandLookupTopicResponse(
                brokerServiceUrl=broker.url,
                response=api.CommandLookupTopicResponse.Connect,
                request_id=came.lookupTopic.request_id,
            )
            return [kind(type=kind.LOOKUP_RESPONSE, lookupTopicResponse=found)]
        case kind.SUBSCRIBE:
            broker.open.add(came.subscribe.consumer_id)
            return [success(came.subscribe.request_id)]
        case kind.ACK:
            broker.acked += [(one.ledgerId, one.entryId) for one in came.ack.message_id]
            receipt = api.CommandAckResponse(consumer_id=came.ack.consumer_id, request_id=came.ack.request_id)
            return [kind(type=kind.ACK_RESPONSE, ackResponse=receipt)]
        case kind.GET_LAST_MESSAGE_ID:
            return [last_message(came.getLastMessageId.request_id, 2**64 - 1, 2**64 - 1)]
        case kind.PRODUCER:
            opened = api.CommandProducerSuccess(request_id=came.producer.request_id, producer_name="named")
            return [kind(type=kind.PRODUCER_SUCCESS, producer_success=opened)]
        case kind.SEND:
            sent = api.CommandSendReceipt(producer_id=came.send.producer_id, sequence_id=came.send.sequence_id)
            return [kind(type=kind.SEND_RECEIPT, send_receipt=sent)]
        case kind.CLOSE_PRODUCER:
            return [success(came.close_producer.request_id)]
        case kind.CLOSE_CONSUMER:
            broker.open.discard(came.close_consumer.consumer_id)
            return [success(came.close_consumer.request_id)]
        case _:
            return []


def success(request_id: int) -> api.BaseCommand:
    return api.BaseCommand(type=api.BaseCommand.SUCCESS, success=api.CommandSuccess(request_id=request_id))


def last_message(request_id: int, ledger_id: int, entry_id: int) -> api.BaseCommand:
    found = api.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
    reply = api.CommandGetLastMessageIdResponse(request_id=request_id, last_message_id=found)
    return api.BaseCommand(type=api.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=reply)


def closed_consumer(consumer_id: int) -> api.BaseCommand:
    """Return the command that a broker sends to a consumer whose topic moves away."""
    reply = api.CommandCloseConsumer(consumer_id=consumer_id, request_id=2**64 - 1)
    return api.BaseCommand(type=api.BaseCommand.CLOSE_CONSUMER, close_consumer=reply)


def refusal(request_id: int, error: int) -> api.BaseCommand:
    reply = api.CommandError(request_id=request_id, error=api.ServerError.ValueType(error), message="for this test")
    return api.BaseCommand(type=api.BaseCommand.ERROR, error=reply)


def receipt(came: api.BaseCommand, ledger_id: int, entry_id: int) -> api.BaseCommand:
    sent = api.CommandSendReceipt(
        producer_id=came.send.producer_id,
        sequence_id=came.send.sequence_id,
        message_id=api.MessageIdData(ledgerId=ledger_id, entryId=entry_id),
    )
    return api.BaseCommand(type=api.BaseCommand.SEND_RECEIPT, send_receipt=sent)


def send_error(came: api.BaseCommand, error: int) -> api.BaseCommand:
    reply = api.CommandSendError(
        producer_id=came.send.producer_id,
        sequence_id=came.send.sequence_id,
        error=api.ServerError.ValueType(error),
        message="for this test",
    )
    return api.BaseCommand(type=api.BaseCommand.SEND_ERROR, send_error=reply)


def closed_producer(came: api.BaseCommand) -> api.BaseCommand:
    reply = api.CommandCloseProducer(producer_id=came.send.producer_id, request_id=2**64 - 1)
    return api.BaseCommand(type=api.BaseCommand.CLOSE_PRODUCER, close_producer=reply)


def challenge() -> api.BaseCommand:
    """Return the command by which a broker requests the credential again."""
    return api.BaseCommand(type=api.BaseCommand.AUTH_CHALLENGE, authChallenge=api.CommandAuthChallenge())


@contextmanager
def binary_broker() -> Iterator[BinaryBroker]:
    """Run a server on a free port of this machine."""
    broker = BinaryBroker()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        broker.url = f"pulsar://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=_accept, args=(listening, broker), daemon=True)
        thread.start()
        yield broker
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@contextmanager
def owners_at(
    broker: BinaryBroker,
    clock: Clock | None = None,
    credentials: ClientCredentials | None = None,
    read_seconds: float = 0.5,
) -> Iterator[TopicOwners]:
    credentials = credentials or ClientCredentials()
    connections = BinaryConnections(credentials, TlsOptions(), clock or SystemClock(), 2, read_seconds)
    with closing(connections):
        yield TopicOwners(broker.url, connections)


def _accept(listening: socket.socket, broker: BinaryBroker) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        broker.connections += 1
        threading.Thread(target=_serve, args=(connection, broker), daemon=True).start()


def _serve(connection: socket.socket, broker: BinaryBroker) -> None:
    reader = FrameReader(connection)
    with connection:
        while True:
            try:
                came, message = reader.next()
            except OSError:
                return
            broker.seen.append(came)
            broker.messages += [message] if message else []
            answers = (broker.answer or usual)(broker, came)
            if answers is None:
                return
            try:
                connection.sendall(b"".join(one if isinstance(one, bytes) else encode(one) for one in answers))
            except OSError:
                return  # the client disconnected before its response
