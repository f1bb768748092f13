"""What the deletion of a topic, or of a shadow topic, keeps in the metadata store while it runs: one JSON node.

While a topic deletion's node exists, "in use" is not final for a consumer. A node holds everything that
another sidecar needs to continue when the first one dies: which incarnations of the managed ledgers are meant; of which
ledgers records are stored, so that continuing sends those no more; of a shadow, what the cluster's own nodes lose on
the way: its sources, and whose ledgers have to be there at the end.

Sidecars of other versions read and write these nodes, so the form is fixed: the fields' names and order, no spaces, and
ASCII. A node that this version cannot read exactly is left alone.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Self, TypeVar

import msgspec
from msgspec.structs import replace

from pulsar_sidecar.ledger_deletion.service import (
    OperationState,
    ShadowDeletionStage,
    ShadowDeletionStatus,
    SourceCheck,
    TopicDeletionStatus,
)
from pulsar_sidecar.ledger_ownership.paths import (
    cursor_path,
    managed_ledger_path,
    partitioned_topic_path,
    schema_path,
)
from pulsar_sidecar.ledger_ownership.shadows import source_topic
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    TemporaryError,
    UndecodableError,
)
from pulsar_sidecar.model.ids import LedgerId, NodeVersion, OperationId
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import (
    PENDING_ACKS_SUFFIX,
    CursorName,
    TopicName,
    encode_cursor,
    java_url_encode,
    parse_topic_name,
)
from pulsar_sidecar.model.request_traces import RequestTrace

OPERATIONS = "/pulsar-sidecar/ledger-deletion/topic-deletions"
SHADOW_DELETIONS = "/pulsar-sidecar/ledger-deletion/shadow-deletions"
STUCK_AFTER = 10
MAX_NODE_BYTES = 900_000
"""A node is at most 1 MB. Where the records do not fit in, a deletion that is taken over sends all of them again."""
NO_ANSWER = "brokers, bookies or the metadata store have not answered yet; the sidecar goes on"


def no_answer() -> str:
    """Say what an attempt may wait for where nothing was asked about it."""
    return NO_ANSWER


class OperationEndedError(TemporaryError):
    """Another sidecar ended the operation in the meantime."""


def operation_path(operation_id: OperationId) -> str:
    """The node of one running deletion."""
    return f"{OPERATIONS}/{operation_id}"


def driver_path(operation_id: OperationId) -> str:
    """The ephemeral node of the sidecar that works on the deletion now."""
    return f"{operation_path(operation_id)}/driver"


def shadow_deletion_path(topic: TopicName) -> str:
    """The node of a shadow's deletion: one for each name, so that a repeated call finds it."""
    return f"{SHADOW_DELETIONS}/{java_url_encode(str(topic))}"


@decodable
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
        return parse_topic_name(self.topic_name)

    @property
    def partitioned(self) -> bool:
        """Whether the topic has a partitioned topic's node."""
        return self.partitions is not None

    @property
    def topics(self) -> tuple[TopicName, ...]:
        return topics_with_ledgers(self.topic, self.partitions)


