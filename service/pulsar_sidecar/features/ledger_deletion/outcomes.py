"""Messages of the outcome topic: each record's decision, the reads behind it, and the deleted ledger's bytes.

One message carries one step of one batch. The sidecar publishes ``judged``, and waits for the receipt, before it
deletes anything, so that the bytes that restore a ledger are durable first. It publishes ``settled`` before it
acknowledges the records.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import orjson

from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Delete,
    DeleteOffloaded,
    Facts,
    OutcomeReason,
    Referenced,
    ReferencesUnknown,
    StoredLedger,
    Unreferenced,
    Verdict,
)
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId
from pulsar_sidecar.model.request_traces import NO_REQUEST, RequestTrace

MAX_MESSAGE_BYTES = 1_000_000

JUDGED = "judged"
SETTLED = "settled"


class Decision(Enum):
    """Decision on a record; outcomes and metrics carry the values."""

    DELETED = "deleted"
    KEPT = "kept"
    RETRY = "retry"
    DEAD_LETTER = "dead-letter"
    """Retries exhausted."""
    SET_ASIDE = "set-aside"
    """Sent to the dead-letter topic without retries."""
    REJECTED = "rejected"
    """Message that is not a record."""
    POSTPONED = "postponed"
    """Left for the broker to redeliver; metrics count it, outcomes do not."""


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """End of one record, or the reason for its retry: a line of the ``settled`` step."""

    decision: Decision
    reason: OutcomeReason
    detail: str
    message_id: str
    record: PendingDeleteLedgerInfo | None
    facts: Facts | None = None
    trace: RequestTrace = NO_REQUEST


@dataclass(frozen=True, slots=True)
class LoggedLedger:
    """A ledger's metadata as the outcome topic stored it before the deletion."""

    ledger_id: LedgerId
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """Content of a message from `note_message`."""

    at_ms: int
    document: dict[str, object]


def judged_messages(
    sidecar: str, at_ms: int, judged: Sequence[tuple[str, Facts, Delete | DeleteOffloaded]]
) -> list[bytes]:
    """Return the ``judged`` step of a batch: the ledgers about to be deleted, with versions and bytes."""
    entries = (_judged_entry(message_id, facts, verdict) for message_id, facts, verdict in judged)
    return list(_messages(JUDGED, sidecar, at_ms, entries))


def settled_messages(sidecar: str, at_ms: int, outcomes: Sequence[RecordOutcome]) -> list[bytes]:
    """Return the ``settled`` step of a batch: the end of each record."""
    return list(_messages(SETTLED, sidecar, at_ms, (_settled_entry(outcome) for outcome in outcomes)))


def note_message(sidecar: str, at_ms: int, kind: str, document: dict[str, object]) -> bytes:
    """Return a message about another event, such as an undelete or the end of a topic deletion."""
    return next(_messages(kind, sidecar, at_ms, [document]))


def notes(payload: bytes, kind: str) -> list[Note]:
    """Return the notes of that kind in an outcome message; empty for one that no sidecar wrote."""
    try:
        message = json.loads(payload)
        if message["step"] != kind:
            return []
        return [Note(message["atMs"], entry) for entry in message["entries"] if isinstance(entry, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def logged_ledgers(payload: bytes) -> list[LoggedLedger]:
    """Return the ledgers whose bytes are in a ``judged`` message; empty for other messages.

    Raises:
        UndecodableError: no sidecar wrote the message.
    """
    try:
        document = json.loads(payload)
        if document["step"] != JUDGED:
            return []
        return [
            LoggedLedger(_ledger_id(entry), base64.b64decode(entry["ledger"]["metadata"], validate=True))
            for entry in document["entries"]
            if "ledger" in entry
        ]
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise UndecodableError(f"an outcome message cannot be read: {type(error).__name__}") from error


def _ledger_id(entry: dict[str, object]) -> LedgerId:
    ledger_id = entry["ledgerId"]
    if type(ledger_id) is not int or not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise TypeError("a kept ledger has an id")
    return LedgerId(ledger_id)


def _judged_entry(message_id: str, facts: Facts, verdict: Verdict) -> dict[str, object]:
    entry = {**_identity(facts.record), "messageId": message_id, "reads": _reads(facts)}
    if isinstance(verdict, Delete):
        entry["ledger"] = {
            "path": verdict.ledger.path,
            "version": verdict.ledger.version,
            "createdMs": verdict.ledger.created_ms,
            "metadata": base64.b64encode(verdict.ledger.raw).decode(),
        }
    return entry


def _settled_entry(outcome: RecordOutcome) -> dict[str, object]:
    entry: dict[str, object] = {
        **(_identity(outcome.record) if outcome.record else {}),
        "messageId": outcome.message_id,
        "decision": outcome.decision.value,
        "reason": outcome.reason.value,
        "detail": outcome.detail[:500],
    }
    if outcome.facts is not None:
        entry["reads"] = _reads(outcome.facts)
    if outcome.record is not None and outcome.record.mark.marked_version is not None:
        entry["markedVersion"] = outcome.record.mark.marked_version
    if outcome.record is not None and outcome.record.mark.length_bytes is not None:
        entry["lengthBytes"] = outcome.record.mark.length_bytes
    if outcome.trace.request_id is not None:
        entry["requestId"] = outcome.trace.request_id
    return entry


def _identity(record: PendingDeleteLedgerInfo) -> dict[str, object]:
    return {
        "ledgerId": record.ledger_id,
        "topicName": str(record.topic),
        "ledgerComponent": record.component.value,
        "ledgerType": record.ledger_type.value,
    }


def _reads(facts: Facts) -> dict[str, object]:
    reads: dict[str, object] = {"atMs": facts.now_ms}
    if isinstance(facts.ledger, StoredLedger):
        reads[facts.ledger.path] = facts.ledger.version
    match facts.references:
        case Referenced(by):
            reads[by.path] = by.version
        case Unreferenced(read):
            reads.update({guard.path: guard.version for guard in read})
        case ReferencesUnknown(reason):
            reads["unknown"] = reason
    if facts.owner is not None:
        reads["owner"] = facts.owner.broker
    return reads


def _messages(step: str, sidecar: str, at_ms: int, entries: Iterable[dict[str, object]]) -> Iterator[bytes]:
    head = _json({"step": step, "sidecar": sidecar, "atMs": at_ms})[:-1] + b',"entries":['
    pending: list[bytes] = []
    size = 0
    for entry in entries:
        text = _json(entry)
        if pending and size + len(text) > MAX_MESSAGE_BYTES:
            yield head + b",".join(pending) + b"]}"
            pending, size = [], 0
        pending.append(text)
        size += len(text) + 1
    if pending:
        yield head + b",".join(pending) + b"]}"


def _json(document: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError:
        # The standard library escapes text that is not valid Unicode.
        return json.dumps(document, separators=(",", ":")).encode()
