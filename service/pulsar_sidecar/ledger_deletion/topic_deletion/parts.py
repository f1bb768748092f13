"""The deletion of a part of a topic: a subscription, with what its cursor references, or the topic's schema.

A broker decides about it, whom the caller asked; the sidecar has recorded before what the part references.

Invariant: a subscription or a schema that was made again is another one, and a broker is never asked for it.
"""

from contextlib import suppress

from msgspec.structs import replace

from pulsar_sidecar.ledger_deletion.ports import TopicAdmin
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import (
    PartOperation,
    incarnations_of,
    marked_node,
)
from pulsar_sidecar.ledger_deletion.topic_deletion.recorder import Recorder
from pulsar_sidecar.ledger_ownership.paths import partitioned_topic_path
from pulsar_sidecar.ledger_ownership.shadows import partition_count
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.metadata import MetadataStore


def record_part(recorder: Recorder, planned: PartOperation) -> PartOperation:
    """Mark the part's nodes and record what they reference; raises what `Recorder.record_unloaded` does."""
    nodes = recorder.look(planned)
    partitioned = nodes[partitioned_topic_path(planned.topic)]
    # Of a name that ends as a partition's, brokers do not ask whether it has partitions.
    if planned.subscription is not None and planned.topic.partition_index is None and partitioned is not None:
        planned = replace(planned, partitions=partition_count(partitioned.data) or None)
        nodes = recorder.look(planned)
    marked = incarnations_of({path: nodes[path] for path in planned.node_paths})
    if not marked:
        return planned
    return recorder.record_unloaded(replace(planned, incarnations=marked), nodes)


def delete_part(store: MetadataStore, admin: TopicAdmin, operation: PartOperation) -> None:
    """Have brokers delete those of the marked nodes that are left, each read right before.

    What a broker does not know is looked for again by whoever asks.
    """
    if operation.subscription is None:
        if _is_left(store, operation, *operation.node_paths):
            admin.delete_schema(operation.topic)
        return
    for topic, path in zip(operation.topics, operation.node_paths, strict=True):
        if _is_left(store, operation, path):
            with suppress(NotFoundError):
                admin.delete_subscription(topic, operation.subscription, force=operation.force)


def _is_left(store: MetadataStore, operation: PartOperation, path: str) -> bool:
    return marked_node(store, operation.incarnations, path) is not None
