"""Brokers' operations on topics and reports of them; shadow topics (PIP-180) included.

Invariant: every creating call is idempotent, so several sidecars may make it at once; a deletion is not retried,
because only the caller knows whether a lost response matters.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar, cast

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import NOT_OF_THIS_CLUSTER, AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import RuntimeConfiguration, broker_version
from pulsar_sidecar.adapters.pulsar_rest.topic_stats import (
    BacklogStats,
    Compaction,
    PartitionedBacklogs,
    compaction_of,
    parse_internal_stats,
    parse_stats,
    read_answer,
)
from pulsar_sidecar.features.ledger_deletion.ports import ConnectedClients
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError, PermanentError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName, java_url_encode, parse_topic_name
from pulsar_sidecar.model.pulsar_versions import Line, line_of
from pulsar_sidecar.model.topic_stats import TopicInternalStats, TopicStats
from pulsar_sidecar.ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.shadows import shadow_at

_EARLIEST: Final = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
_FOREVER: Final = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
_NOT_ALLOWED = 405
_CONFLICT = 409
_QUERIES_AT_ONCE = 8

_Answer = TypeVar("_Answer")


class BrokerTopicAdmin:
    """`ledger_deletion.ports.TopicAdmin`, and the other calls on topics (Pulsar ``PersistentTopics``)."""

    def __init__(self, rest: AdminRest) -> None:
        self._rest = rest

    def load_topics(self, topics: Sequence[TopicName]) -> None:
        _query_each(topics, self._load)

    def _load(self, topic: TopicName) -> None:
        try:
            self._rest.get(topic_path(topic, "/stats"))
        except BrokerRefusedError as error:
            if NOT_OF_THIS_CLUSTER.match(error.reason):
                raise
        except PermanentError:
            return

    def shadow_topics(self, topic: TopicName) -> Sequence[TopicName]:
        try:
            listed = topic_policy(self._rest, topic, "shadowTopics")
        except NotFoundError:
            return ()
        if not isinstance(listed, list | None) or not all(isinstance(name, str) for name in listed or ()):
            raise TemporaryError("a broker did not list a topic's shadows; try again")
        return [parse_topic_name(name) for name in listed or ()]

    def delete_topic(self, topic: TopicName, *, partitioned: bool, force: bool) -> None:
        path = topic_path(topic, "/partitions" if partitioned else "")
        self._rest.change("DELETE", path, params={"force": "true" if force else "false"})

    def delete_subscription(self, topic: TopicName, subscription: str, *, force: bool) -> None:
        path = topic_path(topic, f"/subscription/{java_url_encode(subscription)}")
        self._rest.change("DELETE", path, params={"force": "true" if force else "false"})

    def delete_schema(self, topic: TopicName) -> None:
        version = "" if topic.cluster else "/v2"
        path = f"/admin{version}/schemas/{topic.namespace}/{java_url_encode(topic.local_name)}/schema"
        self._rest.change("DELETE", path, params={"force": "true"})

    def partitions(self, topic: TopicName) -> int | None:
        try:
            return partitions_in(self._rest.get(topic_path(topic, "/partitions")))
        except NotFoundError:
            return None

    def create(self, topic: TopicName, partitions: int = 0) -> bool:
        """Create the topic, with partitions if any; return False if it exists, with any number of partitions."""
        if partitions:
            return self._created(topic_path(topic, "/partitions"), partitions)
        return self._created(topic_path(topic), None)

    def add_partitions(self, topic: TopicName, partitions: int) -> None:
        self._rest.change("POST", topic_path(topic, "/partitions"), partitions)

    def create_subscription(self, topic: TopicName, subscription: str) -> bool:
        """Create a durable subscription at the earliest message; return False if it exists already."""
        return self._created(topic_path(topic, f"/subscription/{subscription}"), _EARLIEST)

    def policy(self, topic: TopicName, name: str, *, applied: bool = False) -> object:
        """Return the topic's own policy, None if unset; with ``applied`` the effective one, wherever it is set."""
        return self._rest.get(topic_path(topic, f"/{name}"), {"applied": "true"} if applied else None)

    def set_policy(self, topic: TopicName, name: str, value: object) -> None:
        """Set a policy on the topic itself; brokers apply it within moments, not at once."""
        self._rest.change("POST", topic_path(topic, f"/{name}"), value)

    def stats(self, topic: TopicName) -> TopicStats:
        """Return ``stats`` without the producers; loads the topic."""
        return parse_stats(self._rest.get(topic_path(topic, "/stats"), {"excludePublishers": "true"}), topic)

    def internal_stats(self, topic: TopicName) -> TopicInternalStats:
        """Return ``internalStats``; loads the topic."""
        return parse_internal_stats(self._rest.get(topic_path(topic, "/internalStats")), topic)

    def compaction(self, topic: TopicName) -> Compaction:
        """Return the topic's last compaction; loads the topic."""
        return compaction_of(self._rest.get(topic_path(topic, "/internalStats")), topic)

    def backlog(self, topic: TopicName, *, earliest: bool = False) -> BacklogStats:
        """Return the subscriptions' exact backlogs, with ``earliest`` also their ages; loads the topic."""
        document = self._rest.get(topic_path(topic, "/stats"), _backlog_params(earliest=earliest))
        return read_answer(document, BacklogStats, topic)

    def backlogs(self, topic: TopicName) -> Mapping[str, BacklogStats]:
        """Return the `backlog` of each partition, by its topic's name; loads the partitions."""
        params = {**_backlog_params(earliest=True), "perPartition": "true"}
        document = self._rest.get(topic_path(topic, "/partitioned-stats"), params)
        return read_answer(document, PartitionedBacklogs, topic).partitions

    def messages_in_backlog_entry(self, topic: TopicName, subscription: str, position: int) -> int:
        """Return the number of messages in the entry at ``position`` of a backlog, counted from 1; 1 if unbatched."""
        headers = self._rest.headers(topic_path(topic, f"/subscription/{subscription}/position/{position}"))
        count = headers.get("X-Pulsar-num-batch-message", "1")
        return max(1, int(count)) if count.isascii() and count.isdigit() else 1

    def trim(self, topic: TopicName) -> None:
        """Make a broker trim the topic, which it loads for that; the broker deletes the ledgers after its response."""
        self._rest.change("POST", topic_path(topic, "/trim"))

    def unload(self, topic: TopicName) -> None:
        self._rest.change("PUT", topic_path(topic, "/unload"))

    def keeps_forever(self, topic: TopicName) -> bool:
        return self.policy(topic, "retention") == _FOREVER

    def keep_forever(self, topic: TopicName) -> None:
        self.set_policy(topic, "retention", _FOREVER)

    def set_shadow_topics(self, source: TopicName, shadows: Sequence[TopicName]) -> None:
        # Brokers refuse an empty list.
        method, body = ("PUT", [str(shadow) for shadow in shadows]) if shadows else ("DELETE", None)
        self._rest.change(method, topic_path(source, "/shadowTopics"), body)

    def clients(self, topic: TopicName) -> ConnectedClients:
        stats = parse_stats(self._rest.get(topic_path(topic, "/stats")), topic)
        consumers = sum(len(subscription.consumers) for subscription in stats.subscriptions.values())
        # The producers of `ShadowReplicator` are called <replicatorPrefix>-<source>--><shadow>.
        replicators = sum(name.endswith(f"-->{topic}") for name in stats.producers)
        return ConnectedClients(
            consumers, len(stats.producers) - replicators, replicators, tuple(sorted(stats.replicators))
        )

    def clients_of(self, topics: Sequence[TopicName]) -> Sequence[ConnectedClients]:
        return [found for found in _query_each(topics, self._clients_if_known) if found is not None]

    def _clients_if_known(self, topic: TopicName) -> ConnectedClients | None:
        try:
            return self.clients(topic)
        except NotFoundError:
            return None

    def broker_line(self) -> Line | None:
        return line_of(broker_version(self._rest) or "")

    def can_load(self, topic: TopicName) -> bool:
        try:
            self._rest.get(topic_path(topic, "/internalStats"))
        except NotFoundError:
            return False
        return True

    def namespace_policy(self, namespace: str, name: str) -> object:
        return self._rest.get(f"/admin/v2/namespaces/{namespace}/{name}")

    def set_namespace_policy(self, namespace: str, name: str, value: object) -> None:
        self._rest.change("POST", f"/admin/v2/namespaces/{namespace}/{name}", value)

    def broker_setting(self, name: str) -> str | None:
        """Return a broker's present setting; None if unknown to the broker."""
        return RuntimeConfiguration.of(self._rest).text(name)

    def ensure_namespace(self, tenant: str, namespace: str) -> None:
        """Create the tenant (for all known clusters but ``global``) and the namespace if they are missing."""
        try:
            self._rest.get(f"/admin/v2/namespaces/{tenant}/{namespace}")
        except NotFoundError:
            clusters = self._rest.get("/admin/v2/clusters")
            local = [name for name in cast("list[str]", clusters) if name != "global"]
            self._created(f"/admin/v2/tenants/{tenant}", {"allowedClusters": local, "adminRoles": []})
            self._created(f"/admin/v2/namespaces/{tenant}/{namespace}", None)

    def _created(self, path: str, body: object) -> bool:
        try:
            self._rest.change("PUT", path, body)
        except BrokerRefusedError as error:
            if error.status == _CONFLICT:
                return False
            raise
        return True


