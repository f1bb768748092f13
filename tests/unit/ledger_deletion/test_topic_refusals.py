"""Brokers' refusals for a topic come before the first record, and before any partition is deleted."""

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import ConnectedClients
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError, RefusedBeforehandError, TemporaryError
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.pulsar_versions import Line
from pulsar_sidecar.ownership.paths import partitioned_topic_path

from tests.fakes.brokers import TopicDeletion
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.driving import asked, running
from tests.unit.ledger_deletion.orphans import NAME
from tests.unit.ledger_deletion.sidecars import Crash, CrashAt, Sidecar, accepted_records, restarted

PRODUCER = ConnectedClients(producers=1)


def refused(fake_pulsar: FakePulsar, topic: TopicName, *, partitioned: bool) -> tuple[int, str]:
    """Return the refusal; nothing is changed."""
    before = set(fake_pulsar.store.paths())
    with pytest.raises(RefusedBeforehandError) as refusal:
        Sidecar(fake_pulsar).delete_topic(topic, partitioned=partitioned)
    assert {path for path in fake_pulsar.store.paths() if path in before} == before
    assert accepted_records(fake_pulsar) == []
    assert asked(fake_pulsar) == running(fake_pulsar) == []
    return refusal.value.status, refusal.value.reason


# --- clients, without force ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize(
    ("line", "clients", "words"),
    [
        ((4, 0), ConnectedClients(1, 2), ("Topic has 3 connected producers/consumers",)),
        (
            (4, 2),
            PRODUCER,
            ("Topic has 1 client connected Including 0 consumers, 1 producers, and 0 replicators.",) * 2,
        ),
        (
            (4, 2),
            ConnectedClients(2, 1, 1),
            ("Topic has 4 clients connected Including 2 consumers, 1 producers, and 1 replicators.",) * 2,
        ),
    ],
)
def test_clients_are_in_the_way_in_brokers_words(
    fake_pulsar: FakePulsar, line: Line, clients: ConnectedClients, words: tuple[str, ...], *, partitioned: bool
) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 3) if partitioned else fake_pulsar.topic(NAME)
    fake_pulsar.admin.line = line
    fake_pulsar.admin.connected[topic.partition(1) if partitioned else topic] = clients
    expected = words[0] if not partitioned or len(words) > 1 else "Topic has active producers/subscriptions"
    assert refused(fake_pulsar, topic, partitioned=partitioned) == (412, expected)


@pytest.mark.parametrize("partitioned", [False, True])
def test_so_is_replication(fake_pulsar: FakePulsar, *, partitioned: bool) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2) if partitioned else fake_pulsar.topic(NAME)
    fake_pulsar.admin.connected[topic.partition(0) if partitioned else topic] = ConnectedClients(
        replicated_to=("east", "west")
    )
    assert refused(fake_pulsar, topic, partitioned=partitioned) == (
        422,
        "Delete forbidden topic is replicated on clusters [east, west]",
    )


@pytest.mark.parametrize("partitioned", [False, True])
def test_with_force_nobody_is_asked_who_is_connected(fake_pulsar: FakePulsar, *, partitioned: bool) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2) if partitioned else fake_pulsar.topic(NAME)
    fake_pulsar.admin.connected[topic.partition(0) if partitioned else topic] = PRODUCER
    assert Sidecar(fake_pulsar).delete_topic(topic, partitioned=partitioned, force=True) is OperationState.DONE
    assert "clients_of" not in fake_pulsar.admin.hooks.journal


def test_a_client_that_comes_while_records_are_sent_keeps_all_partitions(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 3)
    before = fake_pulsar.ledgers()
    fake_pulsar.admin.hooks.before(
        "load_topics", lambda: fake_pulsar.admin.connected.update({topic.partition(2): PRODUCER})
    )
    sidecar = Sidecar(fake_pulsar)
    with pytest.raises(RefusedBeforehandError):
        sidecar.delete_topic(topic, partitioned=True)
    sidecar.work_and_check()
    assert asked(fake_pulsar) == []
    assert fake_pulsar.ledgers() == before


