"""Shadow topics (PIP-180) and their sources: what brokers do with them, and which of them endanger their sources."""

from collections.abc import Sequence
from typing import Final

from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.rest.topic_stats import parse_stats
from pulsar_sidecar.ledger_deletion.ports import ConnectedClients
from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ledger_ownership.shadows import shadow_at
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName

_FOREVER: Final = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
_APPLIED: Final = {"applied": "true"}


class BrokerShadowAdmin(BrokerTopicAdmin):
    """`ledger_deletion.ports.ShadowAdmin`."""

    def keeps_forever(self, topic: TopicName) -> bool:
        return self.policy(topic, "retention") == _FOREVER

    def keep_forever(self, topic: TopicName) -> None:
        self.set_policy(topic, "retention", _FOREVER)

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


class BrokerShadows:
    """`ack_state.ports.Shadows` and `ledger_deletion.ports.EndangeredSources`."""

    def __init__(self, rest: AdminRest, store: MetadataStore) -> None:
        self._rest = rest
        self._store = store

    def endangered_source(self, topic: TopicName) -> str | None:
        source = self._source(topic)
        return None if source is None or self._keeps_forever(topic) else source

    def _source(self, topic: TopicName) -> str | None:
        paths = [partitioned_topic_path(topic.base), managed_ledger_path(topic.managed_ledger_name)]
        nodes = self._store.read_many(paths)
        shadows = (shadow_at(node.path, node.data) for node in nodes if node is not None)
        return next((shadow.source for shadow in shadows if shadow is not None), None)

    def _keeps_forever(self, topic: TopicName) -> bool:
        """What is in force for the topic, whether it, its namespace or the broker's configuration says so."""
        try:
            return self._rest.get(topic_path(topic.base, "/retention"), _APPLIED) == _FOREVER
        except (NotFoundError, BrokerRefusedError):
            # Brokers without topic policies do not answer; nothing is concluded from that.
            return False
