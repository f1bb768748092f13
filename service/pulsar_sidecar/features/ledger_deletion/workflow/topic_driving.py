"""Attempts of topic deletions: retries while a caller waits, and later the loop that continues due ones."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from pulsar_sidecar.features.ledger_deletion.results import OperationState, ShadowDeletionStage, TopicDeletionStatus
from pulsar_sidecar.features.ledger_deletion.topic_deletion.driver import Attempt, EndedElsewhereError, TopicDeleter
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import HeldOperation, Operation, new_operation_id
from pulsar_sidecar.features.ledger_deletion.topic_deletion.shadow_deleter import ShadowDeleter
from pulsar_sidecar.features.ledger_deletion.workflow.notes import Notes
from pulsar_sidecar.model.clocks import Clock, attempts, rest_seconds
from pulsar_sidecar.model.errors import NotFoundError, PermanentError, SidecarError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.observability.tracing import continuing, current_trace

log = structlog.get_logger("ledger-deletion")

_LOOK_SECONDS = 1.0
_BETWEEN_ATTEMPTS_SECONDS = 1.0
_WAIT_IN_A_PASS_MS = 5_000
"""Time for which a topic's deletion is retried before a pass over a namespace continues with other topics."""


@dataclass(frozen=True, slots=True)
class TopicDeletionDriver:
    """Driver of one sidecar's topic deletions.

    Attributes:
        may_work: returns True while deletions without a waiting caller may continue.
    """

    deleter: TopicDeleter
    clock: Clock
    stop: threading.Event
    may_work: Callable[[], bool]
    notes: Notes

    def drive(self, held: HeldOperation, wait_ms: int) -> tuple[TopicDeletionStatus, PermanentError | None]:
        """Attempt a topic deletion, with retries for ``wait_ms``; return the status and a broker's refusal.

        Notes the end on the outcome topic, and releases a deletion that has not ended.
        """
        operation_id = held.operation.operation_id
        try:
            tried = self._attempts(held, wait_ms)
        except SidecarError:
            try:
                self.deleter.operations.release(operation_id)
            except SidecarError as error:
                log.warning(
                    "releasing a topic deletion failed; this sidecar keeps it until its session ends", error=str(error)
                )
            raise
        operation, refusal = tried.held.operation, tried.refusal
        if tried.state is OperationState.RUNNING:
            if operation.stuck and not held.operation.stuck:
                _log_stuck(operation)
            self.deleter.operations.release(operation_id)
            return operation.unfinished(), None
        status = operation.status(tried.state, tried.left_behind if refusal is None else str(refusal))
        if not isinstance(refusal, EndedElsewhereError):
            self.notes.end_of_topic(status)
        return status, refusal

    def _attempts(self, held: HeldOperation, wait_ms: int) -> Attempt:
        tried = Attempt(held, OperationState.RUNNING)
        for _ in attempts(self.clock, wait_ms / 1000, _BETWEEN_ATTEMPTS_SECONDS, self.stop):
            tried = self.deleter.attempt(tried.held)
            if tried.state is not OperationState.RUNNING or tried.lasting:
                break
        return tried

    def run(self) -> None:
        """Continue due deletions until the sidecar stops."""
        while not self.stop.is_set():
            began = self.clock.monotonic_seconds()
            held = self.deleter.take_due() if self.may_work() else None
            if held is None:
                self.clock.wait_seconds(rest_seconds(_LOOK_SECONDS, self.clock.monotonic_seconds() - began), self.stop)
            else:
                self._continue(held)

    def _continue(self, held: HeldOperation) -> None:
        operation = held.operation
        with continuing(operation.trace, "continue a topic deletion", {"pulsar.topic": operation.topic_name}):
            if not operation.stuck:
                log.info("continuing a topic deletion", topic=str(operation.topic), operation_id=operation.operation_id)
            self.drive(held, wait_ms=0)


def _log_stuck(operation: Operation) -> None:
    status = operation.unfinished()
    log.warning(
        "a topic deletion is stuck",
        topic=str(status.topic),
        operation_id=status.operation_id,
        failures=status.failures,
        reason=status.reason,
        remedy=status.remedy,
    )


@dataclass(frozen=True, slots=True)
class TopicDeletions:
    """Deletion of a namespace's topics, through the deleters that calls about single topics use; thread-safe."""

    deleter: TopicDeleter
    shadow_deleter: ShadowDeleter
    drive: Callable[[HeldOperation, int], tuple[TopicDeletionStatus, PermanentError | None]]

    def delete(
        self, topic: TopicName, *, partitioned: bool, requested_by: str | None
    ) -> tuple[TopicDeletionStatus, PermanentError | None]:
        """Delete the topic by force, with any partitions; return the status and a refusal.

        Any sidecar continues a RUNNING one. Raises as `TopicDeleter.begin` does.
        """
        # The caller has already searched the whole cluster for shadows that would lose their data.
        held = self.deleter.begin(
            new_operation_id(topic),
            topic,
            partitioned=partitioned,
            force=True,
            requested_by=requested_by,
            source_data_loss_confirmed=True,
            trace=current_trace(),
        )
        return self.drive(held, _WAIT_IN_A_PASS_MS)

    def delete_shadow(self, topic: TopicName, *, requested_by: str | None) -> str | None:
        """Delete a shadow topic without touching its source; return the reason for waiting, None once it is deleted."""
        while True:
            try:
                status = self.shadow_deleter.advance(new_operation_id(topic), topic, requested_by=requested_by)
            except NotFoundError:
                return None
            if status.stage is ShadowDeletionStage.DONE:
                return None
            if status.waits_for is not None:
                return status.waits_for
