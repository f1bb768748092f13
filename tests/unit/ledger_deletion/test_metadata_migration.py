"""Brokers that leave the metadata store for another one: nothing more is deleted or restored there."""

from collections.abc import Sequence
from dataclasses import dataclass

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


def leave(fake_pulsar: FakePulsar) -> None:
    fake_pulsar.store.put(MIGRATION, b'{"phase":"PREPARATION","targetUrl":"oxia://o:1/n"}')


def keep_up(fake_pulsar: FakePulsar, runtime: Runtime) -> None:
    """Run one round of the upkeep."""
    fake_pulsar.store.before("read", runtime.stop.set)
    runtime._upkeep()
    runtime.stop.clear()


@dataclass
class LeavingBrokers:
    """Pending deletions of brokers that leave the metadata store meanwhile; ``late`` are those of the watchdog."""

    fake_pulsar: FakePulsar
    received: Sequence[str] = ()
    late: Sequence[str] = ()
    _calls: int = 0

    def receive(self) -> Sequence[str]:
        assert not self._calls, "the sidecar has not noticed"
        self._calls += 1
        self.fake_pulsar.clock.advance_ms(500)
        if not self.late:
            leave(self.fake_pulsar)
        return self.received

    def overdue(self, late_ms: int, limit: int) -> Sequence[str]:
        leave(self.fake_pulsar)
        return self.late


@pytest.mark.parametrize("records", [{"received": ["a record"]}, {"late": ["a record"]}], ids=str)
def test_metadata_migration_stops_the_second_phase_and_refuses_new_deletions(
    fake_pulsar: FakePulsar, topic: TopicName, records: dict[str, list[str]]
) -> None:
    service = service_of(fake_pulsar)
    runtime = service._runtime
    runtime.was_ready.set()
    refused = pytest.raises(ConflictError, match="nothing is deleted or restored: the brokers' metadata is migrating")
    with refused:
        runtime._consume(None, LeavingBrokers(fake_pulsar, **records))
    with refused:
        runtime._work()
    assert not fake_pulsar.topics.ensured
    with pytest.raises(TemporaryError):
        service.delete_topic(topic, partitioned=False, force=True, requested_by="me")
    assert not fake_pulsar.store.children(OPERATIONS)


@pytest.mark.parametrize("paused", [True, False])
def test_a_sidecar_without_work_notices_a_metadata_migration(
    fake_pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    runtime = ready_service(fake_pulsar)._runtime
    if paused:
        runtime.service_control.pause("bookies are replaced", None)
    leave(fake_pulsar)
    keep_up(fake_pulsar, runtime)
    monkeypatch.setattr(fake_pulsar.clock, "wait_seconds", lambda *_: pytest.fail("the sidecar has not noticed"))
    for loop in (runtime._serve_without_consuming, lambda: runtime._consume(None, LeavingBrokers(fake_pulsar))):
        with pytest.raises(ConflictError, match="is migrating to oxia"):
            loop()


def test_metadata_migration_stops_direct_calls_of_a_sidecar_that_has_not_noticed(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    service = ready_service(fake_pulsar)
    ledger = orphan(fake_pulsar, topic)
    service._runtime.was_ready.set()
    leave(fake_pulsar)
    for call in (
        lambda: service.delete_ledger(about(topic, ledger), authoritative=True),
        lambda: service.undelete(ledger, force=False),
        lambda: service.delete_topic(topic, partitioned=False, force=True, requested_by="me"),
        lambda: service.record_part(topic, None, force=True, requested_by="me"),
        lambda: service.delete_shadow(topic, requested_by="me"),
        lambda: service.delete_namespace(topic.namespace, force=True, requested_by="me", wait=False),
    ):
        with pytest.raises(TemporaryError, match="is migrating to oxia"):
            call()


def test_metadata_migration_stops_a_batch_between_two_ledgers(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    runtime = ready_service(fake_pulsar)._runtime
    orphans = recorded_orphans(fake_pulsar, topic, 5)

    def leave_now() -> None:
        leave(fake_pulsar)
        keep_up(fake_pulsar, runtime)

    fake_pulsar.store.before("delete_many", leave_now, path=ledger_path(orphans[2]))
    pending = fake_pulsar.topics.pending()
    runtime._process(runtime.processor(), pending, pending.receive())
    assert [fake_pulsar.store.peek(ledger_path(ledger)) is None for ledger in orphans] == [True] * 3 + [False] * 2


def test_metadata_migration_stops_loops_that_delete_topics(fake_pulsar: FakePulsar) -> None:
    runtime = ready_service(fake_pulsar)._runtime
    assert runtime.driver.may_work()
    leave(fake_pulsar)
    keep_up(fake_pulsar, runtime)
    assert not runtime.driver.may_work()
