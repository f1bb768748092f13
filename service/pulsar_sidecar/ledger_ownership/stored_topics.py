"""Which topics the metadata store knows: partitions, and topics without; no broker is asked and nothing is loaded.

Where brokers note transactions is no topic: its entries are no messages.
"""

from collections.abc import Iterator, Sequence

from pulsar_sidecar.ledger_ownership.paths import (
    MANAGED_LEDGERS,
    POLICIES,
    managed_ledger_path,
    partitioned_topic_path,
)
from pulsar_sidecar.ledger_ownership.shadows import partition_count
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.metadata import NodeReader
from pulsar_sidecar.model.names import TopicDomain, TopicName, topic_of_managed_ledger


class StoredTopics:
    """Reads topics' names from their nodes."""

    def __init__(self, store: NodeReader) -> None:
        self._store = store

    def places_of(self, topic: TopicName) -> list[TopicName]:
        """The topic's partitions, or the topic itself where it has none.

        Raises:
            NotFoundError: there is no such topic.
            TemporaryError: the metadata store could not be asked.
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
        """The same of all tenants.

        Raises:
            TemporaryError: the metadata store could not be asked.
        """
        for tenant in self._store.children(MANAGED_LEDGERS) or ():
            yield from self._places_below(tenant, self._store.children(f"{MANAGED_LEDGERS}/{tenant}"))

    def places_below(self, scope: str) -> Iterator[TopicName]:
        """Every partition, and every topic without partitions, of a namespace or of a tenant.

        Raises:
            NotFoundError: there is no such namespace or tenant.
            TemporaryError: the metadata store could not be asked.
        """
        children = self._store.children(f"{MANAGED_LEDGERS}/{scope}")
        if children is None and self._store.read(f"{POLICIES}/{scope}") is None:
            raise NotFoundError(f"there is no namespace or tenant {scope}")
        yield from self._places_below(scope, children)

    def _places_below(self, scope: str, children: Sequence[str] | None) -> Iterator[TopicName]:
        """What is deleted meanwhile is not there: only the scope that was asked for has to exist."""
        # A tenant holds namespaces, and clusters of namespaces of the first kind (V1).
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
