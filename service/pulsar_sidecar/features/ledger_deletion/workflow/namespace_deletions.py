"""Deletions of namespaces on one sidecar: a call begins one or follows the running one, a loop drives it.

The loop may be another sidecar's; that makes no difference to the store, only to which sidecar knows why it ended.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from pulsar_sidecar.features.ledger_deletion.results import (
    NamespaceDeletionStatus,
    OperationState,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_operation import (
    HeldNamespaceDeletion,
    NamespaceDeletion,
    deletion_id,
    policies_node,
)
from pulsar_sidecar.features.ledger_deletion.workflow.namespace_deleter import NamespaceDeleter, Pass
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.observability.tracing import continuing, current_trace

log = structlog.get_logger("ledger-deletion")

_LOOK_SECONDS = 1.0
_FOLLOW_SECONDS = 0.2
_MOST_ENDED = 1_000


@dataclass(slots=True)
class NamespaceDeletions:
    """Namespace deletions on one sidecar.

    Attributes:
        may_work: returns True while deletions may continue.
        note_end: logs the end of one on the outcome topic.
    """

    deleter: NamespaceDeleter
    store: MetadataStore
    clock: Clock
    stop: threading.Event
    may_work: Callable[[], bool]
    note_end: Callable[[NamespaceDeletionStatus], None]
    _begun: threading.Event = field(default_factory=threading.Event)
    _ended: dict[OperationId, Pass] = field(default_factory=dict)

    def delete(self, namespace: str, *, force: bool, requested_by: str | None, wait_ms: int) -> NamespaceDeletionStatus:
        """Begin to delete the namespace, or follow the running deletion, for ``wait_ms``.

        Raises as `NamespaceDeleter.begin` does, and the refusal that ended the deletion.
        """
        give_up = self.clock.monotonic_seconds() + wait_ms / 1000
        trace = current_trace()
        deletion = self.deleter.begin(namespace, force=force, requested_by=requested_by, trace=trace)
        # An earlier, refused deletion of the same incarnation had the same id.
        self._ended.pop(deletion.operation_id, None)
        self._begun.set()
        log.info("namespace deletion requested", namespace=namespace, operation_id=deletion.operation_id)
        status = deletion.status(OperationState.RUNNING, deletion.last_reason)
        while status.state is OperationState.RUNNING and self.clock.monotonic_seconds() < give_up:
            if self.clock.wait_seconds(_FOLLOW_SECONDS, self.stop):
                break
            status = self.status(namespace, deletion.operation_id)
        if status.state is OperationState.REFUSED:
            ended = self._ended.get(deletion.operation_id)
            raise (ended.refusal if ended is not None else None) or ConflictError(status.reason or "refused")
        return status

    def status(self, namespace: str, operation_id: OperationId) -> NamespaceDeletionStatus:
        """Return the status of a deletion, running or ended.

        Raises:
            NotFoundError: the deletion is not one of this namespace.
        """
        deletion = self.deleter.find(operation_id)
        if deletion is not None and deletion.namespace == namespace:
            return deletion.status(OperationState.RUNNING, deletion.last_reason)
        ended = self._ended.get(operation_id)
        if ended is not None and ended.deletion.namespace == namespace:
            return _status_of(ended)
        policies = policies_node(self.store, namespace)
        still_there = policies is not None and deletion_id(namespace, policies.created_order) == operation_id
        return _ended_elsewhere(namespace, operation_id, done=not still_there)

    def running(self) -> list[NamespaceDeletionStatus]:
        """Return the deletions that have not ended."""
        return [each.status(OperationState.RUNNING, each.last_reason) for each in self.deleter.running()]

    def run(self) -> None:
        """Continue due deletions until the sidecar stops; several threads may run it."""
        while not self.stop.is_set():
            held = self.deleter.take_due() if self.may_work() else None
            if held is None:
                self.clock.wait_seconds(_LOOK_SECONDS, self._begun)
                self._begun.clear()
            else:
                self._drive(held)

    def close(self) -> None:
        """Wake the loops when the sidecar stops."""
        self._begun.set()

    def _drive(self, held: HeldNamespaceDeletion) -> None:
        deletion = held.deletion
        try:
            with continuing(deletion.trace, "pass through a namespace", {"pulsar.namespace": deletion.namespace}):
                tried = self.deleter.attempt(held)
                if tried.state is not OperationState.RUNNING:
                    self._record_end(tried)
        finally:
            self.deleter.operations.release(deletion.operation_id)

    def _record_end(self, tried: Pass) -> None:
        self._ended[tried.deletion.operation_id] = tried
        while len(self._ended) > _MOST_ENDED:
            self._ended.pop(next(iter(self._ended)))
        status = _status_of(tried)
        log.info(
            "namespace deletion ended",
            namespace=status.namespace,
            operation_id=status.operation_id,
            state=status.state.value,
            reason=status.reason,
        )
        self.note_end(status)


def _status_of(ended: Pass) -> NamespaceDeletionStatus:
    return ended.deletion.status(ended.state, None if ended.refusal is None else str(ended.refusal))


def _ended_elsewhere(namespace: str, operation_id: OperationId, *, done: bool) -> NamespaceDeletionStatus:
    deletion = NamespaceDeletion(
        operation_id=operation_id,
        namespace=namespace,
        policies_path="",
        created_order=0,
        force=False,
        requested_by=None,
        requested_ms=0,
        not_before_ms=0,
        updated_ms=0,
    )
    if done:
        return deletion.status(OperationState.DONE)
    return deletion.status(
        OperationState.REFUSED,
        f"the deletion of {namespace} ended before it was complete; the outcome topic has the reason",
    )
