"""The JSON of cancelling: what goes in line by line or as a whole, and what comes out."""

from typing import Annotated

from pydantic import Field

from pulsar_sidecar.api.schemas import Answer, Query, Request

MAX_MESSAGE_IDS = 50_000

_Text = Annotated[str, Field(max_length=8192)]
_Time = Annotated[int, Field(ge=0, le=2**63 - 1)]


class MessageIdPayload(Request):
    """One message: by its numbers, or by the bytes of a message id (``MessageId.toByteArray``) in base64."""

    ledger_id: Annotated[int, Field(ge=0, le=2**63 - 1, examples=[4711])] | None = None
    entry_id: Annotated[int, Field(ge=0, le=2**63 - 1, examples=[0])] | None = None
    batch_index: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """Index inside a batch; -1 or absent for a message of its own."""
    partition: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """Of a partitioned topic; found by the ledger when absent."""
    message_id: Annotated[str, Field(max_length=2048)] | None = None
    """Base64 instead of the numbers."""


class CancelLine(MessageIdPayload):
    """One line of a bulk request."""

    deliver_at: Annotated[int, Field(examples=[1795269995318])] | None = None
    """Due time in milliseconds since the epoch, checked when given."""
    subscription_names: list[_Text] | None = None
    """Where; every Shared and Key_Shared subscription when absent."""


class SkipRequest(Request):
    """Messages to skip on one subscription."""

    message_ids: Annotated[list[MessageIdPayload | _Text], Field(min_length=1, max_length=MAX_MESSAGE_IDS)]
    """Objects with ``ledgerId`` and ``entryId``, or base64 message ids."""


class SelectionPayload(Request):
    """Which waiting messages; at least one of due time, key and properties."""

    due_from: _Time | None = None
    """Earliest due time in milliseconds, included."""
    due_to: _Time | None = None
    """Latest due time in milliseconds, excluded."""
    published_before: _Time | None = None
    """Only messages published before this time; a preview fills it in."""
    key: Annotated[_Text, Field(examples=["customer-1"])] | None = None
    properties: dict[_Text, _Text] = Field(default_factory=dict)
    """All of these."""
    subscription_names: list[_Text] | None = None


class ConfirmedSelection(SelectionPayload):
    """The selection as its preview answered it, and the preview's hash."""

    hash: Annotated[str, Field(min_length=1, max_length=128)]
    defer: bool = False


class ReissuePayload(MessageIdPayload):
    """A message to publish again."""

    deliver_at: int | None = None
    """Its present due time, checked when given."""
    new_deliver_at: Annotated[int, Field(examples=[1795269995318])] | None = None
    """Its new due time, for ``rescheduleDelayedMessage``."""


class CancelParameters(Query):
    """PIP-423's parameters as text, so that what is wrong with them gets PIP-423's status code."""

    ledger_id: str | None = Field(default=None, examples=["4711"])
    """Ledger id of the delayed message; required."""
    entry_id: str | None = Field(default=None, examples=["0"])
    """Entry id of the delayed message; required."""
    deliver_at: str | None = Field(default=None, examples=["1795269995318"])
    """Its original due time, milliseconds since the epoch; required."""
    subscription_names: list[str] = Field(default_factory=list, max_length=1000)
    """Repeated or comma-separated; every Shared and Key_Shared subscription when absent."""
    authoritative: str | None = None
    """Accepted as Pulsar does; any sidecar can take this call."""
    wait: str | None = Field(default=None, examples=["persisted"])
    """``persisted``: answer only when the cursor's stored state has it."""
    defer: str | None = Field(default=None, examples=["false"])
    """``true``: where the acknowledgement state is full, accept into the log and acknowledge when there is room."""


class BulkParameters(Query):
    """How lines are carried out."""

    wait: str | None = Field(default=None, examples=["persisted"])
    """``persisted``: answer each line only when the cursor's stored state has it."""
    defer: bool = False
    """Where the acknowledgement state is full, accept into the log and acknowledge when there is room."""


class VerdictAnswer(Answer):
    """What became of one message on one subscription."""

    subscription: str | None
    """Null when it never came to any subscription."""
    proof: str
    """ACCEPTED, ACKED, PERSISTED, EXPIRED, TOO_LATE, RACED, UNKNOWN, NOT_FOUND or REFUSED."""
    cause: str | None
    reason: str | None


class OutcomeAnswer(Answer):
    """What became of one message."""

    cancellation_id: str | None
    """``ledgerId:entryId``, for ``GET .../cancellations/{id}``; null for a line that names no message."""
    topic: str | None
    """The partition that holds it."""
    cancelled: bool
    """Whether it will not be delivered on any of the subscriptions meant."""
    verdicts: list[VerdictAnswer]
    warnings: list[str]
    line: int | None = None
    """Number of the line, in a bulk request."""


class CancellationAnswer(Answer):
    """One cancellation on one subscription, as it is known now."""

    topic: str
    subscription: str
    ledger_id: int
    entry_id: int
    deliver_at: int
    requested_ms: int
    requested_by: str | None
    proof: str
    cause: str | None
    reason: str | None


class SelectedAnswer(Answer):
    """One message of a preview's sample."""

    topic: str
    ledger_id: int
    entry_id: int
    deliver_at: int
    key: str | None


class PreviewAnswer(Answer):
    """What a selection would cancel. Send ``selection`` back with ``hash`` to confirm it."""

    count: int
    hash: str
    first_due: int | None
    last_due: int | None
    unreadable: int
    """Entries that could not be read, and so are not among them."""
    selection: dict[str, object]
    sample: list[SelectedAnswer]


class ReissuedAnswer(Answer):
    """A message that was cancelled and published again."""

    message_id: str | None
    """The new message's id, ``ledgerId:entryId:partition``; null when none is known to be published."""
    deliver_at: int | None
    outcome: OutcomeAnswer


class CancelStatusAnswer(Answer):
    """How cancelling is on this sidecar."""

    enabled: bool
    asserting: bool
    """Whether this sidecar leads: it reconciles cursors with the log."""
    open_cancellations: int
    log_read: bool
    last_error: str | None
