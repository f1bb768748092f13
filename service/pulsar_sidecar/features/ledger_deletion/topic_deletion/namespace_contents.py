"""Contents of one namespace in the metadata store: topics, managed ledgers without a topic, schemas.

The sidecar reads names of children only; it reads the contents one topic at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicDomain, TopicName, java_url_decode, topic_of_managed_ledger
from pulsar_sidecar.ownership.paths import LOCAL_POLICIES, MANAGED_LEDGERS, PARTITIONED_TOPICS, POLICIES, SCHEMAS

_PERSISTENT = TopicDomain.PERSISTENT.value
_NODES_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class FoundNode:
    """Node of the namespace, and its topic; None where Pulsar does not write such a name."""

    path: str
    topic: TopicName | None


@dataclass(frozen=True, slots=True)
class NamespaceContents:
    """Reader of the current contents; raises `TemporaryError` when the store cannot be reached."""

    store: MetadataStore
    namespace: str

    def is_empty(self) -> bool:
        """Return True if brokers would delete the namespace without force: it has only their own topics."""
        partitioned = (
            found.topic for domain in TopicDomain for found in self._children(PARTITIONED_TOPICS, domain.value)
        )
        return not any(topic is None or not topic.is_system_topic for topic in partitioned) and not any(self.topics())

    def topics(self) -> Iterator[tuple[TopicName, bool]]:
        """Yield each topic except the brokers' own, and True if it is partitioned; its partitions are not listed."""
        partitioned = {found.topic for found in self._children(PARTITIONED_TOPICS, _PERSISTENT)}
        yield from ((topic, True) for topic in partitioned if topic is not None and not topic.is_system_topic)
        for found in self.managed_ledgers():
            topic = found.topic
            if topic is not None and not topic.is_system_topic and not {topic, topic.base} & partitioned:
                yield topic, False

    def managed_ledgers(self) -> Iterator[FoundNode]:
        """Yield every managed ledger, including brokers' own topics and pending acknowledgements of transactions."""
        return self._children(MANAGED_LEDGERS, _PERSISTENT)

    def schemas(self) -> Iterator[FoundNode]:
        """Yield the schemas, unless other namespaces may share them: the names have no cluster (V1)."""
        tenant, *cluster, portion = self.namespace.split("/")
        if self._shares_schemas(tenant, portion):
            return
        for name in self.store.children(f"{SCHEMAS}/{tenant}/{portion}") or ():
            topic = _topic_of_schema(tenant, cluster[0] if cluster else None, portion, name)
            yield FoundNode(f"{SCHEMAS}/{tenant}/{portion}/{name}", topic)

    def partitioned_topics(self) -> Iterator[FoundNode]:
        """Yield every persistent partitioned topic."""
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
