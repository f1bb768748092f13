import pytest
from pulsar_sidecar.model.names import TopicName

from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.orphans import NAME
from tests.unit.ledger_deletion.sidecars import Sidecar


@pytest.fixture
def store() -> FakeMetadataStore:
    return FakeMetadataStore()


@pytest.fixture
def fake_pulsar() -> FakePulsar:
    return FakePulsar()


@pytest.fixture
def topic(fake_pulsar: FakePulsar) -> TopicName:
    return fake_pulsar.topic(NAME)


@pytest.fixture
def sidecar(fake_pulsar: FakePulsar) -> Sidecar:
    return Sidecar(fake_pulsar)
