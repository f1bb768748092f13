"""The second phase, one batch at a time: judge, keep the judgement, delete, keep the outcome, acknowledge.

Invariant: a message is acknowledged only after what became of it is durable: its outcome, or its copy on the retry or
dead-letter topic. Whatever fails in between leaves the message to be delivered again, and everything before it can be
done again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from service.ledger_deletion.booking import BatchReport, Ledgerbook
from service.ledger_deletion.deciding import (
    Delete,
    DeleteOffloaded,
    Finish,
    Policy,
    Postpone,
    Reason,
    RetryLater,
)
from service.ledger_deletion.deleting import LedgerDeleter
from service.ledger_deletion.facts import StoredLedger
from service.ledger_deletion.gathering import Gatherer
from service.ledger_deletion.judging import Candidate, Judgement, Malformed, judge, read_deliveries
from service.ledger_deletion.limiting import Pacer
from service.ledger_deletion.outcomes import Settlement, judged_messages, settled_messages
from service.ledger_deletion.pending import PendingDeleteLedgerInfo, encode_record
from service.ledger_deletion.ports import (
    DeletionTopic,
    Delivery,
    OffloadDeletion,
    OffloadedLedgers,
    OutgoingMessage,
    PendingDeletions,
    Publisher,
    PublishResult,
)
from service.ledger_deletion.retrying import RetryPolicy, reconsume
from service.ledger_deletion.steps import Step, Steps
from service.model.clocks import Clock
from service.model.errors import DisabledError, OutcomeUnknownError, PermanentError, SidecarError, TemporaryError
from service.model.ledgers import LedgerType
from service.model.metadata import DeletionResult
from service.observability.metrics import DeletionMetrics

_JUDGING_ROUNDS = 3
"""How often a record whose nodes change under it is judged within one batch before it is sent to the retry topic."""


@dataclass(frozen=True, slots=True)
class Publishers:
    """Where a batch writes."""

    retry: Publisher
    dead_letter: Publisher
    outcome: Publisher


class Settler:
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
        pacer: Pacer,
        warn: Callable[[str], None],
    ) -> None:
        self._sidecar = sidecar
        self._clock = clock
        self._deleter = deleter
        self._gatherer = gatherer
        self._offloaded = offloaded
        self._publishers = publishers
        self._policy = policy
        self._retry_policy = retry_policy
        self._metrics = metrics
        self._steps = steps
        self._pacer = pacer
        self._warn = warn

    def settle(self, pending: PendingDeletions, deliveries: Sequence[Delivery]) -> BatchReport:
        """Take one batch to its end; a failure postpones, it never raises for a single record."""
        self._metrics.received(len(deliveries))
        book = Ledgerbook()
        with self._steps.taking(Step.BATCH_RECEIVED):
            candidates, malformed = read_deliveries(deliveries)
        for message in malformed:
            self._reject(book, message)
        for chunk in self._pacer.chunks(candidates):
            self._work_through(book, chunk)
        report = _report(deliveries, book)
        book.tally.tell(self._metrics)
        self._close(book, pending)
        return report

    def settle_now(self, record: PendingDeleteLedgerInfo, origin: str) -> Settlement:
        """Judge one record and delete its ledger at once, without the topic; how it ended or why it has to wait.

        Raises:
            TemporaryError: the facts could not be read, or the judgement could not be kept.
        """
        book = Ledgerbook()
        delivery = Delivery(None, encode_record(record), str(record.topic), {}, origin, "", 0)
        self._work_through(book, [Candidate(delivery, record)])
        book.tally.tell(self._metrics)
        if book.reconsumptions:
            return book.reconsumptions[0][2]
        if not book.settlements:
            raise TemporaryError(f"ledger {record.ledger_id} could not be judged now; try again")
        payloads = settled_messages(self._sidecar, self._clock.now_ms(), book.settlements)
        with self._steps.taking(Step.OUTCOMES_KEPT):
            kept = self._stored(self._publishers.outcome, [OutgoingMessage(payload) for payload in payloads])
        if not kept:
            self._warn(f"the outcome of ledger {record.ledger_id} could not be kept")
        return book.settlements[0]

    # --- judging and deleting ---------------------------------------------------------------------------------------

    def _work_through(self, book: Ledgerbook, candidates: Sequence[Candidate]) -> None:
        open_candidates = list(candidates)
        for rounds_left in reversed(range(_JUDGING_ROUNDS)):
            if not open_candidates:
                return
            try:
                with self._steps.taking(Step.FACTS_GATHERED):
                    judgements = judge(self._gatherer, self._policy, open_candidates)
            except (TemporaryError, OutcomeUnknownError) as error:
                self._postpone_all(book, open_candidates, f"facts could not be gathered: {error}")
                return
            except PermanentError as error:
                self._set_apart(book, open_candidates, error)
                return
            open_candidates = self._obey(book, judgements, last_resort=rounds_left == 0)
        for candidate in open_candidates:
            self._retry(book, candidate, RetryLater(Reason.CHANGED_MEANWHILE, "its nodes change all the time"), None)

    def _set_apart(self, book: Ledgerbook, candidates: Sequence[Candidate], error: PermanentError) -> None:
        """Find the record that cannot even be asked about, so that it does not hold up its neighbours."""
        if len(candidates) == 1:
            self._retry(book, candidates[0], RetryLater(Reason.REFERENCES_UNKNOWN, str(error)), None)
            return
        half = len(candidates) // 2
        self._work_through(book, candidates[:half])
        self._work_through(book, candidates[half:])

    def _obey(self, book: Ledgerbook, judgements: Sequence[Judgement], *, last_resort: bool) -> list[Candidate]:
        """Carry out the verdicts; returns what has to be judged again."""
        deletions: list[Judgement] = []
        again: list[Candidate] = []
        deleting: set[tuple[int, LedgerType]] = set()
        for judgement in judgements:
            record = judgement.candidate.record
            match judgement.verdict:
                case Finish(reason, detail):
                    self._finish(book, judgement, "kept", reason, detail)
                case RetryLater() as verdict:
                    self._retry(book, judgement.candidate, verdict, judgement)
                case Postpone(reason, _):
                    book.tally.decisions["postponed", reason] += 1
                    book.postponed.append(judgement.candidate.delivery)
                case Delete() | DeleteOffloaded():
                    # Two records of one ledger in a batch: the second is judged again after the first's deletion.
                    key = (record.ledger_id, record.ledger_type)
                    (again.append(judgement.candidate) if key in deleting else deletions.append(judgement))
                    deleting.add(key)
                case never:
                    assert_never(never)
        return again + (self._delete(book, deletions, last_resort=last_resort) if deletions else [])

    def _delete(self, book: Ledgerbook, judgements: Sequence[Judgement], *, last_resort: bool) -> list[Candidate]:
        with self._steps.taking(Step.JUDGEMENT_KEPT):
            kept = self._keep_judgements(judgements)
        if not kept:
            candidates = [judgement.candidate for judgement in judgements]
            self._postpone_all(book, candidates, "the judgement could not be kept on the outcome topic")
            return []
        stored = [judgement for judgement in judgements if isinstance(judgement.verdict, Delete)]
        again = self._delete_stored(book, stored, last_resort=last_resort)
        for judgement in judgements:
            if isinstance(judgement.verdict, DeleteOffloaded):
                self._delete_offloaded(book, judgement, judgement.verdict)
        return again

    def _keep_judgements(self, judgements: Sequence[Judgement]) -> bool:
        judged = [
            (judgement.candidate.delivery.message_id, judgement.facts, judgement.verdict)
            for judgement in judgements
            if isinstance(judgement.verdict, (Delete, DeleteOffloaded))
        ]
        payloads = judged_messages(self._sidecar, self._clock.now_ms(), judged)
        return self._stored(self._publishers.outcome, [OutgoingMessage(payload) for payload in payloads])

    def _delete_stored(
        self, book: Ledgerbook, judgements: Sequence[Judgement], *, last_resort: bool
    ) -> list[Candidate]:
        ledgers = [
            (judgement.candidate.record.ledger_id, judgement.verdict)
            for judgement in judgements
            if isinstance(judgement.verdict, Delete)
        ]
        again: list[Candidate] = []
        with self._steps.taking(Step.LEDGERS_DELETED):
            deletions = self._deleter.delete(ledgers, last_resort=last_resort)
        for judgement, deletion in zip(judgements, deletions, strict=True):
            match deletion.result:
                case DeletionResult.DELETED:
                    self._deleted(book, judgement, conditional=deletion.conditional)
                case DeletionResult.GONE:
                    self._finish(book, judgement, "kept", Reason.ALREADY_GONE, "somebody else deleted it just now")
                case DeletionResult.CONFLICT | DeletionResult.UNKNOWN:
                    again.append(judgement.candidate)
                case never:
                    assert_never(never)
        return again

    def _deleted(self, book: Ledgerbook, judgement: Judgement, *, conditional: bool = True) -> None:
        record = judgement.candidate.record
        verdict = judgement.verdict
        length_bytes = verdict.ledger.metadata.length_bytes if isinstance(verdict, Delete) else 0
        book.tally.deleted[record.ledger_type, record.component] += 1
        book.tally.deleted_bytes[record.ledger_type, record.component] += length_bytes
        self._finish(book, judgement, "deleted", Reason.UNREFERENCED, "nothing references it", conditional=conditional)

    def _delete_offloaded(self, book: Ledgerbook, judgement: Judgement, verdict: DeleteOffloaded) -> None:
        record = judgement.candidate.record
        try:
            with self._steps.taking(Step.OFFLOADED_DELETED):
                result = self._offloaded.delete_offloaded(
                    record.ledger_id, verdict.context, record.topic.managed_ledger_name
                )
        except DisabledError as error:
            # An operator who adds the missing setting finds the record on the dead-letter topic at the latest.
            self._retry(book, judgement.candidate, RetryLater(Reason.REFUSED_BY_STORAGE, str(error)), judgement)
            return
        except PermanentError as error:
            self._finish(book, judgement, "kept", Reason.REFUSED_BY_STORAGE, str(error))
            return
        except (TemporaryError, OutcomeUnknownError) as error:
            self._retry(book, judgement.candidate, RetryLater(Reason.TEMPORARY_FAILURE, str(error)), judgement)
            return
        if result is OffloadDeletion.DELETED:
            self._deleted(book, judgement)
        else:
            self._finish(book, judgement, "kept", Reason.ALREADY_GONE, "tiered storage holds no such objects")

    # --- how a record ends ------------------------------------------------------------------------------------------

    def _reject(self, book: Ledgerbook, malformed: Malformed) -> None:
        book.tally.decisions["rejected", Reason.MALFORMED] += 1
        book.settlements.append(
            Settlement("rejected", Reason.MALFORMED.value, malformed.detail, malformed.delivery.message_id, None)
        )
        book.finished.append(malformed.delivery)

    def _finish(
        self,
        book: Ledgerbook,
        judgement: Judgement,
        decision: str,
        reason: Reason,
        detail: str,
        *,
        conditional: bool = True,
    ) -> None:
        delivery, record = judgement.candidate.delivery, judgement.candidate.record
        gone = decision == "deleted" or reason is Reason.ALREADY_GONE
        mark = judgement.facts.under_replication_mark
        if gone and record.ledger_type is LedgerType.LEDGER and mark is not None:
            with self._steps.taking(Step.UNDER_REPLICATION_CLEARED):
                self._deleter.clear_under_replication(mark)
        book.tally.decisions[decision, reason] += 1
        book.settlements.append(
            Settlement(decision, reason.value, detail, delivery.message_id, record, judgement.facts, conditional)
        )
        book.finished.append(delivery)

    def _retry(self, book: Ledgerbook, candidate: Candidate, verdict: RetryLater, judgement: Judgement | None) -> None:
        again = reconsume(
            candidate.delivery,
            self._retry_policy,
            f"{verdict.reason.value}: {verdict.detail}",
            delay_ms=verdict.delay_ms,
            in_use_since=judgement.in_use_since_ms if judgement else None,
        )
        dead = again.destination is DeletionTopic.DEAD_LETTER
        decision = "dead-letter" if dead else "retry"
        book.tally.decisions[decision, verdict.reason] += 1
        book.tally.failed[candidate.record.ledger_type, candidate.record.component] += 1
        settlement = Settlement(
            decision,
            verdict.reason.value,
            verdict.detail,
            candidate.delivery.message_id,
            candidate.record,
            judgement.facts if judgement else None,
        )
        book.reconsumptions.append((candidate.delivery, again, settlement))

    def _postpone_all(self, book: Ledgerbook, candidates: Sequence[Candidate], why: str) -> None:
        self._warn(f"{len(candidates)} records are postponed: {why}")
        book.tally.decisions["postponed", Reason.TEMPORARY_FAILURE] += len(candidates)
        book.postponed.extend(candidate.delivery for candidate in candidates)

    # --- making it durable ------------------------------------------------------------------------------------------

    def _close(self, book: Ledgerbook, pending: PendingDeletions) -> None:
        self._send_again(book)
        payloads = settled_messages(self._sidecar, self._clock.now_ms(), book.settlements)
        outgoing = [OutgoingMessage(payload) for payload in payloads]
        with self._steps.taking(Step.OUTCOMES_KEPT):
            kept = self._stored(self._publishers.outcome, outgoing) if outgoing else True
        if not kept:
            self._warn(f"{len(book.finished)} records are postponed: their outcome could not be kept")
            book.postponed.extend(book.finished)
            book.finished.clear()
        if book.postponed:
            pending.postpone(book.postponed)
        # What was handed on is durable in its copy; keeping the original as well would hand it on again and again.
        done = book.finished + book.handed_on
        if done:
            with self._steps.taking(Step.ACKNOWLEDGED):
                pending.acknowledge(done)
            self._metrics.acknowledged(len(done))

    def _send_again(self, book: Ledgerbook) -> None:
        for destination, publisher, step in (
            (DeletionTopic.RETRY, self._publishers.retry, Step.RETRIES_SENT),
            (DeletionTopic.DEAD_LETTER, self._publishers.dead_letter, Step.DEAD_LETTERS_SENT),
        ):
            group = [entry for entry in book.reconsumptions if entry[1].destination is destination]
            if not group:
                continue
            with self._steps.taking(step):
                results = self._publish(publisher, [again.message for _, again, _ in group])
            for (delivery, _, settlement), result in zip(group, results, strict=True):
                if result.stored:
                    book.settlements.append(settlement)
                    book.handed_on.append(delivery)
                else:
                    book.postponed.append(delivery)

    def _stored(self, publisher: Publisher, messages: Sequence[OutgoingMessage]) -> bool:
        return all(result.stored for result in self._publish(publisher, messages))

    def _publish(self, publisher: Publisher, messages: Sequence[OutgoingMessage]) -> list[PublishResult]:
        try:
            return publisher.publish(messages)
        except SidecarError as error:
            self._warn(f"{len(messages)} messages could not be published: {error}")
            return [PublishResult.UNKNOWN] * len(messages)


def _report(deliveries: Sequence[Delivery], book: Ledgerbook) -> BatchReport:
    settlements = [*book.settlements, *(settlement for _, _, settlement in book.reconsumptions)]
    lengths = [
        settlement.facts.ledger.metadata.length_bytes
        for settlement in settlements
        if settlement.facts is not None and isinstance(settlement.facts.ledger, StoredLedger)
    ]
    return BatchReport(
        received=len(deliveries),
        deleted=sum(settlement.decision == "deleted" for settlement in settlements),
        postponed=len(book.postponed),
        mean_length_bytes=sum(lengths) / len(lengths) if lengths else None,
    )
