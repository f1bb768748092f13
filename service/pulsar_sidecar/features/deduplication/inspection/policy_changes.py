"""Changes of the two deduplication policies, with the stored result and the brokers' present behaviour.

A broker returns 204 to a change that it stores, whether or not it can act on it: it acts on a loaded topic within
moments, on an unloaded one when that is loaded, and on a system topic never.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pulsar_sidecar.features.deduplication.policies import BrokerDeduplication, DeduplicationPolicy
from pulsar_sidecar.features.deduplication.results import (
    PolicyChange,
    PolicyLevel,
    PolicyValue,
    PolicyValues,
    TopicStatus,
)
from pulsar_sidecar.model.clocks import Clock, attempts
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import DeduplicationStatus
from pulsar_sidecar.ownership.stored_topics import StoredTopics

MOST_SHOWN: Final = 20
_PATIENCE_SECONDS: Final = 5.0
_BETWEEN_LOOKS_SECONDS: Final = 0.25

SYSTEM_TOPIC: Final = "brokers never deduplicate a system topic: they store the policy and ignore it"


class Policies(Protocol):
    """Both policies on each level, as brokers and the metadata store have them.

    Every method raises `NotFoundError` where there is no such topic or namespace, and `TemporaryError` where no broker
    is reachable. No topic is loaded.
    """

    def of_topic(self, policy: DeduplicationPolicy, topic: TopicName) -> PolicyValues:
        """Return a policy of a topic, with or without partitions."""

    def of_namespace(self, policy: DeduplicationPolicy, namespace: str) -> PolicyValues:
        """Return a policy of topics in the namespace that have none of their own."""

    def change_topic(self, policy: DeduplicationPolicy, topic: TopicName, value: PolicyValue | None) -> None:
        """Let a broker store the topic's own policy; None removes it."""

    def change_namespace(self, policy: DeduplicationPolicy, namespace: str, value: PolicyValue | None) -> None:
        """Let a broker store the namespace's policy; None removes it."""

    def configured(self, topic: TopicName | None) -> BrokerDeduplication:
        """Return the settings of the broker that owns the topic, or of any broker."""


class RunningDeduplication(Protocol):
    """Present behaviour of brokers."""

    def statuses(self, topics: Sequence[TopicName], most: int) -> Mapping[TopicName, str]:
        """Return ``deduplicationStatus`` of the first ``most`` of the loaded topics; loads none."""


