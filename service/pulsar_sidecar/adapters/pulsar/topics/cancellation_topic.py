"""The cancellation log: one compacted topic in ``pulsar/system``, keyed, read back by a reader of the compacted view.

Brokers compact every topic in ``pulsar/system`` once a minute as soon as it passes its threshold, and an empty message
is what makes compaction forget a key.

Invariants: `append` returns only when every record is stored, in order for each key; a record whose receipt did not
come is an error, although it may be stored.
"""

from collections.abc import Callable
from typing import Final

from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.rest.topic_stats import Compaction, compaction_of
from pulsar_sidecar.adapters.pulsar.topics.confirmed_steps import ConfirmedSteps
from pulsar_sidecar.adapters.pulsar.wire.binary_connections import BinaryConnections
from pulsar_sidecar.adapters.pulsar.wire.log_producers import LogProducers
from pulsar_sidecar.adapters.pulsar.wire.log_reader import LogReader
from pulsar_sidecar.adapters.pulsar.wire.topic_owners import TopicOwners
from pulsar_sidecar.delayed_delivery.ports import LogRecords
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.names import TopicName, parse_topic_name

CANCELLATIONS: Final = parse_topic_name("persistent://pulsar/system/__delayed_message_cancellations")
_THRESHOLD_BYTES: Final = 16 * 1024 * 1024


class PulsarCancellationTopic:
    """`delayed_delivery.ports.CancellationTopic`; safe for use by several threads."""

    def __init__(
        self,
        owners: TopicOwners,
        connections: BinaryConnections,
        admin: BrokerTopicAdmin,
        clock: Clock,
        topic: TopicName = CANCELLATIONS,
    ) -> None:
        self._producers = LogProducers(owners, connections, clock, topic)
        self._reader = LogReader(owners, connections, clock, topic, self._compaction)
        self._admin = admin
        self._topic = topic
        self._steps = ConfirmedSteps(clock, "the cancellation log is")

    def ensure(self) -> None:
        """See `CancellationTopic.ensure`; raises TemporaryError when the brokers do not confirm a step."""
        self._steps.run(lambda: self._admin.ensure_namespace(self._topic.tenant, self._topic.namespace_portion))
        self._steps.run(lambda: self._admin.create(self._topic))
        self._steps.run(self._set_threshold)

    def append(self, records: LogRecords) -> None:
        self._producers.publish(records)

    def follow(
        self, apply: Callable[[LogRecords], None], caught_up: Callable[[int], None], stopped: Callable[[], bool]
    ) -> None:
        self._reader.follow(apply, caught_up, stopped)

    def close(self) -> None:
        """Close the producers; idempotent."""
        self._producers.close()

    def _compaction(self) -> Compaction:
        return compaction_of(self._admin.internal_stats(self._topic), self._topic)

    def _set_threshold(self) -> None:
        if self._admin.policy(self._topic, "compactionThreshold") != _THRESHOLD_BYTES:
            self._admin.set_policy(self._topic, "compactionThreshold", _THRESHOLD_BYTES)
