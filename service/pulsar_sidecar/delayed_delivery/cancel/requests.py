"""Requests to cancel, and their results with how much is proven of each.

Invariant: a status above ACCEPTED rests on the answer of a broker or of the bookies; a message that certainly was not
dispatched never gets RACED or TOO_LATE.

Classes with one instance for each message are tuples, because bulk requests make very many of them.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges

EARLIEST_DELIVER_AT_MS: Final = 1_000_000_000_000
"""September 2001 in milliseconds: a smaller number is a time in seconds."""
LATEST_DELIVER_AT_MS: Final = 2**63 - 1
MAX_SUBSCRIPTION_BYTES: Final = 1024


def check_deliver_at(deliver_at_ms: int) -> None:
    """A due time as a caller gives it.

    Raises:
        InvalidInputError: it is not a time in milliseconds; the message has the correction.
    """
    if deliver_at_ms <= 0:
        raise InvalidInputError(
            "deliverAt must be positive: milliseconds since the epoch, as the message was sent with"
        )
    if deliver_at_ms < EARLIEST_DELIVER_AT_MS:
        raise InvalidInputError(
            f"deliverAt {deliver_at_ms} is in milliseconds the year 1970 to 2001, so it looks like seconds; "
            f"write {deliver_at_ms}000 if it is"
        )
    if deliver_at_ms > LATEST_DELIVER_AT_MS:
        raise InvalidInputError("deliverAt is larger than any 64-bit number of milliseconds")


def check_subscription_name(name: str) -> str:
    """A subscription's name as a caller gives it.

    Raises:
        InvalidInputError: empty, or beyond what the metadata store can hold.
    """
    if not name.strip():
        raise InvalidInputError("a subscription's name is empty; leave subscriptionNames out for all subscriptions")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidInputError("a subscription's name is Unicode text, without lone surrogates") from None
    if length > MAX_SUBSCRIPTION_BYTES:
        raise InvalidInputError(f"a subscription's name is at most {MAX_SUBSCRIPTION_BYTES} bytes long")
    return name


class CancellationStatus(Enum):
    """How much is proven of one cancellation on one subscription."""

    ACCEPTED = "ACCEPTED"
    """In the log: it will be acknowledged as soon as that is possible."""
    ACKED = "ACKED"
    """The broker confirmed the acknowledgement before it could dispatch the message."""
    PERSISTED = "PERSISTED"
    """Seen in the cursor's stored state: a broker that dies now does not deliver it either."""
    EXPIRED = "EXPIRED"
    """The due time has passed and the message was not delivered."""
    TOO_LATE = "TOO_LATE"
    """The due time had passed, or the message was acknowledged before us; nothing was changed."""
    RACED = "RACED"
    """The broker may have dispatched it before the acknowledgement came; it is acknowledged now."""
    UNKNOWN = "UNKNOWN"
    """Whether the message was delivered before its end, or whether its copy was published, is not known; or what
    became of a request that broke off, which may be repeated."""
    NOT_FOUND = "NOT_FOUND"
    """There is no such topic, subscription or entry, and that was read."""
    REFUSED = "REFUSED"
    """It cannot or may not be cancelled; nothing was changed."""

    @property
    def cancelled(self) -> bool:
        """Whether the message will not be delivered on this subscription (204)."""
        return self in (CancellationStatus.ACKED, CancellationStatus.PERSISTED, CancellationStatus.EXPIRED)

    @property
    def open(self) -> bool:
        """Whether the sidecars still reconcile it with the cursor."""
        return self in (CancellationStatus.ACCEPTED, CancellationStatus.ACKED, CancellationStatus.PERSISTED)


class Cause(Enum):
    """Why a message was not cancelled: a closed list, for metrics and for programs."""

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


class Target(NamedTuple):
    """One message to cancel.

    Attributes:
        deliver_at_ms: the due time the caller knows (PIP-423); None leaves it unchecked.
        batch_index: the message inside a batch, None for the whole entry.
        subscriptions: where; empty for every Shared and Key_Shared subscription of the topic.
        partition: the partition the message id names, None when it names none.
    """

    position: Position
    deliver_at_ms: int | None = None
    batch_index: int | None = None
    subscriptions: tuple[str, ...] = ()
    partition: int | None = None


class SubscriptionResult(NamedTuple):
    """The result for one target on one subscription; ``subscription`` is None if none was looked at."""

    subscription: str | None
    status: CancellationStatus
    cause: Cause | None = None
    reason: str | None = None


class TargetOutcome(NamedTuple):
    """The results for one target.

    Attributes:
        topic: the partition, or the topic itself, that holds the entry.
        results: one for each subscription, never empty.
        warnings: facts that the caller may not expect.
    """

    topic: TopicName
    target: Target
    results: tuple[SubscriptionResult, ...]
    warnings: tuple[str, ...] = ()

    @property
    def cancelled(self) -> bool:
        """Whether it is cancelled on every subscription asked for."""
        return all(result.status.cancelled for result in self.results)

    @property
    def accepted(self) -> bool:
        """Whether it is cancelled or in the log on every subscription asked for."""
        return all(result.status.cancelled or result.status is CancellationStatus.ACCEPTED for result in self.results)


class Cancellation(NamedTuple):
    """One cancellation on one subscription, as the log keeps it.

    Attributes:
        positions: every entry of the message: one, or all of a chunked one's.
        position: the entry the caller named.
        requested_ms: when it was asked for.
    """

    topic: TopicName
    subscription: str
    position: Position
    deliver_at_ms: int
    requested_ms: int
    status: CancellationStatus
    positions: tuple[Position, ...] = ()
    cause: Cause | None = None
    reason: str | None = None
    requested_by: str | None = None

    @property
    def entries(self) -> tuple[Position, ...]:
        """Every entry that is to be acknowledged."""
        return self.positions or (self.position,)

    def held_by(self, acked: PositionRanges) -> bool:
        """Whether all of its entries are acknowledged."""
        return all(entry in acked for entry in self.positions) if self.positions else self.position in acked

    def at(self, status: CancellationStatus, cause: Cause | None = None, reason: str | None = None) -> "Cancellation":
        return Cancellation(*self[:5], status, self.positions, cause, reason, self.requested_by)

    def result(self) -> SubscriptionResult:
        """The status as callers get it."""
        return SubscriptionResult(self.subscription, self.status, self.cause, self.reason)


@dataclass(frozen=True, slots=True)
class CancelOptions:
    """How a request is carried out.

    Attributes:
        wait_persisted: answer only when it is PERSISTED, or when waiting for that gave up.
        defer: accept into the log what would pass the limit of the acknowledgement state, and acknowledge it later.
    """

    wait_persisted: bool = False
    defer: bool = False
    requested_by: str | None = None


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """A message that was published again with another due time, and cancelled.

    Attributes:
        message_id: the copy's, as Java prints it; None if the sidecar does not know of a copy.
        deliver_at_ms: the copy's due time, None for "now".
        outcome: of cancelling the old message.
    """

    message_id: str | None
    deliver_at_ms: int | None
    outcome: TargetOutcome
