"""Has a broker delete exactly the incarnations of a topic that an operation marked.

A topic can be created again while its deletion runs, a partitioned one in part. Invariant: the sidecar asks a broker to
delete a topic without partitions only while its managed ledger is the marked one, and all partitions at once only while
the partitioned topic's node is; otherwise only single partitions whose managed ledger is the marked one, each read
right before, and never one that the new topic uses.
"""

from collections.abc import Iterator

from pulsar_sidecar.ledger_deletion.deletion_node import marked_node
from pulsar_sidecar.ledger_deletion.ports import TopicAdmin
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import Operation
from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ledger_ownership.shadows import partition_count
from pulsar_sidecar.model.errors import DataLossError, NotFoundError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName


class BrokerDeletion:
    """The last step of an attempt: the deletion calls of the broker's REST API."""

    def __init__(self, store: MetadataStore, admin: TopicAdmin) -> None:
        self._store = store
        self._admin = admin

    def delete(self, operation: Operation) -> None:
        """Have a broker delete what the operation marked, once; nothing where no marked node is left.

        Raises:
            NotFoundError: nothing was marked, and a broker knows no such topic.
            DataLossError: a new topic of the same name uses every partition that is left.
        """
        if operation.partitioned and not self._is_marked(operation, partitioned_topic_path(operation.topic)):
            self._delete_remaining_partitions(operation)
            return
        if not operation.partitioned and operation.incarnations and not any(self._remaining_topics(operation)):
            return
        try:
            self._admin.delete_topic(operation.topic, partitioned=operation.partitioned, force=operation.force)
        except NotFoundError:
            if not operation.incarnations:
                raise
            # What was there when it was marked is gone now: that is success, unless a partition stayed behind.
            if operation.partitioned:
                self._delete_remaining_partitions(operation)

    def _delete_remaining_partitions(self, operation: Operation) -> None:
        any_requested, reused = False, list[TopicName]()
        for topic in self._remaining_topics(operation):
            if self._is_reused(operation, topic):
                reused.append(topic)
                continue
            any_requested = True
            try:
                self._admin.delete_topic(topic, partitioned=False, force=operation.force)
            except NotFoundError:
                continue
        if reused and not any_requested:
            raise DataLossError(
                f"{operation.topic} was created again, and its new partitions continue in ledgers of the old ones "
                f"({', '.join(map(str, reused))}): delete the topic again if the new messages may be lost too"
            )

    def _remaining_topics(self, operation: Operation) -> Iterator[TopicName]:
        for topic in operation.topics:
            if self._is_marked(operation, managed_ledger_path(topic.managed_ledger_name)):
                yield topic

    def _is_reused(self, operation: Operation, partition: TopicName) -> bool:
        """Whether a partitioned topic that was created again counts the partition among its own."""
        path = partitioned_topic_path(operation.topic)
        node = self._store.read(path)
        if node is None or node.created_order == operation.incarnations.get(path):
            return False
        return (partition.partition_index or 0) < partition_count(node.data)

    def _is_marked(self, operation: Operation, path: str) -> bool:
        return marked_node(self._store, operation.incarnations, path) is not None
