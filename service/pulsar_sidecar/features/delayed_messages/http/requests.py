"""Payloads and parameters of requests to cancel, select and reschedule messages, and their checks."""

import base64
import binascii
from functools import lru_cache
from typing import Annotated, Final

from google.protobuf.message import DecodeError
from pydantic import Field

from pulsar_sidecar.features.delayed_messages.cancel.requests import (
    LATEST_DELIVER_AT_MS,
    Target,
    check_deliver_at,
    check_subscription_name,
)
from pulsar_sidecar.features.delayed_messages.selecting import Selection
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, EntryId, LedgerId, Position
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api
from pulsar_sidecar.server.errors import MismatchError
from pulsar_sidecar.server.paths import parse_number
from pulsar_sidecar.server.schemas import Parameters, Payload

MAX_MESSAGE_IDS: Final = 50_000
_REMEMBERED_NAMES: Final = 1024
"""Lines of a bulk request are short and mostly name the same subscriptions; a selection's names may be megabytes."""

_Text = Annotated[str, Field(max_length=8192)]
_Time = Annotated[int, Field(ge=0, le=LATEST_DELIVER_AT_MS)]


class MessageIdPayload(Payload):
    """Message, named by its numbers or by the bytes of its id (``MessageId.toByteArray``) in base64."""

    ledger_id: Annotated[int, Field(ge=0, le=MAX_LEDGER_ID, examples=[4711])] | None = None
    entry_id: Annotated[int, Field(ge=0, le=MAX_LEDGER_ID, examples=[0])] | None = None
    batch_index: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """Index in a batch; -1 or absent for a message that is not in a batch."""
    partition: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """Partition of a partitioned topic. Default: the one that has the ledger."""
    message_id: Annotated[str, Field(max_length=2048)] | None = None
    """Message id in base64, instead of the numbers."""

    def target(self, subscriptions: tuple[str, ...] = (), deliver_at_ms: int | None = None) -> Target:
        """Return the message to cancel.

        Raises:
            InvalidInputError: the payload names no message, or names it twice.
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
    """Line of a bulk request."""

    deliver_at: Annotated[int, Field(examples=[1795269995318])] | None = None
    """Due time in milliseconds since the epoch; checked if given."""
    subscription_names: list[_Text] | None = None
    """Subscriptions. Default: every Shared and Key_Shared one."""

    def checked_target(self) -> Target:
        """Return the message to cancel and its subscriptions; raises as `target` does."""
        if self.deliver_at is not None:
            check_deliver_at(self.deliver_at)
        return self.target(names_of_line(tuple(self.subscription_names or ())), self.deliver_at)


class SkipRequest(Payload):
    """Messages to skip on one subscription."""

    message_ids: Annotated[list[MessageIdPayload | _Text], Field(min_length=1, max_length=MAX_MESSAGE_IDS)]
    """Objects with ``ledgerId`` and ``entryId``, or base64 message ids."""


class SelectionPayload(Payload):
    """Selection of waiting messages by at least one criterion."""

    due_from: _Time | None = None
    """Earliest due time, inclusive, milliseconds since the epoch."""
    due_to: _Time | None = None
    """Latest due time, exclusive, milliseconds since the epoch."""
    published_before: _Time | None = None
    """Exclusive upper bound of the publish time, by producers' clocks; a preview fills it in."""
    key: Annotated[_Text, Field(examples=["customer-1"])] | None = None
    properties: dict[_Text, _Text] = Field(default_factory=dict)
    """Properties that a message must have, with their values."""
    producer_name: _Text | None = None
    sequence_id: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    publish_time: _Time | None = None
    """Exact publish time, by the producer's clock."""
    subscription_names: list[_Text] | None = None
    """Subscriptions. Default: every Shared and Key_Shared one."""

    def selection(self) -> Selection:
        """Return the selection.

        Raises:
            InvalidInputError: a subscription's name is invalid.
        """
        names = _checked_names(tuple(self.subscription_names or ()))
        dues = self.due_from, self.due_to
        return Selection(
            *dues,
            self.published_before,
            self.key,
            self.properties,
            self.producer_name,
            self.sequence_id,
            self.publish_time,
            names,
        )


class ConfirmedSelection(SelectionPayload):
    """Selection as its preview returned it, and the preview's hash."""

    hash: Annotated[str, Field(min_length=1, max_length=128)]
    defer: bool = False
    """If the acknowledgement state is full, accept into the log and acknowledge when there is room."""


class ReschedulePayload(MessageIdPayload):
    """Message to publish again."""

    deliver_at: int | None = None
    """Current due time; checked if given."""
    new_deliver_at: Annotated[int, Field(examples=[1795269995318])] | None = None
    """New due time, for ``rescheduleDelayedMessage``."""


class CancelParameters(Parameters):
    """PIP-423's parameters, as text so that invalid ones get PIP-423's status code."""

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
    """``persisted``: respond once the cursor's stored state has the acknowledgement."""
    defer: str | None = Field(default=None, examples=["false"])
    """``true``: if the acknowledgement state is full, accept into the log and acknowledge when there is room."""

    def target(self) -> Target:
        """Return the message to cancel.

        Raises:
            MismatchError: a parameter is missing or wrong (412, as in the PIP).
        """
        try:
            position = Position(
                LedgerId(parse_number("ledgerId", self.ledger_id)), EntryId(parse_number("entryId", self.entry_id))
            )
            deliver_at_ms = parse_number("deliverAt", self.deliver_at)
            check_deliver_at(deliver_at_ms)
            given = [name for text in self.subscription_names for name in text.split(",")]
            # Only an empty parameter means all subscriptions: a blank name is a mistake that would cancel everywhere.
            names = () if given == [""] else _checked_names(tuple(name.strip() for name in given))
            return Target(position, deliver_at_ms, None, names)
        except InvalidInputError as error:
            raise MismatchError(str(error)) from error


class BulkParameters(Parameters):
    """Parameters of bulk requests."""

    wait: str | None = Field(default=None, examples=["persisted"])
    """``persisted``: respond to each line once the cursor's stored state has the acknowledgement."""
    defer: bool = False
    """If the acknowledgement state is full, accept into the log and acknowledge when there is room."""


def _checked_names(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(check_subscription_name(name) for name in given))


names_of_line = lru_cache(_REMEMBERED_NAMES)(_checked_names)


def target_of_message_id(text: str, subscriptions: tuple[str, ...] = (), deliver_at_ms: int | None = None) -> Target:
    """Parse a base64 message id.

    Raises:
        InvalidInputError: the text is not a message id.
    """
    try:
        found = api.MessageIdData.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        raise InvalidInputError("messageId is not the base64 form of a message id (MessageId.toByteArray)") from None
    if (
        not found.HasField("ledgerId")
        or not found.HasField("entryId")
        or max(found.ledgerId, found.entryId) > MAX_LEDGER_ID
    ):
        raise InvalidInputError("messageId does not name a message: its ledger or its entry is missing or out of range")
    position = Position(LedgerId(found.ledgerId), EntryId(found.entryId))
    return Target(position, deliver_at_ms, found.batch_index, subscriptions, _partition(found.partition))


def _partition(partition: int | None) -> int | None:
    return None if partition is None or partition < 0 else partition
