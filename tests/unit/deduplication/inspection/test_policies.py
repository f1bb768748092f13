"""Remarks on policy changes; `tests/unit/server/test_deduplication_policies.py` has their routes and commands."""

from collections.abc import Mapping

import pytest
from pulsar_sidecar.features.deduplication.inspection.policy_changes import SYSTEM_TOPIC, PolicyChanges
from pulsar_sidecar.features.deduplication.policies import BrokerDeduplication, DeduplicationPolicy
from pulsar_sidecar.features.deduplication.results import (
    PolicyLevel,
    PolicyValues,
    TopicStatus,
)
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.stored_topics import StoredTopics

from tests.fakes.clock import FakeClock
from tests.fakes.deduplication_policies import NAMESPACE, TOPIC, FakeDeduplication, put_topic
from tests.fakes.metadata import FakeMetadataStore

ENABLED, INTERVAL = DeduplicationPolicy.ENABLED, DeduplicationPolicy.SNAPSHOT_INTERVAL


# --- changes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def brokers() -> FakeDeduplication:
    return FakeDeduplication()


@pytest.fixture
def store() -> FakeMetadataStore:
    store = FakeMetadataStore()
    put_topic(store)
    return store


@pytest.fixture
def changes(brokers: FakeDeduplication, store: FakeMetadataStore) -> PolicyChanges:
    return PolicyChanges(brokers, brokers, StoredTopics(store), FakeClock())


def test_a_change_waits_for_brokers_with_the_topic_loaded(
    changes: PolicyChanges, brokers: FakeDeduplication, store: FakeMetadataStore
) -> None:
    topic = parse_topic_name("persistent://public/default/many")
    put_topic(store, topic, partitions=3)
    brokers.loaded, brokers.looks_until_applied = [topic.partition(0), topic.partition(2)], 5
    found = changes.change_topic(ENABLED, topic, True)
    assert brokers.changed == [("topic", ENABLED, str(topic), True)]
    assert (found.stored, found.values.decided_by) == (True, PolicyLevel.TOPIC)
    assert [each.status for each in found.statuses] == ["Enabled", None, "Enabled"]
    assert found.remarks == ("brokers do not know what was published before, and store a copy of it again",)


def test_brokers_that_ignore_a_change_are_reported(changes: PolicyChanges, brokers: FakeDeduplication) -> None:
    brokers.loaded, brokers.stuck = [TOPIC], "Removing"
    found = changes.change_topic(ENABLED, TOPIC, True)
    assert found.statuses == (TopicStatus(str(TOPIC), "Removing"),)
    assert any("unload a topic that stays Removing or Failed" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("brokers_have", "policy", "of_topic", "value", "remark"),
    [
        ({"ignores_changes": True}, ENABLED, True, True, "still has nothing"),
        ({"namespaces": {(ENABLED, NAMESPACE): True}}, ENABLED, True, None, "the namespace decides now: true"),
        ({"global_topics": {(ENABLED, TOPIC): False}}, ENABLED, True, None, "the topic (global) decides now: false"),
        ({"topics": {(ENABLED, TOPIC): True}}, ENABLED, True, False, "an unloaded topic keeps its cursor pulsar.dedup"),
        ({}, ENABLED, False, True, "topics with a policy of their own keep it"),
        ({}, INTERVAL, True, 0, "0 switches snapshots by time"),
        ({}, INTERVAL, True, 5, "brokers check only every 120 s"),
        ({"broker": BrokerDeduplication(snapshot_frequency_seconds=0)}, INTERVAL, False, 600, "timer is off"),
    ],
)
def test_unexpected_effects_are_remarked(
    changes: PolicyChanges,
    brokers: FakeDeduplication,
    brokers_have: Mapping[str, object],
    policy: DeduplicationPolicy,
    of_topic: bool,
    value: bool | int | None,
    remark: str,
) -> None:
    for name, found in brokers_have.items():
        setattr(brokers, name, found)
    changed = (
        changes.change_topic(policy, TOPIC, value) if of_topic else changes.change_namespace(policy, NAMESPACE, value)
    )
    assert any(remark in each for each in changed.remarks)


def test_an_expected_change_has_no_remark(changes: PolicyChanges) -> None:
    assert changes.change_topic(INTERVAL, TOPIC, 600).remarks == ()
    assert changes.of_topic(INTERVAL, TOPIC.partition(1)).applied == 600, "a partition has the policy of its topic"


def test_a_policy_of_zero_is_set() -> None:
    assert PolicyValues.of(120, 0).applied == 0


@pytest.mark.parametrize("name", ["persistent://public/default/__change_events", "persistent://pulsar/system/log"])
def test_a_system_topic_takes_a_policy_without_effect(
    changes: PolicyChanges, brokers: FakeDeduplication, store: FakeMetadataStore, name: str
) -> None:
    topic = parse_topic_name(name)
    put_topic(store, topic)
    brokers.loaded = [topic]
    found = changes.change_topic(ENABLED, topic, True)
    assert found.stored is True
    assert SYSTEM_TOPIC in found.remarks


def test_a_namespace_shows_some_loaded_topics(
    changes: PolicyChanges, brokers: FakeDeduplication, store: FakeMetadataStore
) -> None:
    loaded = [parse_topic_name(f"persistent://public/default/t{number:02}") for number in range(30)]
    for topic in loaded:
        put_topic(store, topic)
    brokers.loaded = loaded
    brokers.topics[ENABLED, loaded[3]] = False
    found = changes.change_namespace(ENABLED, NAMESPACE, True)
    assert len(found.statuses) == 20
    assert {each.status for each in found.statuses} == {"Enabled", "Disabled"}
    assert "loaded topics that are not Enabled: 1; their own policy differs" in "; ".join(found.remarks)
