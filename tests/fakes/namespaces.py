"""Deletion of a namespace by a 4.0.8 broker: mark, topics, then nodes; and its late writes.

Invariant: as in `tests.fakes.deleting_broker`, it may die between any two steps, in the state of a killed broker.
"""

from collections.abc import Callable, Iterator

from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_ports import DeletionSettings, NamespaceClusters
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.names import TopicName, topic_of_managed_ledger
from pulsar_sidecar.ownership.paths import LOCAL_POLICIES, MANAGED_LEDGERS, PARTITIONED_TOPICS, POLICIES, schema_path

from tests.fakes.bookkeeper import schema_custom_metadata, schema_locator_bytes
from tests.fakes.brokers import TopicDeletion
from tests.fakes.deleting_broker import BrokerDiedError, deletion_steps, take
from tests.fakes.pulsar import FakePulsar, TopicPlan

CLUSTER = "local"
_KEPT_WITH_TOPIC = "__transaction_pending_ack"


class FakeNamespaceAdmin:
    """`NamespaceAdmin` over a `FakePulsar`.

    Attributes:
        settings: brokers' configuration.
        clusters: clusters of namespaces that are not only in this one.
        urls: other clusters that brokers know.
        elsewhere: namespaces whose policies are in another metadata store.
        not_persistent: topics of the namespace that are in no metadata store.
        late_schema_of: topic whose schema a broker writes again after the deletion of a namespace.
        refusals: errors that the next deletions raise without any effect.
        before_nodes: event between the deletion of topics and of nodes, such as the return of a client.
        deletions: requested deletions of namespaces, with ``force``.
    """

    def __init__(self, fake_pulsar: FakePulsar) -> None:
        self._fake_pulsar = fake_pulsar
        self.settings = DeletionSettings(CLUSTER, (4, 0), forced_deletion_allowed=True)
        self.clusters: dict[str, NamespaceClusters] = {}
        self.urls = {"remote": "http://remote:8080"}
        self.sidecars: dict[str, str] = {}
        self.elsewhere: set[str] = set()
        self.not_persistent: list[str] = []
        self.late_schema_of: TopicName | None = None
        self.refusals: list[Exception] = []
        self.before_nodes: list[Callable[[], None]] = []
        self.deletions: list[tuple[str, bool]] = []

    def create(self, namespace: str) -> None:
        """Create a namespace that brokers have loaded."""
        self._fake_pulsar.store.put(f"{POLICIES}/{namespace}", b'{"deleted":false}')
        self._fake_pulsar.store.put(f"{LOCAL_POLICIES}/{namespace}", b"{}")

    def namespace_exists(self, namespace: str) -> bool:
        node = self._fake_pulsar.store.peek(f"{POLICIES}/{namespace}")
        return namespace in self.elsewhere or (node is not None and bool(node.data))

    def deletion_settings(self) -> DeletionSettings:
        return self.settings

    def clusters_of(self, namespace: str) -> NamespaceClusters:
        if not self.namespace_exists(namespace):
            raise NotFoundError("Namespace does not exist")
        return self.clusters.get(namespace, NamespaceClusters(frozenset({CLUSTER})))

    def cluster_url(self, cluster: str) -> str:
        if cluster not in self.urls:
            raise NotFoundError("Cluster does not exist")
        return self.urls[cluster]

    def sidecar_url(self, cluster: str) -> str | None:
        return self.sidecars.get(cluster)

    def topics_in(self, namespace: str) -> list[str]:
        users = (str(topic) for topic in self.stored_topics(namespace) if not topic.is_system_topic)
        return [*users, *self.not_persistent]

    def delete_namespace(self, namespace: str, *, force: bool) -> None:
        self.deletions.append((namespace, force))
        if self.refusals:
            raise self.refusals.pop(0)
        if not self.namespace_exists(namespace):
            raise NotFoundError(f"Namespace {namespace} does not exist.")
        if force and not self.settings.forced_deletion_allowed:
            raise BrokerRefusedError(405, "Broker doesn't allow forced deletion of namespaces")
        if self.clusters_of(namespace).replication != {CLUSTER}:
            raise BrokerRefusedError(412, f"Cannot delete the global namespace {namespace}.")
        if not force and self.topics_in(namespace):
            raise BrokerRefusedError(409, "Cannot delete non empty namespace")
        try:
            for step in self._steps(namespace):
                take(self._fake_pulsar, step)
        except BrokerDiedError:
            self._fake_pulsar.kill_broker()
            raise OutcomeUnknownError("the broker closed the connection") from None

    def stored_topics(self, namespace: str) -> list[TopicName]:
        names = self._fake_pulsar.store.children(f"{MANAGED_LEDGERS}/{namespace}/persistent") or ()
        found = (topic_of_managed_ledger(f"{namespace}/persistent/{name}") for name in names)
        return [topic for topic in found if topic is not None]

    def _steps(self, namespace: str) -> Iterator[Callable[[], None]]:
        fake_pulsar = self._fake_pulsar
        yield lambda: self._mark(namespace)
        # Users' topics first, brokers' own topics afterwards.
        for topic in sorted(self.stored_topics(namespace), key=lambda topic: topic.is_system_topic):
            yield from deletion_steps(fake_pulsar, TopicDeletion(topic, partitioned=False, force=True), [topic])
        yield from self.before_nodes
        partitioned = f"{PARTITIONED_TOPICS}/{namespace}"
        yield lambda: fake_pulsar.remove_node(partitioned)
        yield lambda: _remove_if_empty(fake_pulsar, f"{MANAGED_LEDGERS}/{namespace}/persistent")
        yield lambda: _remove_if_empty(fake_pulsar, f"{MANAGED_LEDGERS}/{namespace}")
        yield lambda: fake_pulsar.remove_node(f"{POLICIES}/{namespace}")
        yield lambda: fake_pulsar.remove_node(f"{LOCAL_POLICIES}/{namespace}")
        if self.late_schema_of is not None:
            yield self._write_once_more

    def _mark(self, namespace: str) -> None:
        self._fake_pulsar.store.put(f"{POLICIES}/{namespace}", b'{"deleted":true}')

    def _write_once_more(self) -> None:
        topic = self.late_schema_of
        if topic is not None and self._fake_pulsar.store.peek(schema_path(topic.schema_id)) is None:
            late = self._fake_pulsar.ledger(schema_custom_metadata(topic.schema_id))
            self._fake_pulsar.store.put(schema_path(topic.schema_id), schema_locator_bytes([late]))


def pending_ack(fake_pulsar: FakePulsar, topic: TopicName, subscription: str) -> TopicName:
    """Create the topic of a subscription's pending acknowledgements by transactions."""
    return fake_pulsar.topic(f"{topic}-{subscription}{_KEPT_WITH_TOPIC}")


def change_events(fake_pulsar: FakePulsar, namespace: str) -> TopicName:
    """Create the topic of topic policies, with a schema."""
    return fake_pulsar.topic(f"persistent://{namespace}/__change_events", TopicPlan(schema_versions=1))


def _remove_if_empty(fake_pulsar: FakePulsar, path: str) -> None:
    node = fake_pulsar.store.peek(path)
    if node is not None and node.children_count:
        raise TemporaryError(f"The broker still have in-flight topics created during namespace deletion (path {path})")
    fake_pulsar.remove_node(path)
