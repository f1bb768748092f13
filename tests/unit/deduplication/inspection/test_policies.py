"""Which level decides, and what is reported of a change."""

from collections.abc import Callable

import pytest
from pulsar_sidecar.deduplication.inspection.policy_changes import (
    SYSTEM_TOPIC,
    PolicyChange,
    PolicyChanges,
    TopicStatus,
)
from pulsar_sidecar.deduplication.policies import (
    BrokerDeduplication,
    DeduplicationPolicy,
    PolicyLevel,
    PolicyValue,
    PolicyValues,
)
from pulsar_sidecar.ledger_ownership.stored_topics import StoredTopics
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.clock import FakeClock
from tests.fakes.deduplication_policies import NAMESPACE, TOPIC, FakeDeduplication, put_topic
from tests.fakes.metadata import FakeMetadataStore

ENABLED, INTERVAL = DeduplicationPolicy.ENABLED, DeduplicationPolicy.SNAPSHOT_INTERVAL


@pytest.mark.parametrize(
    ("values", "applied", "level"),
    [
        (PolicyValues(False, None), False, PolicyLevel.BROKER),
        (PolicyValues(False, True), True, PolicyLevel.NAMESPACE),
        (PolicyValues(True, True, topic_global=False), False, PolicyLevel.TOPIC_GLOBAL),
        (PolicyValues(True, False, topic=True, topic_global=False), True, PolicyLevel.TOPIC),
        (PolicyValues(120, 0), 0, PolicyLevel.NAMESPACE),
    ],
)
def test_the_nearest_level_decides(values: PolicyValues, applied: PolicyValue, level: PolicyLevel) -> None:
    assert (values.applied, values.decided_by) == (applied, level)


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


def test_a_change_waits_for_the_brokers_that_have_the_topic(
    changes: PolicyChanges, brokers: FakeDeduplication, store: FakeMetadataStore
) -> None:
    topic = parse_topic_name("persistent://public/default/many")
    put_topic(store, topic, partitions=3)
    brokers.loaded, brokers.looks_until_applied = [topic.partition(0), topic.partition(2)], 5
    found = changes.change_topic(ENABLED, topic, True)
    assert brokers.changed == [("topic", ENABLED, str(topic), True)]
    assert (found.stored, found.values.decided_by) == (True, PolicyLevel.TOPIC)
    assert [each.status for each in found.statuses] == ["Enabled", None, "Enabled"]
    assert found.remarks == ("what was published before is unknown to brokers, so that a copy of it is stored again",)


def test_a_change_that_brokers_do_not_follow_is_reported(changes: PolicyChanges, brokers: FakeDeduplication) -> None:
    brokers.loaded, brokers.stuck = [TOPIC], "Removing"
    found = changes.change_topic(ENABLED, TOPIC, True)
    assert found.statuses == (TopicStatus(TOPIC, "Removing"),)
    assert any("stays Removing or Failed needs the topic unloaded" in remark for remark in found.remarks)


def _remarks(found: PolicyChange) -> str:
    return "; ".join(found.remarks)


@pytest.mark.parametrize(
    ("prepare", "change", "remark"),
    [
        (
            lambda brokers: setattr(brokers, "ignores_changes", True),
            lambda changes: changes.change_topic(ENABLED, TOPIC, True),
            "still has nothing",
        ),
        (
            lambda brokers: brokers.namespaces.update({(ENABLED, NAMESPACE): True}),
            lambda changes: changes.change_topic(ENABLED, TOPIC, None),
            "the namespace decides now: true",
        ),
        (
            lambda brokers: brokers.global_topics.update({(ENABLED, TOPIC): False}),
            lambda changes: changes.change_topic(ENABLED, TOPIC, None),
            "the topic (global) decides now: false",
        ),
        (
            lambda brokers: brokers.topics.update({(ENABLED, TOPIC): True}),
            lambda changes: changes.change_topic(ENABLED, TOPIC, False),
            "the cursor pulsar.dedup of a topic that is not loaded stays",
        ),
        (
            lambda brokers: None,
            lambda changes: changes.change_namespace(ENABLED, NAMESPACE, True),
            "topics with a policy of their own keep it",
        ),
        (
            lambda brokers: None,
            lambda changes: changes.change_topic(INTERVAL, TOPIC, 0),
            "0 switches snapshots by time",
        ),
        (
            lambda brokers: None,
            lambda changes: changes.change_topic(INTERVAL, TOPIC, 5),
            "brokers look every 120 s only",
        ),
        (
            lambda brokers: setattr(brokers, "broker", BrokerDeduplication(snapshot_frequency_seconds=0)),
            lambda changes: changes.change_namespace(INTERVAL, NAMESPACE, 600),
            "timer is off",
        ),
    ],
)
def test_what_one_would_not_expect_is_remarked(
    changes: PolicyChanges,
    brokers: FakeDeduplication,
    prepare: Callable[[FakeDeduplication], object],
    change: Callable[[PolicyChanges], PolicyChange],
    remark: str,
) -> None:
    prepare(brokers)
    assert remark in _remarks(change(changes))


def test_an_expected_change_has_no_remark(changes: PolicyChanges) -> None:
    assert changes.change_topic(INTERVAL, TOPIC, 600).remarks == ()


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
    assert "loaded topics that are not Enabled: 1; their own policy differs" in _remarks(found)


@pytest.mark.parametrize(
    ("policy", "value"), [(ENABLED, 1), (ENABLED, 0), (INTERVAL, True), (INTERVAL, -1), (INTERVAL, 2**31)]
)
def test_a_value_of_another_policy_changes_nothing(
    changes: PolicyChanges, brokers: FakeDeduplication, policy: DeduplicationPolicy, value: PolicyValue
) -> None:
    for change in (
        lambda: changes.change_topic(policy, TOPIC, value),
        lambda: changes.change_namespace(policy, NAMESPACE, value),
    ):
        with pytest.raises(InvalidInputError):
            change()
    assert brokers.changed == []


def test_a_partition_and_what_does_not_exist_are_refused(changes: PolicyChanges, brokers: FakeDeduplication) -> None:
    with pytest.raises(InvalidInputError, match="name persistent://public/default/orders"):
        changes.change_topic(ENABLED, TOPIC.partition(1), True)
    with pytest.raises(NotFoundError):
        changes.change_topic(ENABLED, parse_topic_name("persistent://public/default/missing"), True)
    with pytest.raises(NotFoundError):
        changes.change_namespace(ENABLED, "public/missing", True)
    assert brokers.changed == []
    assert changes.of_topic(ENABLED, TOPIC.partition(1)) == changes.of_topic(ENABLED, TOPIC)
    assert changes.of_namespace(INTERVAL, NAMESPACE).applied == 120
