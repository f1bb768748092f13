import pytest
from pulsar_sidecar.model.names import TopicName

from tests.fakes.world import World
from tests.unit.ledger_deletion.orphans import NAME


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def topic(world: World) -> TopicName:
    return world.topic(NAME)
