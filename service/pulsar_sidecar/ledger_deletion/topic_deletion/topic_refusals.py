"""Refuses a topic's deletion as brokers do, in their words, before the first record.

``PersistentTopics.deleteTopic``, ``PersistentTopicsBase.internalDeletePartitionedTopic`` and ``PersistentTopic.delete``
of 4.0.8 and 4.2.4. A broker that is asked for a partitioned topic without force deletes the partitions that have no
client, and refuses because of one that has: these look at all partitions first. docs/pip-186.md has brokers'
preconditions beside these.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_sidecar.ledger_deletion.ports import ConnectedClients, LiveOwners, TopicAdmin
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import Nodes, Operation
from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS, managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ledger_ownership.shadows import partition_count
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError, RefusedBeforehandError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.pulsar_versions import Line

_MOST_DIGITS = 4
"""No topic whose name ends in a longer number was ever a partition that brokers made."""
_CLIENTS_BY_KIND = (4, 2)
"""The line whose brokers refuse with the numbers of consumers, producers and replicators."""


# --- what kind of topic it is ----------------------------------------------------------------------------------------


def stored_partitions(store: MetadataStore, topic: TopicName) -> int:
    """How many partitions a partitioned topic has, or had that is gone but for partitions.

    Raises:
        NotFoundError: there is neither the topic nor a partition of it.
        RefusedBeforehandError: it is no partitioned topic.
    """
    if topic.cluster is None and topic.partition_index is not None:
        raise RefusedBeforehandError(412, "Partitioned Topic Name should not contain '-partition-'")
    node = store.read(partitioned_topic_path(topic))
    if node is not None:
        return partition_count(node.data)
    if store.read(managed_ledger_path(topic.managed_ledger_name)) is not None:
        raise RefusedBeforehandError(
            409, f"{topic} is a non-partitioned topic: delete it with pulsar-sidecar topics delete {topic}"
        )
    left = _left_partitions(store, topic)
    if not left:
        raise NotFoundError(f"Topic {topic} not found.")
    return max(left) + 1


def _left_partitions(store: MetadataStore, topic: TopicName) -> list[int]:
    """The partitions that clients made again, or a broker that died has left, without their partitioned topic."""
    parent, _, name = topic.managed_ledger_name.rpartition("/")
    partition = re.compile(rf"{re.escape(name)}-partition-(0|[1-9][0-9]{{0,{_MOST_DIGITS - 1}}})")
    found = (partition.fullmatch(child) for child in store.children(f"{MANAGED_LEDGERS}/{parent}") or ())
    return [int(match[1]) for match in found if match is not None]


def require_kind(operation: Operation, nodes: Nodes) -> None:
    """Raise `RefusedBeforehandError` where a partitioned topic is to be deleted without its partitions."""
    topic = operation.topic
    # Brokers do not look at it for names with a cluster (V1).
    if topic.cluster is None and not operation.partitioned and nodes[partitioned_topic_path(topic)] is not None:
        raise RefusedBeforehandError(
            409,
            f"{topic} is a partitioned topic: delete it with pulsar-sidecar topics delete --partitioned {topic}",
        )


# --- who is in its way -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicRefusals:
    """Looks at the clients and replicators of all of a topic's partitions."""

    admin: TopicAdmin
    owners: LiveOwners

    def check(self, operation: Operation) -> None:
        """Return where nothing is in the way of a deletion without force; loads the topics.

        Raises:
            RefusedBeforehandError: clients are connected, or the topic is replicated to another cluster.
            TemporaryError: whether there are any is not known now.
        """
        if operation.force:
            return
        marked = [
            topic
            for topic in operation.topics
            if managed_ledger_path(topic.managed_ledger_name) in operation.incarnations
        ]
        for clients in self._clients(marked):
            self._refuse(clients, partitioned=operation.partitioned)

    def _clients(self, topics: Sequence[TopicName]) -> Sequence[ConnectedClients]:
        try:
            return self.admin.clients_of(topics)
        except (TemporaryError, BrokerRefusedError):
            # What no broker can load has no clients, and brokers delete it.
            return self.admin.clients_of(list(self.owners.views(topics)))

    def _refuse(self, clients: ConnectedClients, *, partitioned: bool) -> None:
        if clients.replicated_to:
            listed = ", ".join(clients.replicated_to)
            raise RefusedBeforehandError(422, f"Delete forbidden topic is replicated on clusters [{listed}]")
        if clients.count:
            raise RefusedBeforehandError(412, _busy(clients, self.admin.broker_line(), partitioned=partitioned))


def _busy(clients: ConnectedClients, line: Line | None, *, partitioned: bool) -> str:
    count = clients.count
    if line is not None and line >= _CLIENTS_BY_KIND:
        return (
            f"Topic has {count} {'client' if count == 1 else 'clients'} connected Including {clients.consumers} "
            f"consumers, {clients.producers} producers, and {clients.replicators} replicators."
        )
    return (
        "Topic has active producers/subscriptions"
        if partitioned
        else f"Topic has {count} connected producers/consumers"
    )
