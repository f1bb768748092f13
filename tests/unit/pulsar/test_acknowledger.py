"""The helper consumer against a broker's binary port: what it sends, and what each failure means."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pulsar_sidecar.adapters.pulsar_wire.acknowledger import ConsumerAcknowledger
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnections, BrokerAddress, TopicOwners
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions, parse_credentials
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import (
    ConflictError,
    NotAuthenticatedError,
    NotFoundError,
    OutcomeUnknownError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.topic_stats import Subscription, SubscriptionType
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

from tests.cluster.patience import until
from tests.fakes.binary_brokers import (
    Answers,
    BinaryBroker,
    binary_broker,
    challenge,
    closed_consumer,
    refusal,
    usual,
)
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_messages import TOPIC, at

SHARED = Subscription("my sub", SubscriptionType.SHARED)


@pytest.fixture
def broker() -> Iterator[BinaryBroker]:
    with binary_broker() as running:
        yield running


@contextmanager
def acknowledger(broker: BinaryBroker, credentials: ClientCredentials | None = None) -> Iterator[ConsumerAcknowledger]:
    clock = SystemClock()
    connections = BinaryConnections(credentials or ClientCredentials(), TlsOptions(), clock, 2, 0.5)
    helper = ConsumerAcknowledger(TopicOwners(broker.url, connections), clock)
    try:
        yield helper
    finally:
        helper.close()


def acknowledge(
    helper: ConsumerAcknowledger,
    subscription: Subscription,
    positions: Sequence[Position],
    once_joined: Callable[[], object] = lambda: None,
) -> None:
    with helper.join(TOPIC, subscription) as consumer:
        once_joined()
        consumer.acknowledge(positions)


def test_acknowledger_leaves_without_taking_a_permit(broker: BinaryBroker) -> None:
    with acknowledger(broker) as helper:
        acknowledge(helper, SHARED, [at(entry) for entry in range(4500)])
        _check_visit(broker)
        acknowledge(helper, SHARED, [at(1)])
    assert broker.connections == 1, "the connection is kept, the consumer is not"
    assert broker.kinds().count("LOOKUP") == 1


def _check_visit(broker: BinaryBroker) -> None:
    assert broker.acked == [(7, entry) for entry in range(4500)]
    until(lambda: not broker.open and broker.kinds()[-1] == "CLOSE_CONSUMER", "the consumer has left")
    assert broker.kinds() == [
        "CONNECT", "LOOKUP", "SUBSCRIBE", "ACK", "ACK", "ACK", "CLOSE_CONSUMER"
    ]  # fmt: skip
    joined = broker.seen[2].subscribe
    assert (joined.topic, joined.subscription, joined.subType) == (str(TOPIC), "my sub", api.CommandSubscribe.Shared)
    assert not joined.force_topic_creation


def test_the_log_is_written_once_the_consumer_is_in_and_before_anything_is_acknowledged(broker: BinaryBroker) -> None:
    seen: list[list[str]] = []
    refused = [True]

    def not_at_first(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        if came.type == api.BaseCommand.SUBSCRIBE and refused:
            refused.clear()
            return [refusal(came.subscribe.request_id, api.ServiceNotReady)]
        return usual(of, came)

    broker.answer = not_at_first
    with acknowledger(broker) as helper:
        acknowledge(helper, SHARED, [at(1)], lambda: seen.append(broker.kinds()))
    assert len(seen) == 1
    assert "ACK" not in seen[0]
    assert broker.acked == [(7, 1)]


def test_a_log_that_cannot_be_written_leaves_everything_as_it_was(broker: BinaryBroker) -> None:
    def fail() -> None:
        raise TemporaryError("the log cannot be written")

    with acknowledger(broker) as helper, pytest.raises(TemporaryError, match="the log"):
        acknowledge(helper, SHARED, [at(1)], fail)
    until(lambda: "SUBSCRIBE" in broker.kinds(), "it had asked to join")
    assert broker.acked == []


def test_acknowledger_joins_key_shared_in_the_active_mode(broker: BinaryBroker) -> None:
    found = Subscription("s", SubscriptionType.KEY_SHARED, allow_out_of_order=True)
    with acknowledger(broker) as helper:
        acknowledge(helper, found, [at(1)])
    joined = broker.seen[2].subscribe
    assert joined.subType == api.CommandSubscribe.Key_Shared
    assert joined.keySharedMeta.keySharedMode == api.AUTO_SPLIT
    assert joined.keySharedMeta.allowOutOfOrderDelivery


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (api.ConsumerBusy, ConflictError),
        (api.SubscriptionNotFound, NotFoundError),
        (api.TopicNotFound, NotFoundError),
        (api.ServiceNotReady, TemporaryError),
    ],
)
def test_a_refused_join_acknowledges_and_logs_nothing(
    broker: BinaryBroker, error: int, kind: type[SidecarError]
) -> None:
    def refuse(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        if came.type == api.BaseCommand.SUBSCRIBE:
            return [refusal(came.subscribe.request_id, error)]
        return usual(of, came)

    broker.answer = refuse
    written: list[str] = []
    with acknowledger(broker) as helper, pytest.raises(kind):
        acknowledge(helper, SHARED, [at(1)], lambda: written.append("log"))
    assert broker.acked == written == []
    # What may be over soon is tried again, with a fresh look at who owns the topic.
    assert broker.kinds().count("LOOKUP") == (3 if kind is TemporaryError else 1)


def refused_receipt(consumer_id: int, request_id: int) -> api.BaseCommand:
    receipt = api.CommandAckResponse(consumer_id=consumer_id, request_id=request_id, error=api.UnknownError)
    return api.BaseCommand(type=api.BaseCommand.ACK_RESPONSE, ackResponse=receipt)


@pytest.mark.parametrize(
    "answer",
    [lambda ack: [], lambda ack: None, lambda ack: [refused_receipt(ack.consumer_id, ack.request_id)]],
    ids=["silent", "broken", "refused"],
)
def test_a_failed_acknowledgement_leaves_the_outcome_open(
    broker: BinaryBroker, answer: Callable[[api.CommandAck], Answers]
) -> None:
    broker.answer = lambda of, came: answer(came.ack) if came.type == api.BaseCommand.ACK else usual(of, came)
    with acknowledger(broker) as helper, pytest.raises(OutcomeUnknownError):
        acknowledge(helper, SHARED, [at(1)])


def test_a_challenge_that_cannot_be_answered_leaves_the_outcome_open(broker: BinaryBroker, tmp_path: Path) -> None:
    def challenged(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        if came.type != api.BaseCommand.ACK:
            return usual(of, came)
        token.unlink()
        return [challenge(), *(usual(of, came) or [])]

    (token := tmp_path / "token").write_text("secret")
    broker.answer = challenged
    with acknowledger(broker, parse_credentials("token", token.as_uri())) as helper, pytest.raises(OutcomeUnknownError):
        acknowledge(helper, SHARED, [at(1)])
    assert broker.acked == [(7, 1)]


def test_messages_to_earlier_consumers_and_requests_do_not_count(broker: BinaryBroker) -> None:
    def haunted(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        extra = [closed_consumer(99), refusal(98, api.ServiceNotReady), refused_receipt(99, 97)]
        return usual(of, came) if came.type == api.BaseCommand.CONNECT else [*extra, *(usual(of, came) or [])]

    broker.answer = haunted
    with acknowledger(broker) as helper:
        acknowledge(helper, SHARED, [at(1)])
    assert broker.acked == [(7, 1)]
    assert (broker.connections, broker.kinds().count("ACK")) == (1, 1)


def test_a_consumer_whose_leaving_is_not_confirmed_takes_its_connection_with_it(broker: BinaryBroker) -> None:
    broker.answer = lambda of, came: [] if came.type == api.BaseCommand.CLOSE_CONSUMER else usual(of, came)
    with acknowledger(broker) as helper:
        acknowledge(helper, SHARED, [at(1)])
        acknowledge(helper, SHARED, [at(2)])
    assert broker.acked == [(7, 1), (7, 2)]
    assert broker.connections == 2


def test_dead_connection_is_replaced(broker: BinaryBroker) -> None:
    broken = [True]

    def once(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        if came.type == api.BaseCommand.SUBSCRIBE and broken:
            broken.clear()
            return None
        return usual(of, came)

    with acknowledger(broker) as helper:
        acknowledge(helper, SHARED, [at(1)])
        broker.answer = once
        acknowledge(helper, SHARED, [at(2)])
    assert broker.acked == [(7, 1), (7, 2)]


def test_pings_and_challenges_are_answered_on_the_way(broker: BinaryBroker) -> None:
    def chatty(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        extra = [
            api.BaseCommand(type=api.BaseCommand.PING, ping=api.CommandPing()),
            challenge(),
            api.BaseCommand(type=api.BaseCommand.ACTIVE_CONSUMER_CHANGE),
        ]
        answers = usual(of, came)
        return extra + answers if came.type == api.BaseCommand.SUBSCRIBE and answers is not None else answers

    broker.answer = chatty
    credentials = parse_credentials("token", "token:secret")
    with acknowledger(broker, credentials) as helper:
        acknowledge(helper, SHARED, [at(1)])
    assert {"PONG", "AUTH_RESPONSE"} <= set(broker.kinds())
    assert broker.seen[0].connect.auth_method_name == "token"
    assert broker.seen[0].connect.auth_data == b"secret"


def test_a_refused_handshake_and_a_closed_port(broker: BinaryBroker) -> None:
    broker.answer = lambda of, came: [refusal(0, api.AuthenticationError)]
    with acknowledger(broker) as helper, pytest.raises(NotAuthenticatedError):
        acknowledge(helper, SHARED, [at(1)])
    clock = FakeClock()
    connections = BinaryConnections(ClientCredentials(), TlsOptions(), clock)
    unreachable = ConsumerAcknowledger(TopicOwners("pulsar://127.0.0.1:1", connections), clock)
    with pytest.raises(TemporaryError):
        acknowledge(unreachable, SHARED, [at(1)])


def test_an_owner_that_is_gone_is_looked_up_again(broker: BinaryBroker) -> None:
    with binary_broker() as gone:
        address = BrokerAddress(gone.url)
    with acknowledger(broker) as helper:
        helper._owners._known[TOPIC] = address
        acknowledge(helper, SHARED, [at(1)])
    assert broker.acked == [(7, 1)]