def test_a_client_that_comes_between_attempts_ends_it_before_anything_more_is_deleted(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 3)
    before = fake_pulsar.ledgers()
    fake_pulsar.admin.lose_answer_next(applied=False)
    assert Sidecar(fake_pulsar).delete_topic(topic, partitioned=True) is OperationState.RUNNING
    fake_pulsar.admin.connected[topic.partition(1)] = PRODUCER
    fake_pulsar.clock.advance_ms(60_000)
    second = restarted(fake_pulsar)
    assert second.drive() is OperationState.REFUSED
    second.work_and_check()
    assert fake_pulsar.ledgers() == before


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("failure", [TemporaryError("500"), BrokerRefusedError(409, "cannot be loaded")])
def test_only_what_is_loaded_nowhere_has_no_clients(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar, failure: Exception, *, loaded: bool
) -> None:
    if loaded:
        fake_pulsar.load(topic)
    fake_pulsar.admin.hooks.fail_next("clients_of", failure, times=2 if loaded else 1)
    if not loaded:
        assert sidecar.delete_topic(topic) is OperationState.DONE
        return
    if isinstance(failure, TemporaryError):
        assert sidecar.delete_topic(topic) is OperationState.RUNNING
    else:
        with pytest.raises(BrokerRefusedError):
            sidecar.delete_topic(topic)
    assert accepted_records(fake_pulsar) == []
    assert asked(fake_pulsar) == []


# --- kinds of topics -------------------------------------------------------------------------------------------------


def test_a_partitioned_topic_is_not_deleted_without_its_partitions(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2)
    assert refused(fake_pulsar, topic, partitioned=False) == (
        409,
        f"{NAME} is a partitioned topic: delete it with pulsar-sidecar topics delete --partitioned {NAME}",
    )


def test_a_topic_without_partitions_is_not_deleted_with_partitions(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.topic(str(topic.partition(0)))
    assert refused(fake_pulsar, topic, partitioned=True) == (
        409,
        f"{NAME} is a non-partitioned topic: delete it with pulsar-sidecar topics delete {NAME}",
    )


def test_a_partition_has_no_partitions(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2)
    assert refused(fake_pulsar, topic.partition(0), partitioned=True) == (
        412,
        "Partitioned Topic Name should not contain '-partition-'",
    )


# --- partitions without their topic ----------------------------------------------------------------------------------


def make_again(fake_pulsar: FakePulsar, topic: TopicName, *indexes: int) -> None:
    for index in indexes:
        fake_pulsar.topic(str(topic.partition(index)))


def test_partitions_recreated_during_deletion_are_deleted_too(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 3)
    fake_pulsar.admin.after_deletion(lambda deletion: deletion.partitioned and make_again(fake_pulsar, topic, 0, 2))
    assert sidecar.delete_topic(topic, partitioned=True, force=True) is OperationState.DONE
    assert [each.topic for each in asked(fake_pulsar)] == [topic, topic.partition(0), topic.partition(2)]
    sidecar.work_and_check()
    assert fake_pulsar.ledgers() == set()


@pytest.mark.parametrize("force", [False, True])
def test_clients_that_make_them_again_and_again_are_named_at_its_end(fake_pulsar: FakePulsar, *, force: bool) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2)

    def make_again_and_connect(_deletion: TopicDeletion) -> None:
        make_again(fake_pulsar, topic, 0)
        fake_pulsar.admin.connected[topic.partition(0)] = PRODUCER

    fake_pulsar.admin.after_deletion(make_again_and_connect)
    sidecar = Sidecar(fake_pulsar)
    held = sidecar.deleter.begin("op-1", topic, partitioned=True, force=force, requested_by="me")
    tried = sidecar.deleter.attempt(held)
    assert tried.state is OperationState.DONE
    assert tried.left_behind is not None
    assert f"topics delete --partitioned {NAME}" in tried.left_behind
    assert len(asked(fake_pulsar)) == (4 if force else 1)
    left = set(fake_pulsar.listed(topic.partition(0)))
    sidecar.work_and_check()
    assert left <= fake_pulsar.ledgers()


