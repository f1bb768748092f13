"""Policies that decide whether a topic is deduplicated, and how often its snapshot is taken (``PolicyHierarchyValue``).

Brokers of 4.0.8 follow the first of these levels that has a value: the topic's own policy, its global policy (which
replicates with the topic's messages), the namespace's policy, the broker's configuration. Two of their results mislead:
the applied value leaves out a global policy, and a system topic is never deduplicated, whatever its policies are
(``SystemTopic.isDeduplicationEnabled``), though brokers return 204 to setting one.
"""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pulsar_sidecar.features.deduplication.results import PolicyValue
from pulsar_sidecar.model.errors import InvalidInputError, UndecodableError

_MOST_SECONDS: Final = 2**31 - 1


class DeduplicationPolicy(Enum):
    """Deduplication setting with a policy of its own; the value is its name in messages."""

    ENABLED = "deduplication"
    SNAPSHOT_INTERVAL = "deduplication snapshot interval"

    def demand(self, value: PolicyValue | None) -> None:
        """Refuse a value that brokers would refuse or misinterpret; None removes the policy.

        Raises:
            InvalidInputError: the value is not one of this policy.
        """
        if value is None:
            return
        if self is DeduplicationPolicy.ENABLED:
            if not isinstance(value, bool):
                raise InvalidInputError("deduplication must be true or false")
        elif isinstance(value, bool) or not 0 <= value <= _MOST_SECONDS:
            raise InvalidInputError(f"the interval must be a number of seconds from 0 to {_MOST_SECONDS}")


@dataclass(frozen=True, slots=True)
class BrokerDeduplication:
    """A broker's settings (``broker.conf``), with the defaults of 4.0.8.

    Attributes:
        enabled: ``brokerDeduplicationEnabled``.
        max_producers: ``brokerDeduplicationMaxNumberOfProducers``: names in a snapshot; it leaves out the others.
        entries_interval: ``brokerDeduplicationEntriesInterval``: entries between two snapshots.
        snapshot_interval_seconds: ``brokerDeduplicationSnapshotIntervalSeconds``: time after which the next check by
        the
            timer takes a snapshot; 0 for never.
        snapshot_frequency_seconds: ``brokerDeduplicationSnapshotFrequencyInSeconds``: period of the timer; 0 for none.
        load_timeout_seconds: ``topicLoadTimeoutSeconds``: a topic load that takes longer fails.
        max_entry_bytes: ``maxMessageSize``: largest entry of bookies, also of a cursor's ledger.
    """

    enabled: bool = False
    max_producers: int = 10_000
    entries_interval: int = 1_000
    snapshot_interval_seconds: int = 120
    snapshot_frequency_seconds: int = 120
    load_timeout_seconds: int = 60
    max_entry_bytes: int = 5 * 1024 * 1024

    def of(self, policy: DeduplicationPolicy) -> PolicyValue:
        """Return the broker's configuration of a policy."""
        return self.enabled if policy is DeduplicationPolicy.ENABLED else self.snapshot_interval_seconds


TOPIC_ROUTES: Final = {
    DeduplicationPolicy.ENABLED: "deduplicationEnabled",
    DeduplicationPolicy.SNAPSHOT_INTERVAL: "deduplicationSnapshotInterval",
}
"""Pulsar's names of the policies in paths of topics."""
NAMESPACE_ROUTES: Final = {
    DeduplicationPolicy.ENABLED: "deduplication",
    DeduplicationPolicy.SNAPSHOT_INTERVAL: "deduplicationSnapshotInterval",
}
"""The same in paths of namespaces."""
_FIELDS: Final = {
    DeduplicationPolicy.ENABLED: "deduplicationEnabled",
    DeduplicationPolicy.SNAPSHOT_INTERVAL: "deduplicationSnapshotIntervalSeconds",
}


def value_of_namespace(policy: DeduplicationPolicy, data: bytes) -> PolicyValue | None:
    """Return the value in a namespace's node (``Policies``); `UndecodableError` if that cannot be read."""
    try:
        return checked_value(json.loads(data or b"{}").get(_FIELDS[policy]))
    except (ValueError, AttributeError, RecursionError) as error:
        raise UndecodableError(
            "the policies of a namespace cannot be decoded; print them with `pulsar-admin namespaces policies`"
        ) from error


def checked_value(value: object) -> PolicyValue | None:
    """Check a policy that was decoded from JSON; `UndecodableError` if it is not one."""
    if value is not None and not isinstance(value, bool | int):
        raise UndecodableError(
            f"{value!r:.80} is not a deduplication policy; expected true, false or a number of seconds"
        )
    return value
