"""A fake Pulsar with a young topic, and a sidecar that watches it."""

from collections.abc import Iterator

import pytest
from pulsar_sidecar.model.names import TopicName

from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.replay_settings import MAY_BE_SHARED, TOPIC
from tests.unit.ledger_deletion.watch.leak_causes import YOUNG
from tests.unit.ledger_deletion.watch.watching import QUICK, Watcher, with_policies


@pytest.fixture
def fake_pulsar() -> FakePulsar:
    return with_policies(FakePulsar())


@pytest.fixture
def topic(fake_pulsar: FakePulsar) -> TopicName:
    return fake_pulsar.topic(TOPIC, YOUNG)


@pytest.fixture
def watcher(fake_pulsar: FakePulsar, topic: TopicName) -> Iterator[Watcher]:
    with Watcher(fake_pulsar, policy=MAY_BE_SHARED) as watcher:
        yield watcher.go(10)


@pytest.fixture
def quick(fake_pulsar: FakePulsar, topic: TopicName) -> Iterator[Watcher]:
    with Watcher(fake_pulsar, QUICK, policy=MAY_BE_SHARED) as watcher:
        yield watcher.go(10)
