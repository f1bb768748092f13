"""Two-phase topic deletion: record every referenced ledger, then have the broker delete the topic, until it is done.

The operation's node is the promise: while it exists a sidecar continues the deletion, and consumers hold records of
ledgers that are still referenced. It ends in one of two ways only: the marked incarnations are gone from the metadata
store, or a broker refused.

Deletions that would destroy data which two topics are made of are refused (`shadow_refusals`), at the beginning and
right before each request to a broker. A look-up that failed is never taken for an absence: it raises `TemporaryError`.
"""

from dataclasses import dataclass, field

from msgspec.structs import asdict, replace

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.ledger_deletion.ports import TopicAdmin
from pulsar_sidecar.ledger_deletion.service import OperationState, TopicDeletionStatus
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.ledger_deletion.topic_deletion.asking import delete_marked, made_again
from pulsar_sidecar.ledger_deletion.topic_deletion.dangling_buckets import put_back_buckets
from pulsar_sidecar.ledger_deletion.topic_deletion.following import after_failure, operation_in, running
from pulsar_sidecar.ledger_deletion.topic_deletion.leftover_nodes import LeftoverNodes
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import (
    OPERATIONS,
    HeldOperation,
    Nodes,
    Operation,
    OperationEndedError,
    PartOperation,
    decode_operation,
    driver_path,
    encode_operation,
    incarnations_of,
    operation_path,
    remaining_nodes,
    remaining_of,
    require_held,
    write_operation,
)
from pulsar_sidecar.ledger_deletion.topic_deletion.parts import record_part
from pulsar_sidecar.ledger_deletion.topic_deletion.recorder import Recorder
from pulsar_sidecar.ledger_deletion.topic_deletion.shadow_refusals import Shadows, refuse_data_loss, refuse_shadow
from pulsar_sidecar.ledger_deletion.topic_deletion.topic_refusals import TopicRefusals, require_kind, stored_partitions
from pulsar_sidecar.model.errors import (
    AlreadyExistsError,
    BrokerRefusedError,
    ConflictError,
    DataLossError,
    OutcomeUnknownError,
    PermanentError,
    TemporaryError,
    UndecodableError,
)
from pulsar_sidecar.model.ids import NodeVersion, OperationId
from pulsar_sidecar.model.metadata import DeletionResult, MetadataStore, NewNode, Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.request_traces import NO_REQUEST, RequestTrace

