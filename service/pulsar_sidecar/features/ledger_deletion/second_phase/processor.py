"""Second phase, one batch at a time: decide, log the deletions, delete, log outcomes, acknowledge.

Invariant: the sidecar acknowledges a message only after its outcome, or its copy on the retry or dead-letter topic, is
durable. After a failure in between the broker redelivers the message, and every earlier step can be repeated.

The facts about a batch are gathered once. Only its deletions are paced, by the operator's rate and by the metadata
store's latency; those with outdated facts by then are decided again with new facts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from pulsar_sidecar.features.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.features.ledger_deletion.outcomes import Decision, RecordOutcome, judged_messages, settled_messages
from pulsar_sidecar.features.ledger_deletion.ports import (
    DeletionTopic,
    Delivery,
    OffloadDeletion,
    OffloadedLedgers,
    OutgoingMessage,
    PendingDeletions,
    Publisher,
    PublishResult,
)
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo, encode_record, parse_record
from pulsar_sidecar.features.ledger_deletion.second_phase.batch import (
    Batch,
    BatchAttempt,
    BatchReport,
    Candidate,
    Evaluation,
)
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Delete,
    DeleteOffloaded,
    DeletionPolicy,
    Keep,
    OutcomeReason,
    Postpone,
    RetryLater,
    SendToDeadLetters,
    decide,
)
from pulsar_sidecar.features.ledger_deletion.second_phase.gather import Gatherer
from pulsar_sidecar.features.ledger_deletion.second_phase.limits import RateLimiter
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import RetryPolicy, in_use_since_ms
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import (
    DisabledError,
    InvalidInputError,
    OutcomeUnknownError,
    PermanentError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.metadata import DeletionResult, GuardedDeletion, MetadataStore
from pulsar_sidecar.model.request_traces import NO_REQUEST, RequestTrace
from pulsar_sidecar.reports.formatting import format_count

FACTS_SECONDS = 10.0
"""Maximum age of facts: versions guard the metadata store's nodes, but not a broker's memory."""
_ATTEMPTS = 3
"""Number of decisions on a record whose nodes change meanwhile, before the record goes to the retry topic."""
_CHANGED = RetryLater(OutcomeReason.CHANGED_MEANWHILE, "its nodes changed at each attempt")
_UNANSWERED = RetryLater(OutcomeReason.OUTCOME_UNKNOWN, "the metadata store did not respond; the ledger may be gone")


@dataclass(slots=True)
class PendingDeletionProcessor:
    """Processor of batches of messages.

    Attributes:
        store: deletes ledgers. BookKeeper's own delete ignores versions (``LedgerDeleteOp`` removes with
            ``Version.ANY``), and is not used.
        publishers: publishers to the retry, dead-letter and outcome topics; a message counts as written only with the
            broker's receipt.
    """

    sidecar: str
    clock: Clock
    store: MetadataStore
    offloaded: OffloadedLedgers
    gatherer: Gatherer
    publishers: Mapping[DeletionTopic, Publisher]
    policy: DeletionPolicy
    retry_policy: RetryPolicy
    metrics: DeletionMetrics
    steps: Steps
    rate_limiter: RateLimiter
    warn: Callable[[str], None]

    def process(self, pending: PendingDeletions, deliveries: Sequence[Delivery]) -> BatchReport:
        """Process one batch; a single record's failure postpones it and never raises."""
        self.metrics.received.inc(len(deliveries))
        batch, candidates = Batch(self.retry_policy, self.metrics), list[Candidate]()
        with self.steps.taking(Step.BATCH_RECEIVED):
            for delivery in deliveries:
                try:
                    candidates.append(Candidate(delivery, parse_record(delivery.payload)))
                except InvalidInputError as error:
                    batch.reject(delivery, str(error))
        self._process_all(batch, candidates)
        report = batch.report()
        self._complete(batch, pending)
        return report

    def process_now(
        self, record: PendingDeleteLedgerInfo, origin: str, trace: RequestTrace = NO_REQUEST
    ) -> RecordOutcome:
        """Decide on one record and delete its ledger at once, without the topic; return its outcome.

        Raises:
            TemporaryError: the facts could not be read, or the outcome topic did not store them.
        """
        batch = Batch(self.retry_policy, self.metrics)
        delivery = Delivery(None, encode_record(record), str(record.topic), trace.properties(), origin, "", 0)
        self._process_some(batch, [Candidate(delivery, record)], paced=False)
        if batch.reconsumptions:
            return batch.reconsumptions[0][2]
        if not batch.outcomes:
            raise TemporaryError(f"the sidecar cannot decide on ledger {record.ledger_id} now; try again")
        if not self._log_outcomes(batch.outcomes):
            self.warn(f"the outcome topic did not store the outcome of ledger {record.ledger_id}")
        return batch.outcomes[0]

    # --- deciding ----------------------------------------------------------------------------------------------------

    def _process_all(self, batch: Batch, candidates: Sequence[Candidate]) -> None:
        """Process all messages, unless the sidecar stops or deletion is paused: the broker redelivers the others."""
        waiting = list(candidates)
        most = count = len(waiting)
        while waiting:
            unreached = self._process_some(batch, waiting[:count], paced=True)
            if self.rate_limiter.stop.is_set():
                return
            waiting = unreached + waiting[count:]
            if self.rate_limiter.is_paused():
                # Unlike a stop, a pause leaves the consumer connected, and it would keep unreleased messages.
                self._postpone_all(batch, waiting, "deletion is paused")
                return
            if len(unreached) == count:
                # The facts were old before the first deletion: gathering facts of fewer records is faster.
                most = count // 2
            if most == 0:
                self._postpone_all(batch, waiting, "their facts were too old before the first one was processed")
                return
            count = min(len(waiting), most, self.rate_limiter.most_within(FACTS_SECONDS) or most)

    def _process_some(self, batch: Batch, candidates: Sequence[Candidate], *, paced: bool) -> list[Candidate]:
        """Decide and act; return the candidates whose deletion must wait for new facts."""
        open_candidates = list(candidates)
        again: list[tuple[Candidate, RetryLater]] = []
        unreached: list[Candidate] = []
        for _ in range(_ATTEMPTS):
            # Waiting for the first deletion's turn comes before gathering, or a low rate would only make facts old.
            if not open_candidates or (paced and not self.rate_limiter.wait()):
                return unreached + open_candidates
            attempt = BatchAttempt(batch, self._while_fresh(), paced=paced)
            try:
                with self.steps.taking(Step.FACTS_GATHERED):
                    evaluations = self._evaluate(open_candidates)
            except (TemporaryError, OutcomeUnknownError) as error:
                self._postpone_all(batch, open_candidates, f"facts could not be gathered: {error}")
                return unreached
            except PermanentError as error:
                return unreached + self._process_halves(batch, open_candidates, error, paced=paced)
            self._carry_out(attempt, evaluations)
            again, open_candidates = attempt.again, [candidate for candidate, _ in attempt.again]
            unreached += attempt.unreached
        for candidate, verdict in again:
            batch.send_again(candidate, verdict)
        return unreached

    def _while_fresh(self) -> Callable[[], bool]:
        """Return a check of whether facts gathered from now on are still fresh, and deletion may continue."""
        until = self.clock.monotonic_seconds() + FACTS_SECONDS
        return lambda: self.clock.monotonic_seconds() <= until and self.rate_limiter.may_continue()

    def _evaluate(self, candidates: Sequence[Candidate]) -> list[Evaluation]:
        seen = [(each.record, in_use_since_ms(each.delivery.properties)) for each in candidates]
        gathered = zip(candidates, self.gatherer.gather(seen), strict=True)
        return [Evaluation(candidate, facts, decide(facts, self.policy)) for candidate, facts in gathered]

    def _process_halves(
        self, batch: Batch, candidates: Sequence[Candidate], error: PermanentError, *, paced: bool
    ) -> list[Candidate]:
        """Bisect to find the record whose facts cannot be read at all, so that it does not block the others."""
        if len(candidates) == 1:
            batch.send_again(candidates[0], RetryLater(OutcomeReason.REFERENCES_UNKNOWN, str(error)))
            return []
        half = len(candidates) // 2
        unreached = self._process_some(batch, candidates[:half], paced=paced)
        return unreached + self._process_some(batch, candidates[half:], paced=paced)

    def _carry_out(self, attempt: BatchAttempt, evaluations: Sequence[Evaluation]) -> None:
        batch, deletions = attempt.batch, list[Evaluation]()
        deleting: set[tuple[int, LedgerType]] = set()
        for evaluation in evaluations:
            record = evaluation.candidate.record
            match evaluation.verdict:
                case Keep(reason, detail):
                    if reason is OutcomeReason.ALREADY_GONE:
                        self._clear_mark(evaluation)
                    batch.finish(evaluation, Decision.KEPT, reason, detail)
                case RetryLater() | SendToDeadLetters() as verdict:
                    batch.send_again(evaluation.candidate, verdict, evaluation.facts)
                case Postpone(reason, _):
                    batch.postpone([evaluation.candidate], reason)
                case Delete() | DeleteOffloaded():
                    # Of two records of one ledger in a batch, the second is decided again after the first's deletion.
                    key = (record.ledger_id, record.ledger_type)
                    if key in deleting:
                        attempt.again.append((evaluation.candidate, _CHANGED))
                    else:
                        deletions.append(evaluation)
                    deleting.add(key)
                case never:
                    assert_never(never)
        if deletions:
            self._delete(attempt, deletions)

    def _delete(self, attempt: BatchAttempt, evaluations: Sequence[Evaluation]) -> None:
        # Log evaluations only of deletions that the rate allows while their facts are fresh.
        most = self.rate_limiter.most_within(FACTS_SECONDS) if attempt.paced else None
        first = evaluations if most is None else evaluations[:most]
        attempt.unreached += [evaluation.candidate for evaluation in evaluations[len(first) :]]
        if not self._log_evaluations(first):
            candidates = [evaluation.candidate for evaluation in first]
            self._postpone_all(attempt.batch, candidates, "the outcome topic did not store their evaluations")
            return
        reached = 0
        for chunk in self.rate_limiter.chunks(first) if attempt.paced else [first]:
            self._delete_chunk(attempt, chunk)
            reached += len(chunk)
            if not attempt.may_send():
                # The others would wait for their turn, and use up the rate, only to be decided again.
                break
        attempt.unreached += [evaluation.candidate for evaluation in first[reached:]]

    # --- deleting ----------------------------------------------------------------------------------------------------

    def _delete_chunk(self, attempt: BatchAttempt, evaluations: Sequence[Evaluation]) -> None:
        """Delete the ledgers of the evaluations; no deletion is sent once the attempt may no longer send."""
        self._delete_stored(attempt, evaluations)
        for evaluation in evaluations:
            if isinstance(evaluation.verdict, DeleteOffloaded):
                if attempt.may_send():
                    self._delete_offloaded(attempt.batch, evaluation, evaluation.verdict)
                else:
                    attempt.unreached.append(evaluation.candidate)

    def _clear_mark(self, evaluation: Evaluation) -> None:
        """Remove auto-recovery's mark of a deleted ledger, which it would try to repair (BookKeeper #3316)."""
        mark = evaluation.facts.under_replication_mark
        if evaluation.candidate.record.ledger_type is LedgerType.LEDGER and mark is not None:
            with self.steps.taking(Step.UNDER_REPLICATION_CLEARED):
                try:
                    self.store.delete(mark)
                except SidecarError as error:
                    self.warn(f"auto-recovery's mark {mark} of a deleted ledger could not be removed: {error}")

    def _delete_stored(self, attempt: BatchAttempt, evaluations: Sequence[Evaluation]) -> None:
        chosen = [(each, each.verdict) for each in evaluations if isinstance(each.verdict, Delete)]
        with self.steps.taking(Step.LEDGERS_DELETED):
            results = self._delete_ledgers(attempt, chosen)
        for (evaluation, _), result in zip(chosen, results, strict=True):
            match result:
                case DeletionResult.DELETED:
                    self._deleted(attempt.batch, evaluation)
                case DeletionResult.GONE:
                    detail = "it was deleted after it was read"
                    self._clear_mark(evaluation)
                    attempt.batch.finish(evaluation, Decision.KEPT, OutcomeReason.ALREADY_GONE, detail)
                case DeletionResult.CONFLICT | DeletionResult.UNKNOWN:
                    attempt.batch.metrics.delete_failed(*_kind(evaluation))
                    why = _CHANGED if result is DeletionResult.CONFLICT else _UNANSWERED
                    attempt.again.append((evaluation.candidate, why))
                case DeletionResult.NOT_SENT:
                    attempt.unreached.append(evaluation.candidate)
                case never:
                    assert_never(never)

    def _delete_ledgers(
        self, attempt: BatchAttempt, chosen: Sequence[tuple[Evaluation, Delete]]
    ) -> list[DeletionResult]:
        deletions = [
            GuardedDeletion(ledger.path, ledger.version, verdict.guards, ledger.modified_order)
            for _, verdict in chosen
            for ledger in (verdict.ledger,)
        ]
        try:
            return self.store.delete_many(deletions, attempt.may_send)
        except (TemporaryError, OutcomeUnknownError) as error:
            self.warn(f"no response from the metadata store to {format_count(len(deletions), 'deletion')}: {error}")
            return [DeletionResult.UNKNOWN] * len(deletions)

    def _deleted(self, batch: Batch, evaluation: Evaluation) -> None:
        verdict = evaluation.verdict
        length_bytes = verdict.ledger.metadata.length_bytes if isinstance(verdict, Delete) else 0
        batch.metrics.deleted(*_kind(evaluation), length_bytes=length_bytes)
        self._clear_mark(evaluation)
        batch.finish(evaluation, Decision.DELETED, OutcomeReason.UNREFERENCED, "nothing references it")

    def _delete_offloaded(self, batch: Batch, evaluation: Evaluation, verdict: DeleteOffloaded) -> None:
        candidate, record = evaluation.candidate, evaluation.candidate.record
        try:
            with self.steps.taking(Step.OFFLOADED_DELETED):
                result = self.offloaded.delete_offloaded(
                    record.ledger_id, verdict.context, record.topic.managed_ledger_name
                )
        except DisabledError as error:
            # An operator who adds the missing setting finds the record on the dead-letter topic at the latest.
            batch.send_again(candidate, RetryLater(OutcomeReason.REFUSED_BY_STORAGE, str(error)), evaluation.facts)
        except PermanentError as error:
            batch.metrics.delete_failed(*_kind(evaluation))
            batch.finish(evaluation, Decision.KEPT, OutcomeReason.REFUSED_BY_STORAGE, str(error))
        except (TemporaryError, OutcomeUnknownError) as error:
            batch.metrics.delete_failed(*_kind(evaluation))
            is_open = isinstance(error, OutcomeUnknownError)
            reason = OutcomeReason.OUTCOME_UNKNOWN if is_open else OutcomeReason.TEMPORARY_FAILURE
            batch.send_again(candidate, RetryLater(reason, str(error)), evaluation.facts)
        else:
            if result is OffloadDeletion.DELETED:
                self._deleted(batch, evaluation)
            else:
                detail = "tiered storage holds no such objects"
                batch.finish(evaluation, Decision.KEPT, OutcomeReason.ALREADY_GONE, detail)

    # --- completing a batch -----------------------------------------------------------------------------------------

    def _postpone_all(self, batch: Batch, candidates: Sequence[Candidate], why: str) -> None:
        self.warn(f"postponed {format_count(len(candidates), 'record')}: {why}")
        batch.postpone(candidates, OutcomeReason.TEMPORARY_FAILURE)

    def _complete(self, batch: Batch, pending: PendingDeletions) -> None:
        self._send_again(batch, DeletionTopic.RETRY, Step.RETRIES_SENT)
        self._send_again(batch, DeletionTopic.DEAD_LETTER, Step.DEAD_LETTERS_SENT)
        if not self._log_outcomes(batch.outcomes):
            self.warn(
                f"postponed {format_count(len(batch.finished), 'record')}: the outcome topic did not store "
                "their outcomes"
            )
            batch.postponed.extend(batch.finished)
            batch.finished.clear()
        if batch.postponed:
            pending.postpone(batch.postponed)
        # The copy of a message that was handed on is durable; keeping the original as well would repeat it forever.
        done = batch.finished + batch.handed_on
        if done:
            with self.steps.taking(Step.ACKNOWLEDGED):
                pending.acknowledge(done)
            self.metrics.acknowledged.inc(len(done))

    def _log_evaluations(self, evaluations: Sequence[Evaluation]) -> bool:
        """Log why these ledgers are to be deleted, and the bytes that restore them; return True if all are stored."""
        judged = [
            (evaluation.candidate.delivery.message_id, evaluation.facts, evaluation.verdict)
            for evaluation in evaluations
            if isinstance(evaluation.verdict, (Delete, DeleteOffloaded))
        ]
        payloads = judged_messages(self.sidecar, self.clock.now_ms(), judged)
        with self.steps.taking(Step.JUDGEMENT_KEPT):
            return self._store(payloads)

    def _log_outcomes(self, outcomes: Sequence[RecordOutcome]) -> bool:
        payloads = settled_messages(self.sidecar, self.clock.now_ms(), outcomes)
        with self.steps.taking(Step.OUTCOMES_KEPT):
            return self._store(payloads) if payloads else True

    def _store(self, payloads: Sequence[bytes]) -> bool:
        results = self._publish(DeletionTopic.OUTCOME, [OutgoingMessage(payload) for payload in payloads])
        return all(result.stored for result in results)

    def _send_again(self, batch: Batch, topic: DeletionTopic, step: Step) -> None:
        """Send the copies for the retry or dead-letter topic; a record whose copy has no receipt is postponed."""
        group = [entry for entry in batch.reconsumptions if entry[1].destination is topic]
        if not group:
            return
        with self.steps.taking(step):
            results = self._publish(topic, [again.message for _, again, _ in group])
        for (delivery, _, outcome), result in zip(group, results, strict=True):
            if result.stored:
                batch.outcomes.append(outcome)
                batch.handed_on.append(delivery)
            else:
                batch.postponed.append(delivery)

    def _publish(self, topic: DeletionTopic, messages: Sequence[OutgoingMessage]) -> list[PublishResult]:
        try:
            return self.publishers[topic].publish(messages)
        except SidecarError as error:
            self.warn(f"{format_count(len(messages), 'message')} could not be published: {error}")
            return [PublishResult.UNKNOWN] * len(messages)


def _kind(evaluation: Evaluation) -> tuple[LedgerType, LedgerComponent]:
    return evaluation.candidate.record.ledger_type, evaluation.candidate.record.component
