"""Requests to brokers to delete marked nodes, and detection of partitions that clients recreated meanwhile.

Invariant: a recreated topic, subscription or schema is a different one, and the sidecar never requests its deletion.
"""

from contextlib import suppress

from pulsar_sidecar.features.ledger_deletion.ports import TopicAdmin
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    Operation,
    PartOperation,
    incarnations_of,
    marked_node,
    remaining_of,
)
from pulsar_sidecar.model.errors import DataLossError, NotFoundError
from pulsar_sidecar.model.metadata import MetadataStore, Nodes
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.shadows import partition_count


def delete_marked(store: MetadataStore, admin: TopicAdmin, operation: Operation, nodes: Nodes) -> None:
    """Make a broker delete the marked nodes, once; do nothing where none is left.

    ``nodes`` were read right before.

    A topic can be recreated while its deletion runs, a partitioned one in part. The sidecar requests the deletion of a
    topic without partitions only while its managed ledger is the marked one, and of all partitions at once only while
    the partitioned topic's node is; otherwise only of single partitions whose managed ledger is the marked one, each
    read right before, and never of one that the new topic uses.

    Raises:
        NotFoundError: nothing was marked, and the topic does not exist.
        DataLossError: a new topic of the same name uses every partition that is left.
    """
    if isinstance(operation, PartOperation):
        _delete_part(store, admin, operation)
        return
    left = remaining_of(nodes, operation.incarnations)
    if operation.partitioned and partitioned_topic_path(operation.topic) not in left:
        _delete_remaining_partitions(store, admin, operation)
        return
    if not operation.partitioned and operation.incarnations and not left:
        return
    try:
        admin.delete_topic(operation.topic, partitioned=operation.partitioned, force=operation.force)
    except NotFoundError:
        if not operation.incarnations:
            raise
        # The marked nodes are gone: that is success, unless a partition stayed behind.
        if operation.partitioned:
            _delete_remaining_partitions(store, admin, operation)


def _delete_part(store: MetadataStore, admin: TopicAdmin, operation: PartOperation) -> None:
    if operation.subscription is None:
        if _is_marked(store, operation, *operation.node_paths):
            admin.delete_schema(operation.topic)
        return
    for topic, path in zip(operation.topics, operation.node_paths, strict=True):
        if _is_marked(store, operation, path):
            # Where the subscription does not exist, the caller reads the nodes again.
            with suppress(NotFoundError):
                admin.delete_subscription(topic, operation.subscription, force=operation.force)


def _delete_remaining_partitions(store: MetadataStore, admin: TopicAdmin, operation: Operation) -> None:
    any_requested, reused = False, list[TopicName]()
    for topic in operation.topics:
        if not _is_marked(store, operation, managed_ledger_path(topic.managed_ledger_name)):
            continue
        if _is_reused(store, operation, topic):
            reused.append(topic)
            continue
        any_requested = True
        with suppress(NotFoundError):
            admin.delete_topic(topic, partitioned=False, force=operation.force)
    if reused and not any_requested:
        raise DataLossError(
            f"{operation.topic} was created again, and its new partitions continue in ledgers of the old ones "
            f"({', '.join(map(str, reused))}): delete the topic again if the new messages may be lost too"
        )


def _is_reused(store: MetadataStore, operation: Operation, partition: TopicName) -> bool:
    path = partitioned_topic_path(operation.topic)
    node = store.read(path)
    if node is None or node.created_order == operation.incarnations.get(path):
        return False
    return (partition.partition_index or 0) < partition_count(node.data)


def _is_marked(store: MetadataStore, operation: Operation, path: str) -> bool:
    return marked_node(store, operation.incarnations, path) is not None


def recreated_partitions(operation: Operation, nodes: Nodes) -> dict[str, int]:
    """Return the partitions that clients recreated although their partitioned topic is gone, by the nodes of one read.

    A broker creates a partition for a client that still knows it, once the partitioned topic's node is gone. Nothing
    leads to such a partition: the partitioned topic can neither be deleted nor recreated.
    """
    if operation.part or not operation.partitioned or nodes[partitioned_topic_path(operation.topic)] is not None:
        return {}
    return incarnations_of({path: nodes[path] for path in operation.node_paths})
