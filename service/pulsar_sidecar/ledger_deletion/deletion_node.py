"""What the deletion of a topic, or of a shadow topic, keeps in the metadata store while it runs: one JSON node.

Sidecars of other versions read and write these nodes, so the form is fixed: the fields' names and order, no spaces, and
ASCII. A node that this version cannot read exactly is left alone.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.model.errors import InvalidInputError, UndecodableError
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName, parse_topic_name


class DeletionNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The beginning of every node; each kind of deletion adds its own fields, in the order in which they are written.

    Attributes:
        partitions: partitions when the deletion was asked for; None for a topic that is not partitioned.
    """

    operation_id: OperationId
    topic_name: str
    partitions: int | None

    def __post_init__(self) -> None:
        parse_topic_name(self.topic_name)

    @property
    def topic(self) -> TopicName:
        """The topic that is to be deleted."""
        return parse_topic_name(self.topic_name)

    @property
    def partitioned(self) -> bool:
        """Whether the topic has a partitioned topic's node."""
        return self.partitions is not None

    @property
    def topics(self) -> tuple[TopicName, ...]:
        """The topics with a managed ledger of their own."""
        return topics_with_ledgers(self.topic, self.partitions)


NodeType = TypeVar("NodeType", bound=DeletionNode)


def topics_with_ledgers(topic: TopicName, partitions: int | None) -> tuple[TopicName, ...]:
    """The topics with a managed ledger of their own."""
    return (topic,) if partitions is None else tuple(topic.partition(index) for index in range(partitions))


def node_paths(topic: TopicName, partitions: int | None) -> tuple[str, ...]:
    """The nodes that make up a topic: its managed ledgers and, if it has partitions, their number."""
    ledgers = tuple(managed_ledger_path(each.managed_ledger_name) for each in topics_with_ledgers(topic, partitions))
    return ledgers if partitions is None else (*ledgers, partitioned_topic_path(topic))


def incarnations(store: MetadataStore, paths: Sequence[str]) -> dict[str, int]:
    """Creation order of every node that exists, by path: a node deleted and created again has another."""
    return {node.path: node.created_order for node in store.read_many(paths) if node is not None}


def marked_node(store: MetadataStore, marked: Mapping[str, int], path: str) -> Node | None:
    """The node, if it is of the incarnation that was marked."""
    node = store.read(path)
    return node if node is not None and node.created_order == marked.get(path) else None


def remaining_nodes(store: MetadataStore, marked: Mapping[str, int]) -> list[str]:
    """The paths of those marked nodes that are still there."""
    now = incarnations(store, tuple(marked))
    return [path for path, created_order in marked.items() if now.get(path) == created_order]


def encode_node(deletion: DeletionNode) -> bytes:
    """The node's bytes."""
    return json.dumps(msgspec.to_builtins(deletion), separators=(",", ":")).encode()


def decode_node(data: bytes, kind: type[NodeType]) -> NodeType:
    """Read a node.

    Raises:
        UndecodableError: another version wrote it; it is left alone.
    """
    try:
        return msgspec.convert(json.loads(data), kind)
    except (ValueError, RecursionError, InvalidInputError) as error:
        raise UndecodableError(
            f"the node of a topic's deletion cannot be read ({type(error).__name__}: {error}); continue with the "
            "version of pulsar-sidecar that began it"
        ) from error
