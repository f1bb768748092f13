from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections

from tests.fakes.bookie_servers import FakeBookie
from tests.fakes.clock import FakeClock


@pytest.fixture
def bookie() -> Iterator[FakeBookie]:
    with FakeBookie() as bookie:
        yield bookie


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def connections(clock: FakeClock) -> Iterator[BookieConnections]:
    connections = BookieConnections(connect_timeout_seconds=1, read_timeout_seconds=0.3, idle_per_bookie=2, clock=clock)
    yield connections
    connections.close()
