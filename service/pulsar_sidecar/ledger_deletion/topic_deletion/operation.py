"""The intent of one two-phase topic deletion, kept in the metadata store while it runs.

Its node's existence is what tells a consumer that "in use" is not final yet. The node holds everything that another
sidecar needs to go on when the first one dies: which incarnations of the managed ledgers are meant, and which ledgers
were recorded under which sequence ids, so that going on records nothing twice (PIP-6).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pulsar_sidecar.ledger_deletion.service import OperationState, TopicDeletionStatus
from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import NodeVersion, OperationId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName, parse_topic_name

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


@dataclass(frozen=True, slots=True)
class Operation:
    """One two-phase topic deletion.

    Attributes:
        partitions: partitions when it was asked for; None for a topic that is not partitioned.
        incarnations: creation order of each of the topic's nodes, by path, when it was asked for: a topic deleted and
            created again is another one and is left alone.
        recorded: keys of the records sent, in the order of their sequence ids.
        generation: counts the times that ``recorded`` had to be forgotten; part of the producer's name.
        attempts: how often the broker was asked.
        not_before_ms: the next attempt is due then, on the store's clock.
        source_data_loss_confirmed: the caller named the topic as a source whose shadows may lose its data.
    """

    operation_id: OperationId
    topic: TopicName
    partitions: int | None
    force: bool
    requested_by: str | None
    requested_ms: int
    incarnations: Mapping[str, int]
    recorded: tuple[str, ...] = ()
    generation: int = 0
    attempts: int = 0
    last_reason: str | None = None
    not_before_ms: int = 0
    source_data_loss_confirmed: bool = False

    @property
    def partitioned(self) -> bool:
        """Whether the broker is to be asked for all partitions at once."""
        return self.partitions is not None

    @property
    def topics(self) -> tuple[TopicName, ...]:
        """The topics with a managed ledger of their own."""
        if self.partitions is None:
            return (self.topic,)
        return tuple(self.topic.partition(index) for index in range(self.partitions))

    @property
    def node_paths(self) -> tuple[str, ...]:
        """The nodes that make up the topic: its managed ledgers and, if it has partitions, their number."""
        ledgers = tuple(managed_ledger_path(topic.managed_ledger_name) for topic in self.topics)
        return (*ledgers, partitioned_topic_path(self.topic)) if self.partitioned else ledgers

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
        ConflictError: somebody else changed it.
        OperationEndedError: it is gone.
    """
    try:
        written = store.write(operation_path(operation.operation_id), encode_operation(operation), version)
    except NotFoundError as error:
        raise OperationEndedError(f"the topic deletion {operation.operation_id} has ended already") from error
    return HeldOperation(operation, written)


def encode_operation(operation: Operation) -> bytes:
    """The node's bytes."""
    encoded = _encode(operation)
    if len(encoded) <= MAX_NODE_BYTES:
        return encoded
    return _encode(replace(operation, recorded=(), generation=operation.generation + 1))


def _encode(operation: Operation) -> bytes:
    document: dict[str, object] = {
        "operationId": operation.operation_id,
        "topicName": str(operation.topic),
        "partitions": operation.partitions,
        "force": operation.force,
        "requestedBy": operation.requested_by,
        "requestedMs": operation.requested_ms,
        "incarnations": dict(operation.incarnations),
        "recorded": list(operation.recorded),
        "generation": operation.generation,
        "attempts": operation.attempts,
        "lastReason": operation.last_reason,
        "notBeforeMs": operation.not_before_ms,
    }
    if operation.source_data_loss_confirmed:
        document["sourceDataLossConfirmed"] = True
    return json.dumps(document, separators=(",", ":")).encode()


def decode_operation(data: bytes) -> Operation:
    """Read the node.

    Raises:
        UndecodableError: another version wrote it; it is left alone.
    """
    try:
        document = json.loads(data)
        _check_types(document)
        return Operation(
            operation_id=OperationId(document["operationId"]),
            topic=parse_topic_name(document["topicName"]),
            partitions=document["partitions"],
            force=document["force"],
            requested_by=document["requestedBy"],
            requested_ms=document["requestedMs"],
            incarnations=document["incarnations"],
            recorded=tuple(document["recorded"]),
            generation=document["generation"],
            attempts=document["attempts"],
            last_reason=document["lastReason"],
            not_before_ms=document["notBeforeMs"],
            # Nodes of versions that did not ask for it confirm nothing.
            source_data_loss_confirmed=document.get("sourceDataLossConfirmed") is True,
        )
    except (ValueError, KeyError, TypeError, RecursionError, InvalidInputError) as error:
        raise UndecodableError(f"the topic deletion's node cannot be read: {type(error).__name__}") from error


def _check_types(document: Mapping[str, object]) -> None:
    recorded, incarnations, partitions = document["recorded"], document["incarnations"], document["partitions"]
    numbers = [document[name] for name in ("requestedMs", "generation", "attempts", "notBeforeMs")]
    texts = [document["operationId"], document["topicName"]]
    well_formed = (
        isinstance(recorded, list)
        and isinstance(incarnations, dict)
        and isinstance(document["force"], bool)
        and all(isinstance(text, str) for text in (*texts, *recorded, *incarnations))
        and all(type(number) is int for number in (*numbers, *incarnations.values()))
        and (partitions is None or type(partitions) is int)
    )
    if not well_formed:
        raise TypeError("a field has another type")
