"""A topic is loaded before it is recorded and deleted, so that no broker opens it beside its own deletion."""

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

from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.orphans import NAME
from tests.unit.ledger_deletion.sidecars import Sidecar, accepted_records


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


def test_every_partition_is_loaded(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.partitioned_topic(NAME, 3)
    assert Sidecar(fake_pulsar).delete_topic(topic, partitioned=True) is OperationState.DONE
    assert fake_pulsar.admin.loads == [topic.partition(index) for index in range(3)]


def test_a_topic_that_does_not_exist_is_not_loaded(fake_pulsar: FakePulsar) -> None:
    with pytest.raises(NotFoundError):
        Sidecar(fake_pulsar).delete_topic(parse_topic_name(NAME))
    assert fake_pulsar.admin.loads == []