def test_topic_recreated_during_deletion_keeps_its_partitions(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2)
    fake_pulsar.admin.after_deletion(lambda _: fake_pulsar.partitioned_topic(NAME, 2))
    assert Sidecar(fake_pulsar).delete_topic(topic, partitioned=True, force=True) is OperationState.DONE
    assert len(asked(fake_pulsar)) == 1
    assert all(fake_pulsar.listed(topic.partition(index)) for index in range(2))


def left_over(*indexes: int) -> tuple[FakePulsar, TopicName]:
    fake_pulsar, topic = FakePulsar(), parse_topic_name(NAME)
    make_again(fake_pulsar, topic, *indexes)
    return fake_pulsar, topic


def test_partitions_without_their_topic_are_deleted() -> None:
    fake_pulsar, topic = left_over(0, 7)
    neighbours = [f"{NAME}-partition-{end}" for end in ("10000", "01", "x", "1-DLQ")] + [f"{NAME}s-partition-1"]
    kept = {each for name in neighbours for each in fake_pulsar.listed(fake_pulsar.topic(name))}
    sidecar = Sidecar(fake_pulsar)
    assert sidecar.delete_topic(topic, partitioned=True) is OperationState.DONE
    assert [(each.topic, each.partitioned) for each in asked(fake_pulsar)] == [
        (topic.partition(0), False),
        (topic.partition(7), False),
    ]
    sidecar.work_and_check()
    assert kept <= fake_pulsar.ledgers()
    assert not fake_pulsar.listed(topic.partition(0)) + fake_pulsar.listed(topic.partition(7))
    with pytest.raises(NotFoundError, match=f"Topic {NAME} not found"):
        restarted(fake_pulsar).delete_topic(topic, partitioned=True)


def test_a_client_of_one_of_them_is_in_the_way() -> None:
    fake_pulsar, topic = left_over(0, 1)
    fake_pulsar.admin.connected[topic.partition(1)] = PRODUCER
    assert refused(fake_pulsar, topic, partitioned=True)[0] == 412


def test_a_topic_created_anew_takes_those_that_are_left_in() -> None:
    fake_pulsar, topic = left_over(0, 1)
    held = Sidecar(fake_pulsar).deleter.begin("op-1", topic, partitioned=True, force=True, requested_by="me")
    fake_pulsar.store.put(partitioned_topic_path(topic), b'{"partitions":1,"deleted":false}')
    sidecar = restarted(fake_pulsar)
    fake_pulsar.clock.advance_ms(60_000)
    sidecar.work()
    assert held.operation.partitions == 2
    assert [each.topic for each in asked(fake_pulsar)] == [topic.partition(1)]
    assert fake_pulsar.listed(topic.partition(0))


def test_wherever_it_stops_those_that_were_made_again_go() -> None:
    for number in range(1_000):
        fake_pulsar = FakePulsar()
        topic = fake_pulsar.partitioned_topic(NAME, 2)

        def make_again_once(deletion: TopicDeletion, pulsar: FakePulsar = fake_pulsar) -> None:
            if not pulsar.admin.deletions:
                make_again(pulsar, deletion.topic, 1)

        fake_pulsar.admin.after_deletion(make_again_once)
        try:
            Sidecar(fake_pulsar, steps=CrashAt(number)).delete_topic(topic, partitioned=True, force=True)
        except Crash:
            fake_pulsar.clock.advance_ms(60_000)
            restarted(fake_pulsar).work_and_check()
            # The third point lies before the promise.
            assert number < 3 or fake_pulsar.ledgers() == set(), number
            continue
        assert number > 20
        return
    raise AssertionError("it takes more steps than expected")
