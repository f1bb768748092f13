"""What the answers to messages under sequence ids of one's own become."""

from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnections, TopicOwners
from pulsar_sidecar.adapters.pulsar_wire.producers import BrokerDuplicates
from pulsar_sidecar.features.deduplication.inspection.canary import DuplicateReceipt, SendFailure
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

from tests.fakes.binary_brokers import Answers, BinaryBroker, binary_broker, refusal, usual
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_messages import TOPIC

NOWHERE = 2**64 - 1


@pytest.fixture
def broker() -> Iterator[BinaryBroker]:
    with binary_broker() as broker:
        yield broker


@pytest.fixture
def duplicates(broker: BinaryBroker) -> Iterator[BrokerDuplicates]:
    connections = BinaryConnections(ClientCredentials(), TlsOptions(), FakeClock(), 2, 0.5)
    yield BrokerDuplicates(TopicOwners(broker.url, connections), FakeClock())
    connections.close()


def receipt(came: api.BaseCommand, ledger_id: int, entry_id: int) -> api.BaseCommand:
    found = api.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
    sent = api.CommandSendReceipt(
        producer_id=came.send.producer_id, sequence_id=came.send.sequence_id, message_id=found
    )
    return api.BaseCommand(type=api.BaseCommand.SEND_RECEIPT, send_receipt=sent)


def test_each_answer_is_of_its_type(broker: BinaryBroker, duplicates: BrokerDuplicates) -> None:
    sent: list[int] = []

    def answer(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        if came.type != api.BaseCommand.SEND:
            return usual(of, came)
        sent.append(came.send.sequence_id)
        if len(sent) == 3:
            error = api.CommandSendError(
                producer_id=came.send.producer_id,
                sequence_id=came.send.sequence_id,
                error=api.UnknownError,
                message="Cannot determine",
            )
            return [api.BaseCommand(type=api.BaseCommand.SEND_ERROR, send_error=error)]
        return [receipt(came, 7, 0) if len(sent) == 1 else receipt(came, NOWHERE, NOWHERE)]

    broker.answer = answer
    first, second, third = duplicates.send_all(TOPIC, "p", [4, 4, 5])
    assert (first, second, sent) == (Position(LedgerId(7), EntryId(0)), DuplicateReceipt(), [4, 4, 5])
    assert isinstance(third, SendFailure)
    assert "Cannot determine" in third.reason
    assert broker.kinds()[-1] == "CLOSE_PRODUCER"


def test_broken_connection_raises_temporary_error(broker: BinaryBroker, duplicates: BrokerDuplicates) -> None:
    broker.answer = lambda of, came: None if came.type == api.BaseCommand.SEND else usual(of, came)
    with pytest.raises(TemporaryError, match="broke off"):
        duplicates.send_all(TOPIC, "p", [0, 0])


def test_a_topic_that_has_moved_is_looked_up_again(broker: BinaryBroker, duplicates: BrokerDuplicates) -> None:
    def moved(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        is_producer = came.type == api.BaseCommand.PRODUCER
        return [refusal(came.producer.request_id, api.ServiceNotReady)] if is_producer else usual(of, came)

    broker.answer = moved
    for _ in range(2):
        with pytest.raises(TemporaryError, match="ServiceNotReady"):
            duplicates.send_all(TOPIC, "p", [0])
    assert broker.kinds().count("LOOKUP") == 2
