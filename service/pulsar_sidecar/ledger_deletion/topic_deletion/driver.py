"""Two-phase topic deletion: record every referenced ledger, then have the broker delete the topic, until it is done.

The operation's node is the promise: while it exists a sidecar continues the deletion, and consumers hold records of
ledgers that are still referenced. It ends in one of two ways only: the marked incarnations are gone from the metadata
store, or a broker refused.
"""

from msgspec.structs import replace

from pulsar_sidecar.ledger_deletion.deletion_node import incarnations, marked_node, remaining_nodes
from pulsar_sidecar.ledger_deletion.ports import TopicAdmin
from pulsar_sidecar.ledger_deletion.service import OperationState, TopicDeletionStatus
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.ledger_deletion.topic_deletion.broker_deletion import BrokerDeletion
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import (
    OPERATIONS,
    HeldOperation,
    Operation,
    OperationEndedError,
    decode_operation,
    driver_path,
    encode_operation,
    operation_path,
    write_operation,
)
from pulsar_sidecar.ledger_deletion.topic_deletion.recorder import Recorder
from pulsar_sidecar.ledger_deletion.topic_deletion.shadow_protection import ShadowProtection
from pulsar_sidecar.ledger_ownership.paths import partitioned_topic_path
from pulsar_sidecar.ledger_ownership.shadows import partition_count
from pulsar_sidecar.model.errors import (
    AlreadyExistsError,
    ConflictError,
    DataLossError,
    NotFoundError,
    OutcomeUnknownError,
    PermanentError,
    TemporaryError,
    UndecodableError,
)
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.metadata import DeletionResult, MetadataStore, Node
from pulsar_sidecar.model.names import TopicName

_FIRST_BACKOFF_MS = 1_000
_LONGEST_BACKOFF_MS = 60_000
_MOST_DOUBLINGS = 6
_HEAD_START_MS = 10_000
"""For this long a new operation is left to the sidecar that began it."""
_END_TRIES = 3


