"""Deduplication policies in memory: stored values and their effects, set by a test."""

from collections.abc import Mapping, Sequence

from pulsar_sidecar.features.deduplication.policies import BrokerDeduplication, DeduplicationPolicy
from pulsar_sidecar.features.deduplication.results import PolicyValue, PolicyValues
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import POLICIES, managed_ledger_path, partitioned_topic_path

from tests.fakes.metadata import FakeMetadataStore

NAMESPACE = "public/default"
TOPIC = parse_topic_name("persistent://public/default/orders")


def put_topic(store: FakeMetadataStore, topic: TopicName = TOPIC, partitions: int = 0) -> None:
    """Add the nodes of a topic, without contents: its namespace, its partitions if any, and managed ledgers."""
    if f"{POLICIES}/{topic.namespace}" not in store.paths():
        store.put(f"{POLICIES}/{topic.namespace}", b"{}")
    if partitions:
        store.put(partitioned_topic_path(topic), b'{"partitions":%d}' % partitions)
    for place in [topic.partition(index) for index in range(partitions)] or [topic]:
        store.put(managed_ledger_path(place.managed_ledger_name), b"")


class FakeDeduplication:
    """`Policies` and `RunningDeduplication`, whose loaded topics follow the policies after some readings."""

    def __init__(self) -> None:
        self.broker = BrokerDeduplication()
        self.topics: dict[tuple[DeduplicationPolicy, TopicName], PolicyValue | None] = {}
        self.global_topics: dict[tuple[DeduplicationPolicy, TopicName], PolicyValue] = {}
        self.namespaces: dict[tuple[DeduplicationPolicy, str], PolicyValue | None] = {}
        self.loaded: list[TopicName] = []
        self.stuck: str | None = None
        self.looks_until_applied = 0
        self.ignores_changes = False
        self.changed: list[tuple[str, DeduplicationPolicy, str, PolicyValue | None]] = []

    def of_topic(self, policy: DeduplicationPolicy, topic: TopicName) -> PolicyValues:
        levels = self.of_namespace(policy, topic.namespace)
        own, of_all = self.topics.get((policy, topic.base)), self.global_topics.get((policy, topic.base))
        return PolicyValues.of(levels.broker, levels.namespace, own, of_all)

    def of_namespace(self, policy: DeduplicationPolicy, namespace: str) -> PolicyValues:
        if namespace == "public/missing":
            raise NotFoundError(f"there is no namespace {namespace}")
        return PolicyValues.of(self.broker.of(policy), self.namespaces.get((policy, namespace)))

    def change_topic(self, policy: DeduplicationPolicy, topic: TopicName, value: PolicyValue | None) -> None:
        self.changed.append(("topic", policy, str(topic), value))
        if not self.ignores_changes:
            self.topics[policy, topic] = value

    def change_namespace(self, policy: DeduplicationPolicy, namespace: str, value: PolicyValue | None) -> None:
        self.changed.append(("namespace", policy, namespace, value))
        if not self.ignores_changes:
            self.namespaces[policy, namespace] = value

    def configured(self, topic: TopicName | None) -> BrokerDeduplication:
        return self.broker

    def statuses(self, topics: Sequence[TopicName], most: int) -> Mapping[TopicName, str]:
        found = [topic for topic in topics if topic in self.loaded][:most]
        self.looks_until_applied -= 1
        return {topic: self._status(topic) for topic in found}

    def _status(self, topic: TopicName) -> str:
        if self.stuck is not None:
            return self.stuck
        is_on = self.of_topic(DeduplicationPolicy.ENABLED, topic).applied
        return ("Enabled" if is_on else "Disabled") if self.looks_until_applied < 0 else "Recovering"
