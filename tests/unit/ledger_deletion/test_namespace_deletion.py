"""Refusals, waits and exceptions of a namespace's deletion."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_operation import PREFIX
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import OPERATIONS, driver_path
from pulsar_sidecar.features.ledger_deletion.workflow.topic_driving import TopicDeletions
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    ConflictError,
    DataLossError,
    InvalidInputError,
    NotAuthorizedError,
    NotFoundError,
    OutcomeUnknownError,
    RefusedBeforehandError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import (
    LOCAL_POLICIES,
    POLICIES,
    managed_ledger_path,
    partitioned_topic_path,
    schema_path,
)

from tests.fakes.brokers import TopicDeletion
from tests.fakes.namespaces import FakeNamespaceAdmin
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.namespace_sidecars import NAMESPACE, NamespaceSidecar, check_gone, filled
from tests.unit.ledger_deletion.sidecars import accepted_records, at_rest

TOPIC = f"persistent://{NAMESPACE}/topic"


def empty() -> tuple[FakePulsar, FakeNamespaceAdmin]:
    fake_pulsar = FakePulsar()
    brokers = FakeNamespaceAdmin(fake_pulsar)
    brokers.create(NAMESPACE)
    return fake_pulsar, brokers


def begin(sidecar: NamespaceSidecar, *, force: bool = True) -> OperationId:
    return sidecar.namespaces.begin(NAMESPACE, force=force, requested_by="me").operation_id


def one_pass(sidecar: NamespaceSidecar) -> str | None:
    """Return why the deletion is not done after one more pass."""
    tried = sidecar.drive_namespace()
    assert tried.state is OperationState.RUNNING
    return sidecar.namespaces.find(tried.deletion.operation_id).last_reason


def recorded(fake_pulsar: FakePulsar) -> set[int]:
    return {record.ledger_id for record in accepted_records(fake_pulsar)}


# --- refused before the first record ---------------------------------------------------------------------------------


def refused(sidecar: NamespaceSidecar, namespace: str, *, force: bool = True) -> SidecarError:
    before = set(sidecar.fake_pulsar.store.paths())
    with pytest.raises(SidecarError) as error:
        sidecar.namespaces.begin(namespace, force=force, requested_by="me")
    assert set(sidecar.fake_pulsar.store.paths()) == before
    assert accepted_records(sidecar.fake_pulsar) == []
    return error.value


def test_an_unknown_namespace_is_refused_by_the_brokers_words() -> None:
    error = refused(NamespaceSidecar(*filled(1)), "public/none")
    assert (type(error), str(error)) == (NotFoundError, "Namespace public/none does not exist.")


def test_a_namespace_that_only_brokers_know_is_refused() -> None:
    fake_pulsar, brokers = empty()
    brokers.elsewhere.add("public/elsewhere")
    error = refused(NamespaceSidecar(fake_pulsar, brokers), "public/elsewhere")
    assert isinstance(error, ConflictError)
    assert "pulsar-admin namespaces delete public/elsewhere" in str(error)


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_namespace_with_topics_needs_force(*, partitioned: bool) -> None:
    fake_pulsar, brokers = empty()
    (fake_pulsar.partitioned_topic(TOPIC, 1) if partitioned else fake_pulsar.topic(TOPIC))
    error = refused(NamespaceSidecar(fake_pulsar, brokers), NAMESPACE, force=False)
    assert isinstance(error, RefusedBeforehandError)
    assert (error.status, error.reason) == (409, "Cannot delete non empty namespace")


def test_the_services_own_namespace_stays() -> None:
    fake_pulsar, brokers = empty()
    brokers.create("pulsar/system")
    assert isinstance(refused(NamespaceSidecar(fake_pulsar, brokers), "pulsar/system"), InvalidInputError)


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("elsewhere", ["public/other", "other/cluster/ns"])
def test_a_shadow_across_namespaces_is_refused(elsewhere: str, *, partitioned: bool) -> None:
    for source_namespace, shadow_namespace in ((NAMESPACE, elsewhere), (elsewhere, NAMESPACE)):
        fake_pulsar, brokers = empty()
        source = fake_pulsar.topic(f"persistent://{source_namespace}/source")
        name = f"persistent://{shadow_namespace}/shadow"
        if partitioned:
            fake_pulsar.partitioned_shadow(name, source, 2)
        else:
            fake_pulsar.shadow(name, source)
        error = refused(NamespaceSidecar(fake_pulsar, brokers), NAMESPACE)
        assert isinstance(error, DataLossError)
        assert f"topics delete-shadow {name}" in str(error)


# --- one deletion for each incarnation -------------------------------------------------------------------------------


def test_the_same_call_follows_the_deletion_that_runs() -> None:
    sidecar = NamespaceSidecar(*filled(2))
    first = begin(sidecar)
    assert begin(sidecar) == begin(sidecar, force=False) == first
    assert [each.operation_id for each in sidecar.namespaces.running()] == [first]


def test_a_namespace_created_again_is_another_one_and_stays() -> None:
    fake_pulsar, brokers = filled(1)
    sidecar = NamespaceSidecar(fake_pulsar, brokers)
    first = begin(sidecar)
    brokers.delete_namespace(NAMESPACE, force=True)
    brokers.create(NAMESPACE)
    new = fake_pulsar.topic(TOPIC)
    sidecar.work()
    assert [tried.state for tried in sidecar.ended] == [OperationState.DONE]
    assert fake_pulsar.listed(new)
    assert len(brokers.deletions) == 1
    assert begin(sidecar) != first


def test_topics_of_a_namespace_created_again_in_the_middle_stay() -> None:
    fake_pulsar, brokers = empty()
    for number in range(3):
        fake_pulsar.topic(f"{TOPIC}-{number}")
    made: list[TopicName] = []

    def create_again(_deletion: TopicDeletion) -> None:
        if not made:
            brokers.delete_namespace(NAMESPACE, force=True)
            brokers.create(NAMESPACE)
            made.extend(fake_pulsar.topic(f"{TOPIC}-{number}") for number in range(3))

    fake_pulsar.admin.after_deletion(create_again)
    assert NamespaceSidecar(fake_pulsar, brokers).delete_namespace().state is OperationState.DONE
    assert all(fake_pulsar.listed(topic) for topic in made)
    assert len(brokers.deletions) == 1


def test_deletion_restarted_during_takeover_continues() -> None:
    """The id is that of the refused deletion of the same incarnation."""
    fake_pulsar, brokers = filled(1)
    first = NamespaceSidecar(fake_pulsar, brokers)
    operation_id = begin(first)

    def begin_again() -> None:
        first.deleter.operations.abandon(operation_id)
        begin(first)

    other_store = fake_pulsar.store.other_session()
    other_store.before("create", begin_again, path=driver_path(operation_id))
    fake_pulsar.clock.advance_ms(10_000)
    assert NamespaceSidecar(fake_pulsar, brokers, name="sidecar-2", store=other_store).drive_namespace() is None
    first.work()
    assert [tried.state for tried in first.ended] == [OperationState.DONE]
    check_gone(fake_pulsar)


# --- going on --------------------------------------------------------------------------------------------------------


def test_a_namespace_without_topics_needs_no_force() -> None:
    fake_pulsar, brokers = filled(0)
    assert NamespaceSidecar(fake_pulsar, brokers).delete_namespace(force=False).state is OperationState.DONE
    assert brokers.deletions == [(NAMESPACE, False)]
    check_gone(fake_pulsar)


def test_topic_created_during_deletion_is_kept_without_force() -> None:
    fake_pulsar, brokers = filled(0)
    sidecar = NamespaceSidecar(fake_pulsar, brokers)
    begin(sidecar, force=False)
    fake_pulsar.topic(TOPIC)
    sidecar.work()
    assert [(tried.state, str(tried.refusal)) for tried in sidecar.ended] == [
        (OperationState.REFUSED, "brokers refuse it with 409: Cannot delete non empty namespace")
    ]
    assert fake_pulsar.listed(parse_topic_name(TOPIC))
    assert fake_pulsar.dangling() == set()


def test_topics_created_during_deletion_cause_another_pass() -> None:
    fake_pulsar, brokers = filled(2)
    late = parse_topic_name(f"{TOPIC}-late")

    def come_back() -> None:
        brokers.before_nodes.clear()
        fake_pulsar.topic(str(late))

    brokers.before_nodes.append(come_back)
    ended = NamespaceSidecar(fake_pulsar, brokers).delete_namespace()
    assert (ended.state, ended.deletion.passes, ended.deletion.topics_deleted) == (OperationState.DONE, 2, 3)
    assert brokers.deletions == [(NAMESPACE, True)] * 2
    check_gone(fake_pulsar)


def test_brokers_own_topics_that_come_with_the_topics_deletions_are_recorded() -> None:
    fake_pulsar, brokers = filled(1)
    name = f"persistent://{NAMESPACE}/__transaction_buffer_snapshot"
    fake_pulsar.admin.after_deletion(lambda _: fake_pulsar.topic(name, TopicPlan(schema_versions=1)))
    assert NamespaceSidecar(fake_pulsar, brokers).delete_namespace().state is OperationState.DONE
    check_gone(fake_pulsar)


def test_a_schema_without_a_topic_is_recorded_before_brokers_are_asked() -> None:
    fake_pulsar, brokers = filled(1)
    left = fake_pulsar.schema(parse_topic_name(f"{TOPIC}-gone"), 2)
    brokers.refusals = [TemporaryError("the broker refused with 409: Cannot delete non empty bundle")]
    sidecar = NamespaceSidecar(fake_pulsar, brokers)
    begin(sidecar)
    assert one_pass(sidecar) == "the broker refused with 409: Cannot delete non empty bundle"
    assert set(left) <= recorded(fake_pulsar)


def test_pauses_between_passes_grow_while_nothing_is_deleted() -> None:
    fake_pulsar, brokers = filled(1)
    brokers.refusals = [OutcomeUnknownError("500")] * 12
    sidecar = NamespaceSidecar(fake_pulsar, brokers)
    operation_id = begin(sidecar)
    pauses = []
    for _ in range(10):
        assert one_pass(sidecar) == "500"
        found = sidecar.namespaces.find(operation_id)
        pauses.append(found.not_before_ms - fake_pulsar.clock.now_ms())
        assert sidecar.namespaces.take_due() is None
        fake_pulsar.clock.advance_ms(pauses[-1])
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000, 60_000]


@pytest.mark.parametrize("refusal", [BrokerRefusedError(405, "no"), NotAuthorizedError("DELETE: 403")])
def test_a_refusal_for_good_ends_it(refusal: SidecarError) -> None:
    fake_pulsar, brokers = filled(1)
    brokers.refusals = [refusal]
    sidecar = NamespaceSidecar(fake_pulsar, brokers)
    begin(sidecar)
    sidecar.work()
    assert [(tried.state, tried.refusal) for tried in sidecar.ended] == [(OperationState.REFUSED, refusal)]
    assert at_rest(fake_pulsar)
    assert fake_pulsar.dangling() == set()


def test_abandoned_deletion_calls_no_broker() -> None:
    fake_pulsar, brokers = filled(3)
    sidecar = NamespaceSidecar(fake_pulsar, brokers)
    operation_id = begin(sidecar)
    other = NamespaceSidecar(fake_pulsar, brokers, name="sidecar-2")
    fake_pulsar.admin.after_deletion(lambda _: other.deleter.operations.abandon(operation_id))
    assert sidecar.drive_namespace().state is OperationState.REFUSED
    assert brokers.deletions == []
    sidecar.work()
    assert fake_pulsar.dangling() == set()


def test_namespace_stays_if_a_ledger_cannot_be_recorded() -> None:
    fake_pulsar, brokers = filled(1)
    fake_pulsar.store.put(managed_ledger_path(parse_topic_name(TOPIC).managed_ledger_name), b"no list")
    sidecar = NamespaceSidecar(fake_pulsar, brokers)
    begin(sidecar)
    reason = one_pass(sidecar)
    assert "ManagedLedgerInfo" in reason
    assert brokers.deletions == []


def test_brokers_that_do_not_answer_are_not_asked_for_all_topics() -> None:
    fake_pulsar, brokers = filled(9)
    fake_pulsar.admin.hooks.fail_next("delete_topic", TemporaryError("no broker answers"), times=1000)
    sidecar = NamespaceSidecar(fake_pulsar, brokers, topics_at_once=2)
    begin(sidecar)
    reason = one_pass(sidecar)
    assert "no broker answers" in reason
    children = fake_pulsar.store.children(OPERATIONS) or []
    assert 2 <= len([name for name in children if not name.startswith(PREFIX)]) <= 4
    fake_pulsar.clock.advance_ms(2_000)
    reason = one_pass(sidecar)
    assert "deletions of its topics wait (" in reason
    assert "no broker answers" in reason
    assert brokers.deletions == []


def test_a_topic_that_cannot_be_deleted_is_left_to_the_brokers_once_it_is_recorded() -> None:
    fake_pulsar, brokers = filled(3)
    fake_pulsar.admin.hooks.fail_next("delete_topic", BrokerRefusedError(412, "the topic is fenced"))
    ended = NamespaceSidecar(fake_pulsar, brokers, topics_at_once=5).delete_namespace()
    deletion = ended.deletion
    assert (ended.state, deletion.passes, deletion.topics_found, deletion.topics_deleted) == (
        OperationState.DONE,
        1,
        3,
        2,
    )
    check_gone(fake_pulsar)


@dataclass
class WithShadows:
    """`TopicDeletions` in which shadows have a client for as long as ``waits_for`` has reasons."""

    fake_pulsar: FakePulsar
    others: TopicDeletions
    waits_for: list[str]

    def __getattr__(self, name: str) -> object:
        return getattr(self.others, name)

    def delete_shadow(self, topic: TopicName, *, requested_by: str | None) -> str | None:
        if self.waits_for:
            return self.waits_for.pop()
        self.fake_pulsar.store.remove(managed_ledger_path(topic.managed_ledger_name))
        return None


def test_a_shadow_goes_before_its_source_and_without_it() -> None:
    fake_pulsar, brokers = empty()
    source = fake_pulsar.topic(f"{TOPIC}-source", TopicPlan(subscriptions=(), last_open=False))
    fake_pulsar.shadow(f"{TOPIC}-shadow", source)
    sidecar = NamespaceSidecar(fake_pulsar, brokers)
    topics = WithShadows(fake_pulsar, sidecar.namespaces.topics, ["2 consumers or readers are connected"])
    sidecar.namespaces = replace(sidecar.namespaces, topics=topics)
    begin(sidecar)
    assert one_pass(sidecar) == f"the shadow topic {TOPIC}-shadow: 2 consumers or readers are connected"
    assert fake_pulsar.listed(source)
    sidecar.work()
    assert [tried.state for tried in sidecar.ended] == [OperationState.DONE]
    assert fake_pulsar.listed(source) == []


# --- leftovers once the namespace is gone ----------------------------------------------------------------------------


def test_a_node_that_cannot_be_read_is_named_and_stays() -> None:
    fake_pulsar, brokers = filled(1)
    sidecar = NamespaceSidecar(fake_pulsar, brokers)
    begin(sidecar)
    damaged = schema_path(parse_topic_name(f"{TOPIC}-damaged").schema_id)

    def write() -> None:
        fake_pulsar.store.put(damaged, b"no locator")

    brokers.before_nodes.append(write)
    sidecar.work()
    assert [tried.state for tried in sidecar.ended] == [OperationState.REFUSED]
    assert f"{NAMESPACE} is deleted, but part of it remains: {damaged}" in str(sidecar.ended[0].refusal)
    assert fake_pulsar.store.peek(damaged) is not None


def test_a_topic_and_policies_that_a_dead_broker_left_are_removed() -> None:
    fake_pulsar, brokers = filled(1)
    sidecar = NamespaceSidecar(fake_pulsar, brokers)
    begin(sidecar)
    fake_pulsar.partitioned_topic(f"{TOPIC}-left", 2, TopicPlan(schema_versions=1))
    fake_pulsar.store.remove(f"{POLICIES}/{NAMESPACE}")
    sidecar.work()
    assert [tried.state for tried in sidecar.ended] == [OperationState.DONE]
    check_gone(fake_pulsar)
    assert fake_pulsar.store.peek(f"{LOCAL_POLICIES}/{NAMESPACE}") is None
    assert fake_pulsar.store.peek(partitioned_topic_path(parse_topic_name(f"{TOPIC}-left"))) is None


def test_schemas_that_another_namespace_may_own_stay() -> None:
    """A V1 namespace's schemas lie among those of a namespace with the same tenant and name."""
    fake_pulsar, brokers = filled(1)
    brokers.create("public/cluster/old")
    other = fake_pulsar.topic("persistent://public/cluster/old/orders", TopicPlan(schema_versions=2))
    brokers.late_schema_of = None
    assert NamespaceSidecar(fake_pulsar, brokers).delete_namespace().state is OperationState.DONE
    assert fake_pulsar.store.peek(schema_path(other.schema_id)) is not None
    assert fake_pulsar.dangling() == set()


