"""Which connections to brokers are used again."""

from contextlib import closing

from pulsar_sidecar.adapters.pulsar.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.adapters.pulsar.wire.binary_connections import BinaryConnections, BrokerAddress

from tests.fakes.binary_brokers import binary_broker
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
