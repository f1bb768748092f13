"""Meaning of brokers' responses for cancelling: subscriptions, cursors, policies, clocks, and a route they may have."""

import json

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.delayed_topics import BrokerTopics
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError, TemporaryError
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.topic_stats import SubscriptionType

from tests.cluster.patience import until
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_messages import TOPIC, at
from tests.fakes.http_servers import Answer, Arrived, HttpServer, json_answer, refusing
from tests.fakes.metadata import FakeMetadataStore

STATS = {
    "publishers": [],
    "subscriptions": {
        "shared": {
            "type": "Shared",
            "consumers": [
                {"consumerName": "a", "address": "/127.0.0.1:1", "connectedSince": "2026-11-23T05:00:00.123Z"},
                {"consumerName": "b", "availablePermits": -3, "blockedConsumerOnUnackedMsgs": True},
            ],
            "msgOutCounter": 5,
            "blockedSubscriptionOnUnackedMsgs": True,
            "msgInReplay": 4,
            "isDurable": True,
        },
        "sticky": {
            "type": "Key_Shared",
            "keySharedMode": "STICKY",
            "allowOutOfOrderDelivery": True,
            "consumers": [],
            "msgOutCounter": 0,
        },
        "fresh": {"consumers": [], "msgOutCounter": 0},
    },
}
INTERNAL = {
    "lastConfirmedEntry": "8:3",
    "ledgers": [{"ledgerId": 7, "entries": 10}, {"ledgerId": 8, "entries": 0}],
    "cursors": {
        "my+sub": {
            "markDeletePosition": "7:1",
            "individuallyDeletedMessages": "[(7:3..7:5],(8:-1..8:0]]",
            "cursorLedger": 9,
            "cursorLedgerLastEntry": 4,
            "readPosition": "8:1",
            "totalNonContiguousDeletedMessagesRange": 2,
        },
        "closed": {
            "markDeletePosition": "7:-1",
            "individuallyDeletedMessages": "[]",
            "cursorLedger": -1,
            "cursorLedgerLastEntry": -1,
            "readPosition": "7:0",
            "totalNonContiguousDeletedMessagesRange": 0,
        },
    },
    "schemaLedgers": [],
    "compactedLedger": {"ledgerId": -1, "entries": -1},
}
RUNTIME = {"delayedDeliveryTickTimeMillis": "500", "ttlDurationDefaultInSeconds": "0"}


class ScriptedBroker:
    """A broker that answers by the end of the path."""

    def __init__(self, broker: HttpServer) -> None:
        self.broker = broker
        self.clock = FakeClock(SystemClock().now_ms() - 7_000)
        self.answers: dict[str, Answer] = {
            "/stats": json_answer(STATS),
            "/internalStats": json_answer(INTERNAL),
            "/partitions": json_answer({"partitions": 3}),
            "/runtime": json_answer(RUNTIME),
            "/delayedDelivery": json_answer({"active": True, "tickTime": 2000}),
            "/messageTTL": json_answer(60),
        }
        broker.answer = self.answer
        self.rest = AdminRest([broker.url])
        self.store = FakeMetadataStore()
        self.topics = BrokerTopics(self.rest, self.store, self.clock)

    def answer(self, arrived: Arrived) -> Answer:
        path = arrived.target.partition("?")[0]
        return next((found for end, found in self.answers.items() if path.endswith(end)), Answer(404))


@pytest.fixture
def scripted(web: HttpServer) -> ScriptedBroker:
    return ScriptedBroker(web)


def test_subscriptions_and_their_types(scripted: ScriptedBroker) -> None:
    found = scripted.topics.subscriptions(TOPIC)
    shared, sticky, fresh = found["shared"], found["sticky"], found["fresh"]
    assert (shared.type, shared.messages_out) == (SubscriptionType.SHARED, 5)
    assert shared.consumers == (
        ("a", "/127.0.0.1:1", "2026-11-23T05:00:00.123Z", None, False),
        ("b", None, None, -3, True),
    )
    assert (shared.blocked, shared.in_replay, sticky.blocked, sticky.in_replay) == (True, 4, False, 0)
    assert (sticky.type, sticky.sticky, sticky.allow_out_of_order) == (SubscriptionType.KEY_SHARED, True, True)
    assert (fresh.type, fresh.durable) == (SubscriptionType.NONE, True)


def test_cursors_and_ledgers(scripted: ScriptedBroker) -> None:
    state = scripted.topics.state(TOPIC)
    assert list(state.ledgers.items()) == [(7, 10), (8, 4)]
    cursor = state.cursors["my sub"]
    assert [at(entry) in cursor.acknowledged for entry in range(7)] == [True, True, False, False, True, True, False]
    assert (cursor.ledger, cursor.ledger_last_entry) == (9, 4)
    assert state.cursors["closed"].ledger is None
    assert state.last_confirmed == at(3, 8)
    assert state.written_ledger == 8
    scripted.answers["/internalStats"] = json_answer({**INTERNAL, "state": "Terminated"})
    assert scripted.topics.state(TOPIC).written_ledger is None, "a terminated topic begins no ledger when it is loaded"


