"""The policies by which brokers trim topics: retention, and how long BookKeeper keeps its copy of offloaded ledgers.

Which retention is in force the broker is asked that owns the topic's bundle: topics' own policies are nowhere else. It
answers from the policies that it keeps of the bundle, and loads no topic for that.
"""

from collections.abc import Mapping
from typing import Any, Final

from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest, json_object
from pulsar_sidecar.adapters.pulsar.rest.broker_configuration import RuntimeConfiguration
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import topic_policy
from pulsar_sidecar.ledger_ownership.paths import POLICIES
from pulsar_sidecar.ledger_ownership.pins.facts import Retention
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName

_USUAL_OFFLOAD_LAG_MS: Final = 4 * 3_600_000


class BrokerTrimPolicies:
    """`ledger_ownership.pins.ports.TrimPolicies`."""

    def __init__(self, rest: AdminRest, store: MetadataStore) -> None:
        self._rest, self._store = rest, store

    def retention(self, topic: TopicName) -> Retention | Unreadable:
        try:
            applied = topic_policy(self._rest, topic.base, "retention", {"applied": "true"})
            return self._of_namespace(topic.namespace) if applied is None else _retention(applied)
        except SidecarError as error:
            return Unreadable(str(error))

    def offload_lag_ms(self, namespace: str) -> int | Unreadable:
        try:
            policies = self._policies(namespace)
            offload = policies.get("offload_policies")
            own = offload.get("managedLedgerOffloadDeletionLagInMillis") if isinstance(offload, dict) else None
            older = policies.get("offload_deletion_lag_ms")
            chosen = next((each for each in (own, older) if isinstance(each, int)), None)
            if chosen is not None:
                return chosen
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

    def _of_namespace(self, namespace: str) -> Retention:
        """Brokers that keep no policies of topics."""
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
    """Pulsar's ``RetentionPolicies``."""
    found = document if isinstance(document, dict) else {}
    minutes, size_mb = found.get("retentionTimeInMinutes"), found.get("retentionSizeInMB")
    if not isinstance(minutes, int) or not isinstance(size_mb, int):
        raise TemporaryError("a retention policy has no time or no size; try again")
    return Retention(minutes, size_mb)
