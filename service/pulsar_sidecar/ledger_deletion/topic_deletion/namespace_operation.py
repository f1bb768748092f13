"""What the deletion of a namespace keeps in the metadata store while it runs: one JSON node beside topics' deletions.

As with those, "in use" is not final for the records that carry its id while the node exists. Nothing in it grows with
the number of topics: each topic's deletion has a node of its own. Its id is made of the namespace and of the creation
order of its policies, so that there is one for each incarnation of a namespace, whichever sidecar takes the call.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from pulsar_sidecar.ledger_deletion.service import NamespaceDeletionStatus, OperationState
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import Operation, write_promise
from pulsar_sidecar.ledger_ownership.paths import LOCAL_POLICIES, POLICIES
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import NodeVersion, OperationId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.request_traces import RequestTrace

PREFIX = "namespace-"
"""Of the ids of these deletions: they lie among those of topics, so that one read shows whether a record's runs."""
_HASH_DIGITS = 24


class Presence(Enum):
    """What has become of the incarnation of a namespace that a deletion is about."""

    THERE = "there"
    GONE = "gone"
    REPLACED = "replaced"
    """It is gone, and the namespace was created again."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A namespace by the node of its policies: one that is deleted and created again has another creation order."""

    policies_path: str
    created_order: int


@decodable
class NamespaceDeletion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One two-phase deletion of a namespace.

    Attributes:
        policies_path: with ``created_order``, the `Incarnation` that is meant.
        topics_found: the topics deleted and those that were left when they were last counted.
        recorded_ledgers: what the deletions of its topics have recorded.
        recorded_besides: what it has recorded itself, which every pass does again.
        passes: how often it went through the whole namespace.
        fruitless_passes: the last ones of them, during which no topic was deleted.
        not_before_ms: the next pass is due then, on the store's clock.
        updated_ms: when it was written, on the store's clock.
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
        """The operation under whose id the recorder finds what one topic references; it is not stored."""
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
        return NamespaceDeletionStatus(
            operation_id=self.operation_id,
            namespace=self.namespace,
            state=state,
            topics_found=self.topics_found,
            topics_deleted=self.topics_deleted,
            recorded_ledgers=self.recorded_ledgers + self.recorded_besides,
            passes=self.passes,
            requested_ms=self.requested_ms,
            running_ms=self.updated_ms - self.requested_ms,
            reason=reason,
        )


@dataclass(frozen=True, slots=True)
class HeldNamespaceDeletion:
    """A running deletion and the version of its node, for compare-and-set."""

    deletion: NamespaceDeletion
    version: NodeVersion


def incarnation_of(store: MetadataStore, namespace: str) -> Incarnation | None:
    """The namespace as it is now; None where this store does not know it.

    Where the policies lie in a configuration store of their own, what only this cluster has to know names it.
    """
    nodes = store.read_many([f"{POLICIES}/{namespace}", f"{LOCAL_POLICIES}/{namespace}"])
    # A node without data is only the parent of other namespaces (V1).
    found = next((node for node in nodes if node is not None and node.data), None)
    return None if found is None else Incarnation(found.path, found.created_order)


def presence(store: MetadataStore, deletion: NamespaceDeletion) -> Presence:
    node = store.read(deletion.policies_path)
    if node is None or not node.data:
        return Presence.GONE
    return Presence.THERE if node.created_order == deletion.created_order else Presence.REPLACED


def deletion_id(namespace: str, incarnation: Incarnation) -> OperationId:
    digest = hashlib.sha256(namespace.encode()).hexdigest()[:_HASH_DIGITS]
    return OperationId(f"{PREFIX}{digest}-{incarnation.created_order}")


def write_deletion(store: MetadataStore, deletion: NamespaceDeletion, version: NodeVersion) -> HeldNamespaceDeletion:
    """Replace the node by compare-and-set; raises what `write_promise` does."""
    written = write_promise(store, deletion.operation_id, encode_deletion(deletion), version)
    return HeldNamespaceDeletion(deletion, written)


def encode_deletion(deletion: NamespaceDeletion) -> bytes:
    return json.dumps(msgspec.to_builtins(deletion), separators=(",", ":")).encode()


def decode_deletion(data: bytes) -> NamespaceDeletion:
    """Read a node.

    Raises:
        UndecodableError: another version wrote it; it is left alone.
    """
    try:
        return msgspec.json.decode(data, type=NamespaceDeletion)
    except (ValueError, RecursionError) as error:
        raise UndecodableError(
            f"the node of a namespace's deletion cannot be read ({error}); continue with the version of pulsar-sidecar "
            "that began it"
        ) from error