def test_subscriptions_may_be_some_seconds_old_for_those_who_allow_it(scripted: ScriptedBroker) -> None:
    first = scripted.topics.subscriptions(TOPIC)
    scripted.answers["/stats"] = json_answer({"subscriptions": {}, "publishers": []})
    assert scripted.topics.subscriptions(TOPIC, max_age_seconds=2) == first
    assert scripted.topics.subscriptions(TOPIC) == {}
    assert scripted.topics.subscriptions(TOPIC, max_age_seconds=2) == {}, "the newest answer is the one remembered"
    scripted.answers["/stats"] = json_answer(STATS)
    scripted.clock.advance_ms(2_001)
    assert scripted.topics.subscriptions(TOPIC, max_age_seconds=2) == first


def test_cached_subscriptions_are_refreshed_in_background(scripted: ScriptedBroker) -> None:
    first = scripted.topics.subscriptions(TOPIC)
    scripted.answers["/stats"] = json_answer({"subscriptions": {}, "publishers": []})
    scripted.clock.advance_ms(1_001)
    assert scripted.topics.subscriptions(TOPIC, max_age_seconds=2) == first
    until(lambda: scripted.topics.subscriptions(TOPIC, max_age_seconds=2) == {}, "the new answer is known")
    scripted.answers["/stats"] = Answer(503)
    scripted.clock.advance_ms(1_001)
    assert scripted.topics.subscriptions(TOPIC, max_age_seconds=2) == {}, "a failure behind the back is no news"
    scripted.clock.advance_ms(1_000)
    with pytest.raises(TemporaryError):
        scripted.topics.subscriptions(TOPIC, max_age_seconds=2)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (None, (True, 500, None)),
        ({"message_ttl_in_seconds": 7}, (True, 500, 7)),
        ({"delayed_delivery_policies": {"active": False, "tickTime": 3000}}, (False, 3000, None)),
    ],
)
def test_a_v1_topics_policy_is_its_namespaces(
    scripted: ScriptedBroker, stored: object, expected: tuple[bool, int, int | None]
) -> None:
    topic = parse_topic_name("persistent://tenant/cluster/namespace/orders")
    if stored is not None:
        scripted.store.create("/admin/policies/tenant/cluster/namespace", json.dumps(stored).encode())
    policy = scripted.topics.delay_policy(topic)
    assert (policy.enabled, policy.tick_ms, policy.ttl_seconds) == expected


def test_a_v1_namespaces_policies_that_cannot_be_read_are_no_policy(scripted: ScriptedBroker) -> None:
    scripted.store.create("/admin/policies/tenant/cluster/namespace", b"[]")
    with pytest.raises(TemporaryError):
        scripted.topics.delay_policy(parse_topic_name("persistent://tenant/cluster/namespace/orders"))


def test_a_policy_of_the_topic_of_the_partition_and_of_the_broker(scripted: ScriptedBroker) -> None:
    policy = scripted.topics.delay_policy(TOPIC.partition(2))
    assert (policy.enabled, policy.tick_ms, policy.ttl_seconds, policy.strict) == (True, 2000, 60, False)
    paths = [arrived.target for arrived in scripted.broker.arrived]
    assert not any("partition-2" in path for path in paths), "brokers refuse to tell a partition's policies"
    scripted.clock.advance_ms(11_000)
    scripted.answers["/delayedDelivery"] = scripted.answers["/messageTTL"] = refusing(405, "off")
    policy = scripted.topics.delay_policy(TOPIC.partition(2))
    assert (policy.tick_ms, policy.ttl_seconds) == (500, None)
    scripted.clock.advance_ms(11_000)
    scripted.answers["/delayedDelivery"] = refusing(412, "no")
    with pytest.raises(BrokerRefusedError):
        scripted.topics.delay_policy(TOPIC)


def test_partitions_and_a_topic_that_does_not_exist(scripted: ScriptedBroker) -> None:
    assert scripted.topics.partitions(TOPIC) == 3
    scripted.answers["/partitions"] = json_answer({"partitions": 4})
    assert scripted.topics.partitions(TOPIC, max_age_seconds=10) == 3
    assert scripted.topics.partitions(TOPIC) == 4
    scripted.answers["/partitions"] = json_answer({"partitions": 5})
    scripted.clock.advance_ms(10_000)
    assert scripted.topics.partitions(TOPIC, max_age_seconds=10) == 5
    gone = refusing(404, "Topic not found")
    scripted.answers["/partitions"] = scripted.answers["/stats"] = gone
    assert scripted.topics.partitions(TOPIC.partition(7)) is None
    with pytest.raises(NotFoundError):
        scripted.topics.subscriptions(TOPIC)


def test_a_brokers_clock_that_is_ahead(scripted: ScriptedBroker) -> None:
    # The server dates its responses by this machine's clock, which is 7 seconds ahead of the one the topics look at.
    scripted.topics.subscriptions(TOPIC)
    assert 5_000 < scripted.topics.broker_ahead_ms() <= SystemClock().now_ms() - scripted.clock.now_ms()
    scripted.clock.advance_ms(601_000)
    assert scripted.topics.broker_ahead_ms() == 0
    scripted.topics.subscriptions(TOPIC)
    assert scripted.topics.broker_ahead_ms() == 0, "a clock that is behind is no reason to hurry"
