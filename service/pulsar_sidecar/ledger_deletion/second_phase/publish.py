"""What a batch writes to topics: evaluations, outcomes, and the copies of records that are tried again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pulsar_sidecar.ledger_deletion.outcomes import RecordOutcome, judged_messages, settled_messages
from pulsar_sidecar.ledger_deletion.ports import DeletionTopic, OutgoingMessage, Publisher, PublishResult
from pulsar_sidecar.ledger_deletion.second_phase.batch_result import BatchResult
from pulsar_sidecar.ledger_deletion.second_phase.decide import Delete, DeleteOffloaded
from pulsar_sidecar.ledger_deletion.second_phase.evaluate import Evaluation
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError


@dataclass(frozen=True, slots=True)
class Publishers:
    """Where a batch writes."""

    retry: Publisher
    dead_letter: Publisher
    outcome: Publisher


class BatchPublishing:
    """Writes what one batch has to write; a message counts as written only when the broker's receipt has come."""

    def __init__(
        self, sidecar: str, clock: Clock, publishers: Publishers, steps: Steps, warn: Callable[[str], None]
    ) -> None:
        self._sidecar = sidecar
        self._clock = clock
        self._publishers = publishers
        self._steps = steps
        self._warn = warn

    def log_evaluations(self, evaluations: Sequence[Evaluation]) -> bool:
        """Why these ledgers are about to be deleted, and what brings them back; whether all of it is written."""
        judged = [
            (evaluation.candidate.delivery.message_id, evaluation.facts, evaluation.verdict)
            for evaluation in evaluations
            if isinstance(evaluation.verdict, (Delete, DeleteOffloaded))
        ]
        payloads = judged_messages(self._sidecar, self._clock.now_ms(), judged)
        with self._steps.taking(Step.JUDGEMENT_KEPT):
            return self._stored(self._publishers.outcome, [OutgoingMessage(payload) for payload in payloads])

    def log_outcomes(self, outcomes: Sequence[RecordOutcome]) -> bool:
        """How records ended; whether all of it is written."""
        payloads = settled_messages(self._sidecar, self._clock.now_ms(), outcomes)
        outgoing = [OutgoingMessage(payload) for payload in payloads]
        with self._steps.taking(Step.OUTCOMES_KEPT):
            return self._stored(self._publishers.outcome, outgoing) if outgoing else True

    def send_again(self, batch: BatchResult) -> None:
        """The copies for the retry and the dead-letter topic; a record whose copy has no receipt is postponed."""
        for destination, publisher, step in (
            (DeletionTopic.RETRY, self._publishers.retry, Step.RETRIES_SENT),
            (DeletionTopic.DEAD_LETTER, self._publishers.dead_letter, Step.DEAD_LETTERS_SENT),
        ):
            group = [entry for entry in batch.reconsumptions if entry[1].destination is destination]
            if not group:
                continue
            with self._steps.taking(step):
                results = self._publish(publisher, [again.message for _, again, _ in group])
            for (delivery, _, outcome), result in zip(group, results, strict=True):
                if result.stored:
                    batch.outcomes.append(outcome)
                    batch.handed_on.append(delivery)
                else:
                    batch.postponed.append(delivery)

    def _stored(self, publisher: Publisher, messages: Sequence[OutgoingMessage]) -> bool:
        return all(result.stored for result in self._publish(publisher, messages))

    def _publish(self, publisher: Publisher, messages: Sequence[OutgoingMessage]) -> list[PublishResult]:
        try:
            return publisher.publish(messages)
        except SidecarError as error:
            self._warn(f"{len(messages)} messages could not be published: {error}")
            return [PublishResult.UNKNOWN] * len(messages)
