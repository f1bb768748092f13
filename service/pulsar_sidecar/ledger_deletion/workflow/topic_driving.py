"""Attempts of topic deletions: again while a caller waits, and later by the loop that continues what is due."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from pulsar_sidecar.ledger_deletion.service import OperationState, TopicDeletionStatus
from pulsar_sidecar.ledger_deletion.topic_deletion.driver import Attempt, EndedElsewhereError, TopicDeleter
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import HeldOperation, Operation
from pulsar_sidecar.ledger_deletion.workflow.notes import Notes
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import PermanentError
from pulsar_sidecar.observability.tracing import continuing

log = structlog.get_logger("ledger-deletion")

_LOOK_SECONDS = 1.0
_BETWEEN_ATTEMPTS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TopicDeletionDriver:
    """One sidecar's part in them.

    Attributes:
        may_work: whether a deletion that no caller waits for may be continued now.
    """

    deleter: TopicDeleter
    clock: Clock
    stop: threading.Event
    may_work: Callable[[], bool]
    notes: Notes

    def drive(self, held: HeldOperation, wait_ms: int) -> tuple[TopicDeletionStatus, PermanentError | None]:
        """Attempt a topic deletion, and again for so long; what became of it, and a broker's refusal.

        What is over is kept on the outcome topic; what is RUNNING, the caller releases.
        """
        give_up = self.clock.monotonic_seconds() + wait_ms / 1000
        tried = self.deleter.attempt(held)
        while self._may_try_again(tried) and self.clock.monotonic_seconds() < give_up:
            left = max(0.0, give_up - self.clock.monotonic_seconds())
            self.clock.wait_seconds(min(_BETWEEN_ATTEMPTS_SECONDS, left), self.stop)
            tried = self.deleter.attempt(tried.held)
        operation, refusal = tried.held.operation, tried.refusal
        if tried.state is OperationState.RUNNING:
            if operation.stuck and not held.operation.stuck:
                _log_stuck(operation)
            return operation.unfinished(), None
        status = operation.status(tried.state, tried.left_behind if refusal is None else str(refusal))
        if not isinstance(refusal, EndedElsewhereError):
            self.notes.end_of_topic(status)
        return status, refusal

    def run(self) -> None:
        """Continue what is due until the sidecar stops."""
        while not self.stop.is_set():
            held = self.deleter.take_due() if self.may_work() else None
            if held is None:
                self.clock.wait_seconds(_LOOK_SECONDS, self.stop)
            else:
                self._continue(held)

    def _continue(self, held: HeldOperation) -> None:
        operation = held.operation
        with continuing(operation.trace, "continue a topic deletion", {"pulsar.topic": operation.topic_name}):
            if not operation.stuck:
                log.info("continuing a topic deletion", topic=str(operation.topic), operation_id=operation.operation_id)
            status, _ = self.drive(held, wait_ms=0)
        if status.state is OperationState.RUNNING:
            self.deleter.release(operation)

    def _may_try_again(self, tried: Attempt) -> bool:
        return tried.state is OperationState.RUNNING and not tried.lasting and not self.stop.is_set()


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
