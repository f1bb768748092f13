"""Changes the two policies of deduplication, and reports what came of it: what a broker stored, and what it does now.

A broker answers 204 to a change that it stores, whether or not it can act on it: it acts on a loaded topic within
moments, on an unloaded one when that is loaded, and on a system topic never.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pulsar_sidecar.deduplication.policies import (
    BrokerDeduplication,
    DeduplicationPolicy,
    PolicyLevel,
    PolicyValue,
    PolicyValues,
)
from pulsar_sidecar.ledger_ownership.stored_topics import StoredTopics
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import DeduplicationStatus

MOST_SHOWN: Final = 20
_PATIENCE_SECONDS: Final = 5.0
_BETWEEN_LOOKS_SECONDS: Final = 0.25

SYSTEM_TOPIC: Final = "a system topic is never deduplicated: brokers store the policy, and never act on it"


class Policies(Protocol):
    """The two policies on each level, as brokers and the metadata store have them.

    Every method raises `NotFoundError` where there is no such topic or namespace, and `TemporaryError` where no broker
    can be asked. No topic is loaded.
    """

    def of_topic(self, policy: DeduplicationPolicy, topic: TopicName) -> PolicyValues:
        """For a topic, with or without partitions."""
        ...

    def of_namespace(self, policy: DeduplicationPolicy, namespace: str) -> PolicyValues:
        """For what has no policy of its own in the namespace."""
        ...

    def change_topic(self, policy: DeduplicationPolicy, topic: TopicName, value: PolicyValue | None) -> None:
        """Have a broker store the topic's own policy; None removes it."""
        ...

    def change_namespace(self, policy: DeduplicationPolicy, namespace: str, value: PolicyValue | None) -> None:
        """The same for the namespace's."""
        ...

    def configured(self, topic: TopicName | None) -> BrokerDeduplication:
        """The settings of the broker that owns the topic, or of any."""
        ...


class RunningDeduplication(Protocol):
    """What brokers do now."""

    def statuses(self, topics: Sequence[TopicName], most: int) -> Mapping[TopicName, str]:
        """``deduplicationStatus`` of the first ``most`` of those that a broker has loaded; loads none."""
        ...


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A partition, or a topic without; ``status`` is the broker's word, None where no broker has it loaded."""

    topic: TopicName
    status: str | None


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """What came of a change.

    Attributes:
        asked: the value, None for a removal.
        stored: the level's value now; None if it has none.
        values: all levels, as they are now.
        statuses: of a topic each partition, of a namespace the first few loaded topics.
        remarks: what one would not expect.
    """

    asked: PolicyValue | None
    stored: PolicyValue | None
    values: PolicyValues
    statuses: tuple[TopicStatus, ...]
    remarks: tuple[str, ...]


