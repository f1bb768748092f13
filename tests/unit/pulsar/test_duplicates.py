"""What the answers to messages under sequence ids of one's own become."""

from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.pulsar_wire.producers import BrokerDuplicates
from pulsar_sidecar.features.deduplication.inspection.canary import DuplicateReceipt, SendFailure
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

from tests.fakes.binary_brokers import Answers, BinaryBroker, owners_at, receipt, refusal, send_error
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_messages import TOPIC

NOWHERE = 2**64 - 1


@pytest.fixture
def duplicates(broker: BinaryBroker) -> Iterator[BrokerDuplicates]:
    with owners_at(broker) as owners:
        yield BrokerDuplicates(owners, FakeClock())


def test_each_answer_is_of_its_type(broker: BinaryBroker, duplicates: BrokerDuplicates) -> None:
    sent: list[int] = []

    def answer(came: api.BaseCommand) -> Answers:
        sent.append(came.send.sequence_id)
        if len(sent) == 3:
            return [send_error(came, api.UnknownError)]
        return [receipt(came, 7, 0) if len(sent) == 1 else receipt(came, NOWHERE, NOWHERE)]

    broker.on(api.BaseCommand.SEND, answer)
    first, second, third = duplicates.send_all(TOPIC, "p", [4, 4, 5])
    assert (first, second, sent) == (Position(LedgerId(7), EntryId(0)), DuplicateReceipt(), [4, 4, 5])
    assert isinstance(third, SendFailure)
    assert "for this test" in third.reason
    assert broker.kinds()[-1] == "CLOSE_PRODUCER"


def test_broken_connection_raises_temporary_error(broker: BinaryBroker, duplicates: BrokerDuplicates) -> None:
    broker.on(api.BaseCommand.SEND, lambda came: None)
    with pytest.raises(TemporaryError, match="broke off"):
        duplicates.send_all(TOPIC, "p", [0, 0])


def test_a_topic_that_has_moved_is_looked_up_again(broker: BinaryBroker, duplicates: BrokerDuplicates) -> None:
    broker.on(api.BaseCommand.PRODUCER, lambda came: [refusal(came.producer.request_id, api.ServiceNotReady)])
    for _ in range(2):
        with pytest.raises(TemporaryError, match="ServiceNotReady"):
            duplicates.send_all(TOPIC, "p", [0])
    assert broker.kinds().count("LOOKUP") == 2
