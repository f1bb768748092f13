"""Pointers to buckets whose ledgers are gone no longer keep brokers from deleting a subscription, or its topic."""

import pytest
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.features.ledger_deletion.steps import Step
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import available_bookies_path, instance_id_path, ledger_path

from tests.fakes.brokers import ConnectedClients
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.driving import OP, asked, begin, running
from tests.unit.ledger_deletion.orphans import NAME
from tests.unit.ledger_deletion.sidecars import Crash, CrashAt, Sidecar, accepted_records, restarted

SUB = "billing"
BUCKETS = 3


@pytest.fixture
def topic(fake_pulsar: FakePulsar) -> TopicName:
    return _topic(fake_pulsar)


def _topic(fake_pulsar: FakePulsar) -> TopicName:
    """A topic with a subscription whose first bucket's ledger is gone."""
    topic = fake_pulsar.topic(NAME, TopicPlan(subscriptions=()))
    fake_pulsar.cursor(topic, SUB, TopicPlan(buckets=BUCKETS))
    fake_pulsar.remove_ledger(_buckets(fake_pulsar, topic)[0])
    return topic


def _buckets(fake_pulsar: FakePulsar, topic: TopicName) -> list[LedgerId]:
    (cursor,) = fake_pulsar.cursors(topic).values()
    return sorted(cursor.buckets.values())


def _unsubscribe(fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar) -> None:
    """Have it promised by a broker's death, which has taken effect on nothing."""
    fake_pulsar.admin.lose_answer_next(applied=False)
    sidecar.delete_part(topic, SUB)


def test_a_subscription_goes_although_a_bucket_is_gone(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar, buckets = Sidecar(fake_pulsar), _buckets(fake_pulsar, topic)
    _unsubscribe(fake_pulsar, topic, sidecar)
    sidecar.work_and_check()
    assert running(fake_pulsar) == []
    assert fake_pulsar.cursors(topic) == {}
    assert fake_pulsar.ledgers().isdisjoint(buckets)
    # The one that was put back is recorded once more: its first record had nothing to wait for.
    assert sorted(each.ledger_id for each in accepted_records(fake_pulsar) if each.ledger_id in buckets) == [
        buckets[0],
        *buckets,
    ]


def test_a_loaded_topic_goes_although_a_bucket_is_gone(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.loaded.add(topic)
    sidecar = Sidecar(fake_pulsar)
    sidecar.delete_topic(topic)
    sidecar.work_and_check()
    assert (running(fake_pulsar), fake_pulsar.ledgers()) == ([], set())


def test_a_ledger_that_is_put_back_is_closed_and_empty_and_says_whose_it_is(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    sidecar, gone = Sidecar(fake_pulsar), _buckets(fake_pulsar, topic)[0]
    before = fake_pulsar.store.peek(ledger_path(_buckets(fake_pulsar, topic)[1]))
    assert before is not None
    metadata = list[bytes]()

    def look() -> None:
        node = fake_pulsar.store.peek(ledger_path(gone))
        metadata.extend([node.data] if node is not None else [])

    fake_pulsar.admin.hooks.before("delete_topic", look, times=4)
    _unsubscribe(fake_pulsar, topic, sidecar)
    sidecar.work()
    put_back, other = decode_ledger_metadata(metadata[0]), decode_ledger_metadata(before.data)
    assert (put_back.last_entry_id, put_back.length_bytes) == (-1, 0)
    assert put_back.custom_metadata.keys() == other.custom_metadata.keys()
    assert put_back.custom_metadata["pulsar/delayedIndexCursor"] == other.custom_metadata["pulsar/delayedIndexCursor"]


def test_refused_deletion_restores_no_ledger(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar, before = Sidecar(fake_pulsar), fake_pulsar.ledgers()
    fake_pulsar.admin.connected[topic] = ConnectedClients(consumers=1)
    operation = sidecar.deleter.record_part(OP, topic, SUB, force=False, requested_by="me")
    assert sidecar.deleter.attempt(sidecar.deleter.persist(operation)).state is OperationState.REFUSED
    assert fake_pulsar.ledgers() == before


@pytest.mark.parametrize("trouble", ["read fails", "no identity", "no bookie"])
def test_failed_lookup_restores_no_ledger(fake_pulsar: FakePulsar, topic: TopicName, trouble: str) -> None:
    sidecar, before = Sidecar(fake_pulsar), fake_pulsar.ledgers()
    fake_pulsar.admin.lose_answer_next(applied=False)
    tried = sidecar.deleter.attempt(begin(sidecar, topic))
    if trouble == "read fails":
        fake_pulsar.store.fail_next("read_many", TemporaryError("no session"), times=20)
    else:
        fake_pulsar.store.remove(
            instance_id_path() if trouble == "no identity" else f"{available_bookies_path()}/bookie:3181"
        )
    requests = len(asked(fake_pulsar))
    assert sidecar.deleter.attempt(tried.held).state is OperationState.RUNNING
    assert fake_pulsar.ledgers() == before
    assert len(asked(fake_pulsar)) == requests


def test_a_sidecar_that_dies_around_any_step() -> None:
    for number in range(200):
        fake_pulsar = FakePulsar()
        topic, steps = _topic(fake_pulsar), CrashAt(number)
        sidecar = Sidecar(fake_pulsar, steps=steps)
        try:
            _unsubscribe(fake_pulsar, topic, sidecar)
            sidecar.work()
        except Crash:
            restarted(fake_pulsar).work_and_check()
            assert fake_pulsar.ledgers() <= set(fake_pulsar.referenced())
        else:
            break
    assert Step.BUCKET_PUT_BACK in steps.seen


def test_a_broker_that_dies_again_before_any_of_its_steps() -> None:
    for die_at in range(100):
        fake_pulsar = FakePulsar()
        topic, sidecar = _topic(fake_pulsar), Sidecar(fake_pulsar)
        fake_pulsar.die_at = die_at
        _unsubscribe(fake_pulsar, topic, sidecar)
        sidecar.work_and_check()
        assert fake_pulsar.cursors(topic) == {}
        if fake_pulsar.die_at is not None:
            break
    assert die_at > 2 * BUCKETS