@decodable
class Operation(DeletionNode, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One two-phase topic deletion.

    Attributes:
        incarnations: creation order of each of the topic's nodes, by path, when it was asked for: a topic deleted and
            created again is another one and is left alone.
        recorded: keys of the records that are stored, as far as the node knows: written when an attempt is put off.
        attempts: how often the broker was asked.
        not_before_ms: the next attempt is due then, on the store's clock.
        source_data_loss_confirmed: the caller named the topic as a source whose shadows may lose its data. A node that
            does not have it, of a version that did not ask, confirms nothing.
        failures: how often the last attempts failed the same way (`following.after_failure`).
        failing_since_ms: when the first of them failed, on the store's clock.
        request_id: with ``trace_parent``, the `RequestTrace` of the call that asked for it.
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
        """Whether it keeps failing the same way."""
        return self.failures >= STUCK_AFTER

    @property
    def part(self) -> str | None:
        """The part of the topic that is deleted; None where it is all of it."""
        return None

    @property
    def node_paths(self) -> tuple[str, ...]:
        """The nodes that are to go, each of which is marked if it exists."""
        return node_paths(self.topic, self.partitions)

    @property
    def whole_ledgers(self) -> tuple[TopicName, ...]:
        """The topics whose managed ledgers go with all that they reference."""
        return self.topics

    @property
    def cursors(self) -> Mapping[TopicName, CursorName]:
        """The cursors that go although their managed ledgers stay, one for each topic."""
        return {}

    @property
    def takes_schema(self) -> bool:
        """Whether the schema goes, too: partitions share their topic's, which outlives them."""
        return self.topic.partition_index is None

    def means(self, node: Node) -> bool:
        """Whether the node is of the incarnation that is to go."""
        return self.incarnations.get(node.path) == node.created_order

    def recording(self, keys: tuple[str, ...]) -> Self:
        """With more records stored."""
        return replace(self, recorded=self.recorded + keys)

    def unfinished(self, awaited: Callable[[], str] = no_answer) -> TopicDeletionStatus:
        """Its status before it ends; until an attempt has failed, its reason is what every attempt waits for."""
        state = OperationState.STUCK if self.stuck else OperationState.RUNNING
        return self.status(state, self.last_reason or awaited())

    def status(self, state: OperationState, reason: str | None = None) -> TopicDeletionStatus:
        return TopicDeletionStatus(
            operation_id=self.operation_id,
            topic=self.topic,
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
            part=self.part,
        )


@decodable
class PartOperation(Operation, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The deletion of a subscription or of a schema, for which a broker was asked and did not answer.

    A version that knows deletions of whole topics only must not take it for one, so the topic has another name in it.

    Attributes:
        subscription: None where it is the topic's schema.
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
        """Where transactions' pending acknowledgements are kept, if there are any."""
        return tuple(
            replaced(topic, local_name=f"{topic.local_name}-{cursor}{PENDING_ACKS_SUFFIX}")
            for topic, cursor in self.cursors.items()
        )

    @property
    def cursors(self) -> Mapping[TopicName, CursorName]:
        return {} if self.subscription is None else dict.fromkeys(self.topics, encode_cursor(self.subscription))

    @property
    def takes_schema(self) -> bool:
        return self.subscription is None

    def means(self, node: Node) -> bool:
        # Brokers without transactions leave pending acknowledgements, so these are not waited for.
        return self.incarnations.get(node.path, node.created_order) == node.created_order


@decodable
class ShadowDeletion(DeletionNode, frozen=True, kw_only=True, rename="camel"):
    """One deletion of a shadow topic, kept from before its first change until its report is old.

    Attributes:
        source: as the shadow's property spelled it.
        source_names: the topics whose ledgers the shadow lists: each partition's own, if it has partitions.
        incarnations: as in `Operation`.
        checked_ledgers: with the two below, the last `SourceCheck`: before the first change, or at the end.
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
        """The name of a topic that does not exist, which takes the source's place."""
        return f"persistent://{self.topic.namespace}/pulsar-sidecar-no-source-{self.operation_id}"

    def with_partitions(self, partitions: int) -> "ShadowDeletion":
        """With partitions that were added since it was begun, and their sources."""
        if self.partitions is None or partitions <= self.partitions:
            return self
        base = source_topic(self.source)
        added = [] if base is None else [str(base.partition(index)) for index in range(self.partitions, partitions)]
        return replace(self, partitions=partitions, source_names=tuple(dict.fromkeys([*self.source_names, *added])))

    def at(self, stage: ShadowDeletionStage) -> "ShadowDeletion":
        return replace(self, stage=stage)

    def status(self, waits_for: str | None = None) -> ShadowDeletionStatus:
        missing_sources = tuple(parse_topic_name(name) for name in self.missing_sources)
        return ShadowDeletionStatus(
            operation_id=self.operation_id,
            topic=self.topic,
            source=self.source,
            stage=self.stage,
            requested_ms=self.requested_ms,
            source_check=SourceCheck(self.checked_ledgers, self.missing_ledgers, missing_sources),
            missing_before=self.missing_before,
            waits_for=waits_for,
        )


# --- the topic's own nodes -------------------------------------------------------------------------------------------


def topics_with_ledgers(topic: TopicName, partitions: int | None) -> tuple[TopicName, ...]:
    """The topics with a managed ledger of their own."""
    return (topic,) if partitions is None else tuple(topic.partition(index) for index in range(partitions))


def node_paths(topic: TopicName, partitions: int | None) -> tuple[str, ...]:
    """The nodes that make up a topic: its managed ledgers and, if it has partitions, their number."""
    ledgers = tuple(managed_ledger_path(each.managed_ledger_name) for each in topics_with_ledgers(topic, partitions))
    return ledgers if partitions is None else (*ledgers, partitioned_topic_path(topic))


Nodes = Mapping[str, Node | None]
"""Nodes by path as one read found them, None for one that does not exist."""


def read_nodes(store: MetadataStore, paths: Sequence[str]) -> Nodes:
    """These nodes, in one read."""
    return dict(zip(paths, store.read_many(paths), strict=True))


def incarnations(store: MetadataStore, paths: Sequence[str]) -> dict[str, int]:
    """Creation order of every node that exists, by path: a node deleted and created again has another."""
    return incarnations_of(read_nodes(store, paths))


def incarnations_of(nodes: Nodes) -> dict[str, int]:
    return {path: node.created_order for path, node in nodes.items() if node is not None}


def marked_node(store: MetadataStore, marked: Mapping[str, int], path: str) -> Node | None:
    """The node, if it is of the incarnation that was marked."""
    node = store.read(path)
    return node if node is not None and node.created_order == marked.get(path) else None


def remaining_nodes(store: MetadataStore, marked: Mapping[str, int]) -> list[str]:
    """The paths of those marked nodes that are still there."""
    return remaining_of(read_nodes(store, tuple(marked)), marked)


def remaining_of(nodes: Nodes, marked: Mapping[str, int]) -> list[str]:
    """Those of the marked nodes that a read found."""
    now = incarnations_of(nodes)
    return [path for path, created_order in marked.items() if now.get(path) == created_order]


# --- the deletion's node ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldOperation:
    """A running deletion as its driver has it, which may know more than the node.

    Attributes:
        version: of its node, for compare-and-set.
        seen: the topic's nodes right before the promise was made; None where they are to be read again.
    """

    operation: Operation
    version: NodeVersion
    seen: "Nodes | None" = None

    def knowing(self, operation: Operation) -> "HeldOperation":
        """With what its driver has found out since; the node is as it was."""
        return HeldOperation(operation, self.version)


def require_held(held: HeldOperation, nodes: Nodes) -> None:
    """Raise where the operation's node, as a read found it, is not the one that this driver wrote last.

    Raises:
        ConflictError: another sidecar changed it.
        OperationEndedError: it is gone.
    """
    node = nodes[operation_path(held.operation.operation_id)]
    if node is None:
        raise OperationEndedError(f"the topic deletion {held.operation.operation_id} has ended already")
    if node.version != held.version:
        raise ConflictError(f"another sidecar continues the topic deletion {held.operation.operation_id}")


def write_operation(store: MetadataStore, operation: Operation, version: NodeVersion) -> HeldOperation:
    """Replace the node by compare-and-set.

    Raises:
        ConflictError: another sidecar changed it.
        OperationEndedError: it is gone.
    """
    return HeldOperation(operation, write_promise(store, operation.operation_id, encode_operation(operation), version))


def write_promise(store: MetadataStore, operation_id: OperationId, data: bytes, version: NodeVersion) -> NodeVersion:
    """Replace the node of a deletion of any kind; its new version. Raises what `write_operation` does."""
    try:
        return store.write(operation_path(operation_id), data, version)
    except NotFoundError as error:
        raise OperationEndedError(f"the deletion {operation_id} has ended already") from error


def encode_operation(operation: Operation) -> bytes:
    """The node's bytes; without ``recorded`` where that does not fit in."""
    encoded = encode_node(operation)
    if len(encoded) <= MAX_NODE_BYTES:
        return encoded
    return encode_node(replace(operation, recorded=()))


def decode_operation(data: bytes) -> Operation:
    """Read the node of the deletion of a topic, or of a part of one; raises what `decode_node` does."""
    try:
        return decode_node(data, Operation)
    except UndecodableError:
        if b'"partOf"' not in data:
            raise
        return decode_node(data, PartOperation)


def encode_node(deletion: DeletionNode) -> bytes:
    return json.dumps(msgspec.to_builtins(deletion), separators=(",", ":")).encode()


NodeType = TypeVar("NodeType", bound=DeletionNode)


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
