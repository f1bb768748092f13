"""Leftovers of deleted topics besides ledgers: schema nodes whose references dangle.

A broker that deletes a topic reads the newest version of its schema first, and skips the whole schema if that ledger is
missing (4.0.8, ``BookkeeperSchemaStorage.deleteSchema`` without force). Because of the leftover node brokers return 500
to every request for the schema of the next topic of that name.

Invariant: the sidecar removes a node only at the version that it read, and only after the metadata store reported that
the topic is gone and that none of the ledgers that this version names exists. It leaves any other node, and reports it
with the command that removes it.
"""

from collections.abc import Sequence

from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import DeletionResult, MetadataStore, Node, Nodes, read_nodes
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import (
    identity_paths,
    instance_id_of,
    ledger_path,
    managed_ledger_path,
    partitioned_topic_path,
    schema_path,
)
from pulsar_sidecar.ownership.references import schema_references

_TRIES = 3


def remove_leftovers(store: MetadataStore, root: str, steps: Steps, topic: TopicName, nodes: Nodes) -> str | None:
    """Remove the schema's node of a deleted topic, if its references dangle; idempotent.

    ``nodes`` were read after the topic was gone, and include the schema's and the topic's own. Returns a description of
    leftovers and how to remove them; None without any.

    Raises:
        TemporaryError: the state of the node, or of its removal, is unknown; call again.
    """
    # Partitions share the schema of their topic, which outlives them.
    if topic.partition_index is not None:
        return None
    for _ in range(_TRIES):
        node, *topic_nodes = (nodes[path] for path in _paths(topic))
        if node is None:
            return None
        try:
            existing = _existing_ledgers(store, root, node)
        except UndecodableError as error:
            return f"brokers left the schema {node.path}, which cannot be read: {error}"
        is_recreated = any(topic_nodes)
        if existing and is_recreated:
            return None
        if existing or is_recreated:
            return _kept(topic, node, existing)
        with steps.taking(Step.LEFTOVER_NODE_REMOVED):
            result = store.delete(node.path, node.version, node.modified_order)
        if result in (DeletionResult.DELETED, DeletionResult.GONE):
            return None
        nodes = read_nodes(store, _paths(topic))
    raise TemporaryError(f"the schema that {topic} left behind could not be removed; a sidecar tries again")


def _existing_ledgers(store: MetadataStore, root: str, schema: Node) -> list[LedgerId]:
    ordered = sorted(schema_references(schema.data))
    if not ordered:
        raise UndecodableError("it names no ledger; inspect it with zkCli.sh")
    paths = [ledger_path(ledger_id, root) for ledger_id in ordered]
    instance, layout, *nodes = store.read_many([*identity_paths(root), *paths])
    instance_id_of((instance, layout), root)
    return [ledger_id for ledger_id, node in zip(ordered, nodes, strict=True) if node is not None]


def _paths(topic: TopicName) -> tuple[str, str, str]:
    managed_ledger = managed_ledger_path(topic.managed_ledger_name)
    return schema_path(topic.schema_id), managed_ledger, partitioned_topic_path(topic)


def _kept(topic: TopicName, schema: Node, existing: Sequence[LedgerId]) -> str:
    listed = ", ".join(map(str, existing))
    what = f"its ledgers {listed} exist" if existing else "its ledgers are gone, and the topic was recreated"
    return f"brokers left the schema {schema.path}: {what}; remove it with: pulsar-admin schemas delete --force {topic}"
