"""State of the deletion of a topic or a shadow topic in the metadata store: one JSON node while it runs.

While a topic deletion's node exists, "in use" is not final for a consumer. A node has everything that another sidecar
needs to continue when the first one dies; for a shadow that is what the cluster's own nodes lose on the way: its
sources, whose ledgers must exist at the end.

Sidecars of other versions read and write these nodes, so the format is fixed: the fields' names and order, no spaces,
and ASCII. The sidecar does not touch a node that it cannot decode exactly.
"""

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Self, TypeVar

import msgspec
from msgspec.structs import replace

from pulsar_sidecar.features.ledger_deletion.results import (
    OperationState,
    ShadowDeletionStage,
    ShadowDeletionStatus,
    TopicDeletionStatus,
)
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    TemporaryError,
    UndecodableError,
)
from pulsar_sidecar.model.ids import LedgerId, NodeVersion, OperationId
from pulsar_sidecar.model.metadata import MetadataStore, Node, Nodes, read_nodes
from pulsar_sidecar.model.names import (
    PENDING_ACKS_SUFFIX,
    CursorName,
    TopicName,
    encode_cursor,
    java_url_encode,
    parse_topic_name,
)
from pulsar_sidecar.model.request_traces import RequestTrace
from pulsar_sidecar.ownership.paths import cursor_path, managed_ledger_path, partitioned_topic_path, schema_path
from pulsar_sidecar.ownership.shadows import source_topic

OPERATIONS = "/pulsar-sidecar/ledger-deletion/topic-deletions"
SHADOW_DELETIONS = "/pulsar-sidecar/ledger-deletion/shadow-deletions"
STUCK_AFTER = 10
MAX_NODE_BYTES = 900_000
"""Limit below ZooKeeper's 1 MB. Where record keys do not fit, a sidecar that takes over sends all records again."""
NO_ANSWER = "brokers, bookies or the metadata store have not answered yet; the sidecar keeps trying"


_OF_A_TOPIC = "topic-"
_HASH_DIGITS = 16


class OperationEndedError(TemporaryError):
    """Raised when another sidecar ended the operation in the meantime."""


def operation_path(operation_id: OperationId) -> str:
    return f"{OPERATIONS}/{operation_id}"


def new_operation_id(topic: TopicName) -> OperationId:
    """Return an id that is found by its topic."""
    return OperationId(f"{_named_after(topic)}{uuid.uuid4().hex}")


def may_concern(operation_id: OperationId, topic: TopicName) -> bool:
    """Return False if the id names another topic; ids from older versions name none."""
    return operation_id.startswith(_named_after(topic)) or not operation_id.startswith(_OF_A_TOPIC)


def _named_after(topic: TopicName) -> str:
    return f"{_OF_A_TOPIC}{hashlib.sha256(str(topic).encode()).hexdigest()[:_HASH_DIGITS]}-"


def driver_path(operation_id: OperationId) -> str:
    return f"{operation_path(operation_id)}/driver"


def shadow_deletion_path(topic: TopicName) -> str:
    """Return the path of a shadow deletion's node: one for each topic name, so that a repeated call finds it."""
    return f"{SHADOW_DELETIONS}/{java_url_encode(str(topic))}"


