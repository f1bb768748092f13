"""What is said of acknowledgement states, against what brokers then really deliver again."""

from collections.abc import Iterator

import pytest

from service.ack_state.judging import Wishes
from service.ack_state.pausing import PauseState, TopicPolicy
from service.ack_state.stored import StoredPlace
from service.adapters.pulsar.topic_admin import BrokerTopicAdmin
from service.model.errors import ConflictError, NotFoundError
from service.model.names import parse_topic_name
from service.model.positions import Position
from tests.cluster.acknowledging import (
    SUBSCRIPTION,
    AckStateStage,
    Holes,
    ack_state_stage,
    positions_in,
)
from tests.cluster.patience import holds_for, until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest

pytestmark = pytest.mark.timeout(240)

DEFAULT_LIMIT = 10_000
HOLES = 12_000
SMALL_LIMIT = 20
STEP = "a broker stores what it holds at the next acknowledgement after a second"


@pytest.fixture(scope="module")
def stage(cluster: ClusterUnderTest) -> Iterator[AckStateStage]:
    with ack_state_stage(cluster) as stage:
        yield stage


def every_other(position: Position) -> bool:
    return position.entry_id % 2 == 1


def dug(stage: AckStateStage, count: int, namespace: str = "public/default") -> Holes:
    """A subscription with so many holes, one by one, and no consumer."""
    holes = stage.holes(namespace=namespace)
    with holes.consumer() as consumer:
        holes.produce(2 * count)
        holes.acknowledge(consumer, every_other)
    assert len(holes.acknowledged) == count
    return holes


def test_twelve_thousand_holes_lose_two_thousand_in_a_crash(stage: AckStateStage) -> None:
    holes = dug(stage, HOLES)
    state = until(lambda: fully_stored(stage, holes), STEP, 75)
    assert (state.cursor.ranges, state.cursor.acknowledged.entries) == (HOLES, HOLES)
    assert (state.limits.max_unacked_ranges, state.ranges_left) == (DEFAULT_LIMIT, 0)
    assert (state.pause, state.blocked) == (PauseState.OFF, False)
    assert state.stored is not None
    assert (state.stored.place, state.stored.ranges) == (StoredPlace.CURSOR_LEDGER, DEFAULT_LIMIT + 1)
    assert state.written_bytes < state.stored.size_bytes < state.written_bytes + 100
    assert state.after_unload == state.after_crash

    owner = stage.owner(holes.topic)
    stage.cluster.kill(owner)
    try:
        delivered = holes.delivered()
    finally:
        stage.cluster.restart(owner)
    assert delivered & holes.acknowledged == positions_in(state.after_crash.ranges)
    assert len(delivered & holes.acknowledged) == HOLES - DEFAULT_LIMIT - 1
    assert delivered >= holes.sent - holes.acknowledged, "nothing else is lost"


def fully_stored(stage: AckStateStage, holes: Holes) -> object:
    """The state, once nothing but what does not fit is missing in storage."""
    state = stage.state(holes.topic)
    return state if state.after_crash == state.after_unload else None


def test_what_does_not_exist_is_not_made(stage: AckStateStage) -> None:
    nowhere = parse_topic_name("persistent://public/default/nobody-made-this")
    for topic in (nowhere, parse_topic_name("persistent://public/no-namespace/x")):
        for ask in (
            lambda topic=topic: stage.states.ack_states(topic, None, Wishes()),
            lambda topic=topic: stage.states.topic_pause(topic),
            lambda topic=topic: stage.states.enable_topic_pause(topic),
        ):
            with pytest.raises(NotFoundError):
                ask()
    assert BrokerTopicAdmin(stage.rest).partitions(nowhere) is None
    holes = dug(stage, 1)
    with pytest.raises(NotFoundError, match="no durable subscription"):
        stage.states.ack_states(holes.topic, "nobody-made-this", Wishes())
    assert list(BrokerTopicAdmin(stage.rest).stats(holes.topic)["subscriptions"]) == [SUBSCRIPTION]  # type: ignore[call-overload]
    with pytest.raises(NotFoundError):
        stage.states.namespace_pause("public/no-namespace")


def test_every_partition_has_its_own_state(stage: AckStateStage) -> None:
    holes = stage.holes("partitioned")
    BrokerTopicAdmin(stage.rest).create(holes.topic, partitions=3)
    with holes.consumer() as consumer:
        holes.produce(12)
        holes.acknowledge(consumer, every_other, 2_000)
    states = stage.states.ack_states(holes.topic, SUBSCRIPTION, Wishes())
    assert [state.topic for state in states] == [holes.topic.partition(index) for index in range(3)]
    assert [state.cursor.acknowledged.entries for state in states] == [2, 2, 2]


def test_a_topics_policy_is_set_and_what_removing_does_is_told(stage: AckStateStage) -> None:
    topic = dug(stage, 1).topic
    assert stage.states.topic_pause(topic).topic is TopicPolicy.FALSE_OR_UNSET
    untouched = stage.states.remove_topic_pause(topic, force=False)
    assert (untouched.removed, untouched.in_effect) == (False, False)
    stage.states.enable_topic_pause(topic)
    until(lambda: stage.states.topic_pause(topic).enabled, "the topic's policy is in effect")
    assert stage.state(topic).pause is PauseState.ARMED
    removal = stage.states.remove_topic_pause(topic, force=False)
    assert (removal.removed, removal.in_effect) == (False, False)
    assert removal.remark is not None
    until(lambda: stage.states.topic_pause(topic).enabled is False, "the topic's policy is not in effect")


