"""What the sidecar asks brokers to do with shadow topics (PIP-180) and their sources."""

from collections.abc import Sequence
from typing import Final

from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.rest.topic_stats import parse_stats
from pulsar_sidecar.ledger_deletion.ports import ConnectedClients
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.names import TopicName

FOREVER: Final = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


class BrokerShadowAdmin:
    """`ledger_deletion.ports.ShadowAdmin`."""

    def __init__(self, rest: AdminRest) -> None:
        self._rest = rest
        self._topics = BrokerTopicAdmin(rest)

    def keeps_forever(self, topic: TopicName) -> bool:
        return self._topics.policy(topic, "retention") == FOREVER

    def keep_forever(self, topic: TopicName) -> None:
        self._topics.set_policy(topic, "retention", FOREVER)

    def shadow_topics(self, source: TopicName) -> list[str]:
        return [str(shadow) for shadow in self._topics.shadow_topics(source)]

    def set_shadow_topics(self, source: TopicName, shadows: Sequence[str]) -> None:
        # Brokers refuse an empty list.
        method, body = ("PUT", list(shadows)) if shadows else ("DELETE", None)
        self._rest.change(method, topic_path(source, "/shadowTopics"), body)

    def unload(self, topic: TopicName) -> None:
        self._topics.unload(topic)

    def clients(self, topic: TopicName) -> ConnectedClients:
        stats = parse_stats(self._topics.stats(topic), topic)
        consumers = sum(len(subscription.consumers) for subscription in stats.subscriptions.values())
        # The producers of `ShadowReplicator` are called <replicatorPrefix>-<source>--><shadow>.
        replicators = sum(name.endswith(f"-->{topic}") for name in stats.producers)
        return ConnectedClients(consumers, len(stats.producers) - replicators, replicators)

    def can_load(self, topic: TopicName) -> bool:
        try:
            self._topics.internal_stats(topic)
        except NotFoundError:
            return False
        return True

    def delete_topic(self, topic: TopicName, *, partitioned: bool, force: bool) -> None:
        self._topics.delete_topic(topic, partitioned=partitioned, force=force)