@decodable
class DeletionNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Common part of every node; each kind of deletion adds its own fields, in the order in which they are written.

    Attributes:
        partitions: number of partitions at the request; None for a topic that is not partitioned.
    """

    operation_id: OperationId
    topic_name: str
    partitions: int | None

    def __post_init__(self) -> None:
        parse_topic_name(self.topic_name)

    @property
    def topic(self) -> TopicName:
        return parse_topic_name(self.topic_name)

    @property
    def partitioned(self) -> bool:
        return self.partitions is not None

    @property
    def topics(self) -> tuple[TopicName, ...]:
        return topics_with_ledgers(self.topic, self.partitions)


@decodable
class Operation(DeletionNode, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Two-phase topic deletion.

    Attributes:
        incarnations: creation order of each of the topic's nodes, by path, at the request: a recreated topic is another
            one, and the sidecar does not touch it.
        recorded: keys of records known to be stored; the node gets them when an attempt is postponed.
        attempts: number of requests to a broker.
        not_before_ms: due time of the next attempt, on the store's clock.
        source_data_loss_confirmed: True if the caller confirmed that shadows of this source may lose its data. A node
            without the field, from an older version, confirms nothing.
        failures: number of consecutive failures of the same kind (`following.after_failure`).
        failing_since_ms: time of the first of these failures, on the store's clock.
        request_id: with ``trace_parent``, the `RequestTrace` of the requesting call.
    """

    force: bool
    requested_by: str | None
    requested_ms: int
    incarnations: Mapping[str, int]
    recorded: tuple[str, ...]
    attempts: int
    last_reason: str | None
    not_before_ms: int
    source_data_loss_confirmed: bool = False
    failures: int = 0
    failing_since_ms: int = 0
    request_id: str | None = None
    trace_parent: str | None = None

    @property
    def trace(self) -> RequestTrace:
        return RequestTrace.read(self.request_id, self.trace_parent)

    @property
    def stuck(self) -> bool:
        return self.failures >= STUCK_AFTER

    @property
    def part(self) -> str | None:
        """Part of the topic that is deleted; None for the whole topic."""
        return None

    @property
    def node_paths(self) -> tuple[str, ...]:
        """Paths of the nodes to delete; existing ones are marked."""
        return node_paths(self.topic, self.partitions)

    @property
    def whole_ledgers(self) -> tuple[TopicName, ...]:
        """Topics whose managed ledgers are deleted with all that they reference."""
        return self.topics

    @property
    def cursors(self) -> Mapping[TopicName, CursorName]:
        """Cursors that are deleted although their managed ledgers stay, one for each topic."""
        return {}

    @property
    def includes_schema(self) -> bool:
        """True if the schema is deleted too: partitions share their topic's, which outlives them."""
        return self.topic.partition_index is None

    def is_target(self, node: Node) -> bool:
        """Return True if the node is of the incarnation to delete."""
        return self.incarnations.get(node.path) == node.created_order

    def recording(self, keys: tuple[str, ...]) -> Self:
        """Return the operation with more stored records."""
        return replace(self, recorded=self.recorded + keys)

    def unfinished(self, awaited: Callable[[], str] | None = None) -> TopicDeletionStatus:
        """Return the deletion's status before its end; until an attempt has failed, ``awaited`` gives the reason."""
        state = OperationState.STUCK if self.stuck else OperationState.RUNNING
        return self.status(state, self.last_reason or (awaited() if awaited else NO_ANSWER))

    def status(self, state: OperationState, reason: str | None = None) -> TopicDeletionStatus:
        return TopicDeletionStatus(
            operation_id=self.operation_id,
            topic=str(self.topic),
            part=self.part,
            state=state,
            recorded_ledgers=len(self.recorded),
            attempts=self.attempts,
            requested_ms=self.requested_ms,
            reason=reason,
            requested_by=self.requested_by,
            failures=self.failures,
            failing_since_ms=self.failing_since_ms if self.failures else None,
            next_attempt_ms=self.not_before_ms if state in (OperationState.RUNNING, OperationState.STUCK) else None,
            request_id=self.request_id,
            remedy=remedy_of(self.operation_id, state),
        )


