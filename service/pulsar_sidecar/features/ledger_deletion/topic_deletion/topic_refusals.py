"""Refusals of a topic's deletion, in the brokers' words, before the first record.

Source: ``PersistentTopics.deleteTopic``, ``PersistentTopicsBase.internalDeletePartitionedTopic`` and
``PersistentTopic.delete`` of 4.0.8 and 4.2.4. Without force a broker deletes the partitions of a topic that have no
client, and refuses because of one that has: these checks cover all partitions first. docs/pip-186.md compares brokers'
preconditions with these.
"""

import re

from pulsar_sidecar.features.ledger_deletion.ports import ConnectedClients, LiveOwners, TopicAdmin
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import Operation
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError, RefusedBeforehandError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore, Nodes
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.pulsar_versions import Line
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.shadows import partition_count

_MOST_DIGITS = 4
"""Longest partition number, in digits; brokers made no partition with a longer one."""
_CLIENTS_BY_KIND = (4, 2)
"""First line whose brokers refuse with the numbers of consumers, producers and replicators."""


# --- kind of topic ---------------------------------------------------------------------------------------------------


def stored_partitions(store: MetadataStore, topic: TopicName) -> int:
    """Return the number of partitions of a partitioned topic, or of one of which only partitions are left.

    Raises:
        NotFoundError: neither the topic nor a partition of it exists.
        RefusedBeforehandError: the topic is not partitioned.
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
    """Return the partitions without their partitioned topic: recreated by clients, or left by a dead broker."""
    parent, _, name = topic.managed_ledger_name.rpartition("/")
    partition = re.compile(rf"{re.escape(name)}-partition-(0|[1-9][0-9]{{0,{_MOST_DIGITS - 1}}})")
    found = (partition.fullmatch(child) for child in store.children(f"{MANAGED_LEDGERS}/{parent}") or ())
    return [int(match[1]) for match in found if match is not None]


def require_kind(operation: Operation, nodes: Nodes) -> None:
    """Raise `RefusedBeforehandError` for deleting a partitioned topic without its partitions."""
    topic = operation.topic
    # Brokers do not check this for names with a cluster (V1).
    if topic.cluster is None and not operation.partitioned and nodes[partitioned_topic_path(topic)] is not None:
        raise RefusedBeforehandError(
            409,
            f"{topic} is a partitioned topic: delete it with pulsar-sidecar topics delete --partitioned {topic}",
        )


# --- connected clients -----------------------------------------------------------------------------------------------


def refuse_clients(admin: TopicAdmin, owners: LiveOwners, operation: Operation) -> None:
    """Raise if clients or replication prevent a deletion without force, of any partition; loads the topics.

    Raises:
        RefusedBeforehandError: clients are connected, or the topic is replicated to another cluster.
        TemporaryError: it is unknown whether there are any.
    """
    if operation.force:
        return
    marked = [
        topic for topic in operation.topics if managed_ledger_path(topic.managed_ledger_name) in operation.incarnations
    ]
    try:
        found = admin.clients_of(marked)
    except (TemporaryError, BrokerRefusedError):
        # A topic that no broker can load has no clients, and brokers delete it.
        found = admin.clients_of(list(owners.views(marked)))
    for clients in found:
        if clients.replicated_to:
            listed = ", ".join(clients.replicated_to)
            raise RefusedBeforehandError(422, f"Delete forbidden topic is replicated on clusters [{listed}]")
        if clients.count:
            raise RefusedBeforehandError(412, _busy(clients, admin.broker_line(), partitioned=operation.partitioned))


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
