"""How the messages of one batch ended so far, counted for the metrics and kept until the batch is processed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.ledger_deletion.outcomes import Decision, RecordOutcome
from pulsar_sidecar.ledger_deletion.ports import DeletionTopic, Delivery
from pulsar_sidecar.ledger_deletion.second_phase.decide import Reason, RetryLater, SetAside
from pulsar_sidecar.ledger_deletion.second_phase.evaluate import Candidate, Evaluation, Malformed
from pulsar_sidecar.ledger_deletion.second_phase.facts import StoredLedger
from pulsar_sidecar.ledger_deletion.second_phase.retry import Reconsumption, RetryPolicy, reconsume
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType


@dataclass(slots=True)
class BatchCounts:
    """What happened in one batch; it reaches the metrics once, not for each record."""

    decisions: Counter[tuple[Decision, Reason]] = field(default_factory=Counter)
    deleted: Counter[tuple[LedgerType, LedgerComponent]] = field(default_factory=Counter)
    deleted_bytes: Counter[tuple[LedgerType, LedgerComponent]] = field(default_factory=Counter)
    failed: Counter[tuple[LedgerType, LedgerComponent]] = field(default_factory=Counter)

    def report(self, metrics: DeletionMetrics) -> None:
        """Add everything to the metrics."""
        for (decision, reason), count in self.decisions.items():
            metrics.decided(decision.value, reason.value, count)
        for kind, count in self.deleted.items():
            metrics.deleted(*kind, count, self.deleted_bytes[kind])
        for kind, count in self.failed.items():
            metrics.delete_failed(*kind, count)
        dead = sum(count for (decision, _), count in self.decisions.items() if decision is Decision.DEAD_LETTER)
        if dead:
            metrics.max_retry_reached(dead)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch did."""

    received: int
    deleted: int
    postponed: int
    mean_length_bytes: float | None


@dataclass(slots=True)
class BatchResult:
    """One batch's endings.

    Attributes:
        outcomes: what the outcome topic is to keep.
        finished: messages to acknowledge once their outcome is stored.
        handed_on: messages to acknowledge because their copy is stored on another topic.
        reconsumptions: messages whose copy is to be sent, and the outcome to keep once it is.
        postponed: messages to have delivered again.
    """

    retry_policy: RetryPolicy
    counts: BatchCounts = field(default_factory=BatchCounts)
    outcomes: list[RecordOutcome] = field(default_factory=list)
    finished: list[Delivery] = field(default_factory=list)
    handed_on: list[Delivery] = field(default_factory=list)
    reconsumptions: list[tuple[Delivery, Reconsumption, RecordOutcome]] = field(default_factory=list)
    postponed: list[Delivery] = field(default_factory=list)

    def reject(self, malformed: Malformed) -> None:
        """A message that is no record ends with its reason."""
        message_id = malformed.delivery.message_id
        self.counts.decisions[Decision.REJECTED, Reason.MALFORMED] += 1
        self.outcomes.append(RecordOutcome(Decision.REJECTED, Reason.MALFORMED, malformed.detail, message_id, None))
        self.finished.append(malformed.delivery)

    def finish(
        self, evaluation: Evaluation, decision: Decision, reason: Reason, detail: str, *, conditional: bool = True
    ) -> None:
        """The record ends here."""
        delivery, record = evaluation.candidate.delivery, evaluation.candidate.record
        self.counts.decisions[decision, reason] += 1
        self.outcomes.append(
            RecordOutcome(decision, reason, detail, delivery.message_id, record, evaluation.facts, conditional)
        )
        self.finished.append(delivery)

    def retry(self, candidate: Candidate, verdict: RetryLater, evaluation: Evaluation | None) -> None:
        """The record goes to the retry topic, or to the dead-letter topic when its tries are used up."""
        again = reconsume(
            candidate.delivery,
            self.retry_policy,
            f"{verdict.reason.value}: {verdict.detail}",
            delay_ms=verdict.delay_ms,
            in_use_since=evaluation.in_use_since_ms if evaluation else None,
        )
        decision = Decision.DEAD_LETTER if again.destination is DeletionTopic.DEAD_LETTER else Decision.RETRY
        self._send_again(decision, candidate, again, verdict, evaluation)

    def set_aside(self, evaluation: Evaluation, verdict: SetAside) -> None:
        """The record goes to the dead-letter topic at once."""
        candidate = evaluation.candidate
        why = f"{verdict.reason.value}: {verdict.detail}"
        again = reconsume(candidate.delivery, self.retry_policy, why, give_up=True)
        self._send_again(Decision.SET_ASIDE, candidate, again, verdict, evaluation)

    def postpone(self, candidates: Sequence[Candidate], reason: Reason) -> None:
        """The broker delivers the records again."""
        self.counts.decisions[Decision.POSTPONED, reason] += len(candidates)
        self.postponed.extend(candidate.delivery for candidate in candidates)

    def report(self, received: int) -> BatchReport:
        """What the batch of so many messages did."""
        outcomes = [*self.outcomes, *(outcome for _, _, outcome in self.reconsumptions)]
        lengths = [
            outcome.facts.ledger.metadata.length_bytes
            for outcome in outcomes
            if outcome.facts is not None and isinstance(outcome.facts.ledger, StoredLedger)
        ]
        return BatchReport(
            received=received,
            deleted=sum(outcome.decision is Decision.DELETED for outcome in outcomes),
            postponed=len(self.postponed),
            mean_length_bytes=sum(lengths) / len(lengths) if lengths else None,
        )

    def _send_again(
        self,
        decision: Decision,
        candidate: Candidate,
        again: Reconsumption,
        verdict: RetryLater | SetAside,
        evaluation: Evaluation | None,
    ) -> None:
        delivery, facts = candidate.delivery, evaluation.facts if evaluation else None
        self.counts.decisions[decision, verdict.reason] += 1
        outcome = RecordOutcome(decision, verdict.reason, verdict.detail, delivery.message_id, candidate.record, facts)
        self.reconsumptions.append((delivery, again, outcome))
