"""Publish records (PIP-186 ``sendPendingDeleteLedger``) to the system topic, and redrive dead letters."""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from pulsar_sidecar.features.ledger_deletion.ports import (
    SYSTEM_NAMESPACE,
    DeadLetters,
    DeletionTopic,
    Delivery,
    OutgoingMessage,
    Publisher,
    PublishResult,
)
from pulsar_sidecar.features.ledger_deletion.record import (
    MAX_RECORD_BYTES,
    PendingDeleteLedgerInfo,
    encode_record,
    parse_record,
    record_document,
)
from pulsar_sidecar.features.ledger_deletion.results import DeadLetter, PendingRecord, RedriveResult, SentLedger
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import REASON, due_ms, fresh, tries
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.request_traces import NO_REQUEST, RequestTrace

_REASONS = {
    PublishResult.NOT_STORED: "the broker did not store it; send it again",
    PublishResult.UNKNOWN: "the broker sent no receipt; send it again, a second copy does no harm",
}
_SHOWN_BYTES = 2_000
OWN_PRODUCERS = "pulsar-sidecar-"
"""Prefix of the sidecars' own producer names, whose sequence ids must not mix with a caller's."""


def check_numbering(producer_name: str | None, first_sequence_id: int | None, count: int) -> None:
    """Check that a caller gives a producer name and sequence ids together.

    Raises:
        InvalidInputError: only one is given, they are out of range, or the name is a sidecar's own.
    """
    if (producer_name is None) != (first_sequence_id is None):
        raise InvalidInputError("producerName and firstSequenceId require each other: specify both or neither")
    if producer_name is not None and producer_name.startswith(OWN_PRODUCERS):
        raise InvalidInputError(
            f"producer names beginning with {OWN_PRODUCERS!r} are the sidecars' own; choose another"
        )
    if first_sequence_id is not None and not 0 <= first_sequence_id <= MAX_LEDGER_ID - count:
        raise InvalidInputError("the sequence ids from firstSequenceId on must lie between 0 and 2^63 - 1")


def is_own_topic(topic: TopicName) -> bool:
    """Return True if the topic is one of the service's own, or a partition of one."""
    own = {member.value for member in DeletionTopic}
    return topic.namespace == SYSTEM_NAMESPACE and topic.base.local_name in own


def refuse_own_topics(topic: TopicName) -> None:
    """Refuse the service's own topics, which are never deleted through themselves.

    Raises:
        InvalidInputError: the topic is one of them.
    """
    if is_own_topic(topic):
        raise InvalidInputError(f"{topic} belongs to the deletion service itself; let the brokers trim it")


def send(
    publisher: Publisher,
    records: Sequence[PendingDeleteLedgerInfo],
    first_sequence_id: int | None,
    trace: RequestTrace = NO_REQUEST,
) -> list[SentLedger]:
    """Publish the records and return for each whether the topic stored it; unknown counts as not sent.

    Raises:
        InvalidInputError: a record is too long, or about the service's own topics; none was sent.
    """
    properties = trace.properties()
    messages = [
        OutgoingMessage(
            _payload(record),
            key=str(record.topic),
            properties=properties,
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


def list_dead_letters(dead_letters: DeadLetters, limit: int, after: str | None = None) -> list[DeadLetter]:
    """Return up to ``limit`` dead letters behind the message ``after``, oldest first, and leave them in place."""
    found: list[Delivery] = []
    while len(found) < limit:
        deliveries = dead_letters.receive(limit)
        found += [each for each in deliveries if after is None or _place(each.message_id) > _place(after)]
        if len(deliveries) < limit:
            break
    return [
        DeadLetter(
            message_id=delivery.message_id,
            record=_document(_record(delivery)),
            raw=delivery.payload[:_SHOWN_BYTES].decode("utf-8", "replace"),
            reason=delivery.properties.get(REASON, "written by another client without a reason"),
            tries=tries(delivery.properties),
            dead_since_ms=delivery.publish_time_ms,
            request_id=RequestTrace.of(delivery.properties).request_id,
        )
        for delivery in found[:limit]
    ]


def list_pending(waiting: Iterable[Delivery], limit: int, offset: int = 0) -> list[PendingRecord]:
    """Return up to ``limit`` pending records behind the first ``offset`` ones."""
    return [_pending(delivery) for delivery in islice(waiting, offset, offset + limit)]


def _pending(delivery: Delivery) -> PendingRecord:
    record, sent_back = _record(delivery), tries(delivery.properties)
    return PendingRecord(
        message_id=delivery.message_id,
        topic=delivery.topic,
        record=_document(record),
        written_ms=delivery.publish_time_ms,
        tries=sent_back,
        next_try_ms=due_ms(delivery) if sent_back else None,
        reason=delivery.properties.get(REASON),
        length_bytes=None if record is None else record.mark.length_bytes,
        request_id=RequestTrace.of(delivery.properties).request_id,
    )


def _document(record: PendingDeleteLedgerInfo | None) -> dict[str, object] | None:
    return None if record is None else record_document(record)


def _place(message_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in message_id.split(":"))


def redrive(
    dead_letters: DeadLetters, publisher: Publisher, ledger_ids: Collection[LedgerId] | None, limit: int, steps: Steps
) -> RedriveResult:
    """Send up to ``limit`` dead letters back: the oldest, or those of the given ledgers wherever they wait.

    A dead letter leaves the topic only when its copy is stored.
    """
    seen = chosen = redriven = 0
    while chosen < limit:
        deliveries = dead_letters.receive(limit)
        wanted = [
            delivery
            for delivery in deliveries
            if ledger_ids is None or ((record := _record(delivery)) is not None and record.ledger_id in ledger_ids)
        ][: limit - chosen]
        seen, chosen = seen + len(deliveries), chosen + len(wanted)
        redriven += _send_back(dead_letters, publisher, wanted, steps) if wanted else 0
        if ledger_ids is None or not deliveries:
            break
    return RedriveResult(redriven=redriven, left=seen - redriven)


def _send_back(dead_letters: DeadLetters, publisher: Publisher, wanted: Sequence[Delivery], steps: Steps) -> int:
    with steps.taking(Step.DEAD_LETTERS_REDRIVEN):
        results = publisher.publish([fresh(delivery) for delivery in wanted])
    stored = [delivery for delivery, result in zip(wanted, results, strict=True) if result.stored]
    if stored:
        with steps.taking(Step.DEAD_LETTERS_ACKNOWLEDGED):
            dead_letters.acknowledge(stored)
    return len(stored)


def _record(delivery: Delivery) -> PendingDeleteLedgerInfo | None:
    try:
        return parse_record(delivery.payload)
    except InvalidInputError:
        return None
