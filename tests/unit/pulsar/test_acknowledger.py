"""The helper consumer against a broker's binary port: what it sends, and what each failure means."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from pulsar_sidecar.adapters.pulsar_wire.acknowledger import ConsumerAcknowledger
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BrokerAddress
from pulsar_sidecar.identity.credentials import ClientCredentials, parse_credentials
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
    owners_at,
    refusal,
    usual,
)
from tests.fakes.delayed_messages import TOPIC, at

SHARED = Subscription("my sub", SubscriptionType.SHARED)
KINDS = api.BaseCommand
CLOCK = SystemClock()


@contextmanager
def acknowledger(broker: BinaryBroker, credentials: ClientCredentials | None = None) -> Iterator[ConsumerAcknowledger]:
    with owners_at(broker, credentials=credentials) as owners, closing(ConsumerAcknowledger(owners, CLOCK)) as helper:
        yield helper


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
        assert broker.acked == [(7, entry) for entry in range(4500)]
        until(lambda: not broker.open and broker.kinds()[-1] == "CLOSE_CONSUMER", "the consumer has left")
        kinds = ["CONNECT", "LOOKUP", "SUBSCRIBE", "ACK", "ACK", "ACK", "CLOSE_CONSUMER"]
        assert broker.kinds() == kinds
        acknowledge(helper, SHARED, [at(1)])
    assert broker.connections == 1, "the connection is kept, the consumer is not"
    assert broker.kinds().count("LOOKUP") == 1
    joined = broker.seen[2].subscribe
    assert (joined.topic, joined.subscription, joined.subType) == (str(TOPIC), "my sub", api.CommandSubscribe.Shared)
    assert not joined.force_topic_creation


def test_the_log_is_written_once_the_consumer_is_in_and_before_anything_is_acknowledged(broker: BinaryBroker) -> None:
    seen: list[list[str]] = []
    broker.on(KINDS.SUBSCRIBE, lambda came: [refusal(came.subscribe.request_id, api.ServiceNotReady)], times=1)
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
    broker.on(KINDS.SUBSCRIBE, lambda came: [refusal(came.subscribe.request_id, error)])
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
    broker.on(KINDS.ACK, lambda came: answer(came.ack))
    with acknowledger(broker) as helper, pytest.raises(OutcomeUnknownError):
        acknowledge(helper, SHARED, [at(1)])


def test_a_challenge_that_cannot_be_answered_leaves_the_outcome_open(broker: BinaryBroker, tmp_path: Path) -> None:
    def challenged(came: api.BaseCommand) -> Answers:
        token.unlink()
        return [challenge(), *(usual(broker, came) or [])]

    (token := tmp_path / "token").write_text("secret")
    broker.on(KINDS.ACK, challenged)
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
    broker.on(KINDS.CLOSE_CONSUMER, lambda came: [])
    with acknowledger(broker) as helper:
        acknowledge(helper, SHARED, [at(1)])
        acknowledge(helper, SHARED, [at(2)])
    assert broker.acked == [(7, 1), (7, 2)]
    assert broker.connections == 2


def test_dead_connection_is_replaced(broker: BinaryBroker) -> None:
    with acknowledger(broker) as helper:
        acknowledge(helper, SHARED, [at(1)])
        broker.on(KINDS.SUBSCRIBE, lambda came: None, times=1)
        acknowledge(helper, SHARED, [at(2)])
    assert broker.acked == [(7, 1), (7, 2)]


def test_pings_and_challenges_are_answered_on_the_way(broker: BinaryBroker) -> None:
    ping, change = KINDS(type=KINDS.PING, ping=api.CommandPing()), KINDS(type=KINDS.ACTIVE_CONSUMER_CHANGE)
    broker.on(KINDS.SUBSCRIBE, lambda came: [ping, challenge(), change, *(usual(broker, came) or [])])
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
    with acknowledger(BinaryBroker("pulsar://127.0.0.1:1")) as helper, pytest.raises(TemporaryError):
        acknowledge(helper, SHARED, [at(1)])


def test_an_owner_that_is_gone_is_looked_up_again(broker: BinaryBroker) -> None:
    with binary_broker() as gone:
        address = BrokerAddress(gone.url)
    with acknowledger(broker) as helper:
        helper._owners._known[TOPIC] = address
        acknowledge(helper, SHARED, [at(1)])
    assert broker.acked == [(7, 1)]
