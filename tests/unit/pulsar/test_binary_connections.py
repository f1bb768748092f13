"""Reuse of connections to brokers, and their largest frame."""

from contextlib import closing

import pytest
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnections, BrokerAddress
from pulsar_sidecar.adapters.pulsar_wire.encoding import encode_message
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

from tests.fakes.binary_brokers import Answers, BinaryBroker, binary_broker
from tests.fakes.clock import FakeClock


def test_a_connection_is_used_again_unless_it_was_closed() -> None:
    with (
        binary_broker() as broker,
        closing(BinaryConnections(ClientCredentials(), TlsOptions(), FakeClock(), 2, 2)) as connections,
    ):
        place = BrokerAddress(broker.url)
        with connections.using(place) as first:
            pass
        with connections.using(place) as again:
            assert again is first
            again.close()
        with connections.using(place) as other:
            assert other is not first


MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("most", "payload_bytes", "is_taken"),
    [(None, 5 * MIB, True), (None, 6 * MIB, False), (10 * MIB, 10 * MIB, True), (MIB, 5 * MIB, True)],
)
def test_a_frame_may_be_as_large_as_the_broker_takes(most: int | None, payload_bytes: int, *, is_taken: bool) -> None:
    """An entry that was sent has to be read back, one from before the limit was lowered as well."""

    def answer(broker: BinaryBroker, came: api.BaseCommand) -> Answers:
        connected = api.CommandConnected(server_version="4.0.8", max_message_size=most)
        message = api.CommandMessage(consumer_id=1, message_id=api.MessageIdData(ledgerId=1, entryId=1))
        metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        command = api.BaseCommand(type=api.BaseCommand.MESSAGE, message=message)
        return [
            api.BaseCommand(type=api.BaseCommand.CONNECTED, connected=connected),
            # What is refused is refused by its first bytes; a broker that went on would write to a closed connection.
            encode_message(command, metadata, bytes(payload_bytes))[: None if is_taken else 8],
        ]

    with (
        binary_broker() as broker,
        closing(BinaryConnections(ClientCredentials(), TlsOptions(), FakeClock(), 2, 2)) as connections,
    ):
        broker.answer = answer
        with connections.using(BrokerAddress(broker.url)) as connection:
            if is_taken:
                assert len(connection.receive()[1]) > payload_bytes
            else:
                with pytest.raises(TemporaryError, match="announced a frame of"):
                    connection.receive()
