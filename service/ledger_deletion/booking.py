"""What becomes of the messages of one batch, counted for the metrics and kept until the batch is settled."""

from collections import Counter
from dataclasses import dataclass, field

from service.ledger_deletion.deciding import Reason
from service.ledger_deletion.outcomes import Settlement
from service.ledger_deletion.ports import Delivery
from service.ledger_deletion.retrying import Reconsumption
from service.model.ledgers import LedgerComponent, LedgerType
from service.observability.metrics import DeletionMetrics


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


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch did."""

    received: int
    deleted: int
    postponed: int
    mean_length_bytes: float | None
