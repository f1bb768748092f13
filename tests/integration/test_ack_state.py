"""What is said of acknowledgement states, against what brokers then really deliver again."""

from collections.abc import Iterator

import pytest
from pulsar_sidecar.ack_state.limits import PauseState, TopicPolicy
from pulsar_sidecar.ack_state.states import DetailOptions
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.model.errors import ConflictError, NotFoundError
from pulsar_sidecar.model.names import parse_topic_name

from tests.cluster.acknowledging import (
    SUBSCRIPTION,
    AckStateStage,
    ack_state_stage,
    dug,
    every_other,
    positions_in,
)
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique

DEFAULT_LIMIT = 10_000
HOLES = 12_000


@pytest.fixture(scope="module")
def stage(cluster: ClusterUnderTest) -> Iterator[AckStateStage]:
    with ack_state_stage(cluster) as stage:
        yield stage


def test_twelve_thousand_holes_lose_two_thousand(stage: AckStateStage) -> None:
    holes = dug(stage, HOLES)
    state = stage.state(holes.topic)
    assert (state.cursor.ranges, state.cursor.acknowledged.entries) == (HOLES, HOLES)
    assert (state.limits.max_unacked_ranges, state.ranges_left) == (DEFAULT_LIMIT, 0)
    assert (state.pause, state.blocked) == (PauseState.OFF, False)
    BrokerTopicAdmin(stage.rest).unload(holes.topic)
    delivered = holes.delivered()
    assert delivered & holes.acknowledged == positions_in(state.after_unload.ranges)
    assert len(delivered & holes.acknowledged) == HOLES - DEFAULT_LIMIT - 1
    assert delivered >= holes.sent - holes.acknowledged, "nothing else is lost"
    after = stage.state(holes.topic)
    assert (after.cursor.ranges, after.after_unload.entries) == (DEFAULT_LIMIT + 1, 0)


def test_what_does_not_exist_is_not_made(stage: AckStateStage) -> None:
    nowhere = parse_topic_name("persistent://public/default/nobody-made-this")
    for topic in (nowhere, parse_topic_name("persistent://public/no-namespace/x")):
        for ask in (
            lambda topic=topic: stage.states.ack_states(topic, None, DetailOptions()),
            lambda topic=topic: stage.states.topic_pause(topic),
            lambda topic=topic: stage.states.enable_topic_pause(topic),
        ):
            with pytest.raises(NotFoundError):
                ask()
    assert BrokerTopicAdmin(stage.rest).partitions(nowhere) is None
    holes = dug(stage, 1)
    with pytest.raises(NotFoundError, match="no durable subscription"):
        stage.states.ack_states(holes.topic, "nobody-made-this", DetailOptions())
    assert list(BrokerTopicAdmin(stage.rest).stats(holes.topic).subscriptions) == [SUBSCRIPTION]
    with pytest.raises(NotFoundError):
        stage.states.namespace_pause("public/no-namespace")


def test_every_partition_has_its_own_state(stage: AckStateStage) -> None:
    holes = stage.holes("partitioned")
    BrokerTopicAdmin(stage.rest).create(holes.topic, partitions=3)
    with holes.consumer() as consumer:
        holes.produce(12)
        holes.acknowledge(consumer, every_other, 2_000)
    states = stage.states.ack_states(holes.topic, SUBSCRIPTION, DetailOptions())
    assert [state.topic for state in states] == [holes.topic.partition(index) for index in range(3)]
    assert [state.cursor.acknowledged.entries for state in states] == [2, 2, 2]


def test_a_topics_policy_is_set_and_what_removing_does_is_reported(stage: AckStateStage) -> None:
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
    namespace = f"public/pausing-{unique()}"
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
