"""Two-phase topic deletion: record every referenced ledger, then have the broker delete the topic, until it is done.

The operation's node is the promise: while it exists some sidecar goes on, and consumers hold records of ledgers that
are still referenced. It ends in one of two ways only: the marked incarnations are gone from the metadata store, or a
broker refused.
"""

import json
from dataclasses import replace

from service.ledger_deletion.operating import OperationState, TopicDeletionStatus
from service.ledger_deletion.operations import (
    OPERATIONS,
    Operation,
    decode_operation,
    driver_path,
    encode_operation,
    operation_path,
)
from service.ledger_deletion.ports import TopicAdmin
from service.ledger_deletion.recording import HeldOperation, Recorder
from service.ledger_deletion.steps import Step, Steps
from service.ledger_ownership.paths import partitioned_topic_path
from service.model.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    PermanentError,
    TemporaryError,
    UndecodableError,
)
from service.model.ids import OperationId
from service.model.metadata import MetadataStore
from service.model.names import TopicName

_FIRST_BACKOFF_MS = 1_000
_LONGEST_BACKOFF_MS = 60_000


class TopicDeleter:
    """Begins, drives and ends topic deletions."""

    def __init__(self, sidecar: str, store: MetadataStore, recorder: Recorder, admin: TopicAdmin, steps: Steps) -> None:
        self._sidecar = sidecar
        self._store = store
        self._recorder = recorder
        self._admin = admin
        self._steps = steps

    def begin(
        self, operation_id: OperationId, topic: TopicName, *, partitioned: bool, force: bool, requested_by: str | None
    ) -> HeldOperation:
        """Make the promise: create the operation's node, held by this sidecar.

        Raises:
            NotFoundError: there is no such partitioned topic.
        """
        partitions = self._partitions(topic) if partitioned else None
        unborn = Operation(
            operation_id=operation_id,
            topic=topic,
            partitions=partitions,
            force=force,
            requested_by=requested_by,
            requested_ms=self._store.now_ms(),
            incarnations={},
        )
        operation = replace(unborn, incarnations=self._recorder.incarnations(unborn.node_paths))
        node = self._store.create(operation_path(operation_id), encode_operation(operation))
        self._steps.reached(Step.OPERATION_CREATED)
        self._store.create(driver_path(operation_id), self._sidecar.encode(), ephemeral=True)
        return HeldOperation(operation, node.version)

    def attempt(self, held: HeldOperation) -> tuple[HeldOperation, OperationState]:
        """Record what is referenced, ask the broker once, look at what is left.

        Answers DONE (and the node is gone) or RUNNING. Raises `BrokerRefusedError`, `NotFoundError` or another
        permanent error when the broker refused: then the operation has ended too.
        """
        try:
            if held.operation.attempts and not self._left(held.operation):
                # Asking again could hit a topic that was created again under the same name.
                return self._done(held)
            held = self._about_to_ask(self._recorder.record(held))
            self._ask_broker(held.operation)
            self._steps.reached(Step.BROKER_ASKED)
            left = self._left(held.operation)
        except (TemporaryError, OutcomeUnknownError, ConflictError) as error:
            return self._left_running(held, str(error)), OperationState.RUNNING
        except PermanentError:
            self.end(held.operation)
            raise
        if left:
            return self._left_running(held, f"{left[0]} is still there"), OperationState.RUNNING
        return self._done(held)

    def _done(self, held: HeldOperation) -> tuple[HeldOperation, OperationState]:
        self.end(held.operation)
        return held, OperationState.DONE

    def end(self, operation: Operation) -> None:
        """Withdraw the promise: from now on "in use" is final for its records."""
        self._store.delete(driver_path(operation.operation_id))
        self._store.delete(operation_path(operation.operation_id))
        self._steps.reached(Step.OPERATION_ENDED)

    def release(self, operation: Operation) -> None:
        """Let any sidecar go on with it."""
        self._store.delete(driver_path(operation.operation_id))

    def take_due(self) -> HeldOperation | None:
        """Take over one deletion that nobody works on and whose next attempt is due; None when there is none."""
        now_ms = self._store.now_ms()
        for operation_id in self._store.children(OPERATIONS) or []:
            held = self._take(OperationId(operation_id), now_ms)
            if held is not None:
                return held
        return None

    def running(self) -> list[TopicDeletionStatus]:
        """The deletions that have not ended."""
        names = self._store.children(OPERATIONS) or []
        nodes = self._store.read_many([operation_path(OperationId(name)) for name in names])
        operations = [decode_operation(node.data) for node in nodes if node is not None]
        return [operation.status(OperationState.RUNNING, operation.last_reason) for operation in operations]

    def _take(self, operation_id: OperationId, now_ms: int) -> HeldOperation | None:
        node = self._store.read(operation_path(operation_id))
        if node is None:
            return None
        try:
            operation = decode_operation(node.data)
        except UndecodableError:
            return None
        if operation.not_before_ms > now_ms:
            return None
        try:
            self._store.create(driver_path(operation_id), self._sidecar.encode(), ephemeral=True)
        except AlreadyExistsError:
            return None
        current = self._store.read(operation_path(operation_id))
        if current is None or current.created_order != node.created_order:
            self._withdraw_leftover(operation_id)
            return None
        return HeldOperation(decode_operation(current.data), current.version)

    def _withdraw_leftover(self, operation_id: OperationId) -> None:
        # Creating the driver's node re-created a parent that had just ended.
        self._store.delete(driver_path(operation_id))
        self._store.delete(operation_path(operation_id))

    def _about_to_ask(self, held: HeldOperation) -> HeldOperation:
        operation = replace(held.operation, attempts=held.operation.attempts + 1)
        path = operation_path(operation.operation_id)
        return HeldOperation(operation, self._store.write(path, encode_operation(operation), held.version))

    def _ask_broker(self, operation: Operation) -> None:
        try:
            self._admin.delete_topic(operation.topic, partitioned=operation.partitioned, force=operation.force)
        except NotFoundError:
            # A topic that was there when it was marked, or was asked for before, is gone now: that is success.
            if not operation.incarnations and operation.attempts == 1:
                raise

    def _left(self, operation: Operation) -> list[str]:
        now = self._recorder.incarnations(operation.node_paths)
        return [path for path, order in operation.incarnations.items() if now.get(path) == order]

    def _left_running(self, held: HeldOperation, reason: str) -> HeldOperation:
        """Note why it goes on and when; whoever holds the newest version of the node decides."""
        path = operation_path(held.operation.operation_id)
        node = self._store.read(path)
        if node is None:
            return held
        current = decode_operation(node.data)
        backoff_ms = min(_FIRST_BACKOFF_MS * 2**current.attempts, _LONGEST_BACKOFF_MS)
        later = replace(current, last_reason=reason, not_before_ms=self._store.now_ms() + backoff_ms)
        try:
            return HeldOperation(later, self._store.write(path, encode_operation(later), node.version))
        except ConflictError:
            return HeldOperation(current, node.version)

    def _partitions(self, topic: TopicName) -> int:
        node = self._store.read(partitioned_topic_path(topic))
        if node is None:
            raise NotFoundError("Partitioned Topic Metadata not found")
        return partition_count(node.data)


def partition_count(data: bytes) -> int:
    """The number of partitions in a partitioned topic's node.

    Raises:
        UndecodableError: the node is not what Pulsar 4.0 writes.
    """
    try:
        partitions = json.loads(data)["partitions"]
    except (ValueError, KeyError, TypeError) as error:
        raise UndecodableError("a partitioned topic's node cannot be read") from error
    if not isinstance(partitions, int) or partitions < 0:
        raise UndecodableError(f"a partitioned topic has {partitions!r} partitions")
    return partitions
