"""Policies by which brokers trim topics, and those that they apply to each topic once it is loaded.

The broker that owns the topic's bundle reports which retention applies: topics' own policies are nowhere else. It
reads the bundle's policies in memory, and loads no topic for that.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, json_object
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import RuntimeConfiguration
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import topic_policy
from pulsar_sidecar.features.pins.facts import Retention
from pulsar_sidecar.features.pins.obstacles import LoadingPolicies
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.offload_locations import own_deletion_lag_ms
from pulsar_sidecar.ownership.paths import POLICIES, partitioned_topic_path
from pulsar_sidecar.ownership.shadows import shadow_at

_T = TypeVar("_T")
_USUAL_OFFLOAD_LAG_MS: Final = 4 * 3_600_000


class BrokerTrimPolicies:
    """`features.pins.ports.TrimPolicies`."""

    def __init__(self, rest: AdminRest, store: MetadataStore) -> None:
        self._rest, self._store = rest, store

    def retention(self, topic: TopicName) -> Retention | Unreadable:
        try:
            applied = topic_policy(self._rest, topic.base, "retention", {"applied": "true"})
            return self._namespace_retention(topic.namespace) if applied is None else _retention(applied)
        except SidecarError as error:
            return Unreadable(str(error))

    def offload_lag_ms(self, namespace: str) -> int | Unreadable:
        try:
            own_ms = own_deletion_lag_ms(self._policies(namespace))
            if own_ms is not None:
                return own_ms
            configured = RuntimeConfiguration.of(self._rest)
            return configured.number("managedLedgerOffloadDeletionLagMs", _USUAL_OFFLOAD_LAG_MS)
        except SidecarError as error:
            return Unreadable(str(error))

    def replicated_to(self, topic: TopicName) -> frozenset[str] | Unreadable:
        try:
            applied = topic_policy(self._rest, topic.base, "replication", {"applied": "true"})
            clusters = self._policies(topic.namespace).get("replication_clusters") if applied is None else applied
        except SidecarError as error:
            return Unreadable(str(error))
        return frozenset(map(str, clusters)) if isinstance(clusters, list) else Unreadable("no list of clusters")

    def on_loading(self, topic: TopicName) -> LoadingPolicies | Unreadable:
        try:
            return self._on_loading(topic.base)
        except SidecarError as error:
            return Unreadable(str(error))

    def _on_loading(self, topic: TopicName) -> LoadingPolicies:
        path = partitioned_topic_path(topic)
        partitioned = self._store.read(path)
        policies, configured = self._policies(topic.namespace), RuntimeConfiguration.of(self._rest)
        expiry = policies.get("subscription_expiration_time_minutes")
        inactive = self._applied(topic, "inactiveTopicPolicies", dict)
        quotas = self._applied(topic, "backlogQuotaMap", dict).values()
        document = {} if partitioned is None else json_object(partitioned.data, f"the partitions of {topic}")
        return LoadingPolicies(
            is_being_deleted=bool(policies.get("deleted") or document.get("deleted")),
            is_shadow=partitioned is not None and shadow_at(path, partitioned.data) is not None,
            is_of_this_cluster=configured.text("clusterName") in self._applied(topic, "replication", list),
            deletes_inactive=inactive.get("deleteWhileInactive") is not False,
            spares_subscriptions=inactive.get("inactiveTopicDeleteMode") == "delete_when_no_subscriptions",
            subscription_expiry_minutes=(
                expiry if isinstance(expiry, int) else configured.number("subscriptionExpirationTimeMinutes", 0)
            ),
            message_ttl_seconds=self._applied(topic, "messageTTL", int),
            evicts_backlog=any("consumer_backlog_eviction" in str(quota) for quota in quotas),
        )

    def _applied(self, topic: TopicName, name: str, kind: type[_T]) -> _T:
        found = topic_policy(self._rest, topic, name, {"applied": "true"})
        if not isinstance(found, kind):
            raise TemporaryError(
                f"brokers do not report which {name} applies to {topic}; see topicLevelPoliciesEnabled"
            )
        return found

    def _namespace_retention(self, namespace: str) -> Retention:
        """Return the retention of a namespace, for brokers that keep no policies of topics."""
        policy = self._policies(namespace).get("retention_policies")
        if policy is not None:
            return _retention(policy)
        configured = RuntimeConfiguration.of(self._rest)
        minutes, size_mb = (
            configured.number(name, 0) for name in ("defaultRetentionTimeInMinutes", "defaultRetentionSizeInMB")
        )
        return Retention(minutes, size_mb)

    def _policies(self, namespace: str) -> Mapping[str, Any]:
        node = self._store.read(f"{POLICIES}/{namespace}")
        return {} if node is None else json_object(node.data, f"the policies of {namespace}")


def _retention(document: object) -> Retention:
    found = document if isinstance(document, dict) else {}
    minutes, size_mb = found.get("retentionTimeInMinutes"), found.get("retentionSizeInMB")
    if not isinstance(minutes, int) or not isinstance(size_mb, int):
        raise TemporaryError("a retention policy has no time or no size; try again")
    return Retention(minutes, size_mb)