def endangered_source(rest: AdminRest, store: MetadataStore, topic: TopicName) -> str | None:
    """Return the source of a shadow that must not be loaded: brokers may delete the source's ledgers through it."""
    nodes = store.read_many([partitioned_topic_path(topic.base), managed_ledger_path(topic.managed_ledger_name)])
    shadows = (shadow_at(node.path, node.data) for node in nodes if node is not None)
    source = next((shadow.source for shadow in shadows if shadow is not None), None)
    if source is None:
        return None
    try:
        # The effective retention: the topic's own policy, its namespace's, or the broker's configuration.
        retention = BrokerTopicAdmin(rest).policy(topic.base, "retention", applied=True)
    except (NotFoundError, BrokerRefusedError):
        # Brokers without topic policies refuse, which proves nothing.
        return source
    return None if retention == _FOREVER else source


def _query_each(topics: Sequence[TopicName], query: Callable[[TopicName], _Answer]) -> list[_Answer]:
    """Return the results of the same query for several topics, or raise the first error."""
    if len(topics) < 2:
        return [query(topic) for topic in topics]
    with ThreadPoolExecutor(_QUERIES_AT_ONCE, thread_name_prefix="topic-admin") as pool:
        return list(pool.map(query, topics))


def topic_policy(rest: AdminRest, topic: TopicName, name: str, params: Mapping[str, str] | None = None) -> object:
    """Return a policy of a topic; None if it is unset, or brokers keep no policies of topics."""
    try:
        return rest.get(topic_path(topic, f"/{name}"), params)
    except BrokerRefusedError as error:
        if error.status == _NOT_ALLOWED:
            return None
        raise


def partitions_in(document: object) -> int:
    found = document.get("partitions") if isinstance(document, dict) else None
    if not isinstance(found, int) or isinstance(found, bool):
        raise TemporaryError("a broker's answer lacks the number partitions; try again")
    return found


def _backlog_params(*, earliest: bool) -> dict[str, str]:
    return {
        "getPreciseBacklog": "true",
        "getEarliestTimeInBacklog": "true" if earliest else "false",
        "subscriptionBacklogSize": "false",
        "excludePublishers": "true",
        "excludeConsumers": "true",
    }