def test_a_namespaces_policy_is_set_and_really_removed(stage: AckStateStage) -> None:
    namespace = "public/pausing"
    stage.rest.change("PUT", f"/admin/v2/namespaces/{namespace}", {})
    topic = dug(stage, 1, namespace).topic
    before = stage.store.read(f"/admin/policies/{namespace}")
    assert stage.states.namespace_pause(namespace) is None
    stage.states.enable_namespace_pause(namespace)
    until(lambda: stage.states.namespace_pause(namespace), "the namespace's policy is set")
    stage.states.enable_topic_pause(topic)
    until(lambda: stage.states.topic_pause(topic).topic is TopicPolicy.TRUE, "the topic's policy is set")
    with pytest.raises(ConflictError, match="would store false"):
        stage.states.remove_topic_pause(topic, force=False)
    assert stage.states.remove_topic_pause(topic, force=True).in_effect is False

    # A broker's own DELETE leaves false behind, which would override a broker's true.
    stage.rest.change("DELETE", f"/admin/v2/namespaces/{namespace}/dispatcherPauseOnAckStatePersistent")
    until(lambda: stage.states.namespace_pause(namespace) is False, "the broker has stored false")
    removal = stage.states.remove_namespace_pause(namespace)
    assert (removal.removed, removal.in_effect) == (True, False)
    assert stage.states.namespace_pause(namespace) is None
    after = stage.store.read(f"/admin/policies/{namespace}")
    assert before is not None
    assert after is not None
    assert after.data == before.data, "nothing else in the namespace's policies has changed"


@pytest.fixture(scope="module")
def small(special_cluster: ClusterFactory, full_run: None) -> Iterator[AckStateStage]:
    """Brokers that write down 20 ranges and pause beyond them."""
    conf = {
        "managedLedgerMaxUnackedRangesToPersist": str(SMALL_LIMIT),
        "dispatcherPauseOnAckStatePersistentEnabled": "true",
        "managedLedgerCursorPositionFlushSeconds": "1",
        "dispatcherMaxReadBatchSize": "5",
    }
    with special_cluster(broker_conf=conf) as cluster, ack_state_stage(cluster) as stage:
        yield stage


def test_a_pause_is_seen_while_it_is_in_force(small: AckStateStage) -> None:
    holes = small.holes()
    small.rest.change("PUT", "/admin/v2/persistent/" + str(holes.topic).removeprefix("persistent://"))
    small.states.enable_topic_pause(holes.topic)
    until(lambda: small.states.topic_pause(holes.topic).topic is TopicPolicy.TRUE, "the topic's policy is set")
    with holes.consumer() as consumer:
        holes.produce(400)
        left = holes.acknowledge(consumer, every_other)
        state = small.state(holes.topic)
        assert (state.pause, state.blocked) == (PauseState.IN_FORCE, True)
        assert SMALL_LIMIT < state.cursor.ranges < 190, "dispatch has stopped before everything was delivered"
        holds_for(lambda: holes.acknowledge(consumer, every_other, 200) == [], "nothing is dispatched", 2)
        holes.give_back(consumer, left)
        more = holes.acknowledge(consumer, lambda position: True)
        assert more == []
        assert holes.acknowledged == holes.sent, "dispatch went on once ranges had merged"
    until(lambda: small.state(holes.topic).pause is PauseState.ARMED, "the pause is over")


def test_a_removed_namespace_policy_lets_the_brokers_own_count_again(small: AckStateStage) -> None:
    namespace = "public/inherits"
    small.rest.change("PUT", f"/admin/v2/namespaces/{namespace}", {})
    small.rest.change("DELETE", f"/admin/v2/namespaces/{namespace}/dispatcherPauseOnAckStatePersistent")
    holes = dug(small, 100, namespace)
    assert small.state(holes.topic).pause is PauseState.OFF, "the false that the broker's DELETE has stored counts"
    small.states.remove_namespace_pause(namespace)
    stopped = small.holes(namespace=namespace)
    with stopped.consumer() as consumer:
        stopped.produce(400)
        stopped.acknowledge(consumer, every_other)
    assert len(stopped.acknowledged) < 190, "the broker's own true counts again"
    # A topic's own policy cannot be told apart from none, so this much is unknown from outside.
    assert small.state(stopped.topic).pause is PauseState.UNKNOWN


@pytest.mark.parametrize("as_long_array", [False, True])
def test_what_is_predicted_for_an_unload_and_a_crash_comes_true(
    special_cluster: ClusterFactory, full_run: None, as_long_array: bool
) -> None:
    conf = {
        "managedLedgerMaxUnackedRangesToPersist": "300",
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore": "100",
        "managedLedgerMaxEntriesPerLedger": "200",
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "managedLedgerPersistIndividualAckAsLongArray": str(as_long_array).lower(),
    }
    with special_cluster(broker_conf=conf) as cluster, ack_state_stage(cluster) as stage:
        for end in (unload, crash):
            holes = dug(stage, 500)
            state = stage.state(holes.topic)
            predicted = state.after_unload if end is unload else state.after_crash
            assert 0 < state.after_unload.entries <= state.after_crash.entries
            end(stage, holes)
            delivered = holes.delivered()
            assert delivered & holes.acknowledged == positions_in(predicted.ranges), end.__name__
            assert delivered >= holes.sent - holes.acknowledged


def unload(stage: AckStateStage, holes: Holes) -> None:
    BrokerTopicAdmin(stage.rest).unload(holes.topic)


def crash(stage: AckStateStage, holes: Holes) -> None:
    stage.cluster.kill("broker-1")
    stage.cluster.restart("broker-1")
