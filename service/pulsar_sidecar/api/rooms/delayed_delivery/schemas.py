"""The JSON of delayed messages: requests, which are checked, and answers."""

import base64
import binascii
from functools import lru_cache
from typing import Annotated, Final

from google.protobuf.message import DecodeError
from pydantic import AliasPath, BeforeValidator, Field

from pulsar_sidecar.api.errors import MismatchError
from pulsar_sidecar.api.schemas import Answer, Parameters, Payload, Text
from pulsar_sidecar.delayed_delivery.cancel.requests import Target, check_deliver_at, check_subscription_name
from pulsar_sidecar.delayed_delivery.selecting import Selection
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.wire import PulsarApi_pb2 as api

MAX_MESSAGE_IDS: Final = 50_000
MAX_ENTRIES: Final = 1_000_000
_MAX_NUMBER: Final = 2**63 - 1
_REMEMBERED_NAMES: Final = 1024
"""A bulk request's lines are short and mostly name the same subscriptions; a selection's names may be megabytes."""

_Text = Annotated[str, Field(max_length=8192)]
_Time = Annotated[int, Field(ge=0, le=_MAX_NUMBER)]
_Value = Annotated[str, BeforeValidator(lambda member: member.value)]
"""An enum's member as its value."""


# --- in ------------------------------------------------------------------------------------------------------------


class MessageIdPayload(Payload):
    """One message: by its numbers, or by the bytes of a message id (``MessageId.toByteArray``) in base64."""

    ledger_id: Annotated[int, Field(ge=0, le=_MAX_NUMBER, examples=[4711])] | None = None
    entry_id: Annotated[int, Field(ge=0, le=_MAX_NUMBER, examples=[0])] | None = None
    batch_index: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """Index inside a batch; -1 or absent for a message of its own."""
    partition: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """Of a partitioned topic; found by the ledger when absent."""
    message_id: Annotated[str, Field(max_length=2048)] | None = None
    """Base64 instead of the numbers."""

    def target(self, subscriptions: tuple[str, ...] = (), deliver_at_ms: int | None = None) -> Target:
        """The message.

        Raises:
            InvalidInputError: it names no message, or two ways at once.
        """
        if self.message_id is not None:
            if self.ledger_id is not None or self.entry_id is not None:
                raise InvalidInputError("give messageId, or ledgerId and entryId, not both")
            return target_of_message_id(self.message_id, subscriptions, deliver_at_ms)
        if self.ledger_id is None or self.entry_id is None:
            raise InvalidInputError("give ledgerId and entryId, or messageId")
        position = Position(LedgerId(self.ledger_id), EntryId(self.entry_id))
        return Target(position, deliver_at_ms, self.batch_index, subscriptions, _partition(self.partition))


class CancelLine(MessageIdPayload):
    """One line of a bulk request."""

    deliver_at: Annotated[int, Field(examples=[1795269995318])] | None = None
    """Due time in milliseconds since the epoch, checked when given."""
    subscription_names: list[_Text] | None = None
    """Subscriptions. Default: every Shared and Key_Shared one."""

    def checked_target(self) -> Target:
        """The message, where it is to be cancelled; raises as `target` does."""
        if self.deliver_at is not None:
            check_deliver_at(self.deliver_at)
        return self.target(_names_of_line(tuple(self.subscription_names or ())), self.deliver_at)


class SkipRequest(Payload):
    """Messages to skip on one subscription."""

    message_ids: Annotated[list[MessageIdPayload | _Text], Field(min_length=1, max_length=MAX_MESSAGE_IDS)]
    """Objects with ``ledgerId`` and ``entryId``, or base64 message ids."""


class SelectionPayload(Payload):
    """Which waiting messages; at least one of due time, key and properties."""

    due_from: _Time | None = None
    """Earliest due time in milliseconds, included."""
    due_to: _Time | None = None
    """Latest due time in milliseconds, excluded."""
    published_before: _Time | None = None
    """Only messages published before this time, by their producers' clocks; a preview fills it in."""
    key: Annotated[_Text, Field(examples=["customer-1"])] | None = None
    properties: dict[_Text, _Text] = Field(default_factory=dict)
    """All of these."""
    subscription_names: list[_Text] | None = None

    def selection(self) -> Selection:
        """The room's selection; raises InvalidInputError for a subscription's name that cannot be one."""
        names = _checked_names(tuple(self.subscription_names or ()))
        dues = self.due_from, self.due_to
        return Selection(*dues, self.published_before, self.key, self.properties, names)


class ConfirmedSelection(SelectionPayload):
    """The selection as its preview answered it, and the preview's hash."""

    hash: Annotated[str, Field(min_length=1, max_length=128)]
    defer: bool = False