@dataclass(frozen=True, slots=True)
class PolicyChanges:
    """Reads and changes of the policies."""

    policies: Policies
    running: RunningDeduplication
    topics: StoredTopics
    clock: Clock

    def of_topic(self, policy: DeduplicationPolicy, topic: TopicName) -> PolicyValues:
        """Return a topic's policy on each level; a partition has that of its topic. Raises as `Policies`."""
        return self.policies.of_topic(policy, topic.base)

    def of_namespace(self, policy: DeduplicationPolicy, namespace: str) -> PolicyValues:
        """Return a namespace's policy; raises as `Policies`."""
        return self.policies.of_namespace(policy, namespace)

    def change_topic(self, policy: DeduplicationPolicy, topic: TopicName, value: PolicyValue | None) -> PolicyChange:
        """Set a topic's own policy, or remove it (None), and return its effect on brokers.

        Raises:
            InvalidInputError: the value is not one of this policy, or the topic is a partition, which has no policies.
            NotFoundError: there is no such topic.
            BrokerRefusedError: the broker does not store it; 405 where topics have no policies.
        """
        policy.demand(value)
        if topic.partition_index is not None:
            raise InvalidInputError(f"a partition has no policies of its own; name {topic.base}")
        places = self.topics.places_of(topic)
        before = self.policies.of_topic(policy, topic)
        self.policies.change_topic(policy, topic, value)
        after = self.policies.of_topic(policy, topic)
        return self._outcome(policy, PolicyLevel.TOPIC, value, before, after, places)

    def change_namespace(self, policy: DeduplicationPolicy, namespace: str, value: PolicyValue | None) -> PolicyChange:
        """Set or remove a namespace's policy, like `change_topic`.

        Raises:
            InvalidInputError: the value is not one of this policy.
            NotFoundError: there is no such namespace.
            BrokerRefusedError: the broker does not store it.
        """
        policy.demand(value)
        before = self.policies.of_namespace(policy, namespace)
        self.policies.change_namespace(policy, namespace, value)
        after = self.policies.of_namespace(policy, namespace)
        places = list(self.topics.places_below(namespace))
        return self._outcome(policy, PolicyLevel.NAMESPACE, value, before, after, places)

    def _outcome(
        self,
        policy: DeduplicationPolicy,
        level: PolicyLevel,
        asked: PolicyValue | None,
        before: PolicyValues,
        after: PolicyValues,
        places: Sequence[TopicName],
    ) -> PolicyChange:
        deciding = [place for place in places if not place.is_system_topic]
        expected = None
        if policy is DeduplicationPolicy.ENABLED:
            expected = DeduplicationStatus.ENABLED if after.applied else DeduplicationStatus.DISABLED
        found = self._statuses(deciding, expected)
        listed = places if level is PolicyLevel.TOPIC else list(found)
        shown = [TopicStatus(str(place), found.get(place)) for place in listed]
        stored = after.topic if level is PolicyLevel.TOPIC else after.namespace
        remarks = [
            *_level_remarks(level, asked, stored, after),
            *([] if deciding or not places else [SYSTEM_TOPIC]),
            *_effect_remarks(policy, before, after, shown, expected, self.policies.configured(None)),
        ]
        return PolicyChange(asked, stored, after, tuple(shown[:MOST_SHOWN]), tuple(remarks))

    def _statuses(self, places: Sequence[TopicName], expected: str | None) -> Mapping[TopicName, str]:
        """Return brokers' statuses once all are as expected, or at the deadline."""
        found: Mapping[TopicName, str] = {}
        for _ in attempts(self.clock, _PATIENCE_SECONDS, _BETWEEN_LOOKS_SECONDS):
            found = self.running.statuses(places, MOST_SHOWN)
            if expected is None or all(status == expected for status in found.values()):
                break
        return found


def _level_remarks(
    level: PolicyLevel, asked: PolicyValue | None, stored: PolicyValue | None, after: PolicyValues
) -> list[str]:
    if stored != asked:
        return [f"the broker accepted the change, and the {level} still has {written(stored)}; repeat the command"]
    if asked is not None and level is PolicyLevel.NAMESPACE:
        return ["topics with a policy of their own keep it"]
    if asked is None and after.decided_by is not PolicyLevel.BROKER:
        return [f"the {after.decided_by} decides now: {written(after.applied)}"]
    return []


def _effect_remarks(
    policy: DeduplicationPolicy,
    before: PolicyValues,
    after: PolicyValues,
    shown: Sequence[TopicStatus],
    expected: str | None,
    broker: BrokerDeduplication,
) -> list[str]:
    if policy is DeduplicationPolicy.SNAPSHOT_INTERVAL:
        return _interval_remarks(int(after.applied), broker)
    remarks = []
    late = [each for each in shown if each.status is not None and expected is not None and each.status != expected]
    if late:
        remarks.append(
            f"loaded topics that are not {expected}: {len(late)}; their own policy differs, or their broker is not "
            "done (it looks again after a minute while it replays or removes); unload a topic that stays Removing or "
            "Failed"
        )
    if after.applied and not before.applied:
        remarks.append("brokers do not know what was published before, and store a copy of it again")
    if before.applied and not after.applied:
        remarks.append(
            "an unloaded topic keeps its cursor pulsar.dedup, which retains ledgers, until a broker loads it"
        )
    return remarks


def _interval_remarks(interval_seconds: int, broker: BrokerDeduplication) -> list[str]:
    entries = f"snapshots are taken only after {broker.entries_interval:,} entries"
    if not broker.snapshot_frequency_seconds:
        return [f"the brokers' timer is off (brokerDeduplicationSnapshotFrequencyInSeconds=0): {entries}"]
    if not interval_seconds:
        return [f"0 switches snapshots by time off: {entries}"]
    if interval_seconds < broker.snapshot_frequency_seconds:
        return [
            f"brokers check only every {broker.snapshot_frequency_seconds} s "
            "(brokerDeduplicationSnapshotFrequencyInSeconds), so they take no snapshots more often"
        ]
    return []


def written(value: PolicyValue | None) -> str:
    """Format a policy's value as a user would write it."""
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else f"{value} s"
