"""Deduplication policies: topics' from brokers, namespaces' from the metadata store, defaults from settings.

The sidecar does not use a broker's own response with ``applied``, because that ignores a topic's global policy.
"""

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import RuntimeConfiguration
from pulsar_sidecar.adapters.pulsar_rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import topic_policy
from pulsar_sidecar.features.deduplication.policies import (
    NAMESPACE_ROUTES,
    TOPIC_ROUTES,
    BrokerDeduplication,
    DeduplicationPolicy,
    checked_value,
    value_of_namespace,
)
from pulsar_sidecar.features.deduplication.results import PolicyValue, PolicyValues
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import POLICIES


class BrokerDeduplicationPolicies:
    """`deduplication.inspection.policy_changes.Policies`."""

    def __init__(self, rest: AdminRest, store: MetadataStore, owners: BrokerLiveOwners) -> None:
        self._rest = rest
        self._store = store
        self._owners = owners

    def of_topic(self, policy: DeduplicationPolicy, topic: TopicName) -> PolicyValues:
        return PolicyValues.of(
            broker=self.configured(topic).of(policy),
            namespace=self._namespace_value(policy, topic.namespace),
            topic=self._topic_value(policy, topic, is_global=False),
            topic_global=self._topic_value(policy, topic, is_global=True),
        )

    def of_namespace(self, policy: DeduplicationPolicy, namespace: str) -> PolicyValues:
        return PolicyValues.of(self.configured(None).of(policy), self._namespace_value(policy, namespace))

    def change_topic(self, policy: DeduplicationPolicy, topic: TopicName, value: PolicyValue | None) -> None:
        method = "DELETE" if value is None else "POST"
        self._rest.change(method, topic_path(topic, f"/{TOPIC_ROUTES[policy]}"), value)

    def change_namespace(self, policy: DeduplicationPolicy, namespace: str, value: PolicyValue | None) -> None:
        # Brokers remove a namespace's interval at a POST without one; they have no DELETE for it.
        is_removed = value is None and policy is DeduplicationPolicy.ENABLED
        path = f"/admin/v2/namespaces/{namespace}/{NAMESPACE_ROUTES[policy]}"
        self._rest.change("DELETE" if is_removed else "POST", path, value)

    def configured(self, topic: TopicName | None) -> BrokerDeduplication:
        owner = None if topic is None else self._owners.owner_url(topic)
        configuration, usual = RuntimeConfiguration.of(self._rest, owner), BrokerDeduplication()
        return BrokerDeduplication(
            enabled=configuration.flag("brokerDeduplicationEnabled"),
            max_producers=configuration.number("brokerDeduplicationMaxNumberOfProducers", usual.max_producers),
            entries_interval=configuration.number("brokerDeduplicationEntriesInterval", usual.entries_interval),
            snapshot_interval_seconds=configuration.number(
                "brokerDeduplicationSnapshotIntervalSeconds", usual.snapshot_interval_seconds
            ),
            snapshot_frequency_seconds=configuration.number(
                "brokerDeduplicationSnapshotFrequencyInSeconds", usual.snapshot_frequency_seconds
            ),
            load_timeout_seconds=configuration.number("topicLoadTimeoutSeconds", usual.load_timeout_seconds),
            max_entry_bytes=configuration.number("maxMessageSize", usual.max_entry_bytes),
        )

    def _topic_value(self, policy: DeduplicationPolicy, topic: TopicName, *, is_global: bool) -> PolicyValue | None:
        params = {"isGlobal": "true" if is_global else "false"}
        return checked_value(topic_policy(self._rest, topic.base, TOPIC_ROUTES[policy], params))

    def _namespace_value(self, policy: DeduplicationPolicy, namespace: str) -> PolicyValue | None:
        node = self._store.read(f"{POLICIES}/{namespace}")
        if node is None:
            raise NotFoundError(f"there is no namespace {namespace}")
        return value_of_namespace(policy, node.data)
