from collections.abc import Iterator

import pytest

from tests.fakes.binary_brokers import BinaryBroker, binary_broker
from tests.fakes.http_servers import Answer, HttpServer, http_server


@pytest.fixture
def broker() -> Iterator[BinaryBroker]:
    with binary_broker() as running:
        yield running


@pytest.fixture
def web() -> Iterator[HttpServer]:
    """The admin REST service of a broker, which takes every request until a test replaces ``answer``."""
    with http_server(lambda _: Answer(204)) as running:
        yield running
