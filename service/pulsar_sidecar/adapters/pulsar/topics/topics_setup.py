"""Creates the topics of the service so that no record can be lost before somebody consumes it.

What brokers make of topics in ``pulsar/system`` (4.0.8, class ``SystemTopic``): they never delete them for inactivity,
never expire messages, refuse none for a backlog quota, never deduplicate, and compact every minute. So time-to-live and
inactivity need no setting; deduplication is switched on for Pulsar versions that will heed it; and compaction gets a
threshold, because each run writes a ledger. Its own cursor keeps consumed records until then. What brokers do to
delays and to subscriptions there, `RetryConditions` looks after.

Invariant: every step can be repeated and raced; a step that was not confirmed is repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.topics.confirmed_steps import ConfirmedSteps
from pulsar_sidecar.adapters.pulsar.topics.dead_letters import DEAD_LETTERS_SUBSCRIPTION
from pulsar_sidecar.adapters.pulsar.topics.retry_conditions import RetryConditions
from pulsar_sidecar.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.ledger_deletion.second_phase.retry import SUBSCRIPTION
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError, TemporaryError
from pulsar_sidecar.model.names import TopicName

_COMPACTION_THRESHOLD_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TopicsSettings:
    """How the topics are to be.

    Attributes:
        parallelism: partitions of the pending topic (``twoPhaseDeletionLedgerDeletionParallelism``); never lowered.
        outcome_retention_minutes: how long outcomes are kept, -1 for ever.
        outcome_retention_mebibytes: how many of them, -1 for any number; whichever limit is reached first counts.
    """

    parallelism: int = 4
    outcome_retention_minutes: int = 7 * 24 * 60
    outcome_retention_mebibytes: int = 1024


class TopicsSetup:
    """Brings the four topics into the state that `TopicsSettings` asks for."""

    def __init__(
        self,
        admin: BrokerTopicAdmin,
        topic: Callable[[DeletionTopic], TopicName],
        settings: TopicsSettings,
        clock: Clock,
    ) -> None:
        self._admin = admin
        self._topic = topic
        self._settings = settings
        self.conditions = RetryConditions()
        self._steps = ConfirmedSteps(clock, "the topics of ledger deletion are")

    def run(self) -> None:
        """Create and configure what is missing.

        Raises:
            ConflictError: a topic of the pending topic's name exists without partitions.
            TemporaryError: the brokers did not confirm a step, although it was repeated.
        """
        pending = self._topic(DeletionTopic.PENDING)
        self._steps.run(lambda: self._admin.ensure_namespace(pending.tenant, pending.namespace_portion))
        partitions = self._steps.run(lambda: self._partitions(pending))
        for kind in (DeletionTopic.RETRY, DeletionTopic.DEAD_LETTER, DeletionTopic.OUTCOME):
            self._create(self._topic(kind))
        for index in range(partitions):
            self._subscribe(pending.partition(index), SUBSCRIPTION)
        self._subscribe(self._topic(DeletionTopic.RETRY), SUBSCRIPTION)
        self._subscribe(self._topic(DeletionTopic.DEAD_LETTER), DEAD_LETTERS_SUBSCRIPTION)
        for kind in DeletionTopic:
            self._set_policies(kind)
        self.conditions.put_right(self._admin, self._steps, self._topic(DeletionTopic.RETRY))

    def _partitions(self, topic: TopicName) -> int:
        self._admin.create(topic, self._settings.parallelism)
        found = self._admin.partitions(topic)
        if not found:
            raise ConflictError(f"{topic} exists without partitions; delete it, then start the sidecar again")
        if found < self._settings.parallelism:
            self._admin.add_partitions(topic, self._settings.parallelism)
        return max(found, self._settings.parallelism)

    def _create(self, topic: TopicName) -> None:
        self._steps.run(lambda: self._admin.create(topic))

    def _subscribe(self, topic: TopicName, subscription: str) -> None:
        self._steps.run(lambda: self._admin.create_subscription(topic, subscription))

    def _set_policies(self, kind: DeletionTopic) -> None:
        self._set_policy(self._topic(kind), "deduplicationEnabled", True)
        self._set_policy(self._topic(kind), "compactionThreshold", _COMPACTION_THRESHOLD_BYTES)
        if kind is DeletionTopic.OUTCOME:
            retention = {
                "retentionTimeInMinutes": self._settings.outcome_retention_minutes,
                "retentionSizeInMB": self._settings.outcome_retention_mebibytes,
            }
            self._set_policy(self._topic(kind), "retention", retention)

    def _set_policy(self, topic: TopicName, name: str, value: object) -> None:
        def settle() -> None:
            if self._admin.policy(topic, name) == value:
                return
            self._admin.set_policy(topic, name, value)
            if self._admin.policy(topic, name) != value:
                raise TemporaryError(f"{name} of {topic} is not in force yet")

        self._steps.run(settle)
