"""Acknowledgement states as the sidecar shows them, against what brokers then redeliver."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.features.acknowledgements.results import PauseState, TopicPolicy
from pulsar_sidecar.features.acknowledgements.states import DetailOptions
from pulsar_sidecar.features.acknowledgements.stats_answers import PausesInStats
from pulsar_sidecar.model.errors import ConflictError, NotFoundError
from pulsar_sidecar.model.names import parse_topic_name

from tests.cluster.acknowledging import (
    SUBSCRIPTION,
    AckStateSetup,
    ack_state_setup,
    dug,
    every_other,
    positions_in,
)
from tests.cluster.choosing import line_under_test
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique

DEFAULT_LIMIT = 10_000
HOLES = 12_000


@pytest.fixture(scope="module")
def setup(cluster: ClusterUnderTest) -> Iterator[AckStateSetup]:
    with ack_state_setup(cluster) as setup:
        yield setup


def test_holes_beyond_the_stored_limit_are_lost(setup: AckStateSetup) -> None:
    """Two thousand; none by default from 4.2 on, where a ledger's acknowledgements are the bits of one array."""
    lost = HOLES - DEFAULT_LIMIT - 1 if line_under_test() < (4, 2) else 0
    holes = dug(setup, HOLES)
    state = setup.state(holes.topic)
    assert (state.non_contiguous_deleted_messages_ranges, state.individually_acknowledged_entries) == (HOLES, HOLES)
    assert (state.max_unacked_ranges_to_persist, state.ranges_left) == (DEFAULT_LIMIT, 0)
    assert (state.pause, state.blocked_on_ack_state_persistent) == (PauseState.OFF, False)
    BrokerTopicAdmin(setup.rest).unload(holes.topic)
    delivered = holes.delivered()
    assert delivered & holes.acknowledged == positions_in(state.after_unload.ranges)
    assert len(delivered & holes.acknowledged) == lost
    assert delivered >= holes.sent - holes.acknowledged, "nothing else is lost"
    after = setup.state(holes.topic)
    assert (after.non_contiguous_deleted_messages_ranges, after.after_unload.entries) == (HOLES - lost, 0)


def test_brokers_own_statistics_get_one_key_more(setup: AckStateSetup) -> None:
    topic = dug(setup, 3).topic
    stats = setup.broker_stats(topic)
    amended = PausesInStats(setup.brokers, setup.brokers).amended(topic, stats)
    assert amended.replace(b',"blockedOnAckStatePersistent":false', b"") == stats
    (subscription,) = json.loads(amended)["subscriptions"].values()
    assert subscription["nonContiguousDeletedMessagesRanges"] == 3
    assert subscription["blockedOnAckStatePersistent"] is False


def test_unknown_topics_are_not_created(setup: AckStateSetup) -> None:
    nowhere = parse_topic_name("persistent://public/default/nobody-made-this")
    for topic in (nowhere, parse_topic_name("persistent://public/no-namespace/x")):
        for ask in (
            lambda topic=topic: setup.states.ack_states(topic, None, DetailOptions()),
            lambda topic=topic: setup.states.topic_pause(topic),
            lambda topic=topic: setup.states.enable_topic_pause(topic),
        ):
            with pytest.raises(NotFoundError):
                ask()
    assert BrokerTopicAdmin(setup.rest).partitions(nowhere) is None
    holes = dug(setup, 1)
    with pytest.raises(NotFoundError, match="no durable subscription"):
        setup.states.ack_states(holes.topic, "nobody-made-this", DetailOptions())
    assert list(BrokerTopicAdmin(setup.rest).stats(holes.topic).subscriptions) == [SUBSCRIPTION]
    with pytest.raises(NotFoundError):
        setup.states.namespace_pause("public/no-namespace")


def test_every_partition_has_its_own_state(setup: AckStateSetup) -> None:
    holes = setup.holes("partitioned")
    BrokerTopicAdmin(setup.rest).create(holes.topic, partitions=3)
    with holes.consumer() as consumer:
        holes.produce(12)
        holes.acknowledge(consumer, every_other, 2_000)
    states = setup.states.ack_states(holes.topic, SUBSCRIPTION, DetailOptions())
    assert [state.topic for state in states] == [str(holes.topic.partition(index)) for index in range(3)]
    assert [state.individually_acknowledged_entries for state in states] == [2, 2, 2]


def test_a_topic_policy_is_set_and_its_removal_reports_the_effect(setup: AckStateSetup) -> None:
    topic = dug(setup, 1).topic
    assert setup.states.topic_pause(topic).topic is TopicPolicy.FALSE_OR_UNSET
    untouched = setup.states.remove_topic_pause(topic, force=False)
    assert (untouched.removed, untouched.in_effect) == (False, False)
    setup.states.enable_topic_pause(topic)
    until(lambda: setup.states.topic_pause(topic).enabled, "the topic's policy is in effect")
    assert setup.state(topic).pause is PauseState.ARMED
    removal = setup.states.remove_topic_pause(topic, force=False)
    assert (removal.removed, removal.in_effect) == (False, False)
    assert removal.remark is not None
    until(lambda: setup.states.topic_pause(topic).enabled is False, "the topic's policy is not in effect")


def test_a_namespace_policy_is_set_and_removed(setup: AckStateSetup) -> None:
    namespace = f"public/pausing-{unique()}"
    setup.rest.change("PUT", f"/admin/v2/namespaces/{namespace}", {})
    topic = dug(setup, 1, namespace).topic
    before = setup.store.read(f"/admin/policies/{namespace}")
    assert setup.states.namespace_pause(namespace) is None
    setup.states.enable_namespace_pause(namespace)
    until(lambda: setup.states.namespace_pause(namespace), "the namespace's policy is set")
    setup.states.enable_topic_pause(topic)
    until(lambda: setup.states.topic_pause(topic).topic is TopicPolicy.TRUE, "the topic's policy is set")
    with pytest.raises(ConflictError, match="would store false"):
        setup.states.remove_topic_pause(topic, force=False)
    assert setup.states.remove_topic_pause(topic, force=True).in_effect is False

    # A broker's own DELETE leaves false behind, which would override a broker's true.
    setup.rest.change("DELETE", f"/admin/v2/namespaces/{namespace}/dispatcherPauseOnAckStatePersistent")
    until(lambda: setup.states.namespace_pause(namespace) is False, "the broker has stored false")
    removal = setup.states.remove_namespace_pause(namespace)
    assert (removal.removed, removal.in_effect) == (True, False)
    assert setup.states.namespace_pause(namespace) is None
    after = setup.store.read(f"/admin/policies/{namespace}")
    assert before is not None
    assert after is not None
    assert after.data == before.data, "nothing else in the namespace's policies has changed"
