"""How the messages of one batch ended so far, counted by the metrics and kept until the batch is processed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.ledger_deletion.outcomes import Decision, RecordOutcome
from pulsar_sidecar.ledger_deletion.ports import DeletionTopic, Delivery
from pulsar_sidecar.ledger_deletion.second_phase.decide import Reason, RetryLater, SetAside
from pulsar_sidecar.ledger_deletion.second_phase.evaluate import Candidate, Evaluation, Malformed
from pulsar_sidecar.ledger_deletion.second_phase.facts import StoredLedger
from pulsar_sidecar.ledger_deletion.second_phase.retry import Reconsumption, RetryPolicy, reconsume


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
    metrics: DeletionMetrics
    outcomes: list[RecordOutcome] = field(default_factory=list)
    finished: list[Delivery] = field(default_factory=list)
    handed_on: list[Delivery] = field(default_factory=list)
    reconsumptions: list[tuple[Delivery, Reconsumption, RecordOutcome]] = field(default_factory=list)
    postponed: list[Delivery] = field(default_factory=list)

    def reject(self, malformed: Malformed) -> None:
        """A message that is no record ends with its reason."""
        message_id = malformed.delivery.message_id
        self._count(Decision.REJECTED, Reason.MALFORMED)
        self.outcomes.append(RecordOutcome(Decision.REJECTED, Reason.MALFORMED, malformed.detail, message_id, None))
        self.finished.append(malformed.delivery)

    def finish(
        self, evaluation: Evaluation, decision: Decision, reason: Reason, detail: str, *, conditional: bool = True
    ) -> None:
        """The record ends here."""
        delivery, record = evaluation.candidate.delivery, evaluation.candidate.record
        self._count(decision, reason)
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
        decision = Decision.RETRY
        if again.destination is DeletionTopic.DEAD_LETTER:
            decision = Decision.DEAD_LETTER
            self.metrics.max_retry_reached()
        self._send_again(decision, candidate, again, verdict, evaluation)

    def set_aside(self, evaluation: Evaluation, verdict: SetAside) -> None:
        """The record goes to the dead-letter topic at once."""
        candidate = evaluation.candidate
        why = f"{verdict.reason.value}: {verdict.detail}"
        again = reconsume(candidate.delivery, self.retry_policy, why, give_up=True)
        self._send_again(Decision.SET_ASIDE, candidate, again, verdict, evaluation)

    def postpone(self, candidates: Sequence[Candidate], reason: Reason) -> None:
        """The broker delivers the records again."""
        self._count(Decision.POSTPONED, reason, len(candidates))
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
        self._count(decision, verdict.reason)
        outcome = RecordOutcome(decision, verdict.reason, verdict.detail, delivery.message_id, candidate.record, facts)
        self.reconsumptions.append((delivery, again, outcome))

    def _count(self, decision: Decision, reason: Reason, count: int = 1) -> None:
        self.metrics.decided(decision.value, reason.value, count)
