"""A schema's node that a broker left behind goes with its topic, if every ledger that it names is gone."""

import pytest
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.features.ledger_deletion.topic_deletion.leftover_nodes import remove_leftovers
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import Node, read_nodes
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import (
    instance_id_path,
    ledger_path,
    managed_ledger_path,
    partitioned_topic_path,
    schema_path,
)

from tests.fakes.bookkeeper import schema_locator_bytes
from tests.fakes.brokers import TopicDeletion
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.driving import begin, running
from tests.unit.ledger_deletion.orphans import NAME
from tests.unit.ledger_deletion.replay_settings import Setting, live
from tests.unit.ledger_deletion.sidecars import Sidecar, endings


def plan() -> TopicPlan:
    return TopicPlan(ledgers=1, schema_versions=2)


@pytest.fixture
def topic(fake_pulsar: FakePulsar) -> TopicName:
    return fake_pulsar.topic(NAME, plan())


def schema_node(fake_pulsar: FakePulsar, topic: TopicName) -> Node | None:
    return fake_pulsar.store.peek(schema_path(topic.schema_id))


def schema_ledgers(fake_pulsar: FakePulsar, topic: TopicName) -> list[LedgerId]:
    return sorted(fake_pulsar.view(topic).schema_ledgers)


def lose_schema(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    for ledger_id in schema_ledgers(fake_pulsar, topic):
        fake_pulsar.remove_ledger(ledger_id)


def test_a_broker_leaves_the_node_of_a_schema_whose_ledger_is_gone(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    lose_schema(fake_pulsar, topic)
    fake_pulsar.delete_by_broker(TopicDeletion(topic, partitioned=False, force=True))
    assert schema_node(fake_pulsar, topic) is not None


@pytest.mark.parametrize("partitioned", [False, True])
def test_the_node_goes_with_the_topic(fake_pulsar: FakePulsar, sidecar: Sidecar, partitioned: bool) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2, plan()) if partitioned else fake_pulsar.topic(NAME, plan())
    lose_schema(fake_pulsar, topic)
    assert sidecar.delete_topic(topic, partitioned=partitioned) is OperationState.DONE
    assert schema_node(fake_pulsar, topic) is None
    sidecar.work_and_check()
    assert fake_pulsar.ledgers() == set()


def test_a_partition_leaves_the_schema_of_its_siblings_alone(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 2, plan())
    lose_schema(fake_pulsar, topic)
    Sidecar(fake_pulsar).delete_topic(topic.partition(0))
    assert schema_node(fake_pulsar, topic) is not None


def left_of(fake_pulsar: FakePulsar, topic: TopicName) -> str | None:
    name = topic.managed_ledger_name
    paths = (schema_path(topic.schema_id), managed_ledger_path(name), partitioned_topic_path(topic))
    return remove_leftovers(fake_pulsar.store, "/ledgers", Steps(), topic, read_nodes(fake_pulsar.store, paths))


def test_a_schema_with_one_ledger_that_exists_stays_and_is_reported(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    older, newest = schema_ledgers(fake_pulsar, topic)
    fake_pulsar.remove_ledger(newest)
    sidecar = Sidecar(fake_pulsar)
    tried = sidecar.deleter.attempt(begin(sidecar, topic))
    assert (tried.state, running(fake_pulsar)) == (OperationState.DONE, [])
    assert tried.left_behind == (
        f"brokers left the schema {schema_path(topic.schema_id)}: its ledgers {older} exist; remove it with: "
        f"pulsar-admin schemas delete --force {topic}"
    )
    sidecar.work_and_check()
    assert fake_pulsar.ledgers() == {older}
    assert endings(fake_pulsar)[older, "LEDGER"] == [("kept", "ledger-still-in-use")]


@pytest.mark.parametrize(
    ("data", "why"), [(b"\xff", "cannot be read"), (schema_locator_bytes([-1]), "names no ledger")]
)
def test_a_schema_that_proves_nothing_stays_and_is_reported(
    fake_pulsar: FakePulsar, topic: TopicName, data: bytes, why: str
) -> None:
    fake_pulsar.delete_by_broker(TopicDeletion(topic, partitioned=False, force=True))
    fake_pulsar.store.put(schema_path(topic.schema_id), data)
    left = left_of(fake_pulsar, topic)
    assert left is not None
    assert why in left
    assert schema_node(fake_pulsar, topic) is not None


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_topic_that_was_made_again_keeps_its_schema(
    fake_pulsar: FakePulsar, topic: TopicName, partitioned: bool
) -> None:
    lose_schema(fake_pulsar, topic)
    if partitioned:
        fake_pulsar.delete_by_broker(TopicDeletion(topic, partitioned=False, force=True))
        fake_pulsar.store.put(partitioned_topic_path(topic), b'{"partitions":1,"deleted":false}')
    left = left_of(fake_pulsar, topic)
    assert schema_node(fake_pulsar, topic) is not None
    assert left is not None
    assert "the topic was recreated" in left
    fake_pulsar.schema(topic, 1)
    assert left_of(fake_pulsar, topic) is None


def test_a_schema_that_is_registered_again_between_the_look_and_the_removal_stays(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    lose_schema(fake_pulsar, topic)
    path = schema_path(topic.schema_id)
    fake_pulsar.store.before("delete", lambda: fake_pulsar.schema(topic, 1), path=path)
    assert Sidecar(fake_pulsar).delete_topic(topic) is OperationState.DONE
    (ledger_id,) = schema_ledgers(fake_pulsar, topic)
    assert fake_pulsar.store.peek(ledger_path(ledger_id)) is not None


def test_a_wrong_root_of_ledgers_proves_nothing(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    lose_schema(fake_pulsar, topic)
    fake_pulsar.delete_by_broker(TopicDeletion(topic, partitioned=False, force=True))
    fake_pulsar.store.remove(instance_id_path())
    with pytest.raises(TemporaryError, match="instance id"):
        left_of(fake_pulsar, topic)
    assert schema_node(fake_pulsar, topic) is not None


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_is_looked_at(fake_pulsar: FakePulsar, topic: TopicName, applied: bool) -> None:
    lose_schema(fake_pulsar, topic)
    fake_pulsar.store.lose_answer_next("delete", applied=applied)
    assert Sidecar(fake_pulsar).delete_topic(topic) is OperationState.DONE
    assert schema_node(fake_pulsar, topic) is None


def test_a_removal_that_fails_is_made_up_for_by_the_next_attempt(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    lose_schema(fake_pulsar, topic)
    sidecar = Sidecar(fake_pulsar)
    fake_pulsar.store.fail_next("delete", TemporaryError("no session"), path=schema_path(topic.schema_id))
    with pytest.raises(TemporaryError):
        sidecar.delete_topic(topic)
    assert running(fake_pulsar) == ["op-1"]
    sidecar.work_and_check()
    assert schema_node(fake_pulsar, topic) is None
    assert running(fake_pulsar) == []


def lost_schema() -> Setting:
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(NAME, plan())
    fake_pulsar.load(topic)
    lose_schema(fake_pulsar, topic)
    return Setting(fake_pulsar, topic)


def test_a_crash_before_and_after_any_step() -> None:
    steps = live(lost_schema())[0].seen
    assert Step.LEFTOVER_NODE_REMOVED in steps
    for number in range(steps.index(Step.OPERATION_CREATED) + 1, len(steps)):
        setting = lost_schema()
        live(setting, [number])
        assert setting.fake_pulsar.ledgers() == set()
        assert schema_node(setting.fake_pulsar, setting.topic) is None
