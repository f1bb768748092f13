"""State of a namespace's deletion in the metadata store: one JSON node beside those of topics' deletions.

While it exists, "in use" is not final for the records with its id. Each topic's deletion has its own node. Its id
consists of the namespace's hash and the creation order of its policies, so that each incarnation of a namespace has
one, whichever sidecar takes the call.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from pulsar_sidecar.features.ledger_deletion.results import NamespaceDeletionStatus, OperationState
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    Operation,
    encode_node,
    replace_node,
)
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.ids import NodeVersion, OperationId
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.request_traces import RequestTrace
from pulsar_sidecar.ownership.paths import LOCAL_POLICIES, POLICIES

PREFIX = "namespace-"
"""Prefix of these deletions' ids; their nodes lie among those of topics, so one read finds a record's deletion."""
_HASH_DIGITS = 24


class Presence(Enum):
    """State of the namespace's incarnation that a deletion is about."""

    THERE = "there"
    GONE = "gone"
    REPLACED = "replaced"
    """Gone, and the namespace was recreated."""


@decodable
class NamespaceDeletion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """State of a two-phase deletion of a namespace.

    Attributes:
        policies_path: with ``created_order``, the incarnation to delete: a recreated namespace has another order.
        topics_found: number of topics deleted, plus those left at the last count.
        recorded_ledgers: number of records of its topics' deletions.
        recorded_besides: number of its own records, which every pass repeats.
        passes: number of passes over the whole namespace.
        fruitless_passes: number of last consecutive passes that deleted no topic.
        not_before_ms: due time of the next pass, on the store's clock.
        updated_ms: time of writing, on the store's clock.
        request_id: with ``trace_parent``, the `RequestTrace` of the call that began it.
    """

    operation_id: OperationId
    namespace: str
    policies_path: str
    created_order: int
    force: bool
    requested_by: str | None
    requested_ms: int
    not_before_ms: int
    updated_ms: int
    topics_found: int = 0
    topics_deleted: int = 0
    recorded_ledgers: int = 0
    recorded_besides: int = 0
    passes: int = 0
    fruitless_passes: int = 0
    last_reason: str | None = None
    request_id: str | None = None
    trace_parent: str | None = None

    @property
    def trace(self) -> RequestTrace:
        return RequestTrace.read(self.request_id, self.trace_parent)

    def as_of_topic(self, topic: TopicName, incarnations: Mapping[str, int]) -> Operation:
        """Return an operation, never stored, with which the recorder finds one topic's references."""
        return Operation(
            operation_id=self.operation_id,
            topic_name=str(topic),
            partitions=None,
            incarnations=incarnations,
            force=self.force,
            requested_by=self.requested_by,
            requested_ms=self.requested_ms,
            recorded=(),
            attempts=0,
            last_reason=None,
            not_before_ms=0,
            request_id=self.request_id,
            trace_parent=self.trace_parent,
        )

    def status(self, state: OperationState, reason: str | None = None) -> NamespaceDeletionStatus:
        running_ms, left = self.updated_ms - self.requested_ms, self.topics_found - self.topics_deleted
        rate = 1000 * self.topics_deleted / running_ms if running_ms > 0 and self.topics_deleted else None
        return NamespaceDeletionStatus(
            operation_id=self.operation_id,
            namespace=self.namespace,
            state=state,
            topics_found=self.topics_found,
            topics_deleted=self.topics_deleted,
            topics_left=left,
            recorded_ledgers=self.recorded_ledgers + self.recorded_besides,
            passes=self.passes,
            topics_per_second=rate,
            seconds_left=None if rate is None else left / rate,
            requested_ms=self.requested_ms,
            running_ms=running_ms,
            reason=reason,
        )


@dataclass(frozen=True, slots=True)
class HeldNamespaceDeletion:
    """Running deletion and the version of its node, for compare-and-set."""

    deletion: NamespaceDeletion
    version: NodeVersion


def policies_node(store: MetadataStore, namespace: str) -> Node | None:
    """Return the node that identifies the namespace's current incarnation; None where this store does not know it.

    Where the policies are in a separate configuration store, the local policies identify it.
    """
    nodes = store.read_many([f"{POLICIES}/{namespace}", f"{LOCAL_POLICIES}/{namespace}"])
    # A node without data is only the parent of other namespaces (V1).
    return next((node for node in nodes if node is not None and node.data), None)


def presence(store: MetadataStore, deletion: NamespaceDeletion) -> Presence:
    node = store.read(deletion.policies_path)
    if node is None or not node.data:
        return Presence.GONE
    return Presence.THERE if node.created_order == deletion.created_order else Presence.REPLACED


def deletion_id(namespace: str, created_order: int) -> OperationId:
    digest = hashlib.sha256(namespace.encode()).hexdigest()[:_HASH_DIGITS]
    return OperationId(f"{PREFIX}{digest}-{created_order}")


def write_deletion(store: MetadataStore, deletion: NamespaceDeletion, version: NodeVersion) -> HeldNamespaceDeletion:
    written = replace_node(store, deletion.operation_id, encode_node(deletion), version)
    return HeldNamespaceDeletion(deletion, written)
