"""What a shadow topic consists of: its nodes, and the sources whose ledgers they list."""

from collections.abc import Mapping
from dataclasses import dataclass

from pulsar_sidecar.ledger_deletion.shadow_deletion.operation import node_paths, shadows_of
from pulsar_sidecar.ledger_ownership.partitions import partition_count
from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ledger_ownership.shadows import (
    SHADOW_SOURCE,
    managed_ledger_shadow_source,
    partitioned_topic_shadow_source,
    source_topic,
)
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, NotFoundError
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName


@dataclass(frozen=True, slots=True)
class Shadow:
    """A shadow topic, as its nodes describe it; see `ShadowDeletion` for the fields."""

    topic: TopicName
    partitions: int | None
    source: str
    sources: tuple[TopicName, ...]
    incarnations: Mapping[str, int]


def find_shadow(store: MetadataStore, topic: TopicName) -> Shadow:
    """The shadow of that name.

    Raises:
        NotFoundError: there is no such topic.
        ConflictError: it is not a shadow.
        InvalidInputError: it is a partition of one.
    """
    partitioned = store.read(partitioned_topic_path(topic))
    partitions = None if partitioned is None else partition_count(partitioned.data)
    nodes = {node.path: node for node in store.read_many(node_paths(topic, partitions)) if node is not None}
    if not nodes:
        raise NotFoundError(f"there is no topic {topic}")
    if topic.partition_index is not None and store.read(partitioned_topic_path(topic.base)) is not None:
        raise InvalidInputError(f"{topic} is a partition; name the partitioned topic {topic.base}")
    own = None if partitioned is None else partitioned_topic_shadow_source(partitioned.data)
    spelled = {shadow: _spelled(nodes, shadow) for shadow in shadows_of(topic, partitions)}
    source = next((each for each in (own, *spelled.values()) if each is not None), None)
    if source is None:
        raise ConflictError(
            f"{topic} is not a shadow topic: none of its nodes has the property {SHADOW_SOURCE}. If it was a shadow, "
            "make it one again first, as docs/shadow-topics.md shows"
        )
    return Shadow(
        topic=topic,
        partitions=partitions,
        source=source,
        sources=_sources(own, spelled),
        incarnations={path: node.created_order for path, node in nodes.items()},
    )


def _spelled(nodes: Mapping[str, Node], shadow: TopicName) -> str | None:
    node = nodes.get(managed_ledger_path(shadow.managed_ledger_name))
    return None if node is None else managed_ledger_shadow_source(node.data)


def _sources(own: str | None, spelled: Mapping[TopicName, str | None]) -> tuple[TopicName, ...]:
    """Those of the partitioned topic's source, partition by partition, and any that a managed ledger's node names."""
    base = None if own is None else source_topic(own)
    indexes = (shadow.partition_index for shadow in spelled)
    of_base = [] if base is None else [base.partition(index) for index in indexes if index is not None]
    of_nodes = [source_topic(text) for text in spelled.values() if text is not None]
    return tuple(dict.fromkeys([*of_base, *(source for source in of_nodes if source is not None)]))
