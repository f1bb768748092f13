"""Who decides whether a topic is deduplicated, and how often its snapshot is taken (``PolicyHierarchyValue``).

Brokers of 4.0.8 follow the first of these levels that has a value: the topic's own policy, its global policy
(which replicates with the topic's messages), the namespace's policy, the broker's configuration. Two things about their
answers lead astray: asked for what is applied they leave out a global policy, and a system topic is never deduplicated,
whatever its policies are (``SystemTopic.isDeduplicationEnabled``), though setting one is answered with 204.
"""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pulsar_sidecar.model.errors import InvalidInputError, UndecodableError

PolicyValue = bool | int

_MOST_SECONDS: Final = 2**31 - 1


class DeduplicationPolicy(Enum):
    """A policy; the value is its name in sentences."""

    ENABLED = "deduplication"
    SNAPSHOT_INTERVAL = "deduplication snapshot interval"

    def demand(self, value: PolicyValue | None) -> None:
        """Refuse what brokers would refuse, or take for something else; None removes the policy.

        Raises:
            InvalidInputError: it is not a value of this policy.
        """
        if value is None:
            return
        if self is DeduplicationPolicy.ENABLED:
            if not isinstance(value, bool):
                raise InvalidInputError("deduplication is true or false")
        elif isinstance(value, bool) or not 0 <= value <= _MOST_SECONDS:
            raise InvalidInputError(f"the interval is a number of seconds, from 0 to {_MOST_SECONDS}")


class PolicyLevel(Enum):
    """Where a policy is set, nearest first."""

    TOPIC = "topic"
    TOPIC_GLOBAL = "topic (global)"
    NAMESPACE = "namespace"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class PolicyValues:
    """One policy on each level; None where it has no value. ``broker`` is the owner's configuration."""

    broker: PolicyValue
    namespace: PolicyValue | None
    topic: PolicyValue | None = None
    topic_global: PolicyValue | None = None

    @property
    def decided_by(self) -> PolicyLevel:
        """The nearest level that has a value."""
        values = (self.topic, self.topic_global, self.namespace, self.broker)
        return next(level for level, value in zip(PolicyLevel, values, strict=True) if value is not None)

    @property
    def applied(self) -> PolicyValue:
        """That level's value."""
        values = (self.topic, self.topic_global, self.namespace)
        return next((value for value in values if value is not None), self.broker)


@dataclass(frozen=True, slots=True)
class BrokerDeduplication:
    """A broker's settings (``broker.conf``), with the defaults of 4.0.8.

    Attributes:
        enabled: ``brokerDeduplicationEnabled``.
        max_producers: ``brokerDeduplicationMaxNumberOfProducers``: a snapshot leaves out what is beyond.
        entries_interval: ``brokerDeduplicationEntriesInterval``: a snapshot after so many entries.
        snapshot_interval_seconds: ``brokerDeduplicationSnapshotIntervalSeconds``: a snapshot after so long, at the next
            look of the timer; 0 for never.
        snapshot_frequency_seconds: ``brokerDeduplicationSnapshotFrequencyInSeconds``: the timer; 0 for none.
        load_timeout_seconds: ``topicLoadTimeoutSeconds``: a load that takes longer fails.
        max_entry_bytes: ``maxMessageSize``: bookies take no larger entry, of a cursor's ledger either.
    """

    enabled: bool = False
    max_producers: int = 10_000
    entries_interval: int = 1_000
    snapshot_interval_seconds: int = 120
    snapshot_frequency_seconds: int = 120
    load_timeout_seconds: int = 60
    max_entry_bytes: int = 5 * 1024 * 1024

    def of(self, policy: DeduplicationPolicy) -> PolicyValue:
        """What the broker's configuration has for a policy."""
        return self.enabled if policy is DeduplicationPolicy.ENABLED else self.snapshot_interval_seconds


_FIELDS: Final = {
    DeduplicationPolicy.ENABLED: "deduplicationEnabled",
    DeduplicationPolicy.SNAPSHOT_INTERVAL: "deduplicationSnapshotIntervalSeconds",
}


def value_of_namespace(policy: DeduplicationPolicy, data: bytes) -> PolicyValue | None:
    """The value in a namespace's node (``Policies``); `UndecodableError` if that cannot be read."""
    try:
        return checked_value(json.loads(data or b"{}").get(_FIELDS[policy]))
    except (ValueError, AttributeError, RecursionError) as error:
        raise UndecodableError(
            "the policies of a namespace cannot be decoded; print them with `pulsar-admin namespaces policies`"
        ) from error


def checked_value(value: object) -> PolicyValue | None:
    """A policy as decoded from JSON; `UndecodableError` if it is not one."""
    if value is not None and not isinstance(value, bool | int):
        raise UndecodableError(
            f"{value!r:.80} is not a deduplication policy; expected true, false or a number of seconds"
        )
    return value
