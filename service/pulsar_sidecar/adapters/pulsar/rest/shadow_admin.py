"""What the sidecar asks brokers to do with shadow topics (PIP-180) and their sources."""

from collections.abc import Sequence
from typing import Final

from pulsar_sidecar.adapters.pulsar.rest.admin_rest import topic_path
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.rest.topic_stats import parse_stats
from pulsar_sidecar.ledger_deletion.ports import ConnectedClients
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.names import TopicName

FOREVER: Final = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


class BrokerShadowAdmin(BrokerTopicAdmin):
    """`ledger_deletion.ports.ShadowAdmin`."""

    def keeps_forever(self, topic: TopicName) -> bool:
        return self.policy(topic, "retention") == FOREVER

    def keep_forever(self, topic: TopicName) -> None:
        self.set_policy(topic, "retention", FOREVER)

    def set_shadow_topics(self, source: TopicName, shadows: Sequence[TopicName]) -> None:
        # Brokers refuse an empty list.
        method, body = ("PUT", [str(shadow) for shadow in shadows]) if shadows else ("DELETE", None)
        self._rest.change(method, topic_path(source, "/shadowTopics"), body)

    def clients(self, topic: TopicName) -> ConnectedClients:
        stats = parse_stats(self.stats(topic), topic)
        consumers = sum(len(subscription.consumers) for subscription in stats.subscriptions.values())
        # The producers of `ShadowReplicator` are called <replicatorPrefix>-<source>--><shadow>.
        replicators = sum(name.endswith(f"-->{topic}") for name in stats.producers)
        return ConnectedClients(consumers, len(stats.producers) - replicators, replicators)

    def can_load(self, topic: TopicName) -> bool:
        try:
            self.internal_stats(topic)
        except NotFoundError:
            return False
        return True
