"""The intent of one two-phase topic deletion, kept in the metadata store while it runs.

Its node's existence is what tells a consumer that "in use" is not final yet. The node holds everything that another
sidecar needs to continue when the first one dies: which incarnations of the managed ledgers are meant, and which
ledgers were recorded under which sequence ids, so that continuing records nothing twice (PIP-6).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from pulsar_sidecar.ledger_deletion.deletion_node import DeletionNode, decode_node, encode_node, node_paths
from pulsar_sidecar.ledger_deletion.service import OperationState, TopicDeletionStatus
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import NodeVersion, OperationId
from pulsar_sidecar.model.metadata import MetadataStore

OPERATIONS = "/pulsar-sidecar/ledger-deletion/topic-deletions"
MAX_NODE_BYTES = 900_000
"""A node is at most 1 MB. Where the records do not fit in, a resumed deletion records all of them again, under another
producer name: some twice, which is harmless, and none dropped as a duplicate of another."""


class OperationEndedError(TemporaryError):
    """Another sidecar ended the operation in the meantime."""


def operation_path(operation_id: OperationId) -> str:
    """The node of one running deletion."""
    return f"{OPERATIONS}/{operation_id}"


def driver_path(operation_id: OperationId) -> str:
    """The ephemeral node of the sidecar that works on the deletion now."""
    return f"{operation_path(operation_id)}/driver"


class Operation(DeletionNode, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One two-phase topic deletion.

    Attributes:
        incarnations: creation order of each of the topic's nodes, by path, when it was asked for: a topic deleted and
            created again is another one and is left alone.
        recorded: keys of the records sent, in the order of their sequence ids.
        generation: counts the times that ``recorded`` had to be forgotten; part of the producer's name.
        attempts: how often the broker was asked.
        not_before_ms: the next attempt is due then, on the store's clock.
        source_data_loss_confirmed: the caller named the topic as a source whose shadows may lose its data. A node that
            does not have it, of a version that did not ask, confirms nothing.
    """

    force: bool
    requested_by: str | None
    requested_ms: int
    incarnations: Mapping[str, int]
    recorded: tuple[str, ...]
    generation: int
    attempts: int
    last_reason: str | None
    not_before_ms: int
    source_data_loss_confirmed: bool = False

    @property
    def node_paths(self) -> tuple[str, ...]:
        """The nodes that make up the topic."""
        return node_paths(self.topic, self.partitions)

    @property
    def producer_name(self) -> str:
        """The name its records are produced under."""
        return f"pulsar-sidecar-topic-deletion-{self.operation_id}-{self.generation}"

    def recording(self, keys: tuple[str, ...]) -> "Operation":
        """With more records on their way."""
        return replace(self, recorded=self.recorded + keys)

    def status(self, state: OperationState, reason: str | None = None) -> TopicDeletionStatus:
        """As an operator sees it."""
        return TopicDeletionStatus(
            operation_id=self.operation_id,
            topic=self.topic,
            state=state,
            recorded_ledgers=len(self.recorded),
            attempts=self.attempts,
            requested_ms=self.requested_ms,
            reason=reason,
        )


@dataclass(frozen=True, slots=True)
class HeldOperation:
    """A running deletion and the version of its node, for compare-and-set."""

    operation: Operation
    version: NodeVersion


def write_operation(store: MetadataStore, operation: Operation, version: NodeVersion) -> HeldOperation:
    """Replace the node by compare-and-set.

    Raises:
        ConflictError: another sidecar changed it.
        OperationEndedError: it is gone.
    """
    try:
        written = store.write(operation_path(operation.operation_id), encode_operation(operation), version)
    except NotFoundError as error:
        raise OperationEndedError(f"the topic deletion {operation.operation_id} has ended already") from error
    return HeldOperation(operation, written)


def encode_operation(operation: Operation) -> bytes:
    """The node's bytes; without ``recorded`` where that does not fit in."""
    encoded = encode_node(operation)
    if len(encoded) <= MAX_NODE_BYTES:
        return encoded
    return encode_node(replace(operation, recorded=(), generation=operation.generation + 1))


def decode_operation(data: bytes) -> Operation:
    """Read the node.

    Raises:
        UndecodableError: another version wrote it; it is left alone.
    """
    return decode_node(data, Operation)
