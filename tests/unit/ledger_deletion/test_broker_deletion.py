"""A partitioned topic that was partly created again loses nothing of its new incarnation."""

from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.features.ledger_deletion.topic_deletion.broker_requests import delete_marked
from pulsar_sidecar.model.errors import DataLossError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.metadata import read_nodes
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import managed_ledger_path, partitioned_topic_path

from tests.fakes.brokers import TopicDeletion
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.orphans import NAME
from tests.unit.ledger_deletion.replay_settings import create_again
from tests.unit.ledger_deletion.sidecars import Sidecar, check, restarted

OP = OperationId("op-1")


def interrupted(partitions: int) -> tuple[FakePulsar, TopicName]:
    """The broker was asked, and what it has done is unknown."""
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
    restarted(fake_pulsar).work()
    check(fake_pulsar)
    assert new <= fake_pulsar.ledgers()
    assert fake_pulsar.store.peek(partitioned_topic_path(topic)) is not None


def test_only_the_straggler_is_asked_for() -> None:
    fake_pulsar, topic = interrupted(3)
    new = create_again(fake_pulsar, topic, gone=(0, 1), partitions=2)
    straggler = set(fake_pulsar.listed(topic.partition(2)))
    assert resume(fake_pulsar) is OperationState.DONE
    assert fake_pulsar.admin.deletions == [TopicDeletion(topic.partition(2), partitioned=False, force=True)]
    kept(fake_pulsar, new, topic)
    assert not straggler & fake_pulsar.ledgers()


def test_a_partition_that_the_new_topic_has_taken_in_stays_with_its_new_messages() -> None:
    fake_pulsar, topic = interrupted(3)
    new = create_again(fake_pulsar, topic, gone=(0, 1), partitions=3)
    new |= {fake_pulsar.rollover(topic.partition(2)), *fake_pulsar.listed(topic.partition(2))}
    assert resume(fake_pulsar) is OperationState.REFUSED
    assert fake_pulsar.admin.deletions == []
    kept(fake_pulsar, new, topic)


def test_a_straggler_goes_although_another_was_taken_in() -> None:
    fake_pulsar, topic = interrupted(3)
    new = create_again(fake_pulsar, topic, gone=(0,), partitions=2) | set(fake_pulsar.listed(topic.partition(1)))
    assert resume(fake_pulsar) is OperationState.RUNNING
    assert [deletion.topic for deletion in fake_pulsar.admin.deletions] == [topic.partition(2)]
    kept(fake_pulsar, new, topic)
    assert len(fake_pulsar.admin.deletions) == 1


def test_a_partition_that_is_created_again_while_its_sibling_goes_stays() -> None:
    fake_pulsar, topic = interrupted(2)
    fake_pulsar.remove_node(partitioned_topic_path(topic))
    new: set[LedgerId] = set()
    fake_pulsar.admin.hooks.before(
        "delete_topic", lambda: new.update(create_again(fake_pulsar, topic, gone=(1,), partitions=2))
    )
    assert resume(fake_pulsar) is OperationState.DONE
    assert [deletion.topic for deletion in fake_pulsar.admin.deletions] == [topic.partition(0)]
    kept(fake_pulsar, new, topic)


def test_a_404_for_the_marked_topic_still_leads_to_its_stragglers(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2)
    fake_pulsar.admin.miss_next()
    assert sidecar.delete_topic(topic, partitioned=True) is OperationState.RUNNING
    assert [deletion.topic for deletion in fake_pulsar.admin.deletions] == [topic.partition(0), topic.partition(1)]
    sidecar.work()
    check(fake_pulsar)
    assert fake_pulsar.ledgers() == set()


def test_a_topic_created_again_before_it_was_ever_asked_for_is_reported_to_the_caller(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2)
    sidecar = Sidecar(fake_pulsar)
    held = sidecar.deleter.begin(OP, topic, partitioned=True, force=True, requested_by="me")
    create_again(fake_pulsar, topic, gone=(), partitions=2)
    refusal = sidecar.deleter.attempt(held).refusal
    assert isinstance(refusal, DataLossError)
    assert "was created again" in str(refusal)
    assert fake_pulsar.admin.deletions == []
    sidecar.work()
    check(fake_pulsar)


def test_a_topic_without_partitions_that_was_created_again_is_not_asked_for(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    held = Sidecar(fake_pulsar).deleter.begin(OP, topic, partitioned=False, force=True, requested_by="me")
    fake_pulsar.store.remove(managed_ledger_path(topic.managed_ledger_name))
    fake_pulsar.topic(NAME)
    nodes = read_nodes(fake_pulsar.store, held.operation.node_paths)
    delete_marked(fake_pulsar.store, fake_pulsar.admin, held.operation, nodes)
    assert fake_pulsar.admin.deletions == []
