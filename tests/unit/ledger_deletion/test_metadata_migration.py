"""Brokers that leave the metadata store for another one: nothing more is deleted or restored there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import OPERATIONS
from pulsar_sidecar.model.errors import ConflictError, TemporaryError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.migration import MIGRATION

from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.orphans import about, orphan
from tests.unit.ledger_deletion.test_serving import ready_service, service_of


@dataclass
class LeavingBrokers:
    """Pending deletions of brokers that leave the metadata store meanwhile; ``late`` are those of the watchdog."""

    fake_pulsar: FakePulsar
    received: Sequence[str] = ()
    late: Sequence[str] = ()
    _calls: int = 0

    def leave(self) -> None:
        self.fake_pulsar.store.put(MIGRATION, b'{"phase":"PREPARATION","targetUrl":"oxia://o:1/n"}')

    def receive(self) -> Sequence[str]:
        assert not self._calls, "the sidecar has not noticed"
        self._calls += 1
        self.fake_pulsar.clock.advance_ms(500 if self.late else 1_000)
        if not self.late:
            self.leave()
        return self.received

    def overdue(self, late_ms: int, limit: int) -> Sequence[str]:
        self.leave()
        return self.late


@pytest.mark.parametrize("records", [{"received": ["a record"]}, {"late": ["a record"]}, {}], ids=str)
def test_metadata_migration_stops_the_second_phase_and_refuses_new_deletions(
    fake_pulsar: FakePulsar, topic: TopicName, records: dict[str, list[str]]
) -> None:
    service = service_of(fake_pulsar)
    runtime = service._runtime
    runtime.was_ready.set()
    refused = pytest.raises(ConflictError, match="nothing is deleted: the brokers' metadata migrates to oxia://o:1/n")
    with refused:
        runtime._consume(None, LeavingBrokers(fake_pulsar, **records))
    with refused:
        runtime._work()
    with pytest.raises(TemporaryError):
        service.delete_topic(topic, partitioned=False, force=True, requested_by="me")
    assert not fake_pulsar.store.children(OPERATIONS)


def test_a_paused_sidecar_notices_a_metadata_migration(fake_pulsar: FakePulsar) -> None:
    runtime = ready_service(fake_pulsar)._runtime
    runtime.control = replace(runtime.control, paused=True)
    brokers = LeavingBrokers(fake_pulsar)
    brokers.leave()
    with pytest.raises(ConflictError, match="migrates to oxia"):
        runtime._consume(None, brokers)


def test_metadata_migration_stops_direct_calls_of_a_sidecar_that_has_not_noticed(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    service = ready_service(fake_pulsar)
    ledger = orphan(fake_pulsar, topic)
    LeavingBrokers(fake_pulsar).leave()
    for call in (
        lambda: service.delete_ledger(about(topic, ledger), authoritative=True),
        lambda: service.undelete(ledger, force=False),
    ):
        with pytest.raises(TemporaryError, match="migrates to oxia"):
            call()
