"""From payloads to the room's records, through the room's own grammar."""

from collections.abc import Sequence

from pulsar_sidecar.api.rooms.ledger_deletion.schemas import DeleteLedgerPayload, PendingDeleteLedgerPayload
from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo, parse_record_document
from pulsar_sidecar.model.errors import InvalidInputError


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
