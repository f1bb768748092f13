"""Ledgers in use, as reported by the brokers that have the topics loaded; other topics are never loaded.

``GET /admin/v2/broker-stats/bookieops`` names exactly the persistent topics a broker has loaded at that moment
(``BookieClientStatsGenerator.generate`` walks ``BrokerService.forEachTopic``); the sidecar requests ``internalStats``
only of those, from the broker that listed them, and follows no redirect. A listing names every topic of its broker, so
only the owners of the topics' bundles are queried, and the nodes that name them are read again afterwards. All brokers
are queried where no registered broker is named, where the nodes changed meanwhile, and where the extensible load
manager keeps the owners elsewhere.

A listed topic that its broker then does not know (404) was deleted in between, or its namespace is being deleted: the
broker no longer has it loaded, and its nodes, which the caller reads afterwards, show what remains of it.

Windows that remain, and why they are harmless: a topic may be unloaded between the two requests, and ``internalStats``
then loads it again, with a correct view; a topic that is being loaded is listed only when it is ready, and its broker
reads the metadata that the caller compares afterwards; the second listing finds a topic that moves between two brokers
during the first. A broker that lost a bundle may still serve readers of it for a while, and no query reaches it
(docs/decisions/0022-owners-of-bundles-are-asked.md). Managed ledgers without a topic (``__transaction_log_N``,
``...__transaction_pending_ack``) never count as loaded: their metadata names all of their ledgers, because they are
never compacted and have no schema.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, Broker, demand_brokers, live_brokers, topic_path
from pulsar_sidecar.adapters.pulsar_rest.bundles import owned_bundles, owning_url, read_ownership
from pulsar_sidecar.adapters.pulsar_rest.topic_stats import (
    parse_deduplication_status,
    parse_internal_stats,
    parse_stats,
)
from pulsar_sidecar.features.pins.ports import BrokerUsage
from pulsar_sidecar.model.errors import NotFoundError, PermanentError, SidecarError, TemporaryError
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import TopicInternalStats

_LOADED_TOPICS_PATH = "/admin/v2/broker-stats/bookieops"
_METRICS_PATH = "/admin/v2/broker-stats/metrics"
_RESOURCES = {
    "brk_lb_cpu_usage": "CPU",
    "brk_lb_directMemory_usage": "direct memory",
    "brk_lb_bandwidth_in_usage": "incoming bandwidth",
    "brk_lb_bandwidth_out_usage": "outgoing bandwidth",
}
_MAX_THREADS = 8
_OF_THE_OWNER = {"authoritative": "true", "excludePublishers": "true"}

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class BrokerLiveOwners:
    """`ledger_deletion.ports.LiveOwners` over the brokers registered in the metadata store.

    Every request goes to a broker's own address; ``rest`` must be able to reach all of them. With authorization it
    needs a superuser's role, as ``broker-stats`` does.
    """

    def __init__(self, rest: AdminRest, store: MetadataStore) -> None:
        self._rest = rest
        self._store = store
        # The pool is kept, because every thread keeps its connections.
        self._threads = ThreadPoolExecutor(_MAX_THREADS, "live-owners")

    def close(self) -> None:
        """Wait for requests in flight and end the threads; idempotent."""
        self._threads.shutdown()

    def views(self, topics: Collection[TopicName]) -> Mapping[TopicName, TopicInternalStats]:
        return self._query_existing(self._view, self._loaded(frozenset(topics)).items())

    def loaded(self, topics: Collection[TopicName]) -> Collection[TopicName]:
        return self._loaded(frozenset(topics)).keys()

    def loaded_by(self, topic: TopicName) -> str | None:
        """Implement `ownership.ports.LoadedTopics`."""
        broker = self._loaded(frozenset({topic})).get(topic)
        return None if broker is None else broker.broker_id

    def busiest(self) -> BrokerUsage:
        """Return the most used resource of all live brokers. Raises `TemporaryError` unless each one responds.

        They renew their own reports, of which this is one, every minute. Every load manager has it, unlike load-report.
        """
        brokers = demand_brokers(self._store)
        usages = self._map_in_parallel(lambda each: usage_in(self.demand(each, _METRICS_PATH), each.broker_id), brokers)
        return max(usages, key=lambda usage: usage.percent)

    def statuses(self, topics: Sequence[TopicName], most: int) -> Mapping[TopicName, str]:
        """Implement `deduplication.inspection.policy_changes.RunningDeduplication`."""
        loaded = self._loaded(frozenset(topics))
        asked = [(topic, loaded[topic]) for topic in topics if topic in loaded][:most]
        return self._query_existing(self._status, asked)

    def replicators(self, topic: TopicName, broker_id: str) -> Mapping[str, bool] | Unreadable:
        """Implement `features.pins.ports.LiveViews`."""
        try:
            broker = next((each for each in live_brokers(self._store) if each.broker_id == broker_id), None)
            if broker is None:
                return Unreadable(f"broker {broker_id} is gone")
            return parse_stats(self._get(broker, topic_path(topic, "/stats"), _OF_THE_OWNER), topic).replicators
        except SidecarError as error:
            return Unreadable(str(error))

    def owner_url(self, topic: TopicName) -> str | None:
        ownership = read_ownership(self._store, [topic])
        path = ownership.paths[topic]
        if path is None:
            return None
        node = ownership.nodes[path]
        if node is not None:
            return owning_url(node.data, topic)
        brokers = [broker for broker in live_brokers(self._store) if broker.extensible]
        bundle = path.removeprefix("/namespace/")
        owners = self._map_in_parallel(lambda broker: (broker, bundle in self.owned(broker)), brokers)
        return next((broker.web_service_urls[0] for broker, owns in owners if owns), None)

    def _loaded(self, wanted: frozenset[TopicName]) -> Mapping[TopicName, Broker]:
        if not wanted:
            return {}
        brokers = demand_brokers(self._store)
        ownership = read_ownership(self._store, wanted)
        loaded = self._listing(ownership.owners_among(brokers), wanted)
        if loaded.keys() != wanted and (any(broker.extensible for broker in brokers) or ownership.changed(self._store)):
            loaded |= self._listing(brokers, wanted - loaded.keys())
        if set(brokers) != set(live_brokers(self._store)):
            raise TemporaryError("brokers joined or left while their topics were being listed; try again")
        return loaded

    def _listing(self, brokers: Collection[Broker], wanted: Collection[TopicName]) -> dict[TopicName, Broker]:
        listed = self._map_in_parallel(lambda broker: (broker, self.listed(broker)), brokers)
        by_name = {str(topic): topic for topic in wanted}
        return {by_name[name]: broker for broker, names in listed for name in by_name.keys() & names}

    def listed(self, broker: Broker) -> frozenset[str]:
        """Return the persistent topics that the broker has loaded; raise `TemporaryError`."""
        document = self.demand(broker, _LOADED_TOPICS_PATH)
        if not isinstance(document, dict) or not all(isinstance(names, dict) for names in document.values()):
            raise TemporaryError(f"broker {broker.broker_id} did not list its loaded topics; try again")
        return frozenset(name for names in document.values() for name in names)

    def _view(self, topic: TopicName, broker: Broker) -> TopicInternalStats:
        document = self._get(broker, topic_path(topic, "/internalStats"), {"authoritative": "true"})
        return parse_internal_stats(document, topic, broker.broker_id)

    def _status(self, topic: TopicName, broker: Broker) -> str:
        return parse_deduplication_status(self._get(broker, topic_path(topic, "/stats"), _OF_THE_OWNER), topic)

    def owned(self, broker: Broker) -> frozenset[str]:
        """Return the bundles that the broker serves; raise `TemporaryError`."""
        clusters = self.demand(broker, "/admin/v2/clusters")
        if not isinstance(clusters, list):
            raise TemporaryError(f"broker {broker.broker_id} did not list its clusters; try again")
        listed: frozenset[str] = frozenset()
        for cluster in clusters:
            path = f"/admin/v2/brokers/{cluster}/{broker.broker_id}/ownedNamespaces"
            listed |= owned_bundles(self.demand(broker, path), broker.broker_id)
        return listed

    def demand(self, broker: Broker, path: str) -> object:
        """Return the response at a path that every broker has."""
        try:
            return self._get(broker, path, {})
        except NotFoundError as error:
            raise TemporaryError(f"{path} at broker {broker.broker_id}: {error}") from error

    def _get(self, broker: Broker, path: str, params: Mapping[str, str]) -> object:
        failure: TemporaryError | None = None
        for url in self._rest.reachable(broker.web_service_urls):
            try:
                return self._rest.get_exactly(url, path, params)
            except TemporaryError as error:
                failure = error
            except NotFoundError:
                raise
            except PermanentError as error:
                # For example, the sidecar's role may not read this: that proves nothing about any ledger.
                raise TemporaryError(f"{path} at broker {broker.broker_id}: {error}") from error
        raise failure or TemporaryError(f"broker {broker.broker_id} has no address that the sidecar may use")

    def _query_existing(
        self, query: Callable[[TopicName, Broker], _Result], loaded: Iterable[tuple[TopicName, Broker]]
    ) -> dict[TopicName, _Result]:
        """Return the responses about topics that still exist."""

        def answer(pair: tuple[TopicName, Broker]) -> _Result | None:
            try:
                return query(*pair)
            except NotFoundError:
                return None

        pairs = list(loaded)
        answers = zip(pairs, self._map_in_parallel(answer, pairs), strict=True)
        return {topic: found for (topic, _), found in answers if found is not None}

    def _map_in_parallel(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        found = list(items)
        if len(found) < 2:
            return [work(item) for item in found]
        return list(self._threads.map(work, found))


def usage_in(document: object, broker_id: str) -> BrokerUsage:
    """Return the most used resource in ``broker-stats/metrics``, without the heap, which fills before a collection.

    Raises:
        TemporaryError: the broker does not report its load.
    """
    groups = document if isinstance(document, list) else []
    found = [
        BrokerUsage(broker_id, words, float(percent))
        for group in groups
        if isinstance(group, dict) and isinstance(metrics := group.get("metrics"), dict)
        for name, words in _RESOURCES.items()
        if isinstance(percent := metrics.get(name), int | float)
    ]
    if len(found) < len(_RESOURCES):
        raise TemporaryError(f"broker {broker_id} does not report its load (brk_lb_cpu_usage); try again")
    return max(found, key=lambda usage: usage.percent)
