"""A deletion beside others: a topic that is created again stays, and several sidecars drive one operation."""

import pytest
from pulsar_sidecar.ledger_deletion.service import OperationState
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import (
    OPERATIONS,
    HeldOperation,
    driver_path,
    operation_path,
)
from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    ConflictError,
    OutcomeUnknownError,
    TemporaryError,
)
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.fakes.brokers import TopicDeletion
from tests.fakes.world import TopicPlan, World
from tests.unit.ledger_deletion.driving import NAME, OP, asked, begin, running
from tests.unit.ledger_deletion.sidecars import Crash, CrashAt, Sidecar, check, restarted, told

REFUSAL = BrokerRefusedError(412, "Topic has active producers/subscriptions")


def recreated(world: World, topic: TopicName) -> None:
    """Somebody deletes the topic and creates it again."""
    world.store.remove(managed_ledger_path(topic.managed_ledger_name))
    for record in told(world):
        world.remove_ledger(record.ledger_id)
    world.topic(str(topic))


# --- created again -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
def test_a_topic_created_again_after_the_broker_was_asked_stays(applied: bool) -> None:
    world = World()
    topic = world.topic(NAME)
    world.admin.lose_answer_next(applied=applied)
    sidecar = Sidecar(world)
    sidecar.delete_topic(topic)
    if not applied:
        world.store.remove(managed_ledger_path(topic.managed_ledger_name))
    world.topic(NAME)
    new = set(world.listed(topic))
    sidecar.work()
    check(world)
    assert new <= world.ledgers()
    assert len(asked(world)) == int(applied)


def test_a_topic_created_again_before_the_broker_was_ever_asked_stays() -> None:
    world = World()
    topic = world.topic(NAME)
    begin(Sidecar(world), topic)
    recreated(world, topic)
    new = world.ledgers()
    sidecar = restarted(world)
    sidecar.work()
    check(world)
    assert new <= world.ledgers()
    assert asked(world) == []


def test_a_topic_created_again_while_its_records_were_sent_stays() -> None:
    world = World()
    topic = world.topic(NAME)
    world.topics.hooks.before("publish", lambda: recreated(world, topic))
    sidecar = Sidecar(world)
    assert sidecar.delete_topic(topic) is OperationState.DONE
    assert asked(world) == []
    assert set(world.listed(topic)) <= world.ledgers()


def test_a_topic_created_again_while_its_shadows_were_looked_for_stays() -> None:
    world = World()
    topic = world.topic(NAME)
    sidecar = Sidecar(world)
    operation = begin(sidecar, topic)
    world.admin.hooks.before("shadow_topics", lambda: recreated(world, topic))
    state = sidecar.deleter.attempt(operation).state
    assert state is OperationState.DONE
    assert asked(world) == []
    assert set(world.listed(topic)) <= world.ledgers()


def test_partitions_of_a_topic_created_again_are_never_taken_along() -> None:
    world = World()
    topic = world.partitioned_topic(NAME, 2)
    sidecar = Sidecar(world)
    operation = begin(sidecar, topic, partitioned=True)

    def create_again() -> None:
        world.delete_by_broker(TopicDeletion(topic, partitioned=True, force=True))
        world.partitioned_topic(NAME, 2)

    world.store.before("read_many", create_again)
    state = sidecar.deleter.attempt(operation).state
    assert state is OperationState.DONE
    assert asked(world) == []


def test_nothing_marked_is_never_asked_for_later() -> None:
    world = World()
    begin(Sidecar(world), parse_topic_name(NAME))
    world.topic(NAME)
    sidecar = restarted(world)
    world.clock.advance_ms(3_600_000)
    assert sidecar.drive() is None
    assert running(world) == []
    assert asked(world) == []


# --- who drives --------------------------------------------------------------------------------------------------


def test_a_new_operation_is_left_to_whoever_began_it() -> None:
    world = World()
    topic = world.topic(NAME)
    other = Sidecar(world, name="sidecar-2", store=world.store.other_session())
    world.store.before("create", other.drive, path=driver_path(OP))
    assert begin(Sidecar(world), topic).operation.operation_id == OP
    assert world.listed(topic) != []


def test_a_begin_that_is_overtaken_does_not_revive_what_ended() -> None:
    world = World()
    topic = world.topic(NAME)
    other = Sidecar(world, name="sidecar-2", store=world.store.other_session())

    def overtake() -> None:
        world.clock.advance_ms(10_000)
        assert other.drive() is OperationState.DONE

    world.store.before("create", overtake, path=driver_path(OP))
    with pytest.raises(TemporaryError, match="another sidecar"):
        begin(Sidecar(world), topic)
    assert running(world) == []


def test_nothing_marked_is_asked_for_once_only() -> None:
    world = World()
    sidecar = Sidecar(world)
    operation = begin(sidecar, parse_topic_name(NAME))
    world.admin.lose_answer_next(applied=False)
    tried = sidecar.deleter.attempt(operation)
    assert tried.state is OperationState.RUNNING
    world.topic(NAME)
    assert sidecar.deleter.attempt(tried.held).state is OperationState.DONE
    assert asked(world) == []


def test_one_that_is_driven_is_not_taken() -> None:
    world = World()
    topic = world.topic(NAME)
    first = Sidecar(world)
    begin(first, topic)
    other = Sidecar(world, name="sidecar-2", store=world.store.other_session())
    world.clock.advance_ms(3_600_000)
    assert other.drive() is None
    assert first.drive() is None
    world.store.end_session()
    assert other.drive() is OperationState.DONE


