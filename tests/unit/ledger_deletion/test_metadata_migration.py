"""Brokers that leave the metadata store for another one: nothing more is deleted or restored there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import OPERATIONS
from pulsar_sidecar.features.ledger_deletion.workflow.runtime import Runtime
from pulsar_sidecar.model.errors import ConflictError, TemporaryError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.migration import MIGRATION
from pulsar_sidecar.ownership.paths import ledger_path

from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.orphans import about, orphan, recorded_orphans
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
    refused = pytest.raises(ConflictError, match="nothing is deleted or restored: the brokers' metadata migrates")
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
    service._runtime.was_ready.set()
    LeavingBrokers(fake_pulsar).leave()
    for call in (
        lambda: service.delete_ledger(about(topic, ledger), authoritative=True),
        lambda: service.undelete(ledger, force=False),
        lambda: service.delete_topic(topic, partitioned=False, force=True, requested_by="me"),
        lambda: service.record_part(topic, None, force=True, requested_by="me"),
        lambda: service.delete_shadow(topic, requested_by="me"),
        lambda: service.delete_namespace(topic.namespace, force=True, requested_by="me", wait=False),
    ):
        with pytest.raises(TemporaryError, match="migrates to oxia"):
            call()


def test_metadata_migration_stops_a_batch_between_two_ledgers(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    runtime = ready_service(fake_pulsar)._runtime
    orphans = recorded_orphans(fake_pulsar, topic, 5)

    def leave() -> None:
        LeavingBrokers(fake_pulsar).leave()
        keep_up(fake_pulsar, runtime)

    fake_pulsar.store.before("delete_many", leave, path=ledger_path(orphans[2]))
    pending = fake_pulsar.topics.pending()
    runtime._process(runtime.processor(), pending, pending.receive())
    assert [fake_pulsar.store.peek(ledger_path(ledger)) is None for ledger in orphans] == [True] * 3 + [False] * 2


def test_metadata_migration_stops_loops_that_delete_topics(fake_pulsar: FakePulsar) -> None:
    runtime = ready_service(fake_pulsar)._runtime
    assert runtime.driver.may_work()
    LeavingBrokers(fake_pulsar).leave()
    keep_up(fake_pulsar, runtime)
    assert not runtime.driver.may_work()


def keep_up(fake_pulsar: FakePulsar, runtime: Runtime) -> None:
    """Run one round of the upkeep."""
    fake_pulsar.store.before("read", runtime.stop.set)
    runtime._upkeep()
    runtime.stop.clear()
