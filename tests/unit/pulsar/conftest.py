from collections.abc import Iterator

import pytest

from tests.fakes.binary_brokers import BinaryBroker, binary_broker


@pytest.fixture
def broker() -> Iterator[BinaryBroker]:
    with binary_broker() as running:
        yield running
