"""Acknowledgement states on brokers that crash, unload and pause: what was shown of them must come true."""

import json
import time
from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.features.acknowledgements.results import PauseState, StoredPlace, TopicPolicy
from pulsar_sidecar.features.acknowledgements.stats_answers import PausesInStats
from pulsar_sidecar.model.ids import Position

from tests.cluster.acknowledging import (
    SUBSCRIPTION,
    AckStateSetup,
    Holes,
    ack_state_setup,
    dug,
    every_other,
    positions_in,
)
from tests.cluster.patience import holds_for, until
from tests.cluster.plugin import ClusterFactory

DEFAULT_LIMIT = 10_000
HOLES = 12_000
SMALL_LIMIT = 20


@pytest.fixture(scope="module")
def small(special_cluster: ClusterFactory, request: pytest.FixtureRequest) -> Iterator[AckStateSetup]:
    """Yield brokers that write down 20 ranges and pause beyond them."""
    if request.config.getoption("--fault-rounds") == 1:
        pytest.skip("takes longer than one round's short cut may: make test-faults runs it")
    conf = {
        "managedLedgerMaxUnackedRangesToPersist": str(SMALL_LIMIT),
        "dispatcherPauseOnAckStatePersistentEnabled": "true",
        "managedLedgerCursorPositionFlushSeconds": "1",
        "dispatcherMaxReadBatchSize": "5",
    }
    with special_cluster(broker_conf=conf) as cluster, ack_state_setup(cluster) as setup:
        yield setup


def slowly_every_other(position: Position) -> bool:
    # A client gathers acknowledgements for 100 ms, and a broker can deliver thousands of entries in that time.
    time.sleep(0.005)
    return every_other(position)


def test_a_pause_is_seen_while_it_is_in_force(small: AckStateSetup) -> None:
    holes = small.holes()
    holes.queue = 10
    small.rest.change("PUT", "/admin/v2/persistent/" + str(holes.topic).removeprefix("persistent://"))
    small.states.enable_topic_pause(holes.topic)
    until(lambda: small.states.topic_pause(holes.topic).topic is TopicPolicy.TRUE, "the topic's policy is set")
    with holes.consumer() as consumer:
        holes.produce(400)
        left = holes.acknowledge(consumer, slowly_every_other)
        state = small.state(holes.topic)
        assert (state.pause, state.blocked_on_ack_state_persistent) == (PauseState.IN_FORCE, True)
        ranges = state.non_contiguous_deleted_messages_ranges
        assert SMALL_LIMIT < ranges < 190, "dispatch has stopped before everything was delivered"
        stats = PausesInStats(small.brokers, small.brokers).amended(holes.topic, small.broker_stats(holes.topic))
        assert json.loads(stats)["subscriptions"][SUBSCRIPTION]["blockedOnAckStatePersistent"] is True
        holds_for(lambda: holes.acknowledge(consumer, every_other, 200) == [], "nothing is dispatched", 2)
        holes.give_back(consumer, left)
        more = holes.acknowledge(consumer, lambda position: True)
        assert more == []
        assert holes.acknowledged == holes.sent, "dispatch went on once ranges had merged"
    until(lambda: small.state(holes.topic).pause is PauseState.ARMED, "the pause is over")


def test_a_removed_namespace_policy_restores_the_brokers_own(small: AckStateSetup) -> None:
    namespace = "public/inherits"
    small.rest.change("PUT", f"/admin/v2/namespaces/{namespace}", {})
    small.rest.change("DELETE", f"/admin/v2/namespaces/{namespace}/dispatcherPauseOnAckStatePersistent")
    holes = dug(small, 100, namespace)
    assert small.state(holes.topic).pause is PauseState.OFF, "the false that the broker's DELETE has stored counts"
    small.states.remove_namespace_pause(namespace)
    stopped = small.holes(namespace=namespace)
    stopped.queue = 10
    with stopped.consumer() as consumer:
        stopped.produce(400)
        stopped.acknowledge(consumer, slowly_every_other)
    assert len(stopped.acknowledged) < 190, "the broker's own true counts again"
    # A topic's own policy cannot be distinguished from none, so this much is unknown from outside.
    assert small.state(stopped.topic).pause is PauseState.UNKNOWN


@pytest.mark.parametrize("as_long_array", [False, True])
def test_predictions_for_an_unload_and_a_crash_come_true(
    special_cluster: ClusterFactory, full_run: None, as_long_array: bool
) -> None:
    conf = {
        "managedLedgerMaxUnackedRangesToPersist": "300",
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore": "100",
        "managedLedgerMaxEntriesPerLedger": "200",
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "managedLedgerPersistIndividualAckAsLongArray": str(as_long_array).lower(),
    }
    with special_cluster(broker_conf=conf) as cluster, ack_state_setup(cluster) as setup:
        for end in (unload, crash):
            holes = dug(setup, 500)
            state = setup.state(holes.topic)
            predicted = state.after_unload if end is unload else state.after_crash
            assert 0 < state.after_unload.entries <= state.after_crash.entries
            end(setup, holes)
            delivered = holes.delivered()
            assert delivered & holes.acknowledged == positions_in(predicted.ranges), end.__name__
            assert delivered >= holes.sent - holes.acknowledged


def unload(setup: AckStateSetup, holes: Holes) -> None:
    BrokerTopicAdmin(setup.rest).unload(holes.topic)


def crash(setup: AckStateSetup, holes: Holes) -> None:
    setup.cluster.kill("broker-1")
    setup.cluster.restart("broker-1")


def test_twelve_thousand_holes_lose_two_thousand_in_a_crash(special_cluster: ClusterFactory, full_run: None) -> None:
    conf = {
        "managedLedgerCursorPositionFlushSeconds": "1",
        "managedLedgerPersistIndividualAckAsLongArray": "false",  # in that form nothing would be lost
    }
    with special_cluster(broker_conf=conf) as cluster, ack_state_setup(cluster) as setup:
        holes = dug(setup, HOLES)
        until(
            lambda: setup.state(holes.topic).after_crash == setup.state(holes.topic).after_unload, "all is stored", 30
        )
        state = setup.state(holes.topic)
        assert state.stored is not None
        assert (state.stored.place, state.stored.ranges) == (StoredPlace.CURSOR_LEDGER, DEFAULT_LIMIT + 1)
        assert state.serialized_size_bytes < state.stored.size_bytes < state.serialized_size_bytes + 100
        crash(setup, holes)
        delivered = holes.delivered()
        assert delivered & holes.acknowledged == positions_in(state.after_crash.ranges)
        assert len(delivered & holes.acknowledged) == HOLES - DEFAULT_LIMIT - 1
        assert delivered >= holes.sent - holes.acknowledged, "nothing else is lost"