class ReissuePayload(MessageIdPayload):
    """A message to publish again."""

    deliver_at: int | None = None
    """Its present due time; checked if given."""
    new_deliver_at: Annotated[int, Field(examples=[1795269995318])] | None = None
    """Its new due time, for ``rescheduleDelayedMessage``."""


class CancelParameters(Parameters):
    """PIP-423's parameters as text, so that what is wrong with them gets PIP-423's status code."""

    ledger_id: str | None = Field(default=None, examples=["4711"])
    """Ledger id of the delayed message; required."""
    entry_id: str | None = Field(default=None, examples=["0"])
    """Entry id of the delayed message; required."""
    deliver_at: str | None = Field(default=None, examples=["1795269995318"])
    """Due time of the message, in milliseconds since the epoch; required."""
    subscription_names: list[str] = Field(default_factory=list, max_length=1000)
    """Subscriptions, repeated or comma-separated. Default: every Shared and Key_Shared one."""
    authoritative: str | None = None
    """Accepted and ignored: any sidecar can take this call."""
    wait: str | None = Field(default=None, examples=["persisted"])
    """``persisted``: answer only when the cursor's stored state has it."""
    defer: str | None = Field(default=None, examples=["false"])
    """``true``: where the acknowledgement state is full, accept into the log and acknowledge when there is room."""

    def target(self) -> Target:
        """The message.

        Raises:
            MismatchError: a parameter is missing or wrong (412, as in the PIP).
        """
        try:
            position = Position(
                LedgerId(_number("ledgerId", self.ledger_id)), EntryId(_number("entryId", self.entry_id))
            )
            deliver_at_ms = _number("deliverAt", self.deliver_at)
            check_deliver_at(deliver_at_ms)
            given = [name for text in self.subscription_names for name in text.split(",")]
            # Only what is left empty means all of them: a blank name is a mistake, and would cancel everywhere.
            names = () if given == [""] else _checked_names(tuple(name.strip() for name in given))
            return Target(position, deliver_at_ms, None, names)
        except InvalidInputError as error:
            raise MismatchError(str(error)) from error


class BulkParameters(Parameters):
    """Parameters of bulk requests."""

    wait: str | None = Field(default=None, examples=["persisted"])
    """``persisted``: answer each line only when the cursor's stored state has it."""
    defer: bool = False
    """Where the acknowledgement state is full, accept into the log and acknowledge when there is room."""


class WaitingParameters(Parameters):
    """Parameters of ``delayedMessages``."""

    subscription: str | None = Field(default=None, max_length=8192, examples=["billing"])
    """Subscription. Default: all durable subscriptions."""
    limit: int = Field(default=50_000, ge=1, le=MAX_ENTRIES)
    """Number of entries of the backlog to look at."""
    after: str | None = Field(default=None, max_length=100, examples=["0:4711:99"])
    """``after`` of an earlier answer, to continue from there."""


def parse_position(text: str) -> Position:
    """A cancellation's id, ``ledgerId:entryId``.

    Raises:
        InvalidInputError: it is none.
    """
    ledger, colon, entry = text.partition(":")
    if not colon:
        raise InvalidInputError("a cancellation's id is ledgerId:entryId")
    return Position(LedgerId(_number("ledgerId", ledger)), EntryId(_number("entryId", entry)))


def _checked_names(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(check_subscription_name(name) for name in given))


_names_of_line = lru_cache(_REMEMBERED_NAMES)(_checked_names)


def target_of_message_id(text: str, subscriptions: tuple[str, ...] = (), deliver_at_ms: int | None = None) -> Target:
    """The message of a base64 message id; raises InvalidInputError where it is none."""
    try:
        found = api.MessageIdData.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        raise InvalidInputError("messageId is not the base64 form of a message id (MessageId.toByteArray)") from None
    if (
        not found.HasField("ledgerId")
        or not found.HasField("entryId")
        or max(found.ledgerId, found.entryId) > _MAX_NUMBER
    ):
        raise InvalidInputError("messageId does not name a message: its ledger or its entry is missing or out of range")
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


_LEDGER: Final = Field(validation_alias=AliasPath("position", "ledger_id"))
_ENTRY: Final = Field(validation_alias=AliasPath("position", "entry_id"))
_DELIVER_AT: Final = Field(validation_alias="deliver_at_ms")


class VerdictAnswer(Answer):
    """The result for one message on one subscription."""

    subscription: str | None
    """Null if no subscription was looked at."""
    proof: _Value = Field(validation_alias="status")
    """ACCEPTED, ACKED, PERSISTED, EXPIRED, TOO_LATE, RACED, UNKNOWN, NOT_FOUND or REFUSED."""
    cause: _Value | None
    reason: str | None


