"""Acknowledgements as brokers and stores show them, in memory and on a cluster."""

from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.features.acknowledgements.ports import PausePolicies, StoredCursors, SubscriptionStats
from pulsar_sidecar.features.acknowledgements.results import TopicPolicy
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import SubscriptionType

from tests.cluster.acknowledging import SUBSCRIPTION, AckStateSetup, Holes, ack_state_setup, every_other
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique
from tests.fakes.acknowledging_broker import FakeAcknowledgingBroker, FakeCursor, FakeTopic
from tests.fakes.positions import with_positions

NOWHERE = parse_topic_name("persistent://public/default/nobody-made-this")


class FakeSubject:
    def __init__(self) -> None:
        self.topic = parse_topic_name("persistent://public/contract/topic")
        broker = FakeAcknowledgingBroker()
        broker.namespaces["public/contract"] = None
        broker.topics[self.topic] = FakeTopic(10, {SUBSCRIPTION: FakeCursor()})
        self.subscriptions: SubscriptionStats = broker
        self.stored: StoredCursors = broker
        self.policies: PausePolicies = broker
        self._broker = broker

    def acknowledge_odd(self) -> None:
        self._broker.acknowledge(self.topic, SUBSCRIPTION, 1, 3, 5, 7, 9)

    def store(self) -> None:
        self._broker.store(self.topic, SUBSCRIPTION)


class ClusterSubject:
    def __init__(self, setup: AckStateSetup) -> None:
        namespace = f"public/contract-{unique()}"
        setup.rest.change("PUT", f"/admin/v2/namespaces/{namespace}", {})
        self._holes: Holes = setup.holes("topic", namespace)
        self._setup = setup
        self.topic = self._holes.topic
        self.subscriptions: SubscriptionStats = setup.brokers
        self.stored: StoredCursors = setup.stored
        self.policies: PausePolicies = setup.brokers
        with self._holes.consumer():
            self._holes.produce(10)

    def acknowledge_odd(self) -> None:
        with self._holes.consumer() as consumer:
            self._holes.acknowledge(consumer, every_other, 1_000)

    def store(self) -> None:
        # An orderly unload writes everything down.
        BrokerTopicAdmin(self._setup.rest).unload(self.topic)


Subject = FakeSubject | ClusterSubject


@pytest.fixture(scope="module")
def setup(cluster: ClusterUnderTest) -> Iterator[AckStateSetup]:
    with ack_state_setup(cluster) as setup:
        yield setup


@pytest.fixture(params=["fake", "cluster"])
def subject(request: pytest.FixtureRequest) -> Subject:
    return FakeSubject() if request.param == "fake" else ClusterSubject(request.getfixturevalue("setup"))


def odd_entries(subject: Subject) -> PositionRanges:
    (ledger_id,) = subject.subscriptions.internal_stats(subject.topic).ledgers
    odd = [Position(ledger_id, EntryId(entry)) for entry in range(1, 10, 2)]
    return with_positions(PositionRanges(Position(ledger_id, EntryId(-1))), odd)


def test_a_cursor_in_memory_and_in_store(subject: Subject) -> None:
    before = subject.subscriptions.internal_stats(subject.topic)
    assert list(before.ledgers.values()) == [10]
    assert before.cursors[SUBSCRIPTION].ranges == 0
    assert subject.subscriptions.stats(subject.topic).subscriptions[SUBSCRIPTION].type is SubscriptionType.SHARED
    subject.acknowledge_odd()
    wanted = odd_entries(subject)
    cursor = until(lambda: holding(subject, 5), "the acknowledgements have arrived")
    assert cursor == wanted
    subject.store()
    after = subject.subscriptions.internal_stats(subject.topic)
    stored = subject.stored.stored(subject.topic, SUBSCRIPTION, after.ledgers, after.cursor(SUBSCRIPTION))
    assert stored is not None
    assert (stored.acknowledged, stored.ranges, stored.batch_indexes) == (wanted, 5, 0)


def holding(subject: Subject, ranges: int) -> PositionRanges | None:
    cursor = subject.subscriptions.internal_stats(subject.topic).cursors[SUBSCRIPTION]
    return cursor.acknowledged if cursor.ranges == ranges else None


def test_what_does_not_exist(subject: Subject) -> None:
    assert subject.subscriptions.partitions(NOWHERE) is None
    assert subject.subscriptions.partitions(subject.topic) == 0
    cursor = subject.subscriptions.internal_stats(subject.topic).cursor(SUBSCRIPTION)
    assert subject.stored.stored(subject.topic, "nobody", {LedgerId(1): 1}, cursor) is None
    for ask in (
        lambda: subject.subscriptions.stats(NOWHERE),
        lambda: subject.subscriptions.internal_stats(NOWHERE),
        lambda: subject.policies.policies(NOWHERE, None),
        lambda: subject.policies.enable_for_topic(NOWHERE),
        lambda: subject.policies.remove_from_topic(NOWHERE),
        lambda: subject.policies.of_namespace("public/nowhere"),
        lambda: subject.policies.enable_for_namespace("public/nowhere"),
        lambda: subject.policies.remove_from_namespace("public/nowhere"),
    ):
        with pytest.raises(NotFoundError):
            ask()


def test_the_limits_of_stock_brokers(subject: Subject) -> None:
    for broker in (None, subject.subscriptions.stats(subject.topic).broker):
        limits = subject.subscriptions.limits(broker)
        assert (limits.max_unacked_ranges, limits.max_batch_deleted_indexes) == (10_000, 10_000)
        assert (limits.as_long_array, limits.pause_enabled) == (False, False)


def test_the_policy_on_each_level(subject: Subject) -> None:
    namespace, policies = subject.topic.namespace, subject.policies
    assert policies.policies(subject.topic, None).enabled is False
    policies.enable_for_namespace(namespace)
    until(lambda: policies.of_namespace(namespace), "the namespace says true")
    assert policies.policies(subject.topic, None).enabled is None, "a topic's own false would override it"
    policies.enable_for_topic(subject.topic)
    until(lambda: policies.policies(subject.topic, None).topic is TopicPolicy.TRUE, "the topic says true")
    assert policies.policies(subject.topic, None).enabled is True
    assert policies.remove_from_namespace(namespace) is None
    assert policies.of_namespace(namespace) is None
    policies.remove_from_topic(subject.topic)
    until(lambda: policies.policies(subject.topic, None).enabled is False, "nobody still says true")
