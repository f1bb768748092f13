"""The second phase, one batch at a time: decide, log what is to be deleted, delete, log outcomes, acknowledge.

Invariant: a message is acknowledged only after what became of it is durable: its outcome, or its copy on the retry or
dead-letter topic. Whatever fails in between leaves the message to be delivered again, and everything before it can be
done again.

The facts about a batch are gathered once. Only its deletions are paced, by the operator's rate and by what the metadata
store bears; those whose turn comes when their facts are too old are decided on again, with new facts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.ledger_deletion.outcomes import Decision, RecordOutcome
from pulsar_sidecar.ledger_deletion.ports import (
    Delivery,
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
from pulsar_sidecar.ledger_deletion.second_phase.delete import LedgerDeleter, Unfinished
from pulsar_sidecar.ledger_deletion.second_phase.evaluate import Candidate, Evaluation, evaluate, read_deliveries
from pulsar_sidecar.ledger_deletion.second_phase.gather import Gatherer
from pulsar_sidecar.ledger_deletion.second_phase.publish import BatchPublishing, Publishers
from pulsar_sidecar.ledger_deletion.second_phase.rate_limit import RateLimiter
from pulsar_sidecar.ledger_deletion.second_phase.retry import RetryPolicy
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import OutcomeUnknownError, PermanentError, TemporaryError
from pulsar_sidecar.model.ledgers import LedgerType

FACTS_SECONDS = 10.0
"""Facts that are older are gathered again before they are acted on: versions guard what is in the metadata store, but
not what a broker holds in its memory."""
_ROUNDS = 3
"""How often a batch decides on a record whose nodes change meanwhile, before the record goes to the retry topic."""


@dataclass(frozen=True, slots=True)
class _Round:
    """One decision on some records, and what follows from it.

    Attributes:
        may_send: whether a deletion may still be sent: the facts are fresh, and deletion is neither stopped nor paused.
        last_resort: no other round follows.
        paced: whether deletions keep to the operator's rate.
    """

    may_send: Callable[[], bool]
    last_resort: bool
    paced: bool


class PendingDeletionProcessor:
    """Takes batches of messages to their end."""

    def __init__(
        self,
        sidecar: str,
        clock: Clock,
        deleter: LedgerDeleter,
        gatherer: Gatherer,
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
        batch = BatchResult(self._retry_policy, self._metrics)
        with self._steps.taking(Step.BATCH_RECEIVED):
            candidates, malformed = read_deliveries(deliveries)
        for message in malformed:
            batch.reject(message)
        self._process_all(batch, candidates)
        report = batch.report(len(deliveries))
        self._complete(batch, pending)
        return report

    def process_now(self, record: PendingDeleteLedgerInfo, origin: str) -> RecordOutcome:
        """Decide on one record and delete its ledger at once, without the topic; how it ended or why it has to wait.

        Raises:
            TemporaryError: the facts could not be read, or could not be stored on the outcome topic.
        """
        batch = BatchResult(self._retry_policy, self._metrics)
        delivery = Delivery(None, encode_record(record), str(record.topic), {}, origin, "", 0)
        self._process_some(batch, [Candidate(delivery, record)], paced=False)
        if batch.reconsumptions:
            return batch.reconsumptions[0][2]
        if not batch.outcomes:
            raise TemporaryError(f"ledger {record.ledger_id} could not be decided on now; try again")
        if not self._publishing.log_outcomes(batch.outcomes):
            self._warn(f"the outcome of ledger {record.ledger_id} could not be kept")
        return batch.outcomes[0]

    # --- deciding and deleting ---------------------------------------------------------------------------------------

    def _process_all(self, batch: BatchResult, candidates: Sequence[Candidate]) -> None:
        """All of them, unless the sidecar is stopped or deletion paused: what was not begun is delivered again."""
        waiting = list(candidates)
        most = count = len(waiting)
        while waiting:
            unreached = self._process_some(batch, waiting[:count], paced=True)
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

    def _process_some(self, batch: BatchResult, candidates: Sequence[Candidate], *, paced: bool) -> list[Candidate]:
        """Decide and carry out; returns those whose deletion has to wait for new facts."""
        open_candidates = list(candidates)
        unreached: list[Candidate] = []
        for rounds_left in reversed(range(_ROUNDS)):
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
                return unreached + self._process_halves(batch, open_candidates, error, paced=paced)
            left = self._carry_out(batch, evaluations, round_)
            open_candidates = left.again
            unreached += left.unreached
        for candidate in open_candidates:
            batch.retry(candidate, RetryLater(Reason.CHANGED_MEANWHILE, "its nodes change all the time"), None)
        return unreached

    def _while_fresh(self) -> Callable[[], bool]:
        """Whether facts that are gathered from now on may still be acted on."""
        until = self._clock.monotonic_seconds() + FACTS_SECONDS
        return lambda: self._clock.monotonic_seconds() <= until and self._rate_limiter.may_continue()

    def _process_halves(
        self, batch: BatchResult, candidates: Sequence[Candidate], error: PermanentError, *, paced: bool
    ) -> list[Candidate]:
        """Find the record whose facts cannot be read at all, so that it does not hold up the others."""
        if len(candidates) == 1:
            batch.retry(candidates[0], RetryLater(Reason.REFERENCES_UNKNOWN, str(error)), None)
            return []
        half = len(candidates) // 2
        unreached = self._process_some(batch, candidates[:half], paced=paced)
        return unreached + self._process_some(batch, candidates[half:], paced=paced)

    def _carry_out(self, batch: BatchResult, evaluations: Sequence[Evaluation], round_: _Round) -> Unfinished:
        deletions: list[Evaluation] = []
        left = Unfinished()
        deleting: set[tuple[int, LedgerType]] = set()
        for evaluation in evaluations:
            record = evaluation.candidate.record
            match evaluation.verdict:
                case Finish(reason, detail):
                    self._deleter.finish(batch, evaluation, Decision.KEPT, reason, detail)
                case RetryLater() as verdict:
                    batch.retry(evaluation.candidate, verdict, evaluation)
                case SetAside() as verdict:
                    batch.set_aside(evaluation, verdict)
                case Postpone(reason, _):
                    batch.postpone([evaluation.candidate], reason)
                case Delete() | DeleteOffloaded():
                    # Two records of one ledger in a batch: the second is decided on again after the first's deletion.
                    key = (record.ledger_id, record.ledger_type)
                    (left.again.append(evaluation.candidate) if key in deleting else deletions.append(evaluation))
                    deleting.add(key)
                case never:
                    assert_never(never)
        if deletions:
            self._delete(batch, deletions, left, round_)
        return left

    def _delete(self, batch: BatchResult, evaluations: Sequence[Evaluation], left: Unfinished, round_: _Round) -> None:
        # An evaluation is logged only for what the rate lets through while its facts are fresh.
        most = self._rate_limiter.most_within(FACTS_SECONDS) if round_.paced else None
        first = evaluations if most is None else evaluations[:most]
        left.unreached += [evaluation.candidate for evaluation in evaluations[len(first) :]]
        if not self._publishing.log_evaluations(first):
            candidates = [evaluation.candidate for evaluation in first]
            self._postpone_all(batch, candidates, "the outcome topic did not store what is to be deleted")
            return
        reached = 0
        for chunk in self._rate_limiter.chunks(first) if round_.paced else [first]:
            self._deleter.delete(batch, chunk, left, round_.may_send, last_resort=round_.last_resort)
            reached += len(chunk)
            if not round_.may_send():
                # The others would wait for their turn, and use up the rate, only to be decided on again.
                break
        left.unreached += [evaluation.candidate for evaluation in first[reached:]]

    # --- how a batch ends --------------------------------------------------------------------------------------------

    def _postpone_all(self, batch: BatchResult, candidates: Sequence[Candidate], why: str) -> None:
        self._warn(f"{len(candidates)} records are postponed: {why}")
        batch.postpone(candidates, Reason.TEMPORARY_FAILURE)

    def _complete(self, batch: BatchResult, pending: PendingDeletions) -> None:
        self._publishing.send_again(batch)
        if not self._publishing.log_outcomes(batch.outcomes):
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
