"""From payloads to the room's targets, and the room's outcomes back."""

import base64
import binascii
from collections.abc import Iterable, Sequence
from functools import lru_cache

import orjson
from google.protobuf.message import DecodeError
from pydantic import ValidationError

from pulsar_sidecar.api.errors import MismatchError
from pulsar_sidecar.api.rooms.delayed_delivery.schemas import (
    CancellationAnswer,
    CancelLine,
    CancelParameters,
    MessageIdPayload,
    OutcomeAnswer,
    PreviewAnswer,
    SelectedAnswer,
    SelectionPayload,
    VerdictAnswer,
)
from pulsar_sidecar.delayed_delivery.backlog import Preview, Selection
from pulsar_sidecar.delayed_delivery.cancel.requests import (
    Cancellation,
    CancellationStatus,
    Cause,
    Outcome,
    Target,
    check_deliver_at,
    check_subscription_name,
)
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.wire import PulsarApi_pb2 as api

_MAX_NUMBER = 2**63 - 1
_MAX_PROBLEM = 200
_REMEMBERED_NAMES = 1024
"""The lines of a bulk request mostly name the same subscriptions."""


# --- in ------------------------------------------------------------------------------------------------------------


def target_of_parameters(parameters: CancelParameters) -> Target:
    """PIP-423's query.

    Raises:
        MismatchError: a parameter is missing or wrong (412, as in the PIP).
    """
    try:
        ledger_id = _number("ledgerId", parameters.ledger_id)
        entry_id = _number("entryId", parameters.entry_id)
        deliver_at = _number("deliverAt", parameters.deliver_at)
        check_deliver_at(deliver_at)
        return Target(
            Position(LedgerId(ledger_id), EntryId(entry_id)), deliver_at, None, subscription_names(parameters)
        )
    except InvalidInputError as error:
        raise MismatchError(str(error)) from error


def subscription_names(parameters: CancelParameters) -> tuple[str, ...]:
    """Repeated, comma-separated, or both."""
    given = [name for text in parameters.subscription_names for name in text.split(",")]
    if given == [""]:
        return ()
    return tuple(dict.fromkeys(check_subscription_name(name.strip()) for name in given))


def target_of_payload(
    payload: MessageIdPayload | str, subscriptions: tuple[str, ...] = (), deliver_at_ms: int | None = None
) -> Target:
    """One message.

    Raises:
        InvalidInputError: it names no message, or two ways at once.
    """
    if isinstance(payload, str):
        return _of_message_id(payload, subscriptions, deliver_at_ms)
    if payload.message_id is not None:
        if payload.ledger_id is not None or payload.entry_id is not None:
            raise InvalidInputError("give messageId, or ledgerId and entryId, not both")
        return _of_message_id(payload.message_id, subscriptions, deliver_at_ms)
    if payload.ledger_id is None or payload.entry_id is None:
        raise InvalidInputError("give ledgerId and entryId, or messageId")
    position = Position(LedgerId(payload.ledger_id), EntryId(payload.entry_id))
    return Target(position, deliver_at_ms, payload.batch_index, subscriptions, _partition(payload.partition))


def target_of_line(text: bytes) -> Target:
    """One line of a bulk request.

    Raises:
        InvalidInputError: it is no JSON object of that form; the message says what to change.
    """
    try:
        line = CancelLine.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise InvalidInputError(f"{place}: {problem['msg']}"[:_MAX_PROBLEM].removeprefix(": ")) from error
    if line.deliver_at is not None:
        check_deliver_at(line.deliver_at)
    return target_of_payload(line, _names(tuple(line.subscription_names or ())), line.deliver_at)


@lru_cache(_REMEMBERED_NAMES)
def _names(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(check_subscription_name(name) for name in given))


def parse_position(text: str) -> Position:
    """A cancellation's id, ``ledgerId:entryId``.

    Raises:
        InvalidInputError: it is none.
    """
    ledger, colon, entry = text.partition(":")
    if not colon:
        raise InvalidInputError("a cancellation's id is ledgerId:entryId")
    return Position(LedgerId(_number("ledgerId", ledger)), EntryId(_number("entryId", entry)))


def selection_of(payload: SelectionPayload) -> Selection:
    """The room's selection."""
    return Selection(
        due_from_ms=payload.due_from,
        due_to_ms=payload.due_to,
        published_before_ms=payload.published_before,
        key=payload.key,
        properties=payload.properties,
        subscriptions=tuple(dict.fromkeys(check_subscription_name(name) for name in payload.subscription_names or ())),
    )


def _of_message_id(text: str, subscriptions: tuple[str, ...], deliver_at_ms: int | None) -> Target:
    try:
        found = api.MessageIdData.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        raise InvalidInputError("messageId is no base64 of a message id (MessageId.toByteArray)") from None
    if (
        not found.HasField("ledgerId")
        or not found.HasField("entryId")
        or max(found.ledgerId, found.entryId) > _MAX_NUMBER
    ):
        raise InvalidInputError("messageId names no message: its ledger or its entry is missing or out of range")
    position = Position(LedgerId(found.ledgerId), EntryId(found.entryId))
    return Target(position, deliver_at_ms, found.batch_index, subscriptions, _partition(found.partition))