class TopicDeleter:
    """Begins, drives and ends topic deletions."""

    def __init__(
        self,
        sidecar: str,
        store: MetadataStore,
        recorder: Recorder,
        admin: TopicAdmin,
        steps: Steps,
    ) -> None:
        self._sidecar = sidecar
        self._store = store
        self._recorder = recorder
        self._broker = BrokerDeletion(store, admin)
        self._shadows = ShadowProtection(store, admin)
        self._steps = steps
        self._driving: set[OperationId] = set()

    def begin(
        self,
        operation_id: OperationId,
        topic: TopicName,
        *,
        partitioned: bool,
        force: bool,
        requested_by: str | None,
        source_data_loss_confirmed: bool = False,
    ) -> HeldOperation:
        """Make the promise: create the operation's node, held by this sidecar.

        Raises:
            NotFoundError: there is no such partitioned topic.
            DataLossError: the topic is a shadow, or the source of one and the caller did not confirm the loss.
        """
        partitions = self._partitions(topic) if partitioned else None
        now_ms = self._store.now_ms()
        planned = Operation(
            operation_id=operation_id,
            topic_name=str(topic),
            partitions=partitions,
            force=force,
            requested_by=requested_by,
            requested_ms=now_ms,
            incarnations={},
            recorded=(),
            generation=0,
            attempts=0,
            last_reason=None,
            not_before_ms=now_ms + _HEAD_START_MS,
            source_data_loss_confirmed=source_data_loss_confirmed,
        )
        reason = self._reason_to_wait(planned)
        operation = replace(planned, last_reason=reason, incarnations=incarnations(self._store, planned.node_paths))
        with self._steps.taking(Step.OPERATION_CREATED):
            node = self._store.create(operation_path(operation_id), encode_operation(operation))
        if self._take_over(node) is None:
            raise TemporaryError(f"another sidecar has taken over the topic deletion {operation_id}")
        self._driving.add(operation_id)
        return HeldOperation(operation, node.version)

    def _reason_to_wait(self, planned: Operation) -> str | None:
        """Why brokers cannot be asked now. The promise is made all the same: each attempt looks again and waits."""
        try:
            self._shadows.check(planned)
        except UndecodableError:
            raise
        except (TemporaryError, OutcomeUnknownError) as error:
            return str(error)
        return None

    def attempt(self, held: HeldOperation) -> tuple[HeldOperation, OperationState]:
        """Record what is referenced, ask the broker once, look at what is left.

        Answers DONE (and the node is gone) or RUNNING. Raises `BrokerRefusedError`, `NotFoundError` or another
        permanent error when the broker refused: then the operation has ended too. After any error another
        sidecar may take it over.
        """
        try:
            return self._attempt(held)
        except BaseException:
            self._driving.discard(held.operation.operation_id)
            raise

    def _attempt(self, held: HeldOperation) -> tuple[HeldOperation, OperationState]:
        try:
            if self._ended_already(held.operation):
                return self._done(held)
            held = self._with_new_partitions(held)
            # Recording loads the topic, and a shadow may destroy its source's data merely by being loaded.
            self._shadows.refuse_shadow(held.operation)
            held = self._count_attempt(self._recorder.record(held))
            self._shadows.check(held.operation)
            # After the look for shadows, which may take long: until then an earlier request may have done its work.
            if self._all_nodes_gone(held.operation):
                return self._done(held)
            with self._steps.taking(Step.BROKER_ASKED):
                self._broker.delete(held.operation)
            remaining = remaining_nodes(self._store, held.operation.incarnations)
        except OperationEndedError:
            return self._ended_elsewhere(held)
        except DataLossError:
            self.end(held.operation)
            raise
        except (TemporaryError, OutcomeUnknownError, ConflictError) as error:
            return self._postpone(held, str(error)), OperationState.RUNNING
        except PermanentError:
            self.end(held.operation)
            raise
        if remaining:
            return self._postpone(held, f"{remaining[0]} is still there"), OperationState.RUNNING
        return self._done(held)

    def _done(self, held: HeldOperation) -> tuple[HeldOperation, OperationState]:
        self.end(held.operation)
        return held, OperationState.DONE

    def _ended_elsewhere(self, held: HeldOperation) -> tuple[HeldOperation, OperationState]:
        self._driving.discard(held.operation.operation_id)
        if remaining_nodes(self._store, held.operation.incarnations):
            raise ConflictError("another sidecar took this topic deletion over, and its broker refused it")
        return held, OperationState.DONE

    def end(self, operation: Operation) -> None:
        """Withdraw the promise: from now on "in use" becomes final for its records.

        Raises:
            TemporaryError: the node could not be removed, so the operation continues.
        """
        for _ in range(_END_TRIES):
            self._delete_driver_node(operation.operation_id)
            with self._steps.taking(Step.OPERATION_ENDED):
                result = self._store.delete(operation_path(operation.operation_id))
            if result in (DeletionResult.DELETED, DeletionResult.GONE):
                self._driving.discard(operation.operation_id)
                return
        raise TemporaryError(
            f"the end of the topic deletion {operation.operation_id} could not be stored; it continues by itself"
        )

    def release(self, operation: Operation) -> None:
        """Let any sidecar continue it."""
        self._driving.discard(operation.operation_id)
        self._delete_driver_node(operation.operation_id)

    def _delete_driver_node(self, operation_id: OperationId) -> None:
        with self._steps.taking(Step.OPERATION_RELEASED):
            self._store.delete(driver_path(operation_id))

    def take_due(self) -> HeldOperation | None:
        """Take over one deletion that nobody works on and whose next attempt is due; None when there is none."""
        now_ms = self._store.now_ms()
        for operation_id in self._store.children(OPERATIONS) or []:
            held = self._take(OperationId(operation_id), now_ms)
            if held is not None:
                return held
        return None

    def running(self) -> list[TopicDeletionStatus]:
        """The deletions that have not ended, as far as this version can read them."""
        names = self._store.children(OPERATIONS) or []
        nodes = self._store.read_many([operation_path(OperationId(name)) for name in names])
        operations = [_decoded(node.data) for node in nodes if node is not None]
        return [
            operation.status(OperationState.RUNNING, operation.last_reason)
            for operation in operations
            if operation is not None
        ]

    # --- taking over ------------------------------------------------------------------------------------------------

    def _take(self, operation_id: OperationId, now_ms: int) -> HeldOperation | None:
        node = self._store.read(operation_path(operation_id))
        if node is None:
            return None
        if not node.data:
            with self._steps.taking(Step.OPERATION_ENDED):
                self._store.delete(operation_path(operation_id), node.version)
            return None
        operation = _decoded(node.data)
        current = self._take_over(node) if operation is not None and operation.not_before_ms <= now_ms else None
        if current is None:
            return None
        held = HeldOperation(decode_operation(current.data), current.version)
        if not held.operation.incarnations:
            # Nothing was marked and nobody waits for the broker's answer: a topic of that name now is another one.
            self.end(held.operation)
            return None
        self._driving.add(operation_id)
        return held

    def _take_over(self, node: Node) -> Node | None:
        """Become its driver; its node as it is then, or None where another sidecar drives it or has ended it."""
        operation_id = OperationId(node.path.rpartition("/")[2])
        if not self._became_driver(operation_id):
            return None
        current = self._store.read(node.path)
        if current is None or current.created_order != node.created_order:
            self._remove_recreated_nodes(operation_id)
            return None
        return current

    def _became_driver(self, operation_id: OperationId) -> bool:
        """Whether nobody drove it; then this sidecar does."""
        path = driver_path(operation_id)
        driver = self._store.read(path)
        if driver is not None:
            if driver.data != self._sidecar.encode() or operation_id in self._driving:
                return False
            # This sidecar's own, but nobody drives: an answer was lost, or an earlier process of that name died.
            self._delete_driver_node(operation_id)
        try:
            with self._steps.taking(Step.OPERATION_HELD):
                self._store.create(path, self._sidecar.encode(), ephemeral=True)
        except AlreadyExistsError:
            return False
        return True

    def _remove_recreated_nodes(self, operation_id: OperationId) -> None:
        # Creating the driver's node re-created a parent that had just ended.
        self._delete_driver_node(operation_id)
        with self._steps.taking(Step.OPERATION_ENDED):
            self._store.delete(operation_path(operation_id))

    # --- asking the broker ------------------------------------------------------------------------------------------

    def _count_attempt(self, held: HeldOperation) -> HeldOperation:
        operation = replace(held.operation, attempts=held.operation.attempts + 1)
        with self._steps.taking(Step.ATTEMPT_COUNTED):
            return write_operation(self._store, operation, held.version)

    def _ended_already(self, operation: Operation) -> bool:
        # Asking again could hit a topic that was created again under the same name.
        return self._all_nodes_gone(operation) or (not operation.incarnations and operation.attempts > 0)

    def _all_nodes_gone(self, operation: Operation) -> bool:
        return bool(operation.incarnations) and not remaining_nodes(self._store, operation.incarnations)

    def _with_new_partitions(self, held: HeldOperation) -> HeldOperation:
        """Mark partitions that came into being since: they belong to the same partitioned topic while its node stays.

        The node is read before and after, so that partitions of a topic that was created again are never taken along.
        """
        operation = held.operation
        path = partitioned_topic_path(operation.topic)
        node = marked_node(self._store, operation.incarnations, path) if operation.partitioned else None
        if node is None:
            return held
        grown = replace(operation, partitions=max(operation.partitions or 0, partition_count(node.data)))
        found = incarnations(self._store, grown.node_paths)
        if found.get(path) != node.created_order or marked_node(self._store, operation.incarnations, path) is None:
            return held
        return HeldOperation(replace(grown, incarnations={**operation.incarnations, **found}), held.version)

    def _postpone(self, held: HeldOperation, reason: str) -> HeldOperation:
        """Store why the deletion continues and when, if that is possible; the holder of the newest version decides."""
        path = operation_path(held.operation.operation_id)
        try:
            node = self._store.read(path)
            if node is None:
                return held
            current = decode_operation(node.data)
            backoff_ms = min(_FIRST_BACKOFF_MS * 2 ** min(current.attempts, _MOST_DOUBLINGS), _LONGEST_BACKOFF_MS)
            later = replace(current, last_reason=reason, not_before_ms=self._store.now_ms() + backoff_ms)
            with self._steps.taking(Step.ATTEMPT_PUT_OFF):
                return write_operation(self._store, later, node.version)
        except (TemporaryError, OutcomeUnknownError, ConflictError):
            return held

    def _partitions(self, topic: TopicName) -> int:
        node = self._store.read(partitioned_topic_path(topic))
        if node is None:
            raise NotFoundError("Partitioned Topic Metadata not found")
        return partition_count(node.data)


def _decoded(data: bytes) -> Operation | None:
    try:
        return decode_operation(data)
    except UndecodableError:
        return None
