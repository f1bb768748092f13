"""What becomes of the messages of one batch, counted for the metrics and kept until the batch is processed."""

from collections import Counter
from dataclasses import dataclass, field

from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.ledger_deletion.outcomes import RecordOutcome
from pulsar_sidecar.ledger_deletion.ports import Delivery
from pulsar_sidecar.ledger_deletion.second_phase.decide import Reason
from pulsar_sidecar.ledger_deletion.second_phase.evaluate import Malformed
from pulsar_sidecar.ledger_deletion.second_phase.facts import StoredLedger
from pulsar_sidecar.ledger_deletion.second_phase.retry import Reconsumption
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType


@dataclass(slots=True)
class BatchCounts:
    """What happened in one batch; the metrics are told once, not for each record."""

    decisions: Counter[tuple[str, Reason]] = field(default_factory=Counter)
    deleted: Counter[tuple[LedgerType, LedgerComponent]] = field(default_factory=Counter)
    deleted_bytes: Counter[tuple[LedgerType, LedgerComponent]] = field(default_factory=Counter)
    failed: Counter[tuple[LedgerType, LedgerComponent]] = field(default_factory=Counter)

    def report(self, metrics: DeletionMetrics) -> None:
        """Count it."""
        for (decision, reason), count in self.decisions.items():
            metrics.decided(decision, reason.value, count)
        for kind, count in self.deleted.items():
            metrics.deleted(*kind, count, self.deleted_bytes[kind])
        for kind, count in self.failed.items():
            metrics.delete_failed(*kind, count)
        dead = sum(count for (decision, _), count in self.decisions.items() if decision == "dead-letter")
        if dead:
            metrics.max_retry_reached(dead)


@dataclass(slots=True)
class BatchResult:
    """How the messages of one batch ended so far."""

    counts: BatchCounts = field(default_factory=BatchCounts)

    outcomes: list[RecordOutcome] = field(default_factory=list)
    finished: list[Delivery] = field(default_factory=list)
    handed_on: list[Delivery] = field(default_factory=list)
    reconsumptions: list[tuple[Delivery, Reconsumption, RecordOutcome]] = field(default_factory=list)
    postponed: list[Delivery] = field(default_factory=list)

    def reject(self, malformed: Malformed) -> None:
        """A message that is no record ends with its reason."""
        self.counts.decisions["rejected", Reason.MALFORMED] += 1
        self.outcomes.append(
            RecordOutcome("rejected", Reason.MALFORMED.value, malformed.detail, malformed.delivery.message_id, None)
        )
        self.finished.append(malformed.delivery)

    def report(self, received: int) -> "BatchReport":
        """What the batch of so many messages did."""
        outcomes = [*self.outcomes, *(outcome for _, _, outcome in self.reconsumptions)]
        lengths = [
            outcome.facts.ledger.metadata.length_bytes
            for outcome in outcomes
            if outcome.facts is not None and isinstance(outcome.facts.ledger, StoredLedger)
        ]
        return BatchReport(
            received=received,
            deleted=sum(outcome.decision == "deleted" for outcome in outcomes),
            postponed=len(self.postponed),
            mean_length_bytes=sum(lengths) / len(lengths) if lengths else None,
        )


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch did."""

    received: int
    deleted: int
    postponed: int
    mean_length_bytes: float | None
