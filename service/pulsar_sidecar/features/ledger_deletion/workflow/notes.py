"""Notes on the outcome topic besides records' outcomes: ends of deletions, and operators' calls."""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from pulsar_sidecar.features.ledger_deletion.grouping import GroupedPublisher
from pulsar_sidecar.features.ledger_deletion.outcomes import note_message
from pulsar_sidecar.features.ledger_deletion.ports import OutgoingMessage
from pulsar_sidecar.features.ledger_deletion.results import NamespaceDeletionStatus, TopicDeletionStatus
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.features.ledger_deletion.topic_deletion.following import END_STEP, end_document
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError

log = structlog.get_logger("ledger-deletion")


@dataclass(frozen=True, slots=True)
class Notes:
    """Writer of notes; a note that could not be stored is only a warning, since nothing depends on it."""

    sidecar: str
    outcomes: GroupedPublisher
    clock: Clock
    steps: Steps
    warn: Callable[[str], None]

    def keep(self, step: str, document: dict[str, object]) -> None:
        """Store a note on the outcome topic."""
        message = OutgoingMessage(note_message(self.sidecar, self.clock.now_ms(), step, document))
        try:
            with self.steps.taking(Step.NOTE_KEPT):
                stored = all(result.stored for result in self.outcomes.publish([message]))
        except SidecarError:
            stored = False
        if not stored:
            self.warn(f"the outcome topic did not store a note about {step}")

    def end_of_topic(self, status: TopicDeletionStatus, abandoned_by: str | None = None) -> None:
        """Log the end of a topic's deletion, and note it on the outcome topic."""
        log.info(
            "topic deletion ended",
            topic=status.topic,
            part=status.part,
            operation_id=status.operation_id,
            state=status.state.value,
            reason=status.reason,
            recorded_ledgers=status.recorded_ledgers,
            attempts=status.attempts,
            abandoned_by=abandoned_by,
        )
        self.keep(END_STEP, end_document(status, abandoned_by))

    def end_of_namespace(self, status: NamespaceDeletionStatus) -> None:
        """Note the end of a namespace's deletion on the outcome topic."""
        self.keep(
            "namespace-deletion",
            {
                "operationId": status.operation_id,
                "namespace": status.namespace,
                "state": status.state.value,
                "topics": status.topics_deleted,
                "recordedLedgers": status.recorded_ledgers,
                "passes": status.passes,
                "reason": status.reason,
            },
        )