@decodable
class PartOperation(Operation, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Deletion of a subscription or a schema whose broker did not respond.

    A version that knows only deletions of whole topics must not mistake it for one, so the topic's field has another
    name.

    Attributes:
        subscription: name of the subscription; None for the topic's schema.
    """

    topic_name: str = msgspec.field(name="partOf")
    subscription: str | None = None

    @property
    def part(self) -> str:
        return "its schema" if self.subscription is None else f"its subscription {self.subscription}"

    @property
    def node_paths(self) -> tuple[str, ...]:
        if self.subscription is None:
            return (schema_path(self.topic.schema_id),)
        return tuple(cursor_path(topic.managed_ledger_name, cursor) for topic, cursor in self.cursors.items())

    @property
    def whole_ledgers(self) -> tuple[TopicName, ...]:
        """Topics of transactions' pending acknowledgements, if there are any."""
        return tuple(
            replaced(topic, local_name=f"{topic.local_name}-{cursor}{PENDING_ACKS_SUFFIX}")
            for topic, cursor in self.cursors.items()
        )

    @property
    def cursors(self) -> Mapping[TopicName, CursorName]:
        return {} if self.subscription is None else dict.fromkeys(self.topics, encode_cursor(self.subscription))

    @property
    def includes_schema(self) -> bool:
        return self.subscription is None

    def is_target(self, node: Node) -> bool:
        # Brokers without transactions leave pending acknowledgements, so the deletion does not wait for them.
        return self.incarnations.get(node.path, node.created_order) == node.created_order


@decodable
class ShadowDeletion(DeletionNode, frozen=True, kw_only=True, rename="camel"):
    """Deletion of a shadow topic, stored from before its first change until its report expires.

    Attributes:
        source: name of the source as the shadow's property spelled it.
        source_names: topics whose ledgers the shadow lists: one for each partition, if it has partitions.
        incarnations: as in `Operation`.
        checked_ledgers: number of ledgers that the sources' lists named at the last check: before the first change, or
            at the end.
        missing_ledgers: those of them that BookKeeper did not have.
        missing_sources: sources that did not exist, so that no list could be read.
        missing_before: ledgers of the sources that were missing before the first change.
    """

    source: str
    source_names: tuple[str, ...] = msgspec.field(name="sources")
    incarnations: Mapping[str, int]
    requested_by: str | None
    requested_ms: int
    checked_ledgers: int
    missing_ledgers: tuple[LedgerId, ...]
    missing_sources: tuple[str, ...]
    missing_before: tuple[LedgerId, ...]
    stage: ShadowDeletionStage

    def __post_init__(self) -> None:
        for name in (self.topic_name, *self.source_names, *self.missing_sources):
            parse_topic_name(name)

    @property
    def sources(self) -> tuple[TopicName, ...]:
        return tuple(parse_topic_name(name) for name in self.source_names)

    @property
    def no_source(self) -> str:
        """Name of a nonexistent topic, which replaces the source."""
        return f"persistent://{self.topic.namespace}/pulsar-sidecar-no-source-{self.operation_id}"

    def with_partitions(self, partitions: int) -> "ShadowDeletion":
        """Return the deletion with partitions that were added since it began, and their sources."""
        if self.partitions is None or partitions <= self.partitions:
            return self
        base = source_topic(self.source)
        added = [] if base is None else [str(base.partition(index)) for index in range(self.partitions, partitions)]
        return replace(self, partitions=partitions, source_names=tuple(dict.fromkeys([*self.source_names, *added])))

    def at(self, stage: ShadowDeletionStage) -> "ShadowDeletion":
        return replace(self, stage=stage)

    def status(self, waits_for: str | None = None) -> ShadowDeletionStatus:
        return ShadowDeletionStatus(
            operation_id=self.operation_id,
            topic=str(self.topic),
            source=self.source,
            stage=self.stage,
            requested_ms=self.requested_ms,
            waits_for=waits_for,
            source_ledgers=self.checked_ledgers,
            missing_ledgers=tuple(each for each in self.missing_ledgers if each not in self.missing_before),
            missing_before=tuple(each for each in self.missing_ledgers if each in self.missing_before),
            missing_sources=self.missing_sources,
        )


def remedy_of(operation_id: OperationId, state: OperationState) -> str | None:
    """Return the remedy for a deletion that does not continue on its own; None for others."""
    end = f"end it with: pulsar-sidecar ledger-deletion abandon {operation_id}"
    match state:
        case OperationState.STUCK:
            return f"remove the cause, and a sidecar continues the deletion within a minute; or {end}"
        case OperationState.UNREADABLE:
            return f"continue with the version of pulsar-sidecar that began it; or {end}"
        case _:
            return None


# --- the topic's own nodes -------------------------------------------------------------------------------------------


def topics_with_ledgers(topic: TopicName, partitions: int | None) -> tuple[TopicName, ...]:
    """Return the topics with a managed ledger of their own."""
    return (topic,) if partitions is None else tuple(topic.partition(index) for index in range(partitions))


def node_paths(topic: TopicName, partitions: int | None) -> tuple[str, ...]:
    """Return the paths of a topic's nodes: managed ledgers and, if it has partitions, the partitioned topic."""
    ledgers = tuple(managed_ledger_path(each.managed_ledger_name) for each in topics_with_ledgers(topic, partitions))
    return ledgers if partitions is None else (*ledgers, partitioned_topic_path(topic))


def incarnations(store: MetadataStore, paths: Sequence[str]) -> dict[str, int]:
    """Return the creation order of every existing node, by path: a recreated node has another."""
    return incarnations_of(read_nodes(store, paths))


def incarnations_of(nodes: Nodes) -> dict[str, int]:
    return {path: node.created_order for path, node in nodes.items() if node is not None}


def marked_node(store: MetadataStore, marked: Mapping[str, int], path: str) -> Node | None:
    """Return the node if it is of the marked incarnation."""
    node = store.read(path)
    return node if node is not None and node.created_order == marked.get(path) else None


def remaining_nodes(store: MetadataStore, marked: Mapping[str, int]) -> list[str]:
    """Return the paths of the marked nodes that still exist."""
    return remaining_of(read_nodes(store, tuple(marked)), marked)


def remaining_of(nodes: Nodes, marked: Mapping[str, int]) -> list[str]:
    """Return the paths of the marked nodes that a read found."""
    now = incarnations_of(nodes)
    return [path for path, created_order in marked.items() if now.get(path) == created_order]


# --- the deletion's node ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldOperation:
    """Running deletion as its driver knows it, which may be ahead of the node.

    Attributes:
        version: version of its node, for compare-and-set.
        seen: the topic's nodes right before the operation is persisted; None where they must be read again.
        replicated_with: remote clusters whose replicators had cursors when its references were read.
    """

    operation: Operation
    version: NodeVersion
    seen: "Nodes | None" = None
    replicated_with: frozenset[str] = frozenset()

    def with_state(self, operation: Operation) -> "HeldOperation":
        """Return the operation with the driver's newer state; the node is unchanged."""
        return replaced(self, operation=operation, seen=None)


def require_held(held: HeldOperation, nodes: Nodes) -> None:
    """Raise unless the operation's node, as read, is the one that this driver wrote last.

    Raises:
        ConflictError: another sidecar changed the node.
        OperationEndedError: the node is gone.
    """
    node = nodes[operation_path(held.operation.operation_id)]
    if node is None:
        raise OperationEndedError(f"the topic deletion {held.operation.operation_id} has ended already")
    if node.version != held.version:
        raise ConflictError(f"another sidecar continues the topic deletion {held.operation.operation_id}")


def write_operation(store: MetadataStore, operation: Operation, version: NodeVersion) -> HeldOperation:
    """Replace the node by compare-and-set; raises as `require_held` does."""
    return HeldOperation(operation, replace_node(store, operation.operation_id, encode_operation(operation), version))


def replace_node(store: MetadataStore, operation_id: OperationId, data: bytes, version: NodeVersion) -> NodeVersion:
    """Replace the node of any deletion and return its new version; raises as `require_held` does."""
    try:
        return store.write(operation_path(operation_id), data, version)
    except NotFoundError as error:
        raise OperationEndedError(f"the deletion {operation_id} has ended already") from error


def encode_operation(operation: Operation) -> bytes:
    """Return the node's bytes, without ``recorded`` where it does not fit."""
    encoded = encode_node(operation)
    return encoded if len(encoded) <= MAX_NODE_BYTES else encode_node(replace(operation, recorded=()))


def decode_operation(data: bytes) -> Operation:
    try:
        return decode_node(data, Operation)
    except UndecodableError:
        if b'"partOf"' not in data:
            raise
        return decode_node(data, PartOperation)


def encode_node(deletion: msgspec.Struct) -> bytes:
    return json.dumps(msgspec.to_builtins(deletion), separators=(",", ":")).encode()


NodeType = TypeVar("NodeType", bound=msgspec.Struct)


def decode_node(data: bytes, kind: type[NodeType]) -> NodeType:
    """Read a node; raise `UndecodableError` if another version wrote it: the sidecar does not touch it."""
    try:
        return msgspec.convert(json.loads(data), kind)
    except (ValueError, RecursionError, InvalidInputError) as error:
        raise UndecodableError(
            f"the node of a deletion cannot be read ({type(error).__name__}: {error}); continue with the "
            "version of pulsar-sidecar that began it"
        ) from error
