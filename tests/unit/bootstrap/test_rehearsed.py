"""Other features' results for a rehearsal."""

from typing import Any

import pytest
from pulsar_sidecar.bootstrap.rehearsed import FeaturesLookups, deletions_under_way
from pulsar_sidecar.features.deduplication.policies import DeduplicationPolicy
from pulsar_sidecar.features.ledger_deletion.results import OperationState, TopicDeletionStatus
from pulsar_sidecar.features.rehearsal.ports import Replay
from pulsar_sidecar.features.rehearsal.results import RehearsedDeletion
from pulsar_sidecar.model.errors import DisabledError, TemporaryError
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.acknowledging_broker import FakeAcknowledgingBroker
from tests.fakes.deduplication import TOPIC, DeduplicatedTopics
from tests.fakes.deletion_service import FakeDeletionService

UNUSED: Any = None


@pytest.fixture
def topics() -> DeduplicatedTopics:
    return DeduplicatedTopics()


@pytest.fixture
def lookups(topics: DeduplicatedTopics) -> FeaturesLookups:
    return FeaturesLookups(UNUSED, topics.stored, topics.brokers, UNUSED)


def test_a_topic_without_a_snapshot_replays_nothing(topics: DeduplicatedTopics, lookups: FeaturesLookups) -> None:
    topics.put()
    assert lookups.replay(TOPIC) == Replay()


@pytest.mark.parametrize(("enabled", "entries"), [(True, 25), (False, 0)])
def test_entries_after_the_snapshot_are_replayed_if_the_topic_is_deduplicated(
    topics: DeduplicatedTopics, lookups: FeaturesLookups, enabled: bool, entries: int
) -> None:
    topics.put(mark_delete=(1, 4))
    topics.brokers.namespaces[DeduplicationPolicy.ENABLED, TOPIC.namespace] = enabled
    replay = lookups.replay(TOPIC)
    assert (replay.entries, replay.size_bytes, replay.seconds > 0) == (entries, entries * 100, enabled)


def test_an_unknown_policy_or_length_is_no_replay_of_nothing(
    topics: DeduplicatedTopics, lookups: FeaturesLookups
) -> None:
    topics.put(mark_delete=(1, 4))
    topics.brokers.namespaces[DeduplicationPolicy.ENABLED, TOPIC.namespace] = True
    topics.lengths.unreadable = "ledger 3 cannot be measured"
    with pytest.raises(TemporaryError, match="ledger 3"):
        lookups.replay(TOPIC)
    topics.lengths.unreadable = None

    def away(*_: object) -> Any:
        raise TemporaryError("no broker answers")

    topics.brokers.of_topic = away  # type: ignore[method-assign]
    with pytest.raises(TemporaryError, match="no broker answers"):
        lookups.replay(TOPIC)


def test_subscriptions_of_a_topic_that_has_moved_are_not_the_brokers() -> None:
    broker = FakeAcknowledgingBroker()
    broker.dig(TOPIC, "billing", 3)
    broker.acknowledge(TOPIC, "billing", 6, 8)
    lookups = FeaturesLookups(broker.service(), UNUSED, UNUSED, UNUSED)
    owner = broker.stats(TOPIC).broker
    assert owner is not None
    (found,) = lookups.subscriptions(TOPIC, owner)
    assert (found.subscription, found.type, found.acknowledged_again, found.loadable) == ("billing", "Shared", 2, True)
    with pytest.raises(TemporaryError, match=f"moved to {owner}"):
        lookups.subscriptions(TOPIC, "broker-9:8080")


def test_deletions_of_its_topics_and_of_their_namespaces() -> None:
    service: Any = FakeDeletionService()
    service.running = [
        TopicDeletionStatus(OperationId(f"op-{name}"), topic, None, OperationState.RUNNING, 3, 2, 5)
        for name, topic in (("mine", str(TOPIC)), ("other", "persistent://public/default/other"), ("unread", None))
    ]
    mine = RehearsedDeletion(str(TOPIC), "op-mine", "running")
    unread = RehearsedDeletion("a topic", "op-unread", "running")  # perhaps one of its topics
    assert deletions_under_way(service, [TOPIC.partition(3)]) == [mine, unread]
    old = parse_topic_name("persistent://public/old/t")
    assert deletions_under_way(service, [old]) == [unread, RehearsedDeletion("public/old", "namespace-1", "done")]


def test_where_deletion_is_off_there_is_none() -> None:
    class Off(FakeDeletionService):
        def topic_deletions(self) -> Any:
            raise DisabledError("topicTwoPhaseDeletionEnabled is off")

    service: Any = Off()
    assert deletions_under_way(service, [TOPIC]) is None
