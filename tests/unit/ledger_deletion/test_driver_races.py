"""A deletion beside others: a topic that is created again stays, and several sidecars drive one operation."""

import pytest
from msgspec.structs import replace
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.features.ledger_deletion.topic_deletion.broker_requests import delete_marked
from pulsar_sidecar.features.ledger_deletion.topic_deletion.following import follow
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    OPERATIONS,
    HeldOperation,
    driver_path,
    write_operation,
)
from pulsar_sidecar.model.errors import BrokerRefusedError, ConflictError, DataLossError, OutcomeUnknownError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import read_nodes
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import managed_ledger_path, partitioned_topic_path

from tests.fakes.brokers import TopicDeletion
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.driving import OP, asked, begin, running
from tests.unit.ledger_deletion.orphans import NAME
from tests.unit.ledger_deletion.replay_settings import create_again
from tests.unit.ledger_deletion.sidecars import Sidecar, accepted_records, restarted

REFUSAL = BrokerRefusedError(412, "Topic has active producers/subscriptions")


def recreated(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    """An operator deletes the topic and creates it again."""
    fake_pulsar.store.remove(managed_ledger_path(topic.managed_ledger_name))
    for record in accepted_records(fake_pulsar):
        fake_pulsar.remove_ledger(record.ledger_id)
    fake_pulsar.topic(str(topic))


# --- created again -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
def test_a_topic_created_again_after_the_broker_was_asked_stays(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar, applied: bool
) -> None:
    fake_pulsar.admin.lose_answer_next(applied=applied)
    sidecar.delete_topic(topic)
    if not applied:
        fake_pulsar.store.remove(managed_ledger_path(topic.managed_ledger_name))
    fake_pulsar.topic(NAME)
    new = set(fake_pulsar.listed(topic))
    sidecar.work_and_check()
    assert new <= fake_pulsar.ledgers()
    assert len(asked(fake_pulsar)) == int(applied)


def test_a_topic_created_again_before_the_broker_was_ever_asked_stays(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    begin(Sidecar(fake_pulsar), topic)
    recreated(fake_pulsar, topic)
    new = fake_pulsar.ledgers()
    sidecar = restarted(fake_pulsar)
    sidecar.work_and_check()
    assert new <= fake_pulsar.ledgers()
    assert asked(fake_pulsar) == []


@pytest.mark.parametrize(("port", "call"), [("topics", "publish"), ("shadows", "shadows_of")])
def test_a_topic_created_again_during_an_attempt_stays(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar, port: str, call: str
) -> None:
    held = begin(sidecar, topic)
    getattr(fake_pulsar, port).hooks.before(call, lambda: recreated(fake_pulsar, topic))
    assert sidecar.deleter.attempt(held).state is OperationState.DONE
    assert asked(fake_pulsar) == []
    assert set(fake_pulsar.listed(topic)) <= fake_pulsar.ledgers()


def test_partitions_of_a_topic_created_again_are_never_taken_along(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2)
    operation = begin(sidecar, topic, partitioned=True)

    def create_again() -> None:
        fake_pulsar.delete_by_broker(TopicDeletion(topic, partitioned=True, force=True))
        fake_pulsar.partitioned_topic(NAME, 2)

    fake_pulsar.store.before("read_many", create_again)
    state = sidecar.deleter.attempt(operation).state
    assert state is OperationState.DONE
    assert asked(fake_pulsar) == []


def test_topic_without_marked_nodes_is_not_deleted_later(fake_pulsar: FakePulsar) -> None:
    begin(Sidecar(fake_pulsar), parse_topic_name(NAME))
    fake_pulsar.topic(NAME)
    sidecar = restarted(fake_pulsar)
    fake_pulsar.clock.advance_ms(3_600_000)
    assert sidecar.drive() is None
    assert running(fake_pulsar) == []
    assert asked(fake_pulsar) == []


# --- who drives --------------------------------------------------------------------------------------------------


def test_topic_without_marked_nodes_is_requested_only_once(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    operation = begin(sidecar, parse_topic_name(NAME))
    fake_pulsar.admin.lose_answer_next(applied=False)
    tried = sidecar.deleter.attempt(operation)
    assert tried.state is OperationState.RUNNING
    fake_pulsar.topic(NAME)
    assert sidecar.deleter.attempt(tried.held).state is OperationState.DONE
    assert asked(fake_pulsar) == []


def test_operation_with_a_live_driver_is_not_taken_over(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    first = Sidecar(fake_pulsar)
    begin(first, topic)
    other = Sidecar(fake_pulsar, name="sidecar-2", store=fake_pulsar.store.other_session())
    fake_pulsar.clock.advance_ms(3_600_000)
    assert other.drive() is None
    assert first.drive() is None
    fake_pulsar.store.end_session()
    assert other.drive() is OperationState.DONE


@pytest.mark.parametrize("applied", [True, False])
def test_a_driver_left_over_by_a_lost_answer_is_taken_again(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar, applied: bool
) -> None:
    fake_pulsar.store.lose_answer_next("create_together", applied=applied)
    with pytest.raises(OutcomeUnknownError):
        begin(sidecar, topic)
    fake_pulsar.clock.advance_ms(10_000)
    assert sidecar.drive() is (OperationState.DONE if applied else None)
    assert (fake_pulsar.listed(topic) == []) is applied


def one_after_another(fake_pulsar: FakePulsar, topic: TopicName) -> tuple[Sidecar, HeldOperation, Sidecar]:
    """A driver that lost its session, its held operation, and a sidecar that may take it over."""
    first = Sidecar(fake_pulsar)
    operation = begin(first, topic)
    fake_pulsar.store.end_session()
    fake_pulsar.clock.advance_ms(10_000)
    return first, operation, Sidecar(fake_pulsar, name="sidecar-2", store=fake_pulsar.store.other_session())


@pytest.mark.parametrize("end", [OperationState.DONE, OperationState.REFUSED])
def test_a_driver_that_lost_its_session_learns_how_another_ended_it(
    fake_pulsar: FakePulsar, topic: TopicName, end: OperationState
) -> None:
    first, operation, other = one_after_another(fake_pulsar, topic)
    refused = end is OperationState.REFUSED
    if refused:
        fake_pulsar.admin.hooks.fail_next("delete_topic", REFUSAL)
    assert other.drive() is end
    tried = first.deleter.attempt(operation)
    assert (tried.state, isinstance(tried.refusal, ConflictError)) == (end, refused)
    assert len(asked(fake_pulsar)) == int(not refused)


def test_two_drivers_of_one_operation_ask_for_the_same_incarnation_only(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    first, operation, other = one_after_another(fake_pulsar, topic)
    fake_pulsar.admin.hooks.before("delete_topic", lambda: other.drive() and None)
    state = first.deleter.attempt(operation).state
    assert state is OperationState.DONE
    assert running(fake_pulsar) == []
    fake_pulsar.topic(NAME)
    for sidecar in (first, other):
        assert sidecar.drive() is None
    assert fake_pulsar.listed(topic) != []


def test_taking_one_that_ends_at_this_moment_leaves_nothing_behind(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    first = Sidecar(fake_pulsar)
    begin(first, topic)
    first.deleter.operations.release(OP)
    fake_pulsar.clock.advance_ms(10_000)
    other_store = fake_pulsar.store.other_session()
    other_store.before("create", lambda: first.deleter.operations.end(OP), path=driver_path(OP))
    assert Sidecar(fake_pulsar, name="sidecar-2", store=other_store).drive() is None
    assert running(fake_pulsar) == []


def test_operation_postponed_during_takeover_is_released(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    first = Sidecar(fake_pulsar)
    held = begin(first, topic)
    first.deleter.operations.release(OP)
    fake_pulsar.clock.advance_ms(10_000)
    later = replace(held.operation, not_before_ms=fake_pulsar.clock.now_ms() + 60_000)
    other_store = fake_pulsar.store.other_session()
    other_store.before("create", lambda: write_operation(fake_pulsar.store, later, held.version), path=driver_path(OP))
    other = Sidecar(fake_pulsar, name="sidecar-2", store=other_store)
    assert other.drive() is None
    assert fake_pulsar.store.peek(driver_path(OP)) is None
    assert asked(fake_pulsar) == []
    fake_pulsar.clock.advance_ms(60_000)
    assert other.drive() is OperationState.DONE


def test_empty_operation_node_is_ignored_and_removed(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    fake_pulsar.store.create(f"{OPERATIONS}/{OP}", b"")
    assert sidecar.deleter.running() == []
    assert follow(fake_pulsar.store, OP, "/ledgers") is None
    assert sidecar.drive() is None
    assert running(fake_pulsar) == []


def test_an_unreadable_operation_holds_up_no_other(fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar) -> None:
    fake_pulsar.store.create(f"{OPERATIONS}/aaa", b'{"newer":"version"}')
    begin(sidecar, topic)
    sidecar.deleter.operations.release(OP)
    listed = {status.operation_id: status.state for status in sidecar.deleter.running()}
    assert listed == {"aaa": OperationState.UNREADABLE, OP: OperationState.RUNNING}
    fake_pulsar.clock.advance_ms(10_000)
    assert sidecar.drive() is OperationState.DONE
    assert running(fake_pulsar) == ["aaa"]


# --- a partitioned topic that was partly created again loses nothing of its new incarnation --------------------------


def interrupted(partitions: int) -> tuple[FakePulsar, TopicName]:
    """The broker was called, and the outcome is unknown."""
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.partitioned_topic(NAME, partitions)
    fake_pulsar.admin.lose_answer_next(applied=False)
    assert Sidecar(fake_pulsar).delete_topic(topic, partitioned=True, force=True) is OperationState.RUNNING
    return fake_pulsar, topic


def resume(fake_pulsar: FakePulsar) -> OperationState | None:
    sidecar = restarted(fake_pulsar)
    fake_pulsar.clock.advance_ms(3_600_000)
    return sidecar.drive()


def kept(fake_pulsar: FakePulsar, new: set[LedgerId], topic: TopicName) -> None:
    restarted(fake_pulsar).work_and_check()
    assert new <= fake_pulsar.ledgers()
    assert fake_pulsar.store.peek(partitioned_topic_path(topic)) is not None


def test_only_the_straggler_is_asked_for() -> None:
    fake_pulsar, topic = interrupted(3)
    new = create_again(fake_pulsar, topic, gone=(0, 1), partitions=2)
    straggler = set(fake_pulsar.listed(topic.partition(2)))
    assert resume(fake_pulsar) is OperationState.DONE
    assert asked(fake_pulsar) == [TopicDeletion(topic.partition(2), partitioned=False, force=True)]
    kept(fake_pulsar, new, topic)
    assert not straggler & fake_pulsar.ledgers()


def test_a_partition_that_the_new_topic_has_taken_in_stays_with_its_new_messages() -> None:
    fake_pulsar, topic = interrupted(3)
    new = create_again(fake_pulsar, topic, gone=(0, 1), partitions=3)
    new |= {fake_pulsar.rollover(topic.partition(2)), *fake_pulsar.listed(topic.partition(2))}
    assert resume(fake_pulsar) is OperationState.REFUSED
    assert asked(fake_pulsar) == []
    kept(fake_pulsar, new, topic)


def test_a_straggler_goes_although_another_was_taken_in() -> None:
    fake_pulsar, topic = interrupted(3)
    new = create_again(fake_pulsar, topic, gone=(0,), partitions=2) | set(fake_pulsar.listed(topic.partition(1)))
    assert resume(fake_pulsar) is OperationState.RUNNING
    assert [deletion.topic for deletion in asked(fake_pulsar)] == [topic.partition(2)]
    kept(fake_pulsar, new, topic)
    assert len(asked(fake_pulsar)) == 1


def test_a_partition_that_is_created_again_while_its_sibling_goes_stays() -> None:
    fake_pulsar, topic = interrupted(2)
    fake_pulsar.remove_node(partitioned_topic_path(topic))
    new: set[LedgerId] = set()
    fake_pulsar.admin.hooks.before(
        "delete_topic", lambda: new.update(create_again(fake_pulsar, topic, gone=(1,), partitions=2))
    )
    assert resume(fake_pulsar) is OperationState.DONE
    assert [deletion.topic for deletion in asked(fake_pulsar)] == [topic.partition(0)]
    kept(fake_pulsar, new, topic)


def test_a_404_for_the_marked_topic_still_leads_to_its_stragglers(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2)
    fake_pulsar.admin.miss_next()
    assert sidecar.delete_topic(topic, partitioned=True) is OperationState.RUNNING
    assert [deletion.topic for deletion in asked(fake_pulsar)] == [topic.partition(0), topic.partition(1)]
    sidecar.work_and_check()
    assert fake_pulsar.ledgers() == set()


def test_a_topic_created_again_before_it_was_ever_asked_for_is_reported_to_the_caller(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2)
    sidecar = Sidecar(fake_pulsar)
    held = begin(sidecar, topic, partitioned=True)
    create_again(fake_pulsar, topic, gone=(), partitions=2)
    refusal = sidecar.deleter.attempt(held).refusal
    assert isinstance(refusal, DataLossError)
    assert "was created again" in str(refusal)
    assert asked(fake_pulsar) == []
    sidecar.work_and_check()


def test_a_topic_without_partitions_that_was_created_again_is_not_asked_for(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    held = begin(Sidecar(fake_pulsar), topic)
    fake_pulsar.store.remove(managed_ledger_path(topic.managed_ledger_name))
    fake_pulsar.topic(NAME)
    nodes = read_nodes(fake_pulsar.store, held.operation.node_paths)
    delete_marked(fake_pulsar.store, fake_pulsar.admin, held.operation, nodes)
    assert asked(fake_pulsar) == []
