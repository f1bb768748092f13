"""Looking topics up by the binary protocol: a response belongs to the requested topic, whatever else comes."""

import pytest
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BrokerAddress
from pulsar_sidecar.model.errors import NotAuthenticatedError, SidecarError, TemporaryError
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

from tests.fakes.binary_brokers import Answers, BinaryBroker, closed_consumer, owners_at, refusal

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


def test_every_topic_gets_its_own_owner_whatever_comes_before_the_answer(broker: BinaryBroker) -> None:
    noise = iter([[closed_consumer(9)], [refusal(77, api.ServiceNotReady)], [KINDS(type=KINDS.ACTIVE_CONSUMER_CHANGE)]])
    broker.on(KINDS.LOOKUP, lambda came: [*next(noise), found(came)])
    with owners_at(broker) as owners:
        assert [owners.of(topic) for topic in TOPICS] == [BrokerAddress(owner(str(topic))) for topic in TOPICS]
    assert broker.connections == 1


def test_an_answer_that_came_late_is_not_given_to_the_next_topic(broker: BinaryBroker) -> None:
    asked: list[api.BaseCommand] = []

    def late(came: api.BaseCommand) -> Answers:
        asked.append(came)
        return [] if len(asked) == 1 else [found(came)]

    broker.on(KINDS.LOOKUP, late)
    with owners_at(broker) as owners:
        with pytest.raises(TemporaryError, match="did not respond"):
            owners.of(TOPICS[0])
        assert owners.of(TOPICS[1]) == BrokerAddress(owner(str(TOPICS[1])))
    assert broker.connections == 2, "a connection with an unanswered request is not used again"


@pytest.mark.parametrize(
    ("request_id", "error", "kind"),
    [(1, api.ServiceNotReady, TemporaryError), (2**64 - 1, api.AuthenticationError, NotAuthenticatedError)],
    ids=["this request", "the whole connection"],
)
def test_a_refusal_is_raised(broker: BinaryBroker, request_id: int, error: int, kind: type[SidecarError]) -> None:
    broker.on(KINDS.LOOKUP, lambda came: [refusal(request_id, error)])
    with owners_at(broker) as owners, pytest.raises(kind, match="looking up"):
        owners.of(TOPICS[0])


def test_a_conversation_that_leaves_a_request_open_ends_the_connection(broker: BinaryBroker) -> None:
    with owners_at(broker) as owners:
        for _ in range(2):
            with owners.using(TOPICS[0]) as connection:
                connection.send_request(api.CommandLookupTopic(topic=str(TOPICS[0])))
    assert broker.connections == 2
