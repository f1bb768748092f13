"""``sendPendingDeleteLedger``: the first phase for whoever wants ledgers deleted (PIP-186 "The first phase")."""

from collections.abc import Sequence

from pulsar_sidecar.ledger_deletion.ports import (
    SYSTEM_NAMESPACE,
    DeletionTopic,
    OutgoingMessage,
    Publisher,
    PublishResult,
)
from pulsar_sidecar.ledger_deletion.record import MAX_RECORD_BYTES, PendingDeleteLedgerInfo, encode_record
from pulsar_sidecar.ledger_deletion.service import SentLedger
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID
from pulsar_sidecar.model.names import TopicName

_REASONS = {
    PublishResult.NOT_STORED: "the broker did not take it; send it again",
    PublishResult.UNKNOWN: "no receipt came back; send it again, a second copy does no harm",
}


OWN_PRODUCERS = "pulsar-sidecar-"
"""Names beginning so are the sidecars' own; their sequence ids must not be mixed with a caller's."""


def check_numbering(producer_name: str | None, first_sequence_id: int | None, count: int) -> None:
    """A caller that numbers its records names its producer, and the other way round.

    Raises:
        InvalidInputError: they do not fit together, are out of range, or the name is a sidecar's own.
    """
    if (producer_name is None) != (first_sequence_id is None):
        raise InvalidInputError("producerName and firstSequenceId belong together: give both or neither")
    if producer_name is not None and producer_name.startswith(OWN_PRODUCERS):
        raise InvalidInputError(
            f"producer names beginning with {OWN_PRODUCERS!r} are the sidecars' own; choose another"
        )
    if first_sequence_id is not None and not 0 <= first_sequence_id <= MAX_LEDGER_ID - count:
        raise InvalidInputError("the sequence ids from firstSequenceId on must lie between 0 and 2^63 - 1")


def refuse_own_topics(topic: TopicName) -> None:
    """The service's own topics are never deleted through themselves.

    Raises:
        InvalidInputError: the topic is one of them.
    """
    own = {member.value for member in DeletionTopic}
    if topic.namespace == SYSTEM_NAMESPACE and topic.base.local_name in own:
        raise InvalidInputError(f"{topic} belongs to the deletion service itself; let the brokers trim it")


def send(
    publisher: Publisher, records: Sequence[PendingDeleteLedgerInfo], first_sequence_id: int | None
) -> list[SentLedger]:
    """Publish the records and say of each whether it is durably recorded; unknown counts as not sent.

    Raises:
        InvalidInputError: a record is too long, or about the service itself; none was sent.
    """
    messages = [
        OutgoingMessage(
            _payload(record),
            key=str(record.topic),
            sequence_id=None if first_sequence_id is None else first_sequence_id + index,
        )
        for index, record in enumerate(records)
    ]
    return [
        SentLedger(record.ledger_id, result.stored, _REASONS.get(result))
        for record, result in zip(records, publisher.publish(messages), strict=True)
    ]


def _payload(record: PendingDeleteLedgerInfo) -> bytes:
    refuse_own_topics(record.topic)
    payload = encode_record(record)
    if len(payload) > MAX_RECORD_BYTES:
        raise InvalidInputError(f"the record of ledger {record.ledger_id} is longer than {MAX_RECORD_BYTES} bytes")
    return payload