def test_a_begin_that_another_sidecar_was_faster_with_says_so() -> None:
    world = World()
    topic = world.topic(NAME)
    other = world.store.other_session()
    world.store.before(
        "create", lambda: other.create(driver_path(OP), b"sidecar-2", ephemeral=True), path=driver_path(OP)
    )
    with pytest.raises(TemporaryError, match="another sidecar"):
        begin(Sidecar(world), topic)


@pytest.mark.parametrize("applied", [True, False])
def test_a_driver_left_over_by_a_lost_answer_is_taken_again(applied: bool) -> None:
    world = World()
    topic = world.topic(NAME)
    sidecar = Sidecar(world)
    world.store.before(
        "create", lambda: world.store.lose_answer_next("create", applied=applied), path=operation_path(OP)
    )
    with pytest.raises(OutcomeUnknownError):
        begin(sidecar, topic)
    world.clock.advance_ms(10_000)
    assert sidecar.drive() is OperationState.DONE
    assert world.listed(topic) == []


@pytest.mark.parametrize("error", [TemporaryError("no session"), OutcomeUnknownError("lost")])
def test_a_store_that_fails_in_the_middle_does_not_strand_the_operation(error: Exception) -> None:
    for method in ("read", "read_many", "children", "now_ms", "write", "delete"):
        for times in (1, 5):
            world = World()
            topic = world.topic(NAME)
            sidecar = Sidecar(world)
            operation = begin(sidecar, topic)
            world.store.fail_next(method, error, times=times)  # type: ignore[arg-type]
            try:
                state = sidecar.deleter.attempt(operation).state
                if state is OperationState.RUNNING:
                    sidecar.deleter.release(operation.operation)
            except (TemporaryError, OutcomeUnknownError):
                pass
            sidecar.work()
            check(world)
            assert world.ledgers() == set(), method


def one_after_another(world: World, topic: TopicName) -> tuple[Sidecar, HeldOperation, Sidecar]:
    """A driver that lost its session, what it still holds, and a sidecar that may take it over."""
    first = Sidecar(world)
    operation = begin(first, topic)
    world.store.end_session()
    world.clock.advance_ms(10_000)
    return first, operation, Sidecar(world, name="sidecar-2", store=world.store.other_session())


def test_a_driver_that_lost_its_session_learns_that_another_finished() -> None:
    world = World()
    topic = world.topic(NAME)
    first, operation, other = one_after_another(world, topic)
    assert other.drive() is OperationState.DONE
    assert first.deleter.attempt(operation).state is OperationState.DONE
    assert len(asked(world)) == 1


def test_a_driver_that_lost_its_session_learns_that_another_was_refused() -> None:
    world = World()
    topic = world.topic(NAME)
    first, operation, other = one_after_another(world, topic)
    world.admin.hooks.fail_next("delete_topic", REFUSAL)
    assert other.drive() is OperationState.REFUSED
    tried = first.deleter.attempt(operation)
    assert tried.state is OperationState.REFUSED
    assert isinstance(tried.refusal, ConflictError)
    assert asked(world) == []


def test_two_drivers_of_one_operation_ask_for_the_same_incarnation_only() -> None:
    world = World()
    topic = world.topic(NAME)
    first, operation, other = one_after_another(world, topic)
    world.admin.hooks.before("delete_topic", lambda: other.drive() and None)
    state = first.deleter.attempt(operation).state
    assert state is OperationState.DONE
    assert running(world) == []
    world.topic(NAME)
    for sidecar in (first, other):
        assert sidecar.drive() is None
    assert world.listed(topic) != []


def test_taking_one_that_ends_at_this_moment_leaves_nothing_behind() -> None:
    world = World()
    topic = world.topic(NAME)
    first = Sidecar(world)
    operation = begin(first, topic)
    first.deleter.release(operation.operation)
    world.clock.advance_ms(10_000)
    other_store = world.store.other_session()
    other_store.before("create", lambda: first.deleter.end(operation.operation), path=driver_path(OP))
    other = Sidecar(world, name="sidecar-2", store=other_store)
    assert other.drive() is None
    assert running(world) == []


def test_an_empty_leftover_is_cleared_away() -> None:
    world = World()
    world.store.create(f"{OPERATIONS}/{OP}", b"")
    assert Sidecar(world).drive() is None
    assert running(world) == []


def test_an_unreadable_operation_holds_up_no_other() -> None:
    world = World()
    topic = world.topic(NAME)
    world.store.create(f"{OPERATIONS}/aaa", b'{"newer":"version"}')
    sidecar = Sidecar(world)
    operation = begin(sidecar, topic)
    sidecar.deleter.release(operation.operation)
    assert [status.operation_id for status in sidecar.deleter.running()] == [OP]
    world.clock.advance_ms(10_000)
    assert sidecar.drive() is OperationState.DONE
    assert running(world) == ["aaa"]


def test_after_a_crash_anyone_goes_on() -> None:
    world = World()
    topic = world.topic(NAME, TopicPlan(compacted=True))
    sidecar = Sidecar(world, steps=CrashAt(1))
    with pytest.raises(Crash):
        begin(sidecar, topic)
    world.store.end_session()
    other = Sidecar(world, name="sidecar-2", store=world.store.other_session())
    other.work()
    check(world)
    assert world.ledgers() == set()
