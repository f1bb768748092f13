"""Two-phase topic deletion: record every referenced ledger, then have the broker delete the topic, until it is done.

The operation's node persists the deletion: while it exists a sidecar continues it, and consumers hold records of
ledgers that are still referenced. It ends in only two ways: the marked incarnations are gone from the metadata store,
or a broker refused.

The sidecar refuses deletions that would destroy data that two topics share (`shadow_refusals`), at the beginning and
right before each request to a broker. A failed read is never treated as an absence: it raises `TemporaryError`.
"""

from dataclasses import dataclass, field

from msgspec.structs import asdict, replace

from pulsar_sidecar.features.ledger_deletion.ports import TopicAdmin
from pulsar_sidecar.features.ledger_deletion.results import OperationState, TopicDeletionStatus
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.features.ledger_deletion.topic_deletion.broker_requests import delete_marked, recreated_partitions
from pulsar_sidecar.features.ledger_deletion.topic_deletion.dangling_buckets import restore_buckets
from pulsar_sidecar.features.ledger_deletion.topic_deletion.durable_operations import HEAD_START_MS, DurableOperations
from pulsar_sidecar.features.ledger_deletion.topic_deletion.following import (
    KnownStatuses,
    after_failure,
    known_as,
    operation_in,
    running,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.leftover_nodes import remove_leftovers
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    HeldOperation,
    Operation,
    OperationEndedError,
    PartOperation,
    decode_operation,
    encode_operation,
    incarnations_of,
    operation_path,
    remaining_nodes,
    remaining_of,
    require_held,
    write_operation,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.recorder import Recorder
from pulsar_sidecar.features.ledger_deletion.topic_deletion.shadow_refusals import (
    Shadows,
    refuse_data_loss,
    refuse_shadow,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.topic_refusals import (
    refuse_clients,
    require_kind,
    stored_partitions,
)
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    ConflictError,
    DataLossError,
    OutcomeUnknownError,
    PermanentError,
    TemporaryError,
    UndecodableError,
)
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.metadata import MetadataStore, Node, Nodes
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.request_traces import NO_REQUEST, RequestTrace
from pulsar_sidecar.reports.formatting import format_count

_MOST_RECREATIONS = 3
"""Clients that reconnect may recreate a partition each time, until they are closed."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Result of one attempt.

    Attributes:
        state: state after the attempt; unless it is RUNNING, the operation's node is gone.
        left_behind: leftovers, certain or possible, of a topic whose deletion is DONE, and how to remove them.
        lasting: True if the cause of the failure is permanent, so that a caller need not wait for the next
            attempt.
    """

    held: HeldOperation
    state: OperationState
    refusal: PermanentError | None = None
    left_behind: str | None = None
    lasting: bool = False


@dataclass(slots=True)
class _AttemptState:
    """State of one attempt, kept whichever error ends it; ``seen`` are the nodes of the last read."""

    held: HeldOperation
    seen: Nodes | None
    recreated_stay: str | None = None
    """Reason why partitions that clients recreated stay."""

    @property
    def nodes(self) -> Nodes:
        return self.seen or {}


class EndedElsewhereError(ConflictError):
    """Raised when another sidecar ended the deletion; that sidecar noted the end on the outcome topic."""


@dataclass(frozen=True, slots=True)
class TopicDeleter:
    """Service that begins, drives and ends topic deletions."""

    operations: DurableOperations
    store: MetadataStore
    recorder: Recorder
    admin: TopicAdmin
    shadows: Shadows
    steps: Steps
    _known: KnownStatuses = field(default_factory=dict)

    def begin(
        self,
        operation_id: OperationId,
        topic: TopicName,
        *,
        partitioned: bool,
        force: bool,
        requested_by: str | None,
        source_data_loss_confirmed: bool = False,
        trace: RequestTrace = NO_REQUEST,
    ) -> HeldOperation:
        """Begin a topic deletion: create the operation's node, held by this sidecar.

        Raises:
            NotFoundError: there is no such partitioned topic.
            RefusedBeforehandError: the topic has partitions and the request states it has none, or vice versa.
            DataLossError: the topic is a shadow, or the source of one and the caller did not confirm the loss.
        """
        partitions = stored_partitions(self.store, topic) if partitioned else None
        planned = replace(
            self._planned(operation_id, topic, partitions, force=force, requested_by=requested_by, trace=trace),
            source_data_loss_confirmed=source_data_loss_confirmed,
        )
        nodes = self.recorder.read_nodes(planned)
        require_kind(planned, nodes)
        refuse_shadow(nodes, planned)
        reason = None
        try:
            refuse_data_loss(self.shadows, planned)
        except UndecodableError:
            raise
        except (TemporaryError, OutcomeUnknownError) as error:
            # Its shadows are unknown now. The operation is persisted nevertheless: each attempt reads again and waits.
            reason = str(error)
        marked = incarnations_of({path: nodes[path] for path in planned.node_paths})
        return self.persist(replace(planned, last_reason=reason, incarnations=marked), nodes)

    def record_part(
        self,
        operation_id: OperationId,
        topic: TopicName,
        subscription: str | None,
        *,
        force: bool,
        requested_by: str | None,
        trace: RequestTrace = NO_REQUEST,
    ) -> PartOperation:
        """Record the ledgers of a subscription or of the topic's schema; after any error no broker may delete it.

        Nothing is persisted yet: without `persist`, records of ledgers that stay end like any others. Returns the
        operation with its marked nodes, which are none where there is nothing to delete.
        """
        planned = self._planned(operation_id, topic, None, force=force, requested_by=requested_by, trace=trace)
        return self.recorder.record_part(PartOperation(subscription=subscription, **asdict(planned)))

    def _planned(
        self,
        operation_id: OperationId,
        topic: TopicName,
        partitions: int | None,
        *,
        force: bool,
        requested_by: str | None,
        trace: RequestTrace,
    ) -> Operation:
        now_ms = self.store.now_ms()
        return Operation(
            operation_id=operation_id,
            topic_name=str(topic),
            partitions=partitions,
            force=force,
            requested_by=requested_by,
            requested_ms=now_ms,
            incarnations={},
            recorded=(),
            attempts=0,
            last_reason=None,
            not_before_ms=now_ms + HEAD_START_MS,
            request_id=trace.request_id,
            trace_parent=trace.parent,
        )

    def persist(self, operation: Operation, nodes: Nodes | None = None) -> HeldOperation:
        """Create the operation's node, held by this sidecar; ``nodes`` were read right before."""
        version = self.operations.create_held(operation.operation_id, encode_operation(operation))
        return HeldOperation(operation, version, nodes)

    def attempt(self, held: HeldOperation) -> Attempt:
        """Record referenced ledgers, send one request to the broker, and read the remainder.

        After any error another sidecar may take over the operation.
        """
        try:
            return self._attempt(held)
        except BaseException:
            self.operations.forget(held.operation.operation_id)
            raise

    def _attempt(self, held: HeldOperation) -> Attempt:
        trying = _AttemptState(held, held.seen)
        try:
            left = self._delete(trying)
        except OperationEndedError:
            return self._ended_elsewhere(trying.held)
        except DataLossError as error:
            return self._refused(trying.held, error)
        except UndecodableError as error:
            return self._postpone(trying.held, str(error), lasting=True)
        except (TemporaryError, OutcomeUnknownError, ConflictError) as error:
            return self._postpone(trying.held, str(error))
        except PermanentError as error:
            return self._refused(trying.held, error)
        if left:
            return self._postpone(trying.held, f"{left[0]} still exists")
        return self._done(trying)

    def _delete(self, trying: _AttemptState) -> list[str]:
        if trying.seen is None:
            trying.seen = self.recorder.read_nodes(trying.held.operation)
            require_held(trying.held, trying.seen)
        left = self._delete_marked(trying)
        for _ in range(_MOST_RECREATIONS):
            operation = trying.held.operation
            again = {} if left else recreated_partitions(operation, trying.nodes)
            if not again:
                break
            trying.held = trying.held.with_state(replace(operation, incarnations={**operation.incarnations, **again}))
            try:
                left = self._delete_marked(trying)
            except (BrokerRefusedError, DataLossError) as error:
                trying.recreated_stay = str(error)
                return []
        else:
            trying.recreated_stay = "; ".join(recreated_partitions(trying.held.operation, trying.nodes)) or None
        return left

    def _delete_marked(self, trying: _AttemptState) -> list[str]:
        if not self._is_over(trying.held.operation, trying.nodes):
            if trying.held.operation.attempts:
                # A broker that failed may have left pointers to missing ledgers of buckets.
                restored = restore_buckets(self.recorder, trying.held.operation, trying.nodes)
                trying.held = trying.held.with_state(restored)
            self._record(trying)
        # An earlier request may have finished while records were sent.
        if not self._is_over(trying.held.operation, trying.nodes):
            operation = replace(trying.held.operation, attempts=trying.held.operation.attempts + 1)
            trying.held = trying.held.with_state(operation)
            with self.steps.taking(Step.BROKER_ASKED):
                delete_marked(self.store, self.admin, operation, trying.nodes)
            trying.seen = self.recorder.read_nodes(operation)
        return remaining_of(trying.nodes, trying.held.operation.incarnations)

    def _record(self, trying: _AttemptState) -> None:
        held = trying.held.with_state(trying.held.operation)
        if held.operation.part is not None:
            # Before it deletes a part of a topic, the broker runs its own checks.
            trying.held, trying.seen = self.recorder.record(held, trying.nodes, lambda _: None)
            return
        # Recording loads the topic, and merely loading a shadow may destroy its source's data.
        refuse_shadow(trying.nodes, held.operation)
        refuse_clients(self.admin, self.recorder.owners, held.operation)
        trying.held, trying.seen = self.recorder.record(held, trying.nodes, self._check_once_more)
        refuse_shadow(trying.nodes, trying.held.operation)

    def _check_once_more(self, operation: Operation) -> None:
        refuse_data_loss(self.shadows, operation)
        if operation.partitioned:
            # A broker deletes the other partitions before it refuses one.
            refuse_clients(self.admin, self.recorder.owners, operation)

    def _done(self, trying: _AttemptState) -> Attempt:
        operation = trying.held.operation
        # Before the operation ends, so that a sidecar that continues after a crash repeats it.
        schema = None
        if not operation.part:
            schema = remove_leftovers(self.store, self.recorder.root, self.steps, operation.topic, trying.nodes)
        by_others = None if operation.attempts or operation.part else _deleted_by_others(operation)
        again = None if trying.recreated_stay is None else _recreated_partitions_stay(operation, trying.recreated_stay)
        self.operations.end(operation.operation_id)
        replicated = _created_again_by_replicators(trying.held) if operation.part is None else None
        left_behind = "; ".join(each for each in (by_others, again, schema, replicated) if each is not None)
        return Attempt(trying.held, OperationState.DONE, left_behind=left_behind or None)

    def _refused(self, held: HeldOperation, refusal: PermanentError) -> Attempt:
        self.operations.end(held.operation.operation_id)
        return Attempt(held, OperationState.REFUSED, refusal)

    def running(self) -> list[TopicDeletionStatus]:
        """Return the deletions that have not ended, including those that this version cannot decode."""
        return running(self.store, self.recorder.root, self._known)

    # --- taking over ------------------------------------------------------------------------------------------------

    def take_due(self) -> HeldOperation | None:
        """Take over one deletion that no sidecar drives and whose next attempt is due; None without one."""
        now_ms = self.store.now_ms()

        def due(node: Node) -> HeldOperation | None:
            known = self._known.get(known_as(node))
            if known is not None and (known.next_attempt_ms or 0) > now_ms:
                return None
            operation = operation_in(node)
            if operation is None or operation.not_before_ms > now_ms:
                return None
            return HeldOperation(operation, node.version)

        while (held := self.operations.take_due(due)) is not None:
            if held.operation.incarnations:
                return held
            # Nothing was marked and no caller waits for the broker's response: a topic with that name now is a new one.
            self.operations.end(held.operation.operation_id)
        return None

    # --- around the broker's deletion --------------------------------------------------------------------------------

    @staticmethod
    def _is_over(operation: Operation, nodes: Nodes) -> bool:
        # Another request could hit a topic that was recreated under the same name.
        if not operation.incarnations:
            return operation.attempts > 0
        return not remaining_of(nodes, operation.incarnations)

    def _postpone(self, held: HeldOperation, reason: str, *, lasting: bool = False) -> Attempt:
        """Store the reason and time of the next attempt, if possible; the holder of the newest version decides."""
        try:
            node = self.store.read(operation_path(held.operation.operation_id))
            if node is None:
                return self._ended_elsewhere(held)
            # Another version is another sidecar's write, or our own whose response was lost.
            current = held.operation if node.version == held.version else decode_operation(node.data)
            later = after_failure(current, reason, self.store.now_ms(), lasting=lasting)
            with self.steps.taking(Step.ATTEMPT_PUT_OFF):
                held = write_operation(self.store, later, node.version)
        except (TemporaryError, OutcomeUnknownError, ConflictError):
            return Attempt(held.with_state(replace(held.operation, last_reason=reason)), OperationState.RUNNING)
        return Attempt(held, OperationState.RUNNING, lasting=lasting)

    def _ended_elsewhere(self, held: HeldOperation) -> Attempt:
        self.operations.forget(held.operation.operation_id)
        if not remaining_nodes(self.store, held.operation.incarnations):
            return Attempt(held, OperationState.DONE)
        ended = (
            f"the deletion {held.operation.operation_id} ended before its topic was gone: an operator abandoned it, or "
            "another sidecar took it over and its broker refused it"
        )
        return Attempt(held, OperationState.REFUSED, EndedElsewhereError(ended))


def _deleted_by_others(operation: Operation) -> str:
    return (
        f"{operation.topic} was gone before this sidecar asked a broker to delete it, and it knows of "
        f"{format_count(len(operation.recorded), 'recorded ledger')}: a broker's clean-up of inactive topics, another "
        "caller or a sidecar that has died deleted it; an audit finds ledgers that were left"
    )


def _created_again_by_replicators(held: HeldOperation) -> str | None:
    if not held.replicated_with:
        return None
    topic, clusters = held.operation.topic, ", ".join(sorted(held.replicated_with))
    return (
        f"{topic} was replicated with {clusters}: replicators there that still send to this cluster recreate it, even "
        "after a deletion on both sides; end its replication on each side (pulsar-admin topics "
        f"set-replication-clusters -c OWN_CLUSTER {topic}), then delete it on each side"
    )


def _recreated_partitions_stay(operation: Operation, why: str) -> str:
    return (
        f"clients recreated partitions of {operation.topic} ({why}): close them, and delete the partitions with "
        f"pulsar-sidecar topics delete --partitioned {operation.topic}"
    )
