"""What the sidecar asks brokers to do with shadow topics (PIP-180) and their sources."""

from collections.abc import Mapping, Sequence
from typing import Final

from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.ledger_deletion.ports import ConnectedClients
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
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
        document = self._topics.stats(topic)
        subscriptions = document.get("subscriptions")
        if not isinstance(subscriptions, dict):
            raise TemporaryError(f"a broker did not list the subscriptions of {topic}; try again")
        consumers = [len(_listed(subscription, "consumers", topic)) for subscription in subscriptions.values()]
        publishers = _listed(document, "publishers", topic)
        replicators = sum(_replicates(publisher, topic) for publisher in publishers)
        return ConnectedClients(sum(consumers), len(publishers) - replicators, replicators)

    def can_load(self, topic: TopicName) -> bool:
        try:
            self._topics.internal_stats(topic)
        except NotFoundError:
            return False
        return True

    def delete_topic(self, topic: TopicName, *, partitioned: bool, force: bool) -> None:
        self._topics.delete_topic(topic, partitioned=partitioned, force=force)


def _listed(document: object, name: str, topic: TopicName) -> list[object]:
    found = document.get(name) if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise TemporaryError(f"a broker did not list the {name} of {topic}; try again")
    return found


def _replicates(publisher: object, topic: TopicName) -> bool:
    """Whether it is the producer of ``ShadowReplicator``: ``<replicatorPrefix>-<source>--><shadow>``."""
    name = publisher.get("producerName") if isinstance(publisher, Mapping) else None
    return isinstance(name, str) and name.endswith(f"-->{topic}")
