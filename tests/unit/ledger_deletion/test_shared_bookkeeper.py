"""Two Pulsar clusters on one BookKeeper: what nothing references here may be the other cluster's live data."""

from dataclasses import replace

import pytest
from pulsar_sidecar.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.ledger_deletion.record import (
    SIGNING_KEY,
    Mark,
    PendingDeleteLedgerInfo,
    is_signed,
    parse_record,
    signed,
    signing_key,
)
from pulsar_sidecar.ledger_deletion.second_phase.retry import REASON
from pulsar_sidecar.ledger_deletion.send import redrive
from pulsar_sidecar.ledger_deletion.steps import Steps
from pulsar_sidecar.ledger_ownership.paths import ledger_path
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerState, LedgerType
from pulsar_sidecar.model.names import TopicName

from tests.fakes.bookkeeper import data_custom_metadata
from tests.fakes.world import INSTANCE_ID, TopicPlan, World
from tests.unit.ledger_deletion.cases import offload_record, record
from tests.unit.ledger_deletion.sidecars import POLICY, Crash, CrashAt, Sidecar, check, dead, endings, send, settled
from tests.unit.ledger_deletion.worlds import MAY_BE_SHARED

TOPIC = "persistent://public/default/orders"
KEY = b"k" * 32


def others_ledger(world: World, topic: TopicName, state: LedgerState = LedgerState.CLOSED) -> LedgerId:
    """The other cluster has a topic of the same name, as with geo-replication."""
    return world.ledger(data_custom_metadata(topic.managed_ledger_name), state=state, age_ms=10**10)


def about(topic: TopicName, ledger_id: LedgerId) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(topic, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id)


def unreferenced(world: World, topic: TopicName, ledger_id: LedgerId) -> PendingDeleteLedgerInfo:
    """A record as an audit's plan makes it."""
    node = world.store.read(ledger_path(ledger_id))
    assert node is not None
    mark = Mark(unreferenced=True, instance_id=INSTANCE_ID, created_ms=node.created_ms)
    return about(topic, ledger_id).marked(mark)


# --- what counts as evidence -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [LedgerState.CLOSED, LedgerState.OPEN])
def test_another_clusters_ledger_stays_and_its_record_is_kept(world: World, state: LedgerState) -> None:
    topic = world.topic(TOPIC)
    world.load(topic)
    ledger_id = others_ledger(world, topic, state)
    send(world, about(topic, ledger_id), unreferenced(world, topic, ledger_id))
    Sidecar(world, policy=MAY_BE_SHARED).work()
    assert ledger_id in world.ledgers()
    letters = world.topics.messages(DeletionTopic.DEAD_LETTER)
    assert [parse_record(letter.payload).ledger_id for letter in letters] == [ledger_id, ledger_id]
    assert all("bookkeeperExclusiveToCluster=true" in letter.properties[REASON] for letter in letters)
    assert endings(world)[ledger_id, "LEDGER"] == [("set-aside", "bookkeeper-may-be-shared")] * 2
    assert world.topics.messages(DeletionTopic.RETRY) == []


def test_with_the_setting_a_redriven_record_deletes_its_ledger(world: World) -> None:
    topic = world.topic(TOPIC)
    ledger_id = others_ledger(world, topic)
    send(world, about(topic, ledger_id))
    Sidecar(world, policy=MAY_BE_SHARED).work()
    letters, publisher = world.topics.dead_letters(), world.topics.publisher(DeletionTopic.PENDING, "redriver")
    redrive(letters, publisher, None, 10, Steps())
    letters.close()
    Sidecar(world, name="sidecar-2", policy=POLICY).work()
    assert ledger_id not in world.ledgers()


def test_an_offloaded_copy_that_only_looks_unreferenced_stays(world: World) -> None:
    topic = world.topic(TOPIC)
    send(world, replace(offload_record(), topic=topic))
    Sidecar(world, policy=MAY_BE_SHARED).work()
    assert [line["decision"] for line in settled(world)] == ["set-aside"]


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_topics_deletion_needs_no_setting(world: World, partitioned: bool) -> None:
    plan = TopicPlan(subscriptions=("sub", "a/b"), schema_versions=2, compacted=True, buckets=1, offloaded=(0,))
    topic = world.partitioned_topic(TOPIC, 2, plan) if partitioned else world.topic(TOPIC, plan)
    sidecar = Sidecar(world, policy=MAY_BE_SHARED)
    sidecar.delete_topic(topic, partitioned=partitioned)
    sidecar.work()
    check(world)
    assert world.ledgers() == set()
    assert dead(world) == set()


def test_a_topics_deletion_leaves_the_other_clusters_topic_of_that_name(world: World) -> None:
    topic = world.topic(TOPIC)
    ledger_id = others_ledger(world, topic)
    sidecar = Sidecar(world, policy=MAY_BE_SHARED)
    sidecar.delete_topic(topic)
    sidecar.work()
    assert world.ledgers() == {ledger_id}


def test_an_operations_id_alone_vouches_for_nothing(world: World) -> None:
    topic = world.topic(TOPIC)
    sidecar = Sidecar(world, policy=MAY_BE_SHARED)
    sidecar.delete_topic(topic)
    true = parse_record(world.topics.messages(DeletionTopic.PENDING)[0].payload)
    sidecar.work()
    ledger_id = others_ledger(world, topic)
    forged = unreferenced(world, topic, ledger_id)
    send(
        world,
        forged.marked(replace(forged.mark, operation_id=true.mark.operation_id)),
        forged.marked(replace(forged.mark, operation_id=true.mark.operation_id, signature=true.mark.signature)),
        replace(true, ledger_id=ledger_id),
        true.marked(replace(true.mark, created_ms=None)),
    )
    sidecar.work()
    assert ledger_id in world.ledgers()


# --- the signature ---------------------------------------------------------------------------------------------------


def test_a_signature_holds_for_exactly_one_record() -> None:
    mine = signed(record(created_ms=5), KEY)
    assert is_signed(mine, KEY)
    assert not is_signed(mine, b"o" * 32)
    assert not is_signed(mine, None)
    for key in (b"", b"short", KEY + b"k"):
        assert not is_signed(signed(record(created_ms=5), key), key)
    assert not is_signed(record(created_ms=5), KEY)
    for other in (
        replace(mine, ledger_id=LedgerId(8)),
        replace(mine, component=LedgerComponent.MANAGED_CURSOR),
        mine.marked(replace(mine.mark, created_ms=6)),
        mine.marked(replace(mine.mark, instance_id="elsewhere")),
        mine.marked(replace(mine.mark, signature="ä")),
    ):
        assert not is_signed(other, KEY)


def test_a_ledger_that_nothing_tells_from_a_later_one_is_not_signed() -> None:
    assert signed(record(), KEY) == record()
    assert is_signed(signed(offload_record(), KEY), KEY)


def test_the_key_is_made_once_and_used_by_every_sidecar(world: World) -> None:
    with pytest.raises(Crash):
        signing_key(world.store, CrashAt(0))
    with pytest.raises(Crash):
        signing_key(world.store, CrashAt(1))
    key = signing_key(world.store, CrashAt(0))
    assert signing_key(world.store.other_session(), Steps()) == key
    assert len(key) == 32


def test_a_node_that_holds_no_key_is_said(world: World) -> None:
    world.store.put(SIGNING_KEY, b"short")
    with pytest.raises(TemporaryError, match=SIGNING_KEY):
        signing_key(world.store, Steps())
