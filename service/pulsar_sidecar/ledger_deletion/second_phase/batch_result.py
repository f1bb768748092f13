"""What becomes of the messages of one batch, counted for the metrics and kept until the batch is settled."""

from collections import Counter
from dataclasses import dataclass, field

from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.ledger_deletion.outcomes import Settlement
from pulsar_sidecar.ledger_deletion.ports import Delivery
from pulsar_sidecar.ledger_deletion.second_phase.decide import Reason
from pulsar_sidecar.ledger_deletion.second_phase.facts import StoredLedger
from pulsar_sidecar.ledger_deletion.second_phase.judge import Malformed
from pulsar_sidecar.ledger_deletion.second_phase.retry import Reconsumption
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType


@dataclass(slots=True)
class Tally:
    """What happened in one batch; the metrics are told once, not for each record."""

    decisions: Counter[tuple[str, Reason]] = field(default_factory=Counter)
    deleted: Counter[tuple[LedgerType, LedgerComponent]] = field(default_factory=Counter)
    deleted_bytes: Counter[tuple[LedgerType, LedgerComponent]] = field(default_factory=Counter)
    failed: Counter[tuple[LedgerType, LedgerComponent]] = field(default_factory=Counter)

    def tell(self, metrics: DeletionMetrics) -> None:
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
class Ledgerbook:
    """How the messages of one batch ended so far."""

    tally: Tally = field(default_factory=Tally)

    settlements: list[Settlement] = field(default_factory=list)
    finished: list[Delivery] = field(default_factory=list)
    handed_on: list[Delivery] = field(default_factory=list)
    reconsumptions: list[tuple[Delivery, Reconsumption, Settlement]] = field(default_factory=list)
    postponed: list[Delivery] = field(default_factory=list)

    def reject(self, malformed: Malformed) -> None:
        """A message that is no record ends with its reason."""
        self.tally.decisions["rejected", Reason.MALFORMED] += 1
        self.settlements.append(
            Settlement("rejected", Reason.MALFORMED.value, malformed.detail, malformed.delivery.message_id, None)
        )
        self.finished.append(malformed.delivery)

    def report(self, received: int) -> "BatchReport":
        """What the batch of so many messages did."""
        settlements = [*self.settlements, *(settlement for _, _, settlement in self.reconsumptions)]
        lengths = [
            settlement.facts.ledger.metadata.length_bytes
            for settlement in settlements
            if settlement.facts is not None and isinstance(settlement.facts.ledger, StoredLedger)
        ]
        return BatchReport(
            received=received,
            deleted=sum(settlement.decision == "deleted" for settlement in settlements),
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
