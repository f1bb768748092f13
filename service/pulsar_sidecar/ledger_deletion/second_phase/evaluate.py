"""From received messages to verdicts: parse, gather, decide."""

from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_sidecar.ledger_deletion.ports import Delivery
from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo, parse_record
from pulsar_sidecar.ledger_deletion.second_phase.decide import Policy, Reason, RetryLater, Verdict, decide
from pulsar_sidecar.ledger_deletion.second_phase.facts import Facts
from pulsar_sidecar.ledger_deletion.second_phase.gather import Gatherer, Question
from pulsar_sidecar.ledger_deletion.second_phase.retry import in_use_since_ms
from pulsar_sidecar.model.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Candidate:
    """A well-formed record and the message that carries it."""

    delivery: Delivery
    record: PendingDeleteLedgerInfo


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that is no record, and why."""

    delivery: Delivery
    detail: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A candidate with its facts and the verdict on them."""

    candidate: Candidate
    facts: Facts
    verdict: Verdict

    @property
    def in_use_since_ms(self) -> int | None:
        """When the record was first seen in use: carried to the next look while the list may still shrink."""
        if not isinstance(self.verdict, RetryLater) or self.verdict.reason is not Reason.MAY_STILL_SHRINK:
            return None
        return self.facts.now_ms if self.facts.in_use_since_ms is None else self.facts.in_use_since_ms


def read_deliveries(deliveries: Sequence[Delivery]) -> tuple[list[Candidate], list[Malformed]]:
    """Split messages into records and malformed ones."""
    candidates: list[Candidate] = []
    malformed: list[Malformed] = []
    for delivery in deliveries:
        try:
            candidates.append(Candidate(delivery, parse_record(delivery.payload)))
        except InvalidInputError as error:
            malformed.append(Malformed(delivery, str(error)))
    return candidates, malformed


def evaluate(gatherer: Gatherer, policy: Policy, candidates: Sequence[Candidate]) -> list[Evaluation]:
    """Decide on a batch.

    Raises:
        TemporaryError: the facts could not be read; nothing is known about any of them.
    """
    questions = [Question(candidate.record, in_use_since_ms(candidate.delivery.properties)) for candidate in candidates]
    return [
        Evaluation(candidate, facts, decide(facts, policy))
        for candidate, facts in zip(candidates, gatherer.gather(questions), strict=True)
    ]
