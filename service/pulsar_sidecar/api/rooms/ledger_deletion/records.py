"""From payloads to the room's records, through the room's own grammar, and the answers back."""

from collections.abc import Sequence

from pulsar_sidecar.api.errors import MismatchError
from pulsar_sidecar.api.rooms.ledger_deletion.schemas import (
    AppendAnswer,
    DeadLetterAnswer,
    DeleteLedgerPayload,
    NotSent,
    PendingDeleteLedgerPayload,
    ShadowDeletionAnswer,
    TopicDeletionAnswer,
)
from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo, parse_record_document, record_document
from pulsar_sidecar.ledger_deletion.service import DeadLetter, SentLedger, ShadowDeletionStatus, TopicDeletionStatus
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import TopicName


def record_of(payload: DeleteLedgerPayload, requested_by: str | None) -> PendingDeleteLedgerInfo:
    """The record that a payload stands for; who asked is ours to say, not the payload's.

    Raises:
        InvalidInputError: the room's grammar refuses it.
    """
    document = payload.model_dump(by_alias=True, exclude_none=True)
    if requested_by is not None:
        document.setdefault("sidecar", {})["requestedBy"] = requested_by
    return parse_record_document(document)


def records_of(
    payloads: Sequence[PendingDeleteLedgerPayload], requested_by: str | None
) -> list[PendingDeleteLedgerInfo]:
    """All or none; an error says which one is wrong."""
    records = []
    for index, payload in enumerate(payloads):
        try:
            records.append(record_of(payload, requested_by))
        except InvalidInputError as error:
            raise InvalidInputError(f"ledgers.{index}: {error}; nothing was sent") from error
    return records


def check_same_topic(record: PendingDeleteLedgerInfo, topic: TopicName) -> None:
    """A payload must name the topic of its path.

    Raises:
        MismatchError: it names another one.
    """
    if record.topic != topic:
        raise MismatchError(f"topicName is not the topic of the path, {topic}")


def append_answer(results: Sequence[SentLedger]) -> AppendAnswer:
    """Who was sent and who was not, in order."""
    return AppendAnswer(
        sent=[result.ledger_id for result in results if result.sent],
        not_sent=[NotSent(ledger_id=result.ledger_id, reason=result.reason) for result in results if not result.sent],
    )


def topic_deletion_answer(status: TopicDeletionStatus) -> TopicDeletionAnswer:
    """The deletion as JSON has it."""
    return TopicDeletionAnswer(
        operation_id=status.operation_id,
        topic=str(status.topic),
        state=status.state,
        recorded_ledgers=status.recorded_ledgers,
        attempts=status.attempts,
        requested_ms=status.requested_ms,
        reason=status.reason,
    )


def shadow_deletion_answer(status: ShadowDeletionStatus) -> ShadowDeletionAnswer:
    """The deletion of a shadow topic as JSON has it."""
    check = status.source_check
    return ShadowDeletionAnswer(
        operation_id=status.operation_id,
        topic=str(status.topic),
        source=status.source,
        stage=status.stage,
        requested_ms=status.requested_ms,
        waits_for=status.waits_for,
        source_ledgers=check.ledgers,
        missing_ledgers=[ledger_id for ledger_id in check.missing if ledger_id not in status.missing_before],
        missing_before=[ledger_id for ledger_id in check.missing if ledger_id in status.missing_before],
        missing_sources=[str(source) for source in check.missing_sources],
    )


def dead_letter_answer(letter: DeadLetter) -> DeadLetterAnswer:
    """The dead letter as JSON has it."""
    return DeadLetterAnswer(
        message_id=letter.message_id,
        record=None if letter.record is None else record_document(letter.record),
        raw=letter.raw,
        reason=letter.reason,
        tries=letter.tries,
        dead_since_ms=letter.dead_since_ms,
    )
