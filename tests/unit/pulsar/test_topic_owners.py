"""Looking topics up by the binary protocol: an answer belongs to the topic that was asked for, whatever else comes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnections, BrokerAddress, TopicOwners
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import NotAuthenticatedError, SidecarError, TemporaryError
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

from tests.fakes.binary_brokers import Answers, BinaryBroker, binary_broker, closed_consumer, refusal, usual

KINDS = api.BaseCommand
TOPICS = [parse_topic_name(f"persistent://t/n/{name}") for name in "abc"]


def owner(topic: str) -> str:
    return f"pulsar://owner-of-{topic[-1]}:6650"


def found(came: api.BaseCommand) -> api.BaseCommand:
    asked = came.lookupTopic
    answer = api.CommandLookupTopicResponse(
        brokerServiceUrl=owner(asked.topic),
        response=api.CommandLookupTopicResponse.Connect,
        request_id=asked.request_id,
    )
    return KINDS(type=KINDS.LOOKUP_RESPONSE, lookupTopicResponse=answer)


@contextmanager
def owners_at(broker: BinaryBroker) -> Iterator[TopicOwners]:
    connections = BinaryConnections(ClientCredentials(), TlsOptions(), SystemClock(), 2, 0.5)
    try:
        yield TopicOwners(broker.url, connections)
    finally:
        connections.close()


@pytest.fixture
def broker() -> Iterator[BinaryBroker]:
    with binary_broker() as running:
        yield running


def test_every_topic_gets_its_own_owner_whatever_comes_before_the_answer(broker: BinaryBroker) -> None:
    noise = iter([[closed_consumer(9)], [refusal(77, api.ServiceNotReady)], [KINDS(type=KINDS.ACTIVE_CONSUMER_CHANGE)]])
    broker.answer = lambda of, came: [*next(noise), found(came)] if came.type == KINDS.LOOKUP else usual(of, came)
    with owners_at(broker) as owners:
        assert [owners.of(topic) for topic in TOPICS] == [BrokerAddress(owner(str(topic))) for topic in TOPICS]
    assert broker.connections == 1


def test_an_answer_that_came_late_is_not_given_to_the_next_topic(broker: BinaryBroker) -> None:
    asked: list[api.BaseCommand] = []

    def late(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        if came.type != KINDS.LOOKUP:
            return usual(of, came)
        asked.append(came)
        return [] if len(asked) == 1 else [found(came)]

    broker.answer = late
    with owners_at(broker) as owners:
        with pytest.raises(TemporaryError, match="did not answer"):
            owners.of(TOPICS[0])
        assert owners.of(TOPICS[1]) == BrokerAddress(owner(str(TOPICS[1])))
    assert broker.connections == 2, "a connection with an unanswered request is not used again"


@pytest.mark.parametrize(
    ("request_id", "error", "kind"),
    [(1, api.ServiceNotReady, TemporaryError), (2**64 - 1, api.AuthenticationError, NotAuthenticatedError)],
    ids=["this request", "the whole connection"],
)
def test_a_refusal_is_raised(broker: BinaryBroker, request_id: int, error: int, kind: type[SidecarError]) -> None:
    broker.answer = lambda of, came: [refusal(request_id, error)] if came.type == KINDS.LOOKUP else usual(of, came)
    with owners_at(broker) as owners, pytest.raises(kind, match="looking up"):
        owners.of(TOPICS[0])


def test_a_conversation_that_leaves_a_request_open_ends_the_connection(broker: BinaryBroker) -> None:
    connections = BinaryConnections(ClientCredentials(), TlsOptions(), SystemClock(), 2, 0.5)
    for _ in range(2):
        with connections.using(BrokerAddress(broker.url)) as connection:
            connection.send_request(api.CommandLookupTopic(topic=str(TOPICS[0])))
    connections.close()
    assert broker.connections == 2
