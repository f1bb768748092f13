"""A two-phase topic deletion ends in one of two ways only."""

import pytest
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    NotFoundError,
    OutcomeUnknownError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import instance_id_path, managed_ledger_path, partitioned_topic_path

from tests.fakes.brokers import TopicDeletion
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.driving import OP, asked, begin, running
from tests.unit.ledger_deletion.orphans import NAME
from tests.unit.ledger_deletion.sidecars import Sidecar, accepted_records, endings

REFUSAL = BrokerRefusedError(412, "Topic has active producers/subscriptions")


# --- done --------------------------------------------------------------------------------------------------------


def test_records_come_first_and_then_the_broker_is_asked_once(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ids = fake_pulsar.ledgers()
    before = []
    fake_pulsar.admin.hooks.before("delete_topic", lambda: before.extend(accepted_records(fake_pulsar)))
    assert Sidecar(fake_pulsar).delete_topic(topic, force=True) is OperationState.DONE
    assert {record.ledger_id for record in before} == ids
    assert asked(fake_pulsar) == [TopicDeletion(topic, partitioned=False, force=True)]
    assert running(fake_pulsar) == []


@pytest.mark.parametrize("name", [NAME, "persistent://public/local/default/orders-partition-3"])
def test_a_partitioned_topic_goes_as_a_whole(fake_pulsar: FakePulsar, sidecar: Sidecar, name: str) -> None:
    topic = fake_pulsar.partitioned_topic(name, 3)
    assert sidecar.delete_topic(topic, partitioned=True) is OperationState.DONE
    assert asked(fake_pulsar) == [TopicDeletion(topic, partitioned=True, force=False)]
    assert fake_pulsar.admin.loads == [topic.partition(index) for index in range(3)]
    sidecar.work_and_check()
    assert fake_pulsar.ledgers() == set()


def test_a_partition_alone_goes_alone(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2)
    others = {*fake_pulsar.listed(topic.partition(1))}
    sidecar.delete_topic(topic.partition(0))
    sidecar.work_and_check()
    assert others <= fake_pulsar.ledgers()
    assert asked(fake_pulsar) == [TopicDeletion(topic.partition(0), partitioned=False, force=False)]


def test_partitions_added_during_deletion_are_recorded(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 1)
    operation = begin(sidecar, topic, partitioned=True)
    fake_pulsar.store.put(partitioned_topic_path(topic), b'{"partitions":2,"deleted":false}')
    fake_pulsar.topic(str(topic.partition(1)))
    ids = fake_pulsar.ledgers()
    tried = sidecar.deleter.attempt(operation)
    assert tried.state is OperationState.DONE
    assert {record.ledger_id for record in accepted_records(fake_pulsar)} == ids
    assert tried.held.operation.partitions == 2


# --- not there ---------------------------------------------------------------------------------------------------


def test_a_topic_that_never_was_is_the_brokers_404(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    with pytest.raises(NotFoundError):
        sidecar.delete_topic(parse_topic_name(NAME))
    assert running(fake_pulsar) == fake_pulsar.admin.loads == []


def test_a_topic_that_a_broker_no_longer_knows_is_done(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.admin.hooks.before(
        "delete_topic", lambda: fake_pulsar.store.remove(managed_ledger_path(topic.managed_ledger_name))
    )
    assert Sidecar(fake_pulsar).delete_topic(topic) is OperationState.DONE
    assert running(fake_pulsar) == []


def test_the_end_names_the_clusters_whose_replicators_create_the_topic_again(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar
) -> None:
    fake_pulsar.cursor(topic, "pulsar.repl.west")
    tried = sidecar.deleter.attempt(begin(sidecar, topic))
    assert tried.state is OperationState.DONE
    assert f"{topic} was replicated with west: replicators there" in (tried.left_behind or "")


def test_topic_deleted_by_a_broker_is_not_claimed(fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar) -> None:
    """Deletion like brokers' clean-up of inactive topics, while the sidecar cannot record its ledgers."""
    identity = fake_pulsar.store.peek(instance_id_path())
    fake_pulsar.store.remove(identity.path)
    tried = sidecar.deleter.attempt(begin(sidecar, topic))
    assert tried.state is OperationState.RUNNING
    fake_pulsar.delete_by_broker(TopicDeletion(topic, partitioned=False, force=False))
    tried = sidecar.deleter.attempt(tried.held)
    assert (tried.state, asked(fake_pulsar)) == (OperationState.DONE, [])
    assert tried.left_behind is not None
    assert f"{topic} was gone before this sidecar asked a broker" in tried.left_behind
    assert "it knows of 0 recorded ledgers" in tried.left_behind


def test_a_404_although_the_node_is_there_is_not_done(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.admin.miss_next()
    sidecar = Sidecar(fake_pulsar)
    assert sidecar.delete_topic(topic) is OperationState.RUNNING
    assert running(fake_pulsar) == [OP]
    sidecar.work_and_check()
    assert fake_pulsar.ledgers() == set()


# --- refused -----------------------------------------------------------------------------------------------------


def test_a_refusal_ends_it_and_its_records_end_as_in_use(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ids = fake_pulsar.ledgers()
    fake_pulsar.admin.hooks.fail_next("delete_topic", REFUSAL)
    sidecar = Sidecar(fake_pulsar)
    with pytest.raises(BrokerRefusedError):
        sidecar.delete_topic(topic)
    assert running(fake_pulsar) == []
    sidecar.work_and_check()
    assert fake_pulsar.ledgers() == ids
    assert {tuple(ends) for ends in endings(fake_pulsar).values()} == {(("kept", "ledger-still-in-use"),)}


def test_a_refusal_that_cannot_be_noted_is_not_reported_as_the_end(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.admin.hooks.fail_next("delete_topic", REFUSAL)
    sidecar = Sidecar(fake_pulsar)
    fake_pulsar.store.lose_answer_next("delete_together", applied=False)
    for _ in range(6):
        fake_pulsar.store.lose_answer_next("delete", applied=False)
    with pytest.raises(TemporaryError, match="could not be stored"):
        sidecar.delete_topic(topic)
    assert running(fake_pulsar) == [OP]


@pytest.mark.parametrize("applied", [True, False])
def test_lost_response_does_not_hide_a_refusal(fake_pulsar: FakePulsar, topic: TopicName, applied: bool) -> None:
    fake_pulsar.admin.hooks.fail_next("delete_topic", REFUSAL)
    fake_pulsar.store.lose_answer_next("delete_together", applied=applied)
    with pytest.raises(BrokerRefusedError):
        Sidecar(fake_pulsar).delete_topic(topic)
    assert running(fake_pulsar) == []


def test_a_broker_still_at_work_after_a_refusal_leaves_no_orphan(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar
) -> None:
    """The first request was cut off and continues in the broker; the second was refused."""
    fake_pulsar.admin.lose_answer_next(applied=False)
    assert sidecar.delete_topic(topic) is OperationState.RUNNING
    fake_pulsar.admin.hooks.fail_next("delete_topic", REFUSAL)
    fake_pulsar.clock.advance_ms(60_000)
    assert sidecar.drive() is OperationState.REFUSED
    sidecar.process()
    fake_pulsar.trim(topic, 3, dies_between=True)
    sidecar.work()
    assert fake_pulsar.violations == []
    assert set(fake_pulsar.ledgers()) <= set(fake_pulsar.referenced())


# --- unknown -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_outcome_is_looked_at_before_asking_again(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar, applied: bool
) -> None:
    fake_pulsar.admin.lose_answer_next(applied=applied)
    assert sidecar.delete_topic(topic) is OperationState.RUNNING
    assert sidecar.deleter.running()[0].reason
    sidecar.work_and_check()
    assert fake_pulsar.ledgers() == set()
    assert len(asked(fake_pulsar)) == 1


# --- loaded before it is recorded and deleted, so that no broker opens it beside its deletion ------------------------


def test_ledgers_created_by_loading_are_recorded(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    created = []
    fake_pulsar.admin.hooks.before("load_topics", lambda: created.append(fake_pulsar.rollover(topic)))
    assert Sidecar(fake_pulsar).delete_topic(topic) is OperationState.DONE
    assert set(created) <= {record.ledger_id for record in accepted_records(fake_pulsar)}
    assert fake_pulsar.admin.hooks.journal[-2:] == ["load_topics", "delete_topic"]


def test_topic_is_reloaded_when_sending_was_slow(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sent_before = []
    fake_pulsar.admin.hooks.before("load_topics", lambda: sent_before.extend(accepted_records(fake_pulsar)))
    assert Sidecar(fake_pulsar).delete_topic(topic) is OperationState.DONE
    assert len(sent_before) == len(accepted_records(fake_pulsar)) > 0


@pytest.mark.parametrize(
    "failure",
    [
        NotFoundError("Topic not found"),
        BrokerRefusedError(409, "Can not create transaction system topic"),
        TemporaryError("no broker answers"),
        OutcomeUnknownError("500 NoSuchLedgerExists"),
    ],
)
def test_a_topic_that_cannot_be_loaded_is_deleted_all_the_same(fake_pulsar: FakePulsar, failure: SidecarError) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 3)
    ids = fake_pulsar.ledgers()
    fake_pulsar.admin.hooks.fail_next("load_topics", failure, times=-1)
    assert Sidecar(fake_pulsar).delete_topic(topic, partitioned=True) is OperationState.DONE
    assert {record.ledger_id for record in accepted_records(fake_pulsar)} == ids
    assert fake_pulsar.ledgers() == set()
