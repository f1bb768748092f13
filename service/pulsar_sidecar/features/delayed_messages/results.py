"""Results about cancelled, selected and rescheduled messages, with their proven status.

Invariant: a status above ACCEPTED rests on a response of the broker or the bookies; a message that was certainly not
dispatched never gets RACED or TOO_LATE.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from operator import attrgetter
from typing import Final

from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.results import result


class CancellationStatus(Enum):
    """Proven status of one cancellation on one subscription."""

    ACCEPTED = "ACCEPTED"
    """In the log; the sidecars acknowledge it as soon as possible."""
    ACKED = "ACKED"
    """The broker confirmed the acknowledgement before it could dispatch the message."""
    PERSISTED = "PERSISTED"
    """Seen in the cursor's stored state: the message stays cancelled even if the broker dies now."""
    EXPIRED = "EXPIRED"
    """The due time has passed, and the message was not delivered."""
    TOO_LATE = "TOO_LATE"
    """The due time had passed, or the message was acknowledged before the request; nothing was changed."""
    RACED = "RACED"
    """The broker may have dispatched the message before the acknowledgement arrived; it is acknowledged now."""
    UNKNOWN = "UNKNOWN"
    """Unknown outcome: the message may have been delivered, its copy may have been published, or the request was
    interrupted and may be repeated."""
    NOT_FOUND = "NOT_FOUND"
    """Confirmed absence of the topic, subscription or entry."""
    REFUSED = "REFUSED"
    """The message cannot or may not be cancelled; nothing was changed."""

    def __init__(self, value: str) -> None:
        # Attributes, because bulk requests read them once or twice a message.
        self.cancelled = value in {"ACKED", "PERSISTED", "EXPIRED"}
        """True if the message will not be delivered on this subscription (204)."""
        self.open = value in {"ACCEPTED", "ACKED", "PERSISTED"}
        """True if the sidecars still reconcile it with the cursor."""
        self.rank = ["ACCEPTED", "ACKED", "PERSISTED"].index(value) if self.open else 3
        """Order in which a cancellation rises; it ends above every open status."""


class Cause(Enum):
    """Cause for not cancelling a message: a closed list, for metrics and programs."""

    INVALID = "invalid"
    NO_TOPIC = "no topic"
    NO_SUBSCRIPTION = "no subscription"
    NO_ENTRY = "no entry"
    UNREADABLE = "unreadable"
    NOT_DELAYED = "not delayed"
    OTHER_DELIVER_AT = "other deliverAt"
    BATCH = "batch"
    CHUNKS = "chunks"
    MARKER = "marker"
    SUBSCRIPTION_TYPE = "subscription type"
    STICKY_RANGES = "sticky hash ranges"
    ACK_STATE_FULL = "acknowledgement state full"
    DUE = "due"
    ACKED_BEFORE = "acknowledged before"
    DISPATCHED = "dispatched"
    LOST = "acknowledgement lost"
    UNWATCHED = "not watched"
    CANCELLED = "cancelled before"
    PUBLISHED_AGAIN = "published again before"
    UNCONFIRMED = "not confirmed"
    BROKER = "broker"


@result
class Verdict:
    """Result for one message on one subscription."""

    subscription: str | None
    """Null if no subscription was checked."""
    proof: CancellationStatus
    cause: Cause | None = None
    """Cause if it was not cancelled, or not yet."""
    reason: str | None = None
    """Cause in words."""


@result
class MessageOutcome:
    """Results for one message."""

    line: int | None
    """Number of the line in a bulk request."""
    cancellation_id: str | None
    """``ledgerId:entryId``, for ``GET .../cancellations/{id}``; null for a line that names no message."""
    topic: str | None
    """Partition, or topic without partitions, that holds the message."""
    cancelled: bool
    """True if the message is cancelled on every requested subscription, and so is not delivered there."""
    verdicts: tuple[Verdict, ...]
    """One verdict for each subscription, never empty."""
    warnings: tuple[str, ...]
    """Facts that may surprise the caller."""

    @property
    def accepted(self) -> bool:
        """True if the message is cancelled or in the log on every requested subscription."""
        return all(one.proof.cancelled or one.proof is CancellationStatus.ACCEPTED for one in self.verdicts)


_cancelled: Final[Callable[[Verdict], bool]] = attrgetter("proof.cancelled")


def message_outcome(
    topic: TopicName | str, position: Position, verdicts: tuple[Verdict, ...], warnings: tuple[str, ...] = ()
) -> MessageOutcome:
    cancelled = all(map(_cancelled, verdicts))
    return MessageOutcome(None, str(position), str(topic), cancelled, verdicts, warnings)


@result
class KnownCancellation:
    """Newest known status of one cancellation on one subscription."""

    topic: str
    """Partition, or topic without partitions."""
    subscription: str
    ledger_id: int
    entry_id: int
    deliver_at: int
    """Due time, milliseconds since the epoch."""
    requested_ms: int
    requested_by: str | None
    """Role of the caller."""
    proof: CancellationStatus
    cause: Cause | None
    """Cause if the message was not cancelled."""
    reason: str | None
    """Cause in words."""


@result
class DelayedMessage:
    """Delayed message by its id, with the fields by which its copies in other clusters are found.

    A replicated message has another id in each cluster; its producer, sequence id and times are the same everywhere.
    """

    topic: str
    """Partition, or topic without partitions."""
    ledger_id: int
    entry_id: int
    deliver_at: int
    """Due time, milliseconds since the epoch."""
    key: str | None
    producer_name: str
    sequence_id: int
    publish_time: int
    """Publish time by the producer's clock, milliseconds since the epoch."""


@result
class SelectedMessage:
    """Message that a selection found."""

    topic: str
    """Partition, or topic without partitions."""
    ledger_id: int
    entry_id: int
    deliver_at: int
    """Due time, milliseconds since the epoch."""
    key: str | None


@result
class Preview:
    """Preview of a selection; send ``selection`` back with ``hash`` to cancel exactly these messages."""

    count: int
    """Number of messages."""
    hash: str
    """Hash of all messages found."""
    first_due: int | None
    """Earliest due time, milliseconds since the epoch."""
    last_due: int | None
    """Latest due time, milliseconds since the epoch."""
    unreadable: int
    """Number of entries that could not be read and are left out."""
    published_later: int
    """Number of messages left out only because they were published at ``publishedBefore`` or later, by their producers'
    clocks."""
    selection: Mapping[str, object]
    """Selection with exact bounds, so that it finds the same messages again."""
    sample: tuple[SelectedMessage, ...]
    """First messages by due time."""


@result
class RescheduleResult:
    """Message that was published again with another due time, and whose original was cancelled."""

    message_id: str | None
    """Message id of the copy, ``ledgerId:entryId:partition``; null if the sidecar knows no copy."""
    deliver_at: int | None
    """Due time of the copy, milliseconds since the epoch; null for "now"."""
    outcome: MessageOutcome
    """Outcome of cancelling the original."""


@result
class CancelStatus:
    """Status of cancelling on this sidecar."""

    enabled: bool
    asserting: bool
    """True if this sidecar leads: it reconciles cursors with the log."""
    open_cancellations: int
    """Number of cancellations in the log that have not ended."""
    log_read: bool
    """True once this sidecar has read the log."""
    last_error: str | None
    """Last error of this sidecar since its start; it stays after the cause is gone."""
    last_error_at_ms: int | None
