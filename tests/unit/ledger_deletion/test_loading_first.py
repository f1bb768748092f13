"""A topic is loaded before it is recorded and deleted, so that no broker opens it beside its own deletion."""

import pytest
from pulsar_sidecar.ledger_deletion.service import OperationState
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    NotFoundError,
    OutcomeUnknownError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.world import World
from tests.unit.ledger_deletion.sidecars import Sidecar, told

NAME = "persistent://public/default/orders"


def test_what_loading_creates_is_recorded_with_the_rest() -> None:
    world = World()
    topic = world.topic(NAME)
    created = []
    world.admin.hooks.before("load_topic", lambda: created.append(world.rollover(topic)))
    assert Sidecar(world).delete_topic(topic) is OperationState.DONE
    assert set(created) <= {record.ledger_id for record in told(world)}
    assert world.admin.hooks.journal[-3:] == ["load_topic", "shadow_topics", "delete_topic"]


def test_it_is_loaded_after_the_sending_which_may_have_taken_long() -> None:
    world = World()
    topic = world.topic(NAME)
    sent_before = []
    world.admin.hooks.before("load_topic", lambda: sent_before.extend(told(world)))
    assert Sidecar(world).delete_topic(topic) is OperationState.DONE
    assert len(sent_before) == len(told(world)) > 0


@pytest.mark.parametrize(
    "failure",
    [
        NotFoundError("Topic not found"),
        BrokerRefusedError(409, "Can not create transaction system topic"),
        TemporaryError("no broker answers"),
        OutcomeUnknownError("500 NoSuchLedgerExists"),
    ],
)
def test_a_topic_that_cannot_be_loaded_is_deleted_all_the_same(failure: SidecarError) -> None:
    world = World()
    topic = world.partitioned_topic(NAME, 3)
    ids = world.ledgers()
    world.admin.hooks.fail_next("load_topic", failure, times=-1)
    assert Sidecar(world).delete_topic(topic, partitioned=True) is OperationState.DONE
    assert {record.ledger_id for record in told(world)} == ids
    assert world.ledgers() == set()


def test_every_partition_is_loaded() -> None:
    world = World()
    topic = world.partitioned_topic(NAME, 3)
    assert Sidecar(world).delete_topic(topic, partitioned=True) is OperationState.DONE
    assert world.admin.loads == [topic.partition(index) for index in range(3)]


def test_a_topic_that_does_not_exist_is_not_loaded() -> None:
    world = World()
    with pytest.raises(NotFoundError):
        Sidecar(world).delete_topic(parse_topic_name(NAME))
    assert world.admin.loads == []