def _partition(partition: int | None) -> int | None:
    return None if partition is None or partition < 0 else partition


def _number(name: str, text: str | None) -> int:
    if text is None or not text.strip():
        raise InvalidInputError(f"{name} is missing")
    if not text.isascii() or not text.isdigit() or int(text[:20]) > _MAX_NUMBER:
        raise InvalidInputError(f"{name} must be a number from 0 to {_MAX_NUMBER}, and not {text[:40]!r}")
    return int(text)


# --- out -----------------------------------------------------------------------------------------------------------


def outcome_answer(outcome: Outcome, line: int | None = None) -> OutcomeAnswer:
    """The outcome as JSON has it."""
    return OutcomeAnswer(
        cancellation_id=str(outcome.target.position),
        topic=str(outcome.topic),
        cancelled=outcome.cancelled,
        verdicts=[
            VerdictAnswer(
                subscription=one.subscription,
                proof=one.status.value,
                cause=one.cause.value if one.cause else None,
                reason=one.reason,
            )
            for one in outcome.verdicts
        ],
        warnings=list(outcome.warnings),
        line=line,
    )


def outcome_line(outcome: Outcome, line: int) -> bytes:
    """`outcome_answer` as one line, made by hand because bulk requests make very many."""
    document = {
        "line": line,
        "cancellationId": str(outcome.target.position),
        "topic": str(outcome.topic),
        "cancelled": outcome.cancelled,
        "verdicts": [
            {
                "subscription": one.subscription,
                "proof": one.status,
                "cause": one.cause,
                "reason": one.reason,
            }
            for one in outcome.verdicts
        ],
        "warnings": outcome.warnings,
    }
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def bad_line(
    reason: str, line: int, status: CancellationStatus = CancellationStatus.REFUSED, cause: Cause = Cause.INVALID
) -> bytes:
    """The verdict on a line that was not carried out."""
    document = {
        "line": line,
        "cancellationId": None,
        "topic": None,
        "cancelled": False,
        "verdicts": [{"subscription": None, "proof": status.value, "cause": cause.value, "reason": reason}],
        "warnings": [],
    }
    return orjson.dumps(document) + b"\n"


def cancellation_answer(cancellation: Cancellation) -> CancellationAnswer:
    """The cancellation as JSON has it."""
    return CancellationAnswer(
        topic=str(cancellation.topic),
        subscription=cancellation.subscription,
        ledger_id=cancellation.position.ledger_id,
        entry_id=cancellation.position.entry_id,
        deliver_at=cancellation.deliver_at_ms,
        requested_ms=cancellation.requested_ms,
        requested_by=cancellation.requested_by,
        proof=cancellation.status.value,
        cause=cancellation.cause.value if cancellation.cause else None,
        reason=cancellation.reason,
    )


def preview_answer(found: Preview) -> PreviewAnswer:
    """The preview as JSON has it."""
    selection = found.selection
    exact: dict[str, object] = {
        "dueFrom": selection.due_from_ms,
        "dueTo": selection.due_to_ms,
        "publishedBefore": selection.published_before_ms,
        "key": selection.key,
        "properties": dict(selection.properties),
        "subscriptionNames": list(selection.subscriptions) or None,
    }
    return PreviewAnswer(
        count=found.count,
        hash=found.hash,
        first_due=found.first_due_ms,
        last_due=found.last_due_ms,
        unreadable=found.unreadable,
        selection={name: value for name, value in exact.items() if value is not None},
        sample=[
            SelectedAnswer(
                topic=str(one.topic),
                ledger_id=one.position.ledger_id,
                entry_id=one.position.entry_id,
                deliver_at=one.deliver_at_ms,
                key=one.key,
            )
            for one in found.sample
        ],
    )


# --- judging -------------------------------------------------------------------------------------------------------


def reason_of(outcomes: Iterable[Outcome]) -> str:
    """What to tell about outcomes that are not all good, the first few of them."""
    told = [_describe_failure(outcome, verdict_index) for outcome, verdict_index in _bad(outcomes)]
    more = f"; and {len(told) - _FEW} more" if len(told) > _FEW else ""
    return "; ".join(told[:_FEW]) + more


_FEW = 5


def _bad(outcomes: Iterable[Outcome]) -> Sequence[tuple[Outcome, int]]:
    return [
        (outcome, index)
        for outcome in outcomes
        for index, verdict in enumerate(outcome.verdicts)
        if not verdict.status.cancelled
    ]


def _describe_failure(outcome: Outcome, index: int) -> str:
    verdict = outcome.verdicts[index]
    place = f" on {verdict.subscription}" if verdict.subscription else ""
    return f"{outcome.target.position}{place}: {verdict.status.value}: {verdict.reason}"
