"""Refusals of the operator's calls while the sidecar is not ready, and released deletions."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import structlog.testing
from pulsar_sidecar.features.ledger_deletion.control import SidecarRegistry
from pulsar_sidecar.features.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.features.ledger_deletion.outcomes import notes
from pulsar_sidecar.features.ledger_deletion.ports import Collected, DeletionTopic, OutgoingMessage
from pulsar_sidecar.features.ledger_deletion.results import OperationState, SidecarInstance, TopicDeletionStatus
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.features.ledger_deletion.topic_deletion.following import END_STEP
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    NO_ANSWER,
    OPERATIONS,
    STUCK_AFTER,
    operation_path,
)
from pulsar_sidecar.features.ledger_deletion.watch.results import WatchMode
from pulsar_sidecar.features.ledger_deletion.workflow import serving
from pulsar_sidecar.features.ledger_deletion.workflow.configuration import Configuration, Ports, WatchConfiguration
from pulsar_sidecar.features.ledger_deletion.workflow.runtime import Runtime
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    PermanentError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import BookieId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import managed_ledger_path

from tests.cluster.patience import until
from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.namespaces import FakeNamespaceAdmin
from tests.fakes.pulsar import FakePulsar
from tests.fakes.shadows import FakeShadows
from tests.fakes.watched_store import FakeStoreChanges, FakeWholeStore
from tests.unit.ledger_deletion.driving import OP
from tests.unit.ledger_deletion.orphans import about, orphan
from tests.unit.ledger_deletion.shadow_settings import setting
from tests.unit.ledger_deletion.sidecars import POLICY, RETRY_POLICY, Sidecar


class NoBookies:
    """`BookieCollections` of a cluster without bookies."""

    def collected(self, ledgers: Sequence[LedgerId]) -> Mapping[BookieId, Collected]:
        return {}


INSTANCE = SidecarInstance("sidecar-1", "http://a", None, 0)


def service_of(
    fake_pulsar: FakePulsar,
    store: FakeMetadataStore | None = None,
    brokers: Any = None,
    *,
    metadata_mismatch: Callable[[], str | None] = lambda: None,
    steps: Steps | None = None,
    enabled: bool = True,
    watch: WatchConfiguration | None = None,
    instance: SidecarInstance = INSTANCE,
    topic_deletion_wait_ms: int = 0,
) -> LedgerDeletion:
    """A service whose loops are not started; without a configuration for it, nothing is watched."""
    store, brokers = store or fake_pulsar.store, brokers or fake_pulsar.admin
    ports = Ports(
        clock=fake_pulsar.clock,
        store=store,
        entries=fake_pulsar.entries,
        owners=fake_pulsar.owners if brokers is fake_pulsar.admin else brokers,
        admin=brokers,
        namespaces=FakeNamespaceAdmin(fake_pulsar),
        endangered_source=lambda _topic: None,
        topics=fake_pulsar.topics,
        offloaded=fake_pulsar.offloaded,
        bookies=NoBookies(),
        metadata_mismatch=metadata_mismatch,
        whole=FakeWholeStore(store),
        changes=None if watch is None else FakeStoreChanges(store, fake_pulsar.clock),
    )
    configuration = Configuration(
        enabled=enabled,
        ledgers_root="/ledgers",
        policy=POLICY,
        retry_policy=RETRY_POLICY,
        rate_per_second=None,
        watchdog_late_ms=1,
        topic_deletion_wait_ms=topic_deletion_wait_ms,
        undelete_lookback_ms=1,
        undelete_protection_ms=1,
        batch_size=1,
        watch=watch or WatchConfiguration(WatchMode.OFF),
    )
    runtime = Runtime(configuration, ports, instance, DeletionMetrics("local"), steps)
    # The loop that looks for shadows is not started.
    shadows = FakeShadows(store)
    runtime.deleter = replace(runtime.deleter, shadows=shadows)
    runtime.driver = replace(runtime.driver, deleter=runtime.deleter)
    runtime.namespaces.deleter = replace(runtime.namespaces.deleter, shadows=shadows)
    return LedgerDeletion(runtime)


def ready_service(fake_pulsar: FakePulsar, **options: Any) -> LedgerDeletion:
    service = service_of(fake_pulsar, **options)
    service._runtime.ready.set()
    return service


def delete(service: LedgerDeletion, topic: TopicName) -> TopicDeletionStatus:
    return service.delete_topic(topic, partitioned=False, force=False, requested_by="me")


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


def test_a_sidecar_without_a_consumer_is_ready_and_leaves_records_to_others(
    fake_pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(fake_pulsar, instance=replace(INSTANCE, consumes=False))
    runtime = service._runtime
    ready_during_the_look = []

    def stop_soon(seconds: float, stop: threading.Event) -> None:
        ready_during_the_look.append(runtime.ready.is_set())
        stop.set()

    with monkeypatch.context() as patched:
        patched.setattr(type(fake_pulsar.clock), "wait_seconds", staticmethod(stop_soon))
        runtime._work()
    assert ready_during_the_look == [True]
    assert not fake_pulsar.topics._consumers
    runtime.registry.keep()
    assert any("no sidecar consumes pending deletions" in each for each in service.status().warnings)
    SidecarRegistry(fake_pulsar.store.other_session(), replace(INSTANCE, name="sidecar-2")).keep()
    assert not any("consumes" in each for each in service.status().warnings)


def test_a_direct_deletion_whose_answer_is_lost_reports_an_unknown_outcome(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    service = ready_service(fake_pulsar)
    fake_pulsar.store.fail_next("delete_many", OutcomeUnknownError("lost"), times=3)
    with pytest.raises(OutcomeUnknownError, match="repeat the call"):
        service.delete_ledger(about(topic, orphan(fake_pulsar, topic)), authoritative=True)


def test_a_deletion_is_promised_while_brokers_hang(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    service = service_of(fake_pulsar)
    with pytest.raises(TemporaryError, match="not ready yet"):
        delete(service, topic)  # records have never been taken: it may be for ever
    service._runtime.was_ready.set()
    fake_pulsar.topics.hooks.fail_next("publish", TemporaryError("brokers do not respond"), times=100)
    assert delete(service, topic).state is OperationState.RUNNING
    assert len(fake_pulsar.store.children(OPERATIONS) or []) == 1


def test_deletions_beyond_what_may_wait_are_refused_before_anything_is_done(
    fake_pulsar: FakePulsar, topic: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_DELETIONS_AT_ONCE", 1)
    monkeypatch.setattr(serving, "_LAST_ATTEMPT_SECONDS", 0.2)
    service, hangs, ended = ready_service(fake_pulsar), threading.Event(), threading.Event()
    fake_pulsar.store.before("children", lambda: (hangs.set(), ended.wait(20)))
    with ThreadPoolExecutor(1) as caller:
        first = caller.submit(delete, service, topic)
        assert hangs.wait(10)
        with pytest.raises(
            TemporaryError, match="too many topic deletions are waiting for the cluster; nothing was done"
        ):
            delete(service, topic)
        with pytest.raises(OutcomeUnknownError, match="list the running topic deletions"):
            first.result()
        ended.set()
    until(lambda: not fake_pulsar.listed(topic), "the one that waited has been carried out")


def test_a_repeated_call_follows_the_promise_there_is(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    service = ready_service(fake_pulsar)
    held = Sidecar(fake_pulsar).deleter.begin(OP, topic, partitioned=False, force=True, requested_by="me")
    status = service.delete_topic(topic, partitioned=False, force=True, requested_by="me")
    assert (status.operation_id, status.state) == (held.operation.operation_id, OperationState.RUNNING)
    assert fake_pulsar.store.children(OPERATIONS) == [OP]


def test_only_in_use_is_final_to_the_client_of_the_pip(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    service = ready_service(fake_pulsar)
    runtime = service._runtime
    shared = replace(runtime.configuration.policy, bookkeeper_exclusive=False)

    def refusal(ledger_id: LedgerId) -> Exception:
        with pytest.raises(SidecarError) as caught:
            service.delete_ledger(about(topic, ledger_id), authoritative=True)
        return caught.value

    in_use = refusal(fake_pulsar.listed(topic)[0])
    assert (type(in_use), str(in_use)) == (ConflictError, "ledger still in use")
    unreferenced = orphan(fake_pulsar, topic)
    young = refusal(orphan(fake_pulsar, topic, state=LedgerState.OPEN, age_ms=1_000))
    assert (type(young), str(young).partition(":")[0]) == (TemporaryError, "too-young")
    runtime.configuration = replace(runtime.configuration, policy=shared)
    another_clusters = refusal(unreferenced)
    assert (type(another_clusters), str(another_clusters).partition(":")[0]) == (
        PermanentError,
        "bookkeeper-may-be-shared",
    )
    service.pause("a migration")
    paused = refusal(unreferenced)
    assert (type(paused), "a migration" in str(paused)) == (TemporaryError, True)


def test_gauges_show_dead_letters_and_the_age_of_the_oldest_topic_deletion(fake_pulsar: FakePulsar) -> None:
    service = service_of(fake_pulsar)
    runtime = service._runtime
    runtime.publisher(DeletionTopic.DEAD_LETTER).publish([OutgoingMessage(b"1"), OutgoingMessage(b"2")])
    runtime.oldest_topic_deletion_since_ms = fake_pulsar.clock.now_ms() - 90_000
    assert service._gauges().dead_letters is None, "not known before the topics are there"
    runtime.ready.set()
    runtime.inflight()
    assert (service._gauges().dead_letters, service._gauges().oldest_topic_deletion_ms) == (2, 90_000)


def test_a_scrape_does_not_wait_for_brokers_that_hang(fake_pulsar: FakePulsar) -> None:
    service = ready_service(fake_pulsar)
    began = fake_pulsar.clock.monotonic_seconds()
    readings = service._gauges()
    assert (readings.inflight, readings.dead_letters) == (None, None)
    assert fake_pulsar.clock.monotonic_seconds() - began < 3.5


class FailingRelease(Steps):
    """The metadata store does not respond when an operation is released."""

    releases = 0

    def about_to(self, step: Step) -> None:
        if step is Step.OPERATION_RELEASED:
            self.releases += 1
            raise TemporaryError("the metadata store does not respond")


def test_a_deletion_is_let_go_once() -> None:
    """A second release could end the sidecar's own loop's work on it."""
    fake_pulsar, steps = FakePulsar(), FailingRelease()
    topic = fake_pulsar.topic("persistent://public/default/orders")
    fake_pulsar.admin.miss_next()
    service = ready_service(fake_pulsar, steps=steps)
    with pytest.raises(TemporaryError, match="does not respond"):
        delete(service, topic)
    assert steps.releases == 1


@pytest.mark.parametrize("answers_lost", [0, 1])
def test_the_note_of_a_refusal_counts_the_attempt_that_was_refused(
    fake_pulsar: FakePulsar, topic: TopicName, answers_lost: int
) -> None:
    service = service_of(fake_pulsar)
    runtime = service._runtime
    held = runtime.deleter.begin(OP, topic, partitioned=False, force=False, requested_by="me")
    for _ in range(answers_lost):
        fake_pulsar.admin.lose_answer_next(applied=False)
        held = runtime.deleter.attempt(held).held
    fake_pulsar.admin.hooks.fail_next("delete_topic", BrokerRefusedError(412, "it has subscriptions"))
    status, refusal = runtime.driver.drive(held, wait_ms=0)
    assert isinstance(refusal, BrokerRefusedError)
    assert (status.state, status.attempts) == (OperationState.REFUSED, answers_lost + 1)
    assert status.recorded_ledgers == len(fake_pulsar.ledgers())


# --- followed and ended --------------------------------------------------------------------------------------------


def damaged(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.store.put(managed_ledger_path(topic.managed_ledger_name), b"not proto\xff")


def ends(fake_pulsar: FakePulsar) -> list[dict[str, object]]:
    payloads = [message.payload for message in fake_pulsar.topics.messages(DeletionTopic.OUTCOME)]
    return [note.document for payload in payloads for note in notes(payload, END_STEP)]


def test_a_caller_does_not_wait_for_what_does_not_pass_by_itself(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    damaged(fake_pulsar, topic)
    service = ready_service(fake_pulsar, topic_deletion_wait_ms=30_000)
    began = fake_pulsar.clock.monotonic_seconds()
    status = delete(service, topic)
    assert fake_pulsar.clock.monotonic_seconds() == began
    assert (status.state, status.failures) == (OperationState.RUNNING, 1)
    assert "cannot be read" in (status.reason or "")
    assert service.topic_deletion(status.operation_id).driver is None


def test_a_caller_waits_for_what_may_pass(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.admin.lose_answer_next(applied=False, times=3)
    service = ready_service(fake_pulsar, topic_deletion_wait_ms=30_000)
    status = delete(service, topic)
    assert (status.state, status.attempts) == (OperationState.DONE, 4)


def test_a_long_look_for_due_deletions_is_followed_by_a_longer_pause(fake_pulsar: FakePulsar) -> None:
    clock, looks = fake_pulsar.clock, []
    driver = replace(ready_service(fake_pulsar)._runtime.driver, may_work=lambda: True)

    def look() -> None:
        looks.append(clock.now_ms())
        clock.advance_ms(2_000)
        if len(looks) == 3:
            driver.stop.set()

    fake_pulsar.store.before("children_many", look, path=OPERATIONS, times=-1)
    driver.run()
    assert [after - before for before, after in pairwise(looks)] == [20_000, 20_000]


def test_a_stuck_deletion_is_in_the_status_and_once_in_the_log(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    damaged(fake_pulsar, topic)
    service = ready_service(fake_pulsar)
    runtime = service._runtime
    with structlog.testing.capture_logs() as lines:
        operation_id = delete(service, topic).operation_id
        for _ in range(STUCK_AFTER + 5):
            fake_pulsar.clock.advance_ms(60_000)
            held = runtime.deleter.take_due()
            runtime.driver.drive(held, wait_ms=0)
    (line,) = [line for line in lines if line["event"] == "a topic deletion is stuck"]
    assert (line["log_level"], line["topic"], line["operation_id"]) == ("warning", str(topic), operation_id)
    assert "ledger-deletion abandon" in line["remedy"]
    status = service.status()
    assert (status.running_topic_deletions, status.stuck_topic_deletions) == (1, 1)
    (warning,) = [text for text in status.warnings if operation_id in text]
    assert "is stuck" in warning


def test_abandoning_names_what_is_left_and_keeps_who_asked(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.admin.lose_answer_next(applied=False)
    service = ready_service(fake_pulsar)
    operation_id = delete(service, topic).operation_id
    with structlog.testing.capture_logs() as lines:
        abandoned = service.abandon_topic_deletion(operation_id, asked_by="an operator")
    assert abandoned.state is OperationState.ABANDONED
    assert abandoned.left_nodes == (managed_ledger_path(topic.managed_ledger_name),)
    assert set(abandoned.left_ledger_ids or ()) == fake_pulsar.ledgers()
    (line,) = [line for line in lines if line["event"] == "topic deletion ended"]
    assert (line["state"], line["abandoned_by"], line["topic"]) == ("abandoned", "an operator", str(topic))
    (note,) = ends(fake_pulsar)
    assert note["abandonedBy"] == "an operator"
    assert service.topic_deletions() == []
    found = service.topic_deletion(operation_id)
    assert (found.state, found.abandoned_by) == (OperationState.ABANDONED, "an operator")
    with pytest.raises(NotFoundError):
        service.abandon_topic_deletion(operation_id, asked_by="an operator")
    fake_pulsar.clock.advance_ms(3_600_000)
    with pytest.raises(NotFoundError, match="no topic deletion"):
        service.topic_deletion(operation_id)


def test_a_deletion_of_another_version_is_abandoned_with_the_reason_why_nothing_is_known(
    fake_pulsar: FakePulsar,
) -> None:
    fake_pulsar.store.create(operation_path(OP), b'{"newer":"version"}')
    fake_pulsar.store.create(f"{OPERATIONS}/other", b'{"newer":"version"}')
    service = ready_service(fake_pulsar)
    assert service.status().stuck_topic_deletions == 2
    abandoned = service.abandon_topic_deletion(OP, asked_by=None)
    assert (abandoned.state, abandoned.left_nodes, abandoned.remedy) == (OperationState.ABANDONED, None, None)
    assert "cannot be read" in (abandoned.reason or "")
    assert [each.operation_id for each in service.topic_deletions()] == ["other"]


def test_abandoned_deletion_may_have_unknown_leftovers(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.admin.lose_answer_next(applied=False)
    service = ready_service(fake_pulsar)
    operation_id = delete(service, topic).operation_id
    fail = partial(fake_pulsar.store.fail_next, "read_many", TemporaryError("no session"))
    fake_pulsar.store.before("delete_together", fail)
    assert service.abandon_topic_deletion(operation_id, asked_by=None).left_ledgers is None
    assert service.topic_deletions() == []


def test_the_caller_learns_that_the_deletion_was_abandoned_and_one_note_is_kept(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    service = ready_service(fake_pulsar)

    def abandon() -> None:
        (status,) = service.topic_deletions()
        service.abandon_topic_deletion(status.operation_id, asked_by="an operator")

    fake_pulsar.admin.hooks.before("load_topics", abandon)
    with pytest.raises(ConflictError, match="an operator abandoned it"):
        delete(service, topic)
    assert [note["state"] for note in ends(fake_pulsar)] == ["abandoned"]
    assert fake_pulsar.admin.deletions == []


@dataclass
class HangingSteps(Steps):
    """The cluster does not respond to one step until the test wants it."""

    step: Step
    hangs: Callable[[], object] = bool
    answers: threading.Event = field(default_factory=threading.Event)

    def about_to(self, step: Step) -> None:
        if step is self.step:
            self.hangs()
            self.answers.wait(10)


def test_a_deletion_answers_in_time_though_the_cluster_hangs_and_goes_on(
    fake_pulsar: FakePulsar, topic: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = HangingSteps(Step.BROKER_ASKED)
    service = ready_service(fake_pulsar, steps=steps)
    monkeypatch.setattr(serving, "_LAST_ATTEMPT_SECONDS", 0.5)
    status = delete(service, topic)
    assert (status.state, "registered as writable: 1 of 1" in (status.reason or "")) == (OperationState.RUNNING, True)
    assert [each.operation_id for each in service.topic_deletions()] == [status.operation_id]
    steps.answers.set()
    until(lambda: not service.topic_deletions(), "the deletion has ended", 10)


def test_a_deletion_answers_in_time_though_the_metadata_store_does_not(
    fake_pulsar: FakePulsar, topic: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = HangingSteps(Step.BROKER_ASKED, lambda: fake_pulsar.store.fail_next("read", TemporaryError("no session")))
    service = ready_service(fake_pulsar, steps=steps)
    monkeypatch.setattr(serving, "_LAST_ATTEMPT_SECONDS", 0.5)
    status = delete(service, topic)
    assert (status.state, status.reason) == (OperationState.RUNNING, NO_ANSWER)
    steps.answers.set()


def test_a_deletion_that_could_not_be_promised_in_time_is_of_unknown_outcome(
    fake_pulsar: FakePulsar, topic: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = HangingSteps(Step.OPERATION_CREATED)
    service = ready_service(fake_pulsar, steps=steps)
    monkeypatch.setattr(serving, "_LAST_ATTEMPT_SECONDS", 0.05)
    with pytest.raises(OutcomeUnknownError, match="may still begin"):
        delete(service, topic)
    steps.answers.set()
