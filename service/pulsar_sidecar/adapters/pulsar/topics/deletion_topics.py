"""The four topics of the service on a real cluster.

Invariant: nothing here decides anything about a record; it moves records, and reports exactly which it moved.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pulsar

from pulsar_sidecar.adapters.pulsar.client.publisher import PublisherSettings, TopicPublisher
from pulsar_sidecar.adapters.pulsar.client.seeking import messages_since
from pulsar_sidecar.adapters.pulsar.errors import translated
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.topics.backlogs import BacklogGauge
from pulsar_sidecar.adapters.pulsar.topics.dead_letters import ExclusiveDeadLetters
from pulsar_sidecar.adapters.pulsar.topics.overdue import OverdueReader
from pulsar_sidecar.adapters.pulsar.topics.pending_consumer import ConsumerSettings, SharedPendingDeletions
from pulsar_sidecar.adapters.pulsar.topics.topics_setup import TopicsSettings, TopicsSetup
from pulsar_sidecar.ledger_deletion.ports import SYSTEM_NAMESPACE, Backlog, DeletionTopic
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.names import TopicName, parse_topic_name

_BATCHED: Final = (DeletionTopic.PENDING, DeletionTopic.OUTCOME)
"""Retries and dead letters are acknowledged one by one and long apart, so each has an entry of its own, as in Java."""


def topic_name(topic: DeletionTopic) -> TopicName:
    """The full name of one of the service's topics."""
    return parse_topic_name(f"persistent://{SYSTEM_NAMESPACE}/{topic.value}")


class PulsarDeletionTopics:
    """`ledger_deletion.ports.DeletionTopics` over one client and the admin REST API; safe for several threads.

    The client stays the caller's, who closes it after everything that was opened here.
    """

    def __init__(
        self,
        client: pulsar.Client,
        rest: AdminRest,
        clock: Clock,
        *,
        topics: TopicsSettings | None = None,
        consumer: ConsumerSettings | None = None,
        publisher: PublisherSettings | None = None,
        brokers_clock: Clock | None = None,
    ) -> None:
        """``clock`` is this machine's, ``brokers_clock`` the brokers', for what they are to deliver later."""
        self._client = client
        self._clock = clock
        self._brokers_clock = brokers_clock or clock
        self._admin = BrokerTopicAdmin(rest)
        self._setup = TopicsSetup(self._admin, topic_name, topics or TopicsSettings(), clock)
        self._consumer = consumer or ConsumerSettings()
        self._publisher = publisher or PublisherSettings(batching=True)
        pending, retry = topic_name(DeletionTopic.PENDING), topic_name(DeletionTopic.RETRY)
        self._overdue = OverdueReader(client, self._admin, retry, self._brokers_clock)
        self._gauge = BacklogGauge(self._admin, pending, retry, clock)
        self._consumed = (str(pending), str(retry))

    def ensure(self) -> None:
        self._setup.run()

    def warnings(self) -> Sequence[str]:
        return tuple(self._setup.conditions.warnings)

    def publisher(self, topic: DeletionTopic, producer_name: str, *, first_use: bool = False) -> TopicPublisher:
        settings = replace(self._publisher, batching=self._publisher.batching and topic in _BATCHED)
        uri = str(topic_name(topic))
        conditions = self._setup.conditions
        return TopicPublisher(
            self._client, uri, producer_name, settings, self._brokers_clock, first_use, lambda: conditions.most_delay_ms
        )

    def pending(self) -> SharedPendingDeletions:
        return SharedPendingDeletions(self._client, self._consumed, self._overdue, self._consumer)

    def dead_letters(self) -> ExclusiveDeadLetters:
        return ExclusiveDeadLetters(self._client, self._admin, topic_name(DeletionTopic.DEAD_LETTER), self._clock)

    def outcomes_since(self, since_ms: int, *, quickly: bool = False) -> Iterator[bytes]:
        topic = str(topic_name(DeletionTopic.OUTCOME))
        with translated(f"reading {topic}"):
            for message in messages_since(self._client, topic, since_ms, seeking=quickly):
                yield message.data()

    def backlog(self) -> Backlog:
        return self._gauge.measure()