_HEAD_START_MS = 10_000
"""For this long a new operation is left to the sidecar that began it."""
_END_TRIES = 3
_MADE_AGAIN_ROUNDS = 3
"""Clients that reconnect may make a partition again each time, until they are closed."""
_FIRST_VERSION = NodeVersion(0)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt came to.

    Attributes:
        held: the operation with what this attempt recorded and counted.
        state: if it is not RUNNING, the operation's node is gone.
        refusal: why the operation was REFUSED.
        left_behind: what brokers left, or may have left, of a topic whose deletion is DONE, and how to remove it.
        lasting: it failed for a reason that does not pass by itself, so a caller need not wait for the next attempt.
    """

    held: HeldOperation
    state: OperationState
    refusal: PermanentError | None = None
    left_behind: str | None = None
    lasting: bool = False


@dataclass(slots=True)
class _Trying:
    """What one attempt knows so far, whichever error ends it.

    Attributes:
        seen: the nodes of the last look.
        left_again: why partitions stay that clients made again.
    """

    held: HeldOperation
    seen: Nodes | None
    left_again: str | None = None

    @property
    def nodes(self) -> Nodes:
        return self.seen or {}


class EndedElsewhereError(ConflictError):
    """The deletion ended without its driver; the sidecar that ended it has kept the note of the end."""


@dataclass(frozen=True, slots=True)
class TopicDeleter:
    """Begins, drives and ends topic deletions."""

    sidecar: str
    store: MetadataStore
    recorder: Recorder
    admin: TopicAdmin
    shadows: Shadows
    steps: Steps
    _driving: set[OperationId] = field(default_factory=set)

    @property
    def refusals(self) -> TopicRefusals:
        return TopicRefusals(self.admin, self.recorder.owners)

    @property
    def leftovers(self) -> LeftoverNodes:
        return LeftoverNodes(self.store, self.recorder.root, self.steps)

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
        """Make the promise: create the operation's node, held by this sidecar.

        Raises:
            NotFoundError: there is no such partitioned topic.
            RefusedBeforehandError: it has partitions and is to be deleted without, or the other way round.
            DataLossError: the topic is a shadow, or the source of one and the caller did not confirm the loss.
        """
        partitions = stored_partitions(self.store, topic) if partitioned else None
        planned = replace(
            self._planned(operation_id, topic, partitions, force=force, requested_by=requested_by, trace=trace),
            source_data_loss_confirmed=source_data_loss_confirmed,
        )
        nodes = self.recorder.look(planned)
        require_kind(planned, nodes)
        refuse_shadow(nodes, planned)
        reason = None
        try:
            refuse_data_loss(self.shadows, planned)
        except UndecodableError:
            raise
        except (TemporaryError, OutcomeUnknownError) as error:
            # Its shadows are not known now. The promise is made all the same: each attempt looks again and waits.
            reason = str(error)
        marked = incarnations_of({path: nodes[path] for path in planned.node_paths})
        return self.promise(replace(planned, last_reason=reason, incarnations=marked), nodes)

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
        """Record what a subscription, or the topic's schema, references, before a broker is asked to delete it.

        Nothing is promised yet: without `promise`, records of what stays end as any that nobody waits for. Answers the
        operation with what it marked, which is nothing where there is nothing to delete.

        Raises:
            TemporaryError: something could not be read or sent; no broker must be asked.
        """
        planned = self._planned(operation_id, topic, None, force=force, requested_by=requested_by, trace=trace)
        return record_part(self.recorder, PartOperation(subscription=subscription, **asdict(planned)))

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
            not_before_ms=now_ms + _HEAD_START_MS,
            request_id=trace.request_id,
            trace_parent=trace.parent,
        )

    def promise(self, operation: Operation, nodes: Nodes | None = None) -> HeldOperation:
        """Create the operation's node, held by this sidecar; ``nodes`` were read right before."""
        with self.steps.taking(Step.OPERATION_CREATED):
            self.store.create_together(
                [
                    NewNode(operation_path(operation.operation_id), encode_operation(operation)),
                    NewNode(driver_path(operation.operation_id), self.sidecar.encode(), ephemeral=True),
                ]
            )
        self._driving.add(operation.operation_id)
        return HeldOperation(operation, _FIRST_VERSION, nodes)

    def attempt(self, held: HeldOperation) -> Attempt:
        """Record what is referenced, ask the broker once, look at what is left.

        After any error another sidecar may take it over.
        """
        try:
            return self._attempt(held)
        except BaseException:
            self._driving.discard(held.operation.operation_id)
            raise

    def _attempt(self, held: HeldOperation) -> Attempt:
        trying = _Trying(held, held.seen)
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

    def _delete(self, trying: "_Trying") -> list[str]:
        """Have brokers delete the marked nodes and what clients make again of them; those of them that are left."""
        if trying.seen is None:
            trying.seen = self.recorder.look(trying.held.operation)
            require_held(trying.held, trying.seen)
        left = self._delete_marked(trying)
        for _ in range(_MADE_AGAIN_ROUNDS):
            operation = trying.held.operation
            again = {} if left else made_again(operation, trying.nodes)
            if not again:
                break
            trying.held = trying.held.knowing(replace(operation, incarnations={**operation.incarnations, **again}))
            try:
                left = self._delete_marked(trying)
            except (BrokerRefusedError, DataLossError) as error:
                trying.left_again = str(error)
                return []
        else:
            trying.left_again = "; ".join(made_again(trying.held.operation, trying.nodes)) or None
        return left

    def _delete_marked(self, trying: "_Trying") -> list[str]:
        """Record what the marked nodes reference and ask a broker once; those of them that are left."""
        if not self._is_over(trying.held.operation, trying.nodes):
            if trying.held.operation.attempts:
                self._put_back_buckets(trying)
            self._record(trying)
        # While records were sent an earlier request may have done its work.
        if not self._is_over(trying.held.operation, trying.nodes):
            operation = replace(trying.held.operation, attempts=trying.held.operation.attempts + 1)
            trying.held = trying.held.knowing(operation)
            with self.steps.taking(Step.BROKER_ASKED):
                delete_marked(self.store, self.admin, operation, trying.nodes)
            trying.seen = self.recorder.look(operation)
        return remaining_of(trying.nodes, trying.held.operation.incarnations)

    def _put_back_buckets(self, trying: "_Trying") -> None:
        """After a broker failed: it, or one that died before, may have left pointers to nothing."""
        operation = put_back_buckets(self.recorder, trying.held.operation, trying.nodes)
        trying.held = trying.held.knowing(operation)

    def _record(self, trying: "_Trying") -> None:
        held = trying.held.knowing(trying.held.operation)
        if held.operation.part is not None:
            trying.held, trying.seen = self.recorder.record(held, trying.nodes, _nothing_more)
            return
        # Recording loads the topic, and a shadow may destroy its source's data merely by being loaded.
        refuse_shadow(trying.nodes, held.operation)
        self.refusals.check(held.operation)
        trying.held, trying.seen = self.recorder.record(held, trying.nodes, self._check_once_more)
        refuse_shadow(trying.nodes, trying.held.operation)

    def _check_once_more(self, operation: Operation) -> None:
        refuse_data_loss(self.shadows, operation)
        if operation.partitioned:
            # A broker deletes the other partitions before it refuses one.
            self.refusals.check(operation)

    def _done(self, trying: "_Trying") -> Attempt:
        operation = trying.held.operation
        # Before the promise ends, so that a sidecar that continues after a crash does it again.
        schema = None if operation.part else self.leftovers.remove(operation.topic, trying.nodes)
        unasked = None if operation.attempts or operation.part else _unasked(operation)
        again = None if trying.left_again is None else _left_again(operation, trying.left_again)
        self.end(operation)
        left_behind = "; ".join(each for each in (unasked, again, schema) if each is not None)
        return Attempt(trying.held, OperationState.DONE, left_behind=left_behind or None)

    def _refused(self, held: HeldOperation, refusal: PermanentError) -> Attempt:
        self.end(held.operation)
        return Attempt(held, OperationState.REFUSED, refusal)

    def end(self, operation: Operation) -> None:
        """Withdraw the promise: from now on "in use" becomes final for its records.

        Raises:
            TemporaryError: the node could not be removed, so the operation continues.
        """
        self._withdraw(operation.operation_id)

    def abandon(self, operation_id: OperationId) -> Node | None:
        """End one, whichever sidecar drives it, readable or not; its last node, or None if it had ended already.

        A driver notices at its next look; a request that a broker has by then is not called back.

        Raises:
            TemporaryError: the node could not be removed, so the operation continues.
        """
        node = self.store.read(operation_path(operation_id))
        return node if node is not None and self._withdraw(operation_id) and node.data else None

    def _withdraw(self, operation_id: OperationId) -> bool:
        """Remove its nodes; False if another sidecar had removed them."""
        may_have_removed = False
        try:
            with self.steps.taking(Step.OPERATION_ENDED):
                self.store.delete_together([driver_path(operation_id), operation_path(operation_id)])
        except OutcomeUnknownError:
            may_have_removed = True
        except ConflictError:
            pass
        else:
            self._driving.discard(operation_id)
            return True
        for _ in range(_END_TRIES):
            result = self._delete_nodes(operation_id)
            if result in (DeletionResult.DELETED, DeletionResult.GONE):
                self._driving.discard(operation_id)
                # Gone after a lost answer: it was this call, as far as one can know.
                return result is DeletionResult.DELETED or may_have_removed
            may_have_removed = True
        raise TemporaryError(
            f"the end of the topic deletion {operation_id} could not be stored; a sidecar continues it"
        )

    def release(self, operation: Operation) -> None:
        """Let any sidecar continue it."""
        self._driving.discard(operation.operation_id)
        self._delete_driver_node(operation.operation_id)

    def _delete_driver_node(self, operation_id: OperationId) -> None:
        with self.steps.taking(Step.OPERATION_RELEASED):
            self.store.delete(driver_path(operation_id))

    def _delete_nodes(self, operation_id: OperationId) -> DeletionResult:
        self._delete_driver_node(operation_id)
        with self.steps.taking(Step.OPERATION_ENDED):
            return self.store.delete(operation_path(operation_id))

    def running(self) -> list[TopicDeletionStatus]:
        """The deletions that have not ended, those included that this version cannot read."""
        return running(self.store, self.recorder.root)

    # --- taking over ------------------------------------------------------------------------------------------------

    def take_due(self) -> HeldOperation | None:
        """Take over one deletion that no sidecar drives and whose next attempt is due; None when there is none."""
        now_ms = self.store.now_ms()
        for operation_id in self.store.children(OPERATIONS) or []:
            held = self._take(OperationId(operation_id), now_ms)
            if held is not None:
                return held
        return None

    def _take(self, operation_id: OperationId, now_ms: int) -> HeldOperation | None:
        node = self.store.read(operation_path(operation_id))
        if node is None:
            return None
        if not node.data:
            with self.steps.taking(Step.OPERATION_ENDED):
                self.store.delete(operation_path(operation_id), node.version)
            return None
        operation = operation_in(node)
        is_due = operation is not None and operation.not_before_ms <= now_ms
        current = self._take_over(operation_id, node) if is_due else None
        if current is None:
            return None
        held = HeldOperation(decode_operation(current.data), current.version)
        if not held.operation.incarnations:
            # Nothing was marked and no caller waits for the broker's answer: a topic of that name now is another one.
            self.end(held.operation)
            return None
        self._driving.add(operation_id)
        return held

    def _take_over(self, operation_id: OperationId, node: Node) -> Node | None:
        """Become its driver; its node as it is then, or None where another sidecar drives it or has ended it."""
        if not self._became_driver(operation_id):
            return None
        current = self.store.read(node.path)
        if current is None or current.created_order != node.created_order:
            # Creating the driver's node re-created a parent that had just ended.
            self._delete_nodes(operation_id)
            return None
        return current

    def _became_driver(self, operation_id: OperationId) -> bool:
        """Whether no sidecar drove it; then this one does."""
        path = driver_path(operation_id)
        driver = self.store.read(path)
        if driver is not None:
            if driver.data != self.sidecar.encode() or operation_id in self._driving:
                return False
            # This sidecar's own, but not driven: an answer was lost, or an earlier process of that name died.
            self._delete_driver_node(operation_id)
        try:
            with self.steps.taking(Step.OPERATION_HELD):
                self.store.create(path, self.sidecar.encode(), ephemeral=True)
        except AlreadyExistsError:
            return False
        return True

    # --- around the broker's deletion --------------------------------------------------------------------------------

    @staticmethod
    def _is_over(operation: Operation, nodes: Nodes) -> bool:
        # Asking again could hit a topic that was created again under the same name.
        if not operation.incarnations:
            return operation.attempts > 0
        return not remaining_of(nodes, operation.incarnations)

    def _postpone(self, held: HeldOperation, reason: str, *, lasting: bool = False) -> Attempt:
        """Store why the deletion continues and when, if that is possible; the holder of the newest version decides."""
        try:
            node = self.store.read(operation_path(held.operation.operation_id))
            if node is None:
                return self._ended_elsewhere(held)
            # Another version is another sidecar's, or ours whose answer was lost.
            current = held.operation if node.version == held.version else decode_operation(node.data)
            later = after_failure(current, reason, self.store.now_ms(), lasting=lasting)
            with self.steps.taking(Step.ATTEMPT_PUT_OFF):
                held = write_operation(self.store, later, node.version)
        except (TemporaryError, OutcomeUnknownError, ConflictError):
            return Attempt(held.knowing(replace(held.operation, last_reason=reason)), OperationState.RUNNING)
        return Attempt(held, OperationState.RUNNING, lasting=lasting)

    def _ended_elsewhere(self, held: HeldOperation) -> Attempt:
        self._driving.discard(held.operation.operation_id)
        if not remaining_nodes(self.store, held.operation.incarnations):
            return Attempt(held, OperationState.DONE)
        ended = (
            f"the deletion {held.operation.operation_id} ended before its topic was gone: an operator abandoned it, or "
            "another sidecar took it over and its broker refused it"
        )
        return Attempt(held, OperationState.REFUSED, EndedElsewhereError(ended))


def _nothing_more(_: Operation) -> None:
    """What a broker looks at before it deletes a part of a topic, it looks at when it is asked."""


def _unasked(operation: Operation) -> str:
    return (
        f"{operation.topic} was gone before this sidecar asked a broker to delete it, and it knows of "
        f"{format_count(len(operation.recorded), 'recorded ledger')}: a broker's clean-up of inactive topics, another "
        "caller or a sidecar that has died deleted it; an audit finds ledgers that were left"
    )


def _left_again(operation: Operation, why: str) -> str:
    return (
        f"clients made partitions of {operation.topic} again ({why}): close them, and delete the partitions with "
        f"pulsar-sidecar topics delete --partitioned {operation.topic}"
    )
