"""The numbered steps of both phases, where a crash must lose nothing.

Production code announces each step and goes on; a fault test stops the process right there.
"""

from enum import Enum
from typing import Protocol


class Step(Enum):
    """Every point between two effects, in order."""

    OPERATION_CREATED = "operation-created"
    REFERENCES_GATHERED = "references-gathered"
    RECORDING_PERSISTED = "recording-persisted"
    RECORDS_SENT = "records-sent"
    BROKER_ASKED = "broker-asked"
    OPERATION_ENDED = "operation-ended"
    BATCH_RECEIVED = "batch-received"
    FACTS_GATHERED = "facts-gathered"
    JUDGEMENT_KEPT = "judgement-kept"
    LEDGERS_DELETED = "ledgers-deleted"
    RECONSUMED = "reconsumed"
    OUTCOMES_KEPT = "outcomes-kept"
    ACKNOWLEDGED = "acknowledged"


class Steps(Protocol):
    """Told of each step as it is completed."""

    def reached(self, step: Step) -> None:
        """Called right after the step's effect."""
        ...


class GoOn:
    """Production's listener: nothing stops it."""

    def reached(self, step: Step) -> None:
        pass