class PolicyChanges:
    """Reads and changes the policies."""

    def __init__(self, policies: Policies, running: RunningDeduplication, topics: StoredTopics, clock: Clock) -> None:
        self._policies = policies
        self._running = running
        self._topics = topics
        self._clock = clock

    def of_topic(self, policy: DeduplicationPolicy, topic: TopicName) -> PolicyValues:
        """A topic's policy on each level; a partition has that of its topic. Raises as `Policies`."""
        return self._policies.of_topic(policy, topic.base)

    def of_namespace(self, policy: DeduplicationPolicy, namespace: str) -> PolicyValues:
        """A namespace's; raises as `Policies`."""
        return self._policies.of_namespace(policy, namespace)

    def change_topic(self, policy: DeduplicationPolicy, topic: TopicName, value: PolicyValue | None) -> PolicyChange:
        """Set a topic's own policy, or remove it (None), and look what a broker makes of it.

        Raises:
            InvalidInputError: not a value of this policy, or a partition, which has no policies of its own.
            NotFoundError: there is no such topic.
            BrokerRefusedError: the broker does not store it, 405 where topics have no policies.
        """
        policy.demand(value)
        if topic.partition_index is not None:
            raise InvalidInputError(f"a partition has no policies of its own; name {topic.base}")
        places = self._topics.places_of(topic)
        before = self._policies.of_topic(policy, topic)
        self._policies.change_topic(policy, topic, value)
        after = self._policies.of_topic(policy, topic)
        return self._outcome(policy, PolicyLevel.TOPIC, value, before, after, places)

    def change_namespace(self, policy: DeduplicationPolicy, namespace: str, value: PolicyValue | None) -> PolicyChange:
        """The same for a namespace's policy.

        Raises:
            InvalidInputError: not a value of this policy.
            NotFoundError: there is no such namespace.
            BrokerRefusedError: the broker does not store it.
        """
        policy.demand(value)
        before = self._policies.of_namespace(policy, namespace)
        self._policies.change_namespace(policy, namespace, value)
        after = self._policies.of_namespace(policy, namespace)
        places = list(self._topics.places_below(namespace))
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
        shown = [TopicStatus(place, found.get(place)) for place in listed]
        stored = after.topic if level is PolicyLevel.TOPIC else after.namespace
        remarks = [
            *_level_remarks(level, asked, stored, after),
            *([] if deciding or not places else [SYSTEM_TOPIC]),
            *_effect_remarks(policy, before, after, shown, expected, self._policies.configured(None)),
        ]
        return PolicyChange(asked, stored, after, tuple(shown[:MOST_SHOWN]), tuple(remarks))

    def _statuses(self, places: Sequence[TopicName], expected: str | None) -> Mapping[TopicName, str]:
        """What brokers do, once all do what is expected, or when it takes too long."""
        give_up = self._clock.monotonic_seconds() + _PATIENCE_SECONDS
        while True:
            found = self._running.statuses(places, MOST_SHOWN)
            waits = expected is not None and any(status != expected for status in found.values())
            if not waits or self._clock.monotonic_seconds() >= give_up:
                return found
            self._clock.wait_seconds(_BETWEEN_LOOKS_SECONDS)


def _level_remarks(
    level: PolicyLevel, asked: PolicyValue | None, stored: PolicyValue | None, after: PolicyValues
) -> list[str]:
    if stored != asked:
        return [
            f"the broker accepted the change, and the {level.value} still has {written(stored)}; repeat the command"
        ]
    if asked is not None and level is PolicyLevel.NAMESPACE:
        return ["topics with a policy of their own keep it"]
    if asked is None and after.decided_by is not PolicyLevel.BROKER:
        return [f"the {after.decided_by.value} decides now: {written(after.applied)}"]
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
            "done (it looks again after a minute while it replays or removes); one that stays Removing or Failed needs "
            "the topic unloaded"
        )
    if after.applied and not before.applied:
        remarks.append("what was published before is unknown to brokers, so that a copy of it is stored again")
    if before.applied and not after.applied:
        remarks.append(
            "the cursor pulsar.dedup of a topic that is not loaded stays, and keeps its ledgers, until it is loaded"
        )
    return remarks


def _interval_remarks(interval_seconds: int, broker: BrokerDeduplication) -> list[str]:
    entries = f"a snapshot is taken after {broker.entries_interval:,} entries alone"
    if not broker.snapshot_frequency_seconds:
        return [f"the brokers' timer is off (brokerDeduplicationSnapshotFrequencyInSeconds=0): {entries}"]
    if not interval_seconds:
        return [f"0 switches snapshots by time off: {entries}"]
    if interval_seconds < broker.snapshot_frequency_seconds:
        return [
            f"brokers look every {broker.snapshot_frequency_seconds} s only "
            "(brokerDeduplicationSnapshotFrequencyInSeconds), so snapshots are not taken more often"
        ]
    return []


def written(value: PolicyValue | None) -> str:
    """A policy's value as one would write it."""
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else f"{value} s"
