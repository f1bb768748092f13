"""What the metadata store has of one namespace: topics, managed ledgers of no topic, schemas.

Names of children are read, never a list of topics with all they hold: that is read one topic at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pulsar_sidecar.ledger_ownership.paths import (
    LOCAL_POLICIES,
    MANAGED_LEDGERS,
    PARTITIONED_TOPICS,
    POLICIES,
    SCHEMAS,
)
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicDomain, TopicName, java_url_decode, topic_of_managed_ledger

_PERSISTENT = TopicDomain.PERSISTENT.value
_NODES_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class FoundNode:
    """A node of the namespace, and the topic it belongs to; None where its name is not one that Pulsar writes."""

    path: str
    topic: TopicName | None


@dataclass(frozen=True, slots=True)
class NamespaceContents:
    """Reads what is there now; `TemporaryError` when the store cannot be asked."""

    store: MetadataStore
    namespace: str

    def is_empty(self) -> bool:
        """Whether brokers would delete it without force: it has no topics but their own."""
        partitioned = (
            found.topic for domain in TopicDomain for found in self._children(PARTITIONED_TOPICS, domain.value)
        )
        return not any(topic is None or not topic.is_system_topic for topic in partitioned) and not any(self.topics())

    def topics(self) -> Iterator[tuple[TopicName, bool]]:
        """Every topic that is not the brokers' own, and whether it is partitioned; partitions come with their topic."""
        partitioned = {found.topic for found in self._children(PARTITIONED_TOPICS, _PERSISTENT)}
        yield from ((topic, True) for topic in partitioned if topic is not None and not topic.is_system_topic)
        for found in self.managed_ledgers():
            topic = found.topic
            if topic is not None and not topic.is_system_topic and not {topic, topic.base} & partitioned:
                yield topic, False

    def managed_ledgers(self) -> Iterator[FoundNode]:
        """Every managed ledger, those of brokers' own topics and of transactions' pending acknowledgements too."""
        return self._children(MANAGED_LEDGERS, _PERSISTENT)

    def schemas(self) -> Iterator[FoundNode]:
        """The schemas, unless other namespaces may have theirs among them: the names have no cluster (V1)."""
        tenant, *cluster, portion = self.namespace.split("/")
        if self._shares_schemas(tenant, portion):
            return
        for name in self.store.children(f"{SCHEMAS}/{tenant}/{portion}") or ():
            topic = _topic_of_schema(tenant, cluster[0] if cluster else None, portion, name)
            yield FoundNode(f"{SCHEMAS}/{tenant}/{portion}/{name}", topic)

    def partitioned_topics(self) -> Iterator[FoundNode]:
        """Every persistent topic that has partitions."""
        return self._children(PARTITIONED_TOPICS, _PERSISTENT)

    def _children(self, root: str, domain: str) -> Iterator[FoundNode]:
        for name in self.store.children(f"{root}/{self.namespace}/{domain}") or ():
            topic = topic_of_managed_ledger(f"{self.namespace}/{domain}/{name}")
            yield FoundNode(f"{root}/{self.namespace}/{domain}/{name}", topic)

    def _shares_schemas(self, tenant: str, portion: str) -> bool:
        roots = (POLICIES, LOCAL_POLICIES, MANAGED_LEDGERS)
        clusters = {name for root in roots for name in self.store.children(f"{root}/{tenant}") or ()}
        others = {f"{tenant}/{portion}", *(f"{tenant}/{name}/{portion}" for name in clusters)} - {self.namespace}
        paths = [f"{root}/{other}" for other in sorted(others) for root in roots]
        chunks = (paths[start : start + _NODES_AT_ONCE] for start in range(0, len(paths), _NODES_AT_ONCE))
        return any(node is not None for chunk in chunks for node in self.store.read_many(chunk))


def _topic_of_schema(tenant: str, cluster: str | None, portion: str, name: str) -> TopicName | None:
    try:
        topic = TopicName(TopicDomain.PERSISTENT, tenant, cluster, portion, java_url_decode(name))
    except UnicodeError:
        return None
    return topic if topic.schema_id == f"{tenant}/{portion}/{name}" else None
