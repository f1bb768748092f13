"""The second phase, one batch at a time: judge, keep the evaluation, delete, keep the outcome, acknowledge.

Invariant: a message is acknowledged only after what became of it is durable: its outcome, or its copy on the retry or
dead-letter topic. Whatever fails in between leaves the message to be delivered again, and everything before it can be
done again.

The facts about a batch are gathered once. Only its deletions are paced, by the operator's rate and by what the metadata
store bears; those whose turn comes when their facts are too old are judged again, on new facts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.ledger_deletion.outcomes import RecordOutcome
from pulsar_sidecar.ledger_deletion.ports import (
    DeletionTopic,
    Delivery,
    OffloadDeletion,
    OffloadedLedgers,
    PendingDeletions,
)
from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo, encode_record
from pulsar_sidecar.ledger_deletion.second_phase.batch_result import BatchReport, BatchResult
from pulsar_sidecar.ledger_deletion.second_phase.decide import (
    Delete,
    DeleteOffloaded,
    Finish,
    Policy,
    Postpone,
    Reason,
    RetryLater,
    SetAside,
)
from pulsar_sidecar.ledger_deletion.second_phase.delete import LedgerDeleter
from pulsar_sidecar.ledger_deletion.second_phase.evaluate import Candidate, Evaluation, evaluate, read_deliveries
from pulsar_sidecar.ledger_deletion.second_phase.gather import Gatherer
from pulsar_sidecar.ledger_deletion.second_phase.publish import BatchPublishing, Publishers
from pulsar_sidecar.ledger_deletion.second_phase.rate_limit import RateLimiter
from pulsar_sidecar.ledger_deletion.second_phase.retry import RetryPolicy, reconsume
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import DisabledError, OutcomeUnknownError, PermanentError, TemporaryError
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.metadata import DeletionResult

FACTS_SECONDS = 10.0
"""Facts that are older are gathered again before they are acted on: versions guard what is in the metadata store, but
not what a broker holds in its memory."""
_JUDGING_ROUNDS = 3
"""How often a record whose nodes change under it is judged within one batch before it is sent to the retry topic."""


@dataclass(frozen=True, slots=True)
class _Round:
    """One judging of some records, and what is done about it.

    Attributes:
        may_send: whether a deletion may still be sent: the facts are fresh, and deletion is neither stopped nor paused.
        last_resort: no other round follows.
        paced: whether deletions keep to the operator's rate.
    """

    may_send: Callable[[], bool]
    last_resort: bool
    paced: bool


@dataclass(slots=True)
class _Open:
    """The candidates that a round leaves: those to be judged again at once, and those whose turn did not come."""

    again: list[Candidate] = field(default_factory=list)
    unreached: list[Candidate] = field(default_factory=list)


class PendingDeletionProcessor:
    """Takes batches of messages to their end."""

    def __init__(
        self,
        sidecar: str,
        clock: Clock,
        deleter: LedgerDeleter,
        gatherer: Gatherer,
        offloaded: OffloadedLedgers,
        publishers: Publishers,
        policy: Policy,
        retry_policy: RetryPolicy,
        metrics: DeletionMetrics,
        steps: Steps,
        rate_limiter: RateLimiter,
        warn: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._deleter = deleter
        self._gatherer = gatherer
        self._offloaded = offloaded
        self._policy = policy
        self._retry_policy = retry_policy
        self._metrics = metrics
        self._steps = steps
        self._rate_limiter = rate_limiter
        self._warn = warn
        self._publishing = BatchPublishing(sidecar, clock, publishers, steps, warn)

    def process(self, pending: PendingDeletions, deliveries: Sequence[Delivery]) -> BatchReport:
        """Take one batch to its end; a failure postpones, it never raises for a single record."""
        self._metrics.received(len(deliveries))
        batch = BatchResult()
        with self._steps.taking(Step.BATCH_RECEIVED):
            candidates, malformed = read_deliveries(deliveries)
        for message in malformed:
            batch.reject(message)
        self._work_off(batch, candidates)
        report = batch.report(len(deliveries))
        batch.counts.report(self._metrics)
        self._close(batch, pending)
        return report

    def process_now(self, record: PendingDeleteLedgerInfo, origin: str) -> RecordOutcome:
        """Judge one record and delete its ledger at once, without the topic; how it ended or why it has to wait.

        Raises:
            TemporaryError: the facts could not be read, or the evaluation could not be kept.
        """
        batch = BatchResult()
        delivery = Delivery(None, encode_record(record), str(record.topic), {}, origin, "", 0)
        self._work_through(batch, [Candidate(delivery, record)], paced=False)
        batch.counts.report(self._metrics)
        if batch.reconsumptions:
            return batch.reconsumptions[0][2]
        if not batch.outcomes:
            raise TemporaryError(f"ledger {record.ledger_id} could not be judged now; try again")
        if not self._publishing.keep_outcomes(batch.outcomes):
            self._warn(f"the outcome of ledger {record.ledger_id} could not be kept")
        return batch.outcomes[0]

    # --- judging and deleting ---------------------------------------------------------------------------------------

    def _work_off(self, batch: BatchResult, candidates: Sequence[Candidate]) -> None:
        """All of them, unless the sidecar is stopped or deletion paused: what was not begun is delivered again."""
        waiting = list(candidates)
        most = count = len(waiting)
        while waiting:
            unreached = self._work_through(batch, waiting[:count], paced=True)
            if self._rate_limiter.is_stopped():
                return
            if self._rate_limiter.is_paused():
                # Unlike a stop, a pause leaves the consumer connected, which would keep what is not given back.
                self._postpone_all(batch, unreached + waiting[count:], "deletion is paused")
                return
            if len(unreached) == count:
                # The facts were old before the first deletion: those of fewer records are gathered faster.
                most = count // 2
            if most == 0:
                why = "the facts of the first were too old before its turn"
                self._postpone_all(batch, unreached + waiting[count:], why)
                return
            waiting = unreached + waiting[count:]
            count = min(len(waiting), most, self._rate_limiter.most_within(FACTS_SECONDS) or most)

    def _work_through(self, batch: BatchResult, candidates: Sequence[Candidate], *, paced: bool) -> list[Candidate]:
        """Judge them, and obey; returns those whose deletion has to wait for other facts."""
        open_candidates = list(candidates)
        unreached: list[Candidate] = []
        for rounds_left in reversed(range(_JUDGING_ROUNDS)):
            # Waiting for the first deletion's turn comes before gathering, or a low rate would only make facts old.
            if not open_candidates or (paced and not self._rate_limiter.wait()):
                return unreached + open_candidates
            round_ = _Round(self._while_fresh(), last_resort=rounds_left == 0, paced=paced)
            try:
                with self._steps.taking(Step.FACTS_GATHERED):
                    evaluations = evaluate(self._gatherer, self._policy, open_candidates)
            except (TemporaryError, OutcomeUnknownError) as error:
                self._postpone_all(batch, open_candidates, f"facts could not be gathered: {error}")
                return unreached
            except PermanentError as error:
                return unreached + self._set_apart(batch, open_candidates, error, paced=paced)
            left = self._obey(batch, evaluations, round_)
            open_candidates = left.again
            unreached += left.unreached
        for candidate in open_candidates:
            self._retry(batch, candidate, RetryLater(Reason.CHANGED_MEANWHILE, "its nodes change all the time"), None)
        return unreached

    def _while_fresh(self) -> Callable[[], bool]:
        """Whether facts that are gathered from now on may still be acted on."""
        until = self._clock.monotonic_seconds() + FACTS_SECONDS
        return lambda: self._clock.monotonic_seconds() <= until and self._rate_limiter.may_go_on()

    def _set_apart(
        self, batch: BatchResult, candidates: Sequence[Candidate], error: PermanentError, *, paced: bool
    ) -> list[Candidate]:
        """Find the record that cannot even be asked about, so that it does not hold up its neighbours."""
        if len(candidates) == 1:
            self._retry(batch, candidates[0], RetryLater(Reason.REFERENCES_UNKNOWN, str(error)), None)
            return []
        half = len(candidates) // 2
        unreached = self._work_through(batch, candidates[:half], paced=paced)
        return unreached + self._work_through(batch, candidates[half:], paced=paced)

    def _obey(self, batch: BatchResult, evaluations: Sequence[Evaluation], round_: _Round) -> _Open:
        """Carry out the verdicts."""
        deletions: list[Evaluation] = []
        left = _Open()
        deleting: set[tuple[int, LedgerType]] = set()
        for evaluation in evaluations:
            record = evaluation.candidate.record
            match evaluation.verdict:
                case Finish(reason, detail):
                    self._finish(batch, evaluation, "kept", reason, detail)
                case RetryLater() as verdict:
                    self._retry(batch, evaluation.candidate, verdict, evaluation)
                case SetAside() as verdict:
                    self._set_aside(batch, evaluation, verdict)
                case Postpone(reason, _):
                    batch.counts.decisions["postponed", reason] += 1
                    batch.postponed.append(evaluation.candidate.delivery)
                case Delete() | DeleteOffloaded():
                    # Two records of one ledger in a batch: the second is judged again after the first's deletion.
                    key = (record.ledger_id, record.ledger_type)
                    (left.again.append(evaluation.candidate) if key in deleting else deletions.append(evaluation))
                    deleting.add(key)
                case never:
                    assert_never(never)
        if deletions:
            self._delete(batch, deletions, left, round_)
        return left

    def _delete(self, batch: BatchResult, evaluations: Sequence[Evaluation], left: _Open, round_: _Round) -> None:
        # A evaluation is kept only for what the rate lets through while its facts are fresh.
        most = self._rate_limiter.most_within(FACTS_SECONDS) if round_.paced else None
        first = evaluations if most is None else evaluations[:most]
        left.unreached += [evaluation.candidate for evaluation in evaluations[len(first) :]]
        if not self._publishing.keep_evaluations(first):
            candidates = [evaluation.candidate for evaluation in first]
            self._postpone_all(batch, candidates, "the evaluation could not be kept on the outcome topic")
            return
        reached = 0
        for chunk in self._rate_limiter.chunks(first) if round_.paced else [first]:
            self._delete_chunk(batch, chunk, left, round_)
            reached += len(chunk)
            if not round_.may_send():
                # The others would wait for their turn, and use up the rate, only to be judged again.
                break
        left.unreached += [evaluation.candidate for evaluation in first[reached:]]

    def _delete_chunk(self, batch: BatchResult, evaluations: Sequence[Evaluation], left: _Open, round_: _Round) -> None:
        stored = [evaluation for evaluation in evaluations if isinstance(evaluation.verdict, Delete)]
        self._delete_stored(batch, stored, left, round_)
        for evaluation in evaluations:
            if isinstance(evaluation.verdict, DeleteOffloaded):
                if round_.may_send():
                    self._delete_offloaded(batch, evaluation, evaluation.verdict)
                else:
                    left.unreached.append(evaluation.candidate)

    def _delete_stored(
        self, batch: BatchResult, evaluations: Sequence[Evaluation], left: _Open, round_: _Round
    ) -> None:
        ledgers = [
            (evaluation.candidate.record.ledger_id, evaluation.verdict)
            for evaluation in evaluations
            if isinstance(evaluation.verdict, Delete)
        ]
        with self._steps.taking(Step.LEDGERS_DELETED):
            deletions = self._deleter.delete(ledgers, round_.may_send, last_resort=round_.last_resort)
        for evaluation, deletion in zip(evaluations, deletions, strict=True):
            match deletion.result:
                case DeletionResult.DELETED:
                    self._deleted(batch, evaluation, conditional=deletion.conditional)
                case DeletionResult.GONE:
                    self._finish(batch, evaluation, "kept", Reason.ALREADY_GONE, "somebody else deleted it just now")
                case DeletionResult.CONFLICT | DeletionResult.UNKNOWN:
                    batch.counts.failed[_kind(evaluation.candidate.record)] += 1
                    left.again.append(evaluation.candidate)
                case DeletionResult.NOT_SENT:
                    left.unreached.append(evaluation.candidate)
                case never:
                    assert_never(never)

    def _deleted(self, batch: BatchResult, evaluation: Evaluation, *, conditional: bool = True) -> None:
        record = evaluation.candidate.record
        verdict = evaluation.verdict
        length_bytes = verdict.ledger.metadata.length_bytes if isinstance(verdict, Delete) else 0
        batch.counts.deleted[_kind(record)] += 1
        batch.counts.deleted_bytes[_kind(record)] += length_bytes
        self._finish(
            batch, evaluation, "deleted", Reason.UNREFERENCED, "nothing references it", conditional=conditional
        )

    def _delete_offloaded(self, batch: BatchResult, evaluation: Evaluation, verdict: DeleteOffloaded) -> None:
        record = evaluation.candidate.record
        try:
            with self._steps.taking(Step.OFFLOADED_DELETED):
                result = self._offloaded.delete_offloaded(
                    record.ledger_id, verdict.context, record.topic.managed_ledger_name
                )
        except DisabledError as error:
            # An operator who adds the missing setting finds the record on the dead-letter topic at the latest.
            self._retry(batch, evaluation.candidate, RetryLater(Reason.REFUSED_BY_STORAGE, str(error)), evaluation)
            return
        except PermanentError as error:
            batch.counts.failed[_kind(record)] += 1
            self._finish(batch, evaluation, "kept", Reason.REFUSED_BY_STORAGE, str(error))
            return
        except (TemporaryError, OutcomeUnknownError) as error:
            batch.counts.failed[_kind(record)] += 1
            self._retry(batch, evaluation.candidate, RetryLater(Reason.TEMPORARY_FAILURE, str(error)), evaluation)
            return
        if result is OffloadDeletion.DELETED:
            self._deleted(batch, evaluation)
        else:
            self._finish(batch, evaluation, "kept", Reason.ALREADY_GONE, "tiered storage holds no such objects")

    # --- how a record ends ------------------------------------------------------------------------------------------

    def _finish(
        self,
        batch: BatchResult,
        evaluation: Evaluation,
        decision: str,
        reason: Reason,
        detail: str,
        *,
        conditional: bool = True,
    ) -> None:
        delivery, record = evaluation.candidate.delivery, evaluation.candidate.record
        gone = decision == "deleted" or reason is Reason.ALREADY_GONE
        mark = evaluation.facts.under_replication_mark
        if gone and record.ledger_type is LedgerType.LEDGER and mark is not None:
            with self._steps.taking(Step.UNDER_REPLICATION_CLEARED):
                self._deleter.clear_under_replication(mark)
        batch.counts.decisions[decision, reason] += 1
        batch.outcomes.append(
            RecordOutcome(decision, reason.value, detail, delivery.message_id, record, evaluation.facts, conditional)
        )
        batch.finished.append(delivery)

    def _retry(
        self, batch: BatchResult, candidate: Candidate, verdict: RetryLater, evaluation: Evaluation | None
    ) -> None:
        again = reconsume(
            candidate.delivery,
            self._retry_policy,
            f"{verdict.reason.value}: {verdict.detail}",
            delay_ms=verdict.delay_ms,
            in_use_since=evaluation.in_use_since_ms if evaluation else None,
        )
        dead = again.destination is DeletionTopic.DEAD_LETTER
        decision = "dead-letter" if dead else "retry"
        batch.counts.decisions[decision, verdict.reason] += 1
        outcome = RecordOutcome(
            decision,
            verdict.reason.value,
            verdict.detail,
            candidate.delivery.message_id,
            candidate.record,
            evaluation.facts if evaluation else None,
        )
        batch.reconsumptions.append((candidate.delivery, again, outcome))

    def _set_aside(self, batch: BatchResult, evaluation: Evaluation, verdict: SetAside) -> None:
        delivery, record = evaluation.candidate.delivery, evaluation.candidate.record
        reason, detail = verdict.reason, verdict.detail
        again = reconsume(delivery, self._retry_policy, f"{reason.value}: {detail}", give_up=True)
        batch.counts.decisions["set-aside", reason] += 1
        outcome = RecordOutcome("set-aside", reason.value, detail, delivery.message_id, record, evaluation.facts)
        batch.reconsumptions.append((delivery, again, outcome))

    def _postpone_all(self, batch: BatchResult, candidates: Sequence[Candidate], why: str) -> None:
        self._warn(f"{len(candidates)} records are postponed: {why}")
        batch.counts.decisions["postponed", Reason.TEMPORARY_FAILURE] += len(candidates)
        batch.postponed.extend(candidate.delivery for candidate in candidates)

    # --- making it durable ------------------------------------------------------------------------------------------

    def _close(self, batch: BatchResult, pending: PendingDeletions) -> None:
        self._publishing.send_again(batch)
        if not self._publishing.keep_outcomes(batch.outcomes):
            self._warn(f"{len(batch.finished)} records are postponed: their outcome could not be kept")
            batch.postponed.extend(batch.finished)
            batch.finished.clear()
        if batch.postponed:
            pending.postpone(batch.postponed)
        # What was handed on is durable in its copy; keeping the original as well would hand it on again and again.
        done = batch.finished + batch.handed_on
        if done:
            with self._steps.taking(Step.ACKNOWLEDGED):
                pending.acknowledge(done)
            self._metrics.acknowledged(len(done))


def _kind(record: PendingDeleteLedgerInfo) -> tuple[LedgerType, LedgerComponent]:
    return record.ledger_type, record.component
