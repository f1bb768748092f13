"""Contents of one broker: its bundles, its loaded topics, and their clients by the broker's periodic statistics."""

from urllib.parse import urlsplit

import msgspec

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import Broker, live_brokers
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import RUNTIME_CONFIGURATION, RuntimeConfiguration
from pulsar_sidecar.adapters.pulsar_rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.features.rehearsal.ports import BrokerContents, Clients
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicDomain, TopicName, parse_topic_name

_STATISTICS_PATH = "/admin/v2/broker-stats/topics"
_STATISTICS_SECONDS = 60
_SESSION_MS = 30_000
_LOAD_SECONDS = 60
"""Defaults of ``broker.conf``."""


@decodable
class _Subscription(msgspec.Struct, rename="camel"):
    consumers: list[object] = []
    msg_backlog: int = 0


@decodable
class _Topic(msgspec.Struct, rename="camel"):
    publishers: list[object] = []
    subscriptions: dict[str, _Subscription] = {}

    def clients(self) -> Clients:
        found = self.subscriptions.values()
        return Clients(
            len(self.publishers),
            sum(len(each.consumers) for each in found),
            sum(each.msg_backlog for each in found),
        )


_Statistics = dict[str, dict[str, dict[str, dict[str, _Topic]]]]
"""Topics by namespace, bundle and domain."""


class RestBrokerContents:
    """Contents of brokers, for rehearsals. With authorization it needs a superuser's role, as ``broker-stats`` does."""

    def __init__(self, store: MetadataStore, owners: BrokerLiveOwners) -> None:
        self._store = store
        self._owners = owners

    def contents(self, broker: str) -> BrokerContents:
        """Return the contents of a broker, named by its id or by one of its web service URLs.

        Raises:
            NotFoundError: there is no such broker.
            UnreachableError: the broker does not respond.
        """
        found = self._named(broker)
        configuration = RuntimeConfiguration(self._owners.demand(found, RUNTIME_CONFIGURATION))
        loaded = map(parse_topic_name, self._owners.listed(found))
        clients = self._clients(found)
        session_ms = configuration.number("zooKeeperSessionTimeoutMillis", -1)
        if session_ms <= 0:
            session_ms = configuration.number("metadataStoreSessionTimeoutMillis", _SESSION_MS)
        return BrokerContents(
            broker=found.broker_id,
            bundles=len(self._owners.owned(found)),
            topics={topic: clients.get(topic) for topic in loaded},
            non_persistent={
                topic: each for topic, each in clients.items() if topic.domain is TopicDomain.NON_PERSISTENT
            },
            statistics_seconds=configuration.number("statsUpdateFrequencyInSecs", _STATISTICS_SECONDS),
            session_seconds=session_ms / 1000,
            load_seconds=configuration.number("topicLoadTimeoutSeconds", _LOAD_SECONDS),
        )

    def _named(self, broker: str) -> Broker:
        brokers = live_brokers(self._store)
        for found in brokers:
            if broker in (found.broker_id, *(urlsplit(url).netloc for url in found.web_service_urls)):
                return found
        names = ", ".join(found.broker_id for found in brokers) or "none"
        raise NotFoundError(f"no broker {broker} is registered in the metadata store; those that are: {names}")

    def _clients(self, broker: Broker) -> dict[TopicName, Clients]:
        document = self._owners.demand(broker, _STATISTICS_PATH)
        try:
            found = msgspec.convert(document or {}, _Statistics)
        except msgspec.ValidationError as error:
            message = f"broker {broker.broker_id} returned unexpected statistics ({error}); try again"
            raise TemporaryError(message) from error
        return {
            parse_topic_name(name): topic.clients()
            for bundles in found.values()
            for domains in bundles.values()
            for topics in domains.values()
            for name, topic in topics.items()
        }
