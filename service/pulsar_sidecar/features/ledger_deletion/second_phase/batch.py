"""Batch of messages: their ends so far, counted by the metrics and kept until the batch is processed."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pulsar_sidecar.features.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.features.ledger_deletion.outcomes import Decision, RecordOutcome
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, Delivery
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Facts,
    OutcomeReason,
    RetryLater,
    SendToDeadLetters,
    StoredLedger,
    Verdict,
)
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import (
    MAX_EARLY_MS,
    Reconsumption,
    RetryPolicy,
    reconsume,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.request_traces import RequestTrace


@dataclass(frozen=True, slots=True)
class Candidate:
    """Well-formed record and the message that carries it."""

    delivery: Delivery
    record: PendingDeleteLedgerInfo


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Candidate with its facts and the verdict on them."""

    candidate: Candidate
    facts: Facts
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class DecidedAlike:
    """Ledgers of one request with the same decision in a batch."""

    trace: RequestTrace
    decision: Decision
    reason: OutcomeReason
    ledger_ids: tuple[LedgerId, ...]

    def facts(self) -> dict[str, str | int]:
        """Return log fields and span attributes."""
        return {"decision": self.decision.value, "reason": self.reason.value, "ledgers": len(self.ledger_ids)}


@dataclass(frozen=True, slots=True)
class BatchReport:
    """Results of one batch."""

    deleted: int
    postponed: int
    mean_length_bytes: float | None
    decided: tuple[DecidedAlike, ...] = ()


@dataclass(slots=True)
class Batch:
    """Ends of one batch's records.

    Attributes:
        outcomes: outcomes to store on the outcome topic.
        finished: messages to acknowledge once their outcome is stored.
        handed_on: messages to acknowledge because another topic stores their copy.
        reconsumptions: messages whose copy is to be sent, and the outcome to store once it is sent.
        postponed: messages that the broker is to redeliver.
    """

    retry_policy: RetryPolicy
    metrics: DeletionMetrics
    outcomes: list[RecordOutcome] = field(default_factory=list)
    finished: list[Delivery] = field(default_factory=list)
    handed_on: list[Delivery] = field(default_factory=list)
    reconsumptions: list[tuple[Delivery, Reconsumption, RecordOutcome]] = field(default_factory=list)
    postponed: list[Delivery] = field(default_factory=list)

    def reject(self, delivery: Delivery, detail: str) -> None:
        """Finish a message that is not a record, with the reason."""
        self._finish(
            delivery, RecordOutcome(Decision.REJECTED, OutcomeReason.MALFORMED, detail, delivery.message_id, None)
        )

    def finish(self, evaluation: Evaluation, decision: Decision, reason: OutcomeReason, detail: str) -> None:
        delivery, record, facts = evaluation.candidate.delivery, evaluation.candidate.record, evaluation.facts
        trace = RequestTrace.of(delivery.properties)
        outcome = RecordOutcome(decision, reason, detail, delivery.message_id, record, facts, trace)
        self._finish(delivery, outcome)

    def _finish(self, delivery: Delivery, outcome: RecordOutcome) -> None:
        self.metrics.decided(outcome.decision.value, outcome.reason.value)
        self.outcomes.append(outcome)
        self.finished.append(delivery)

    def send_again(
        self, candidate: Candidate, verdict: RetryLater | SendToDeadLetters, facts: Facts | None = None
    ) -> None:
        """Send the record to the retry topic, or to the dead-letter topic on that verdict or after the last retry."""
        delivery, why = candidate.delivery, f"{verdict.reason.value}: {verdict.detail}"
        if isinstance(verdict, SendToDeadLetters):
            decision = Decision.SET_ASIDE
            again = reconsume(delivery, self.retry_policy, why, give_up=True)
        else:
            in_use_since = _in_use_since_ms(verdict, facts)
            # Delivered early, a record that waits for a time would wait again, for less than a tick; brokers deliver
            # that at once, so the last second would use up its tries.
            delay_ms = None if verdict.delay_ms is None else verdict.delay_ms + MAX_EARLY_MS
            again = reconsume(delivery, self.retry_policy, why, delay_ms=delay_ms, in_use_since=in_use_since)
            decision = Decision.RETRY
            if again.destination is DeletionTopic.DEAD_LETTER:
                decision = Decision.DEAD_LETTER
                self.metrics.max_retry_reached.inc()
        self.metrics.decided(decision.value, verdict.reason.value)
        trace = RequestTrace.of(delivery.properties)
        outcome = RecordOutcome(
            decision, verdict.reason, verdict.detail, delivery.message_id, candidate.record, facts, trace
        )
        self.reconsumptions.append((delivery, again, outcome))

    def postpone(self, candidates: Sequence[Candidate], reason: OutcomeReason) -> None:
        """Leave the records for the broker to redeliver."""
        self.metrics.decided(Decision.POSTPONED.value, reason.value, len(candidates))
        self.postponed.extend(candidate.delivery for candidate in candidates)

    def report(self) -> BatchReport:
        outcomes = [*self.outcomes, *(outcome for _, _, outcome in self.reconsumptions)]
        lengths = [
            outcome.facts.ledger.metadata.length_bytes
            for outcome in outcomes
            if outcome.facts is not None and isinstance(outcome.facts.ledger, StoredLedger)
        ]
        return BatchReport(
            deleted=sum(outcome.decision is Decision.DELETED for outcome in outcomes),
            postponed=len(self.postponed),
            mean_length_bytes=sum(lengths) / len(lengths) if lengths else None,
            decided=tuple(_decided_alike(outcomes)),
        )


@dataclass(slots=True)
class BatchAttempt:
    """Attempt to decide on some of a batch's records, and its consequences.

    Attributes:
        may_send: returns True while a deletion may be sent: the facts are fresh, and deletion is neither stopped nor
            paused.
        paced: True if deletions obey the operator's rate.
        again: candidates to evaluate again at once, each with its verdict in case no other attempt follows.
        unreached: candidates not processed while their facts were fresh.
    """

    batch: Batch
    may_send: Callable[[], bool]
    paced: bool
    again: list[tuple[Candidate, RetryLater]] = field(default_factory=list)
    unreached: list[Candidate] = field(default_factory=list)


def _decided_alike(outcomes: Sequence[RecordOutcome]) -> Iterator[DecidedAlike]:
    ledger_ids: defaultdict[tuple[RequestTrace, Decision, OutcomeReason], list[LedgerId]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.record is not None:
            ledger_ids[outcome.trace, outcome.decision, outcome.reason].append(outcome.record.ledger_id)
    for alike, found in ledger_ids.items():
        yield DecidedAlike(*alike, tuple(found))


def _in_use_since_ms(verdict: RetryLater, facts: Facts | None) -> int | None:
    """Return the time at which the record was first seen in use; set only while the list may still shrink."""
    if facts is None or verdict.reason is not OutcomeReason.MAY_STILL_SHRINK:
        return None
    return facts.now_ms if facts.in_use_since_ms is None else facts.in_use_since_ms
