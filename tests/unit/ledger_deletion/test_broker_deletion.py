"""A partitioned topic that was partly created again loses nothing of its new incarnation."""

from pulsar_sidecar.ledger_deletion.service import OperationState
from pulsar_sidecar.ledger_deletion.topic_deletion.driver import delete_marked
from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.model.errors import DataLossError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.names import TopicName

from tests.fakes.brokers import TopicDeletion
from tests.fakes.world import World
from tests.unit.ledger_deletion.sidecars import Sidecar, check, restarted
from tests.unit.ledger_deletion.worlds import create_again

NAME = "persistent://public/default/orders"
OP = OperationId("op-1")


def interrupted(partitions: int) -> tuple[World, TopicName]:
    """The broker was asked, and nobody knows what it has done."""
    world = World()
    topic = world.partitioned_topic(NAME, partitions)
    world.admin.lose_answer_next(applied=False)
    assert Sidecar(world).delete_topic(topic, partitioned=True, force=True) is OperationState.RUNNING
    return world, topic


def resume(world: World) -> OperationState | None:
    sidecar = restarted(world)
    world.clock.advance_ms(3_600_000)
    return sidecar.drive()


def kept(world: World, new: set[LedgerId], topic: TopicName) -> None:
    restarted(world).work()
    check(world)
    assert new <= world.ledgers()
    assert world.store.peek(partitioned_topic_path(topic)) is not None


def test_only_the_straggler_is_asked_for() -> None:
    world, topic = interrupted(3)
    new = create_again(world, topic, gone=(0, 1), partitions=2)
    straggler = set(world.listed(topic.partition(2)))
    assert resume(world) is OperationState.DONE
    assert world.admin.deletions == [TopicDeletion(topic.partition(2), partitioned=False, force=True)]
    kept(world, new, topic)
    assert not straggler & world.ledgers()


def test_a_partition_that_the_new_topic_has_taken_in_stays_with_its_new_messages() -> None:
    world, topic = interrupted(3)
    new = create_again(world, topic, gone=(0, 1), partitions=3)
    new |= {world.rollover(topic.partition(2)), *world.listed(topic.partition(2))}
    assert resume(world) is OperationState.REFUSED
    assert world.admin.deletions == []
    kept(world, new, topic)


def test_a_straggler_goes_although_another_was_taken_in() -> None:
    world, topic = interrupted(3)
    new = create_again(world, topic, gone=(0,), partitions=2) | set(world.listed(topic.partition(1)))
    assert resume(world) is OperationState.RUNNING
    assert [deletion.topic for deletion in world.admin.deletions] == [topic.partition(2)]
    kept(world, new, topic)
    assert len(world.admin.deletions) == 1


def test_a_partition_that_is_created_again_while_its_sibling_goes_stays() -> None:
    world, topic = interrupted(2)
    world.remove_node(partitioned_topic_path(topic))
    new: set[LedgerId] = set()
    world.admin.hooks.before("delete_topic", lambda: new.update(create_again(world, topic, gone=(1,), partitions=2)))
    assert resume(world) is OperationState.DONE
    assert [deletion.topic for deletion in world.admin.deletions] == [topic.partition(0)]
    kept(world, new, topic)


def test_a_404_for_the_marked_topic_still_leads_to_its_stragglers() -> None:
    world = World()
    topic = world.partitioned_topic(NAME, 2)
    world.admin.miss_next()
    sidecar = Sidecar(world)
    assert sidecar.delete_topic(topic, partitioned=True) is OperationState.RUNNING
    assert [deletion.topic for deletion in world.admin.deletions] == [topic.partition(0), topic.partition(1)]
    sidecar.work()
    check(world)
    assert world.ledgers() == set()


def test_a_topic_created_again_before_it_was_ever_asked_for_tells_its_caller() -> None:
    world = World()
    topic = world.partitioned_topic(NAME, 2)
    sidecar = Sidecar(world)
    held = sidecar.deleter.begin(OP, topic, partitioned=True, force=True, requested_by="me")
    create_again(world, topic, gone=(), partitions=2)
    refusal = sidecar.deleter.attempt(held).refusal
    assert isinstance(refusal, DataLossError)
    assert "was created again" in str(refusal)
    assert world.admin.deletions == []
    sidecar.work()
    check(world)


def test_a_topic_without_partitions_that_was_created_again_is_not_asked_for() -> None:
    world = World()
    topic = world.topic(NAME)
    held = Sidecar(world).deleter.begin(OP, topic, partitioned=False, force=True, requested_by="me")
    world.store.remove(managed_ledger_path(topic.managed_ledger_name))
    world.topic(NAME)
    delete_marked(world.store, world.admin, held.operation)
    assert world.admin.deletions == []