def test_a_v1_namespace_is_deleted() -> None:
    fake_pulsar, brokers = empty()
    brokers.create("p/c/n")
    fake_pulsar.topic("persistent://p/c/n/orders", TopicPlan(schema_versions=1, last_open=False))
    sidecar = NamespaceSidecar(fake_pulsar, brokers)
    sidecar.namespaces.begin("p/c/n", force=True, requested_by="me")
    sidecar.work()
    assert [tried.state for tried in sidecar.ended] == [OperationState.DONE]
    assert fake_pulsar.ledgers() == set()


# --- kept state ------------------------------------------------------------------------------------------------------


def test_of_many_topics_few_are_in_hand() -> None:
    """Neither threads nor their queues grow with the topics."""
    fake_pulsar, brokers = empty()
    sidecar = NamespaceSidecar(fake_pulsar, brokers, topics_at_once=50)
    lock, pulled, ended, most = threading.Lock(), 0, 0, 0

    def names() -> Iterator[int]:
        nonlocal pulled, most
        for number in range(10_000):
            with lock:
                pulled += 1
                most = max(most, pulled - ended)
            yield number

    def work(_number: int) -> None:
        nonlocal ended
        with lock:
            ended += 1

    sidecar.namespaces._for_each(names(), work)
    assert (pulled, ended) == (10_000, 10_000)
    assert most <= 51


def test_the_status_has_rate_and_time_left() -> None:
    fake_pulsar, brokers = filled(10)
    fake_pulsar.admin.after_deletion(lambda _: fake_pulsar.clock.advance_ms(2_000))
    left = 5

    def should_continue() -> bool:
        nonlocal left
        left -= 1
        return left > 0

    sidecar = NamespaceSidecar(fake_pulsar, brokers, should_continue=should_continue)
    operation_id = begin(sidecar)
    assert one_pass(sidecar) == "this sidecar is paused or stopping"
    found = sidecar.namespaces.find(operation_id)
    status = found.status(OperationState.RUNNING, found.last_reason)
    assert status.topics_found == 10
    assert 0 < status.topics_deleted == 10 - status.topics_left < 5
    assert status.topics_per_second == pytest.approx(0.5, rel=0.2)
    assert status.seconds_left == pytest.approx(2 * status.topics_left, rel=0.2)
    assert status.recorded_ledgers >= status.topics_deleted
