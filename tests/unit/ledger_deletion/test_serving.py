"""What the operator's calls refuse while the sidecar is not ready, and what they let go."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.ledger_deletion.service import OperationState, SidecarInstance
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.ledger_deletion.watch.service import WatchMode
from pulsar_sidecar.ledger_deletion.workflow.leak_tracking import WatchConfiguration
from pulsar_sidecar.ledger_deletion.workflow.runtime import Configuration, Ports, Runtime
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.ledger_ownership.migration import MIGRATION
from pulsar_sidecar.model.errors import BrokerRefusedError, ConflictError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.names import TopicName

from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.pulsar import FakePulsar
from tests.fakes.shadows import FakeShadows
from tests.fakes.watched_store import FakeStoreChanges, FakeWholeStore
from tests.unit.ledger_deletion.driving import OP
from tests.unit.ledger_deletion.orphans import about, orphan
from tests.unit.ledger_deletion.shadow_settings import setting
from tests.unit.ledger_deletion.sidecars import POLICY, RETRY_POLICY

INSTANCE = SidecarInstance("sidecar-1", "http://a", None, 0)


def service_of(
    fake_pulsar: FakePulsar,
    store: FakeMetadataStore,
    brokers: Any,
    *,
    metadata_mismatch: Callable[[], str | None] = lambda: None,
    steps: Steps | None = None,
    enabled: bool = True,
    watch: WatchConfiguration | None = None,
    instance: SidecarInstance = INSTANCE,
) -> LedgerDeletion:
    """A service whose loops are not started; without a configuration for it, nothing is watched."""
    ports = Ports(
        clock=fake_pulsar.clock,
        store=store,
        entries=fake_pulsar.entries,
        owners=fake_pulsar.owners if brokers is fake_pulsar.admin else brokers,
        admin=brokers,
        endangered_source=lambda _topic: None,
        topics=fake_pulsar.topics,
        offloaded=fake_pulsar.offloaded,
        metadata_mismatch=metadata_mismatch,
        changes=None if watch is None else FakeStoreChanges(store, fake_pulsar.clock),
        whole=None if watch is None else FakeWholeStore(store),
    )
    configuration = Configuration(
        enabled=enabled,
        ledgers_root="/ledgers",
        policy=POLICY,
        retry_policy=RETRY_POLICY,
        rate_per_second=None,
        watchdog_late_ms=1,
        topic_deletion_wait_ms=0,
        undelete_lookback_ms=1,
        undelete_protection_ms=1,
        batch_size=1,
        watch=watch or WatchConfiguration(WatchMode.OFF),
    )
    runtime = Runtime(configuration, ports, instance, DeletionMetrics("local"), steps)
    # The loop that looks for shadows is not started.
    runtime.deleter = replace(runtime.deleter, shadows=FakeShadows(store))
    return LedgerDeletion(runtime)


def test_a_shadow_is_not_deleted_beside_brokers_with_other_metadata() -> None:
    made, fake_pulsar = setting(), FakePulsar()
    before = {path: made.store.peek(path) for path in made.store.paths()}
    mismatch = "the brokers' metadata store is zk:b:2181, the sidecar's is zk:a:2181"
    service = service_of(fake_pulsar, made.store, made.brokers, metadata_mismatch=lambda: mismatch)
    with pytest.raises(ConflictError, match="nothing is deleted: the brokers' metadata store"):
        service._runtime._work()
    with pytest.raises(TemporaryError, match="not ready"):
        service.delete_shadow(made.shadow, requested_by="me")
    assert {path: made.store.peek(path) for path in made.store.paths()} == before


class LeavingBrokers:
    """Records of pending deletions; the brokers leave the metadata store before the first one comes."""

    def __init__(self, store: FakeMetadataStore) -> None:
        self._store = store

    def receive(self) -> list[Any]:
        self._store.put(MIGRATION, b'{"phase":"PREPARATION","targetUrl":"oxia://o:1/n"}')
        return ["a record"]


def test_nothing_is_judged_by_a_store_that_the_brokers_leave(fake_pulsar: FakePulsar) -> None:
    runtime = service_of(fake_pulsar, fake_pulsar.store, fake_pulsar.admin)._runtime
    refused = pytest.raises(ConflictError, match="nothing is deleted: the brokers' metadata migrates to oxia://o:1/n")
    with refused:
        runtime._consume(None, LeavingBrokers(fake_pulsar.store))  # type: ignore[arg-type]
    with refused:
        runtime._work()


def test_a_direct_deletion_whose_answer_is_lost_reports_an_unknown_outcome(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    service = service_of(fake_pulsar, fake_pulsar.store, fake_pulsar.admin)
    service._runtime.ready.set()
    fake_pulsar.store.fail_next("delete_many", OutcomeUnknownError("lost"), times=3)
    with pytest.raises(OutcomeUnknownError, match="repeat the call"):
        service.delete_ledger(about(topic, orphan(fake_pulsar, topic)), authoritative=True)


class FailingRelease(Steps):
    """The metadata store does not answer when an operation is let go."""

    releases = 0

    def about_to(self, step: Step) -> None:
        if step is Step.OPERATION_RELEASED:
            self.releases += 1
            raise TemporaryError("the metadata store does not answer")


def test_a_deletion_is_let_go_once() -> None:
    """By a second time the sidecar's own loop may have taken it over."""
    fake_pulsar, steps = FakePulsar(), FailingRelease()
    topic = fake_pulsar.topic("persistent://public/default/orders")
    fake_pulsar.admin.miss_next()
    service = service_of(fake_pulsar, fake_pulsar.store, fake_pulsar.admin, steps=steps)
    service._runtime.ready.set()
    with pytest.raises(TemporaryError, match="does not answer"):
        service.delete_topic(topic, partitioned=False, force=False, requested_by="me")
    assert steps.releases == 1


@pytest.mark.parametrize("answers_lost", [0, 1])
def test_the_note_of_a_refusal_counts_the_attempt_that_was_refused(
    fake_pulsar: FakePulsar, topic: TopicName, answers_lost: int
) -> None:
    service = service_of(fake_pulsar, fake_pulsar.store, fake_pulsar.admin)
    runtime = service._runtime
    held = runtime.deleter.begin(OP, topic, partitioned=False, force=False, requested_by="me")
    for _ in range(answers_lost):
        fake_pulsar.admin.lose_answer_next(applied=False)
        held = runtime.deleter.attempt(held).held
    fake_pulsar.admin.hooks.fail_next(
        "delete_topic", BrokerRefusedError(412, "Topic has active producers/subscriptions")
    )
    status, refusal = runtime.drive(held, wait_ms=0)
    assert isinstance(refusal, BrokerRefusedError)
    assert (status.state, status.attempts) == (OperationState.REFUSED, answers_lost + 1)
    assert status.recorded_ledgers == len(fake_pulsar.ledgers())