class OutcomeAnswer(Answer):
    """The results for one message."""

    cancellation_id: Text | None = Field(validation_alias=AliasPath("target", "position"))
    """``ledgerId:entryId``, for ``GET .../cancellations/{id}``; null for a line that names no message."""
    topic: Text | None
    """The partition that holds it."""
    cancelled: bool
    """Whether it is cancelled on every subscription asked for, and so will not be delivered there."""
    verdicts: list[VerdictAnswer] = Field(validation_alias="results")
    warnings: list[str]
    line: int | None = None
    """Number of the line, in a bulk request."""


class CancellationAnswer(Answer):
    """One cancellation on one subscription, as it is known now."""

    topic: Text
    subscription: str
    ledger_id: int = _LEDGER
    entry_id: int = _ENTRY
    deliver_at: int = _DELIVER_AT
    requested_ms: int
    requested_by: str | None
    proof: _Value = Field(validation_alias="status")
    cause: _Value | None
    reason: str | None


class SelectedAnswer(Answer):
    """One message of a preview's sample."""

    topic: Text
    ledger_id: int = _LEDGER
    entry_id: int = _ENTRY
    deliver_at: int = _DELIVER_AT
    key: str | None


def _exact(selection: Selection) -> dict[str, object]:
    exact: dict[str, object] = {
        "dueFrom": selection.due_from_ms,
        "dueTo": selection.due_to_ms,
        "publishedBefore": selection.published_before_ms,
        "key": selection.key,
        "properties": dict(selection.properties),
        "subscriptionNames": list(selection.subscriptions) or None,
    }
    return {name: value for name, value in exact.items() if value is not None}


class PreviewAnswer(Answer):
    """What a selection would cancel. Send ``selection`` back with ``hash`` to confirm it."""

    count: int
    hash: str
    first_due: int | None = Field(validation_alias="first_due_ms")
    last_due: int | None = Field(validation_alias="last_due_ms")
    unreadable: int
    """Entries that could not be read, and so are not included."""
    published_later: int
    """Messages that match too and were published at ``publishedBefore`` or later, by their producers' clocks."""
    selection: Annotated[dict[str, object], BeforeValidator(_exact)]
    sample: list[SelectedAnswer]


class ReissuedAnswer(Answer):
    """A message that was cancelled and published again."""

    message_id: str | None
    """The copy's id, ``ledgerId:entryId:partition``; null if the sidecar does not know of a copy."""
    deliver_at: int | None = _DELIVER_AT
    outcome: OutcomeAnswer


class CancelStatusAnswer(Answer):
    """The state of cancelling on this sidecar."""

    enabled: bool
    asserting: bool = Field(validation_alias="reconciling")
    """Whether this sidecar leads: it reconciles cursors with the log."""
    open_cancellations: int
    log_read: bool
    last_error: str | None
    """Of this sidecar; null after a start without one. It stays when the cause is gone."""
    last_error_at_ms: int | None
    """When it was."""


class DueMessageAnswer(Answer):
    """One waiting message."""

    deliver_at: int = Field(validation_alias="due_ms")
    """When it is due, in milliseconds since the epoch."""
    topic: str
    """The topic, or the partition."""
    message_id: Text = Field(validation_alias="position")
    """``ledgerId:entryId``."""


class WaitingAnswer(Answer):
    """One subscription's waiting messages in this part of the backlog."""

    subscription: str
    """The subscription."""
    type: _Value
    """Only Shared and Key_Shared subscriptions hold messages back; the others deliver at once."""
    delayed: int
    """Messages that are not due yet."""
    due: int
    """Delayed messages that are due and not acknowledged."""
    undelayed: int
    """Messages without a due time."""
    unreadable: int
    """Entries that could not be read, so they are in none of these counts."""
    by_due_second: Annotated[dict[int, int], BeforeValidator(lambda counts: dict(sorted(counts.items())))]
    """Delayed messages by the second, since the epoch, at which they are due."""
    next: DueMessageAnswer | None
    """The one that is due next."""
    last: DueMessageAnswer | None
    """The one that is due last."""


class WaitingPageAnswer(Answer):
    """A part of the backlog."""

    now: int = Field(validation_alias="now_ms")
    """The time this was compared with, in milliseconds since the epoch."""
    subscriptions: list[WaitingAnswer]
    """By name."""
    entries_read: int
    """Entries looked at."""
    entries_left: int
    """Entries of this partition beyond, acknowledged ones included."""
    after: Text | None
    """The next request's ``after``; null at the end."""
