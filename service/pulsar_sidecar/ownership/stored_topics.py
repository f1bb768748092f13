"""Topics in the metadata store: partitions, and topics without; brokers are not queried and load nothing.

Managed ledgers in which brokers log transactions are left out: their entries are not messages.
"""

from collections.abc import Iterable, Iterator, Sequence

from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.metadata import NodeReader
from pulsar_sidecar.model.names import CursorName, TopicDomain, TopicName, decode_cursor, topic_of_managed_ledger
from pulsar_sidecar.model.topic_stats import REPLICATOR_PREFIX, SYSTEM_SUBSCRIPTIONS
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, POLICIES, managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.shadows import partition_count


def subscriptions_among(cursors: Iterable[str]) -> dict[str, str]:
    """Return the cursors of subscriptions, by name, among the nodes of a topic's cursors: not brokers' own ones."""
    names = {decode_cursor(CursorName(cursor)) or cursor: cursor for cursor in cursors}
    return {
        name: cursor
        for name, cursor in names.items()
        if name not in SYSTEM_SUBSCRIPTIONS and not name.startswith(f"{REPLICATOR_PREFIX}.")
    }


class StoredTopics:
    """Reader of topics' names from their nodes."""

    def __init__(self, store: NodeReader) -> None:
        self._store = store

    def places_of(self, topic: TopicName) -> list[TopicName]:
        """Return the topic's partitions, or the topic itself if it has none.

        Raises:
            NotFoundError: there is no such topic.
            TemporaryError: the metadata store could not be read.
        """
        partitioned, node = self._store.read_many(
            [partitioned_topic_path(topic), managed_ledger_path(topic.managed_ledger_name)]
        )
        if partitioned is not None:
            return [topic.partition(index) for index in range(partition_count(partitioned.data))]
        if node is None:
            raise NotFoundError(f"there is no topic {topic}")
        return [topic]

    def all_places(self) -> Iterator[TopicName]:
        """Yield every partition, and every topic without partitions, of all tenants.

        Raises:
            TemporaryError: the metadata store could not be read.
        """
        for tenant in self._store.children(MANAGED_LEDGERS) or ():
            yield from self._places_below(tenant, self._store.children(f"{MANAGED_LEDGERS}/{tenant}"))

    def places_below(self, scope: str) -> Iterator[TopicName]:
        """Yield every partition, and every topic without partitions, of a namespace or of a tenant.

        Raises:
            NotFoundError: there is no such namespace or tenant.
            TemporaryError: the metadata store could not be read.
        """
        children = self._store.children(f"{MANAGED_LEDGERS}/{scope}")
        if children is None and self._store.read(f"{POLICIES}/{scope}") is None:
            raise NotFoundError(f"there is no namespace or tenant {scope}")
        yield from self._places_below(scope, children)

    def _places_below(self, scope: str, children: Sequence[str] | None) -> Iterator[TopicName]:
        # Nodes deleted meanwhile are skipped: only the requested scope has to exist.
        # A tenant holds namespaces, and clusters with V1 namespaces.
        domain = TopicDomain.PERSISTENT.value
        if "/" not in scope or domain not in (children or ()):
            for child in children or ():
                below = f"{scope}/{child}"
                yield from self._places_below(below, self._store.children(f"{MANAGED_LEDGERS}/{below}"))
            return
        for child in self._store.children(f"{MANAGED_LEDGERS}/{scope}/{domain}") or ():
            topic = topic_of_managed_ledger(f"{scope}/{domain}/{child}")
            if topic is not None and not topic.is_transaction_log:
                yield topic
