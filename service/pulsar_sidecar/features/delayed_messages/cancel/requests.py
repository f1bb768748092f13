"""Requests to cancel messages, checked, and cancellations as the log stores them.

Classes with one instance per message are tuples, because bulk requests create very many.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from pulsar_sidecar.features.delayed_messages.results import CancellationStatus, Cause, KnownCancellation, Verdict
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges

EARLIEST_DELIVER_AT_MS: Final = 1_000_000_000_000
"""September 2001 in milliseconds; a smaller number is a time in seconds."""
LATEST_DELIVER_AT_MS: Final = 2**63 - 1
MAX_SUBSCRIPTION_BYTES: Final = 1024


def check_deliver_at(deliver_at_ms: int) -> None:
    """Check a due time that a caller gives.

    Raises:
        InvalidInputError: the number is not a time in milliseconds; the error message has the correction.
    """
    if deliver_at_ms <= 0:
        raise InvalidInputError(
            "deliverAt must be positive: milliseconds since the epoch, as the message was sent with"
        )
    if deliver_at_ms < EARLIEST_DELIVER_AT_MS:
        raise InvalidInputError(
            f"deliverAt {deliver_at_ms} in milliseconds lies in the years 1970 to 2001, so it looks like seconds; "
            f"write {deliver_at_ms}000 if it is"
        )
    if deliver_at_ms > LATEST_DELIVER_AT_MS:
        raise InvalidInputError("deliverAt must fit into a 64-bit number of milliseconds")


def check_subscription_name(name: str) -> str:
    """Check and return a subscription name that a caller gives.

    Raises:
        InvalidInputError: the name is empty, not valid Unicode, or longer than the metadata store can hold.
    """
    if not name.strip():
        raise InvalidInputError("a subscription's name must not be empty; omit subscriptionNames for all subscriptions")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidInputError("a subscription's name must be Unicode text, without lone surrogates") from None
    if length > MAX_SUBSCRIPTION_BYTES:
        raise InvalidInputError(f"a subscription's name must be at most {MAX_SUBSCRIPTION_BYTES} bytes long")
    return name


class Target(NamedTuple):
    """Message to cancel.

    Attributes:
        deliver_at_ms: due time that the caller expects (PIP-423); None leaves it unchecked.
        batch_index: index of the message in its batch, None for the whole entry.
        subscriptions: names of subscriptions; empty for every Shared and Key_Shared subscription of the topic.
        partition: partition in the message id, None if it has none.
    """

    position: Position
    deliver_at_ms: int | None = None
    batch_index: int | None = None
    subscriptions: tuple[str, ...] = ()
    partition: int | None = None


class Cancellation(NamedTuple):
    """Cancellation on one subscription, as stored in the log.

    Attributes:
        positions: all entries of a chunked message; empty if ``position`` is the only one.
        position: entry that the caller named.
        requested_ms: time of the request, milliseconds since the epoch.
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
        """Entries to acknowledge."""
        return self.positions or (self.position,)

    def held_by(self, acked: PositionRanges) -> bool:
        """Return True if all of its entries are acknowledged."""
        return all(entry in acked for entry in self.positions) if self.positions else self.position in acked

    def at(self, status: CancellationStatus, cause: Cause | None = None, reason: str | None = None) -> "Cancellation":
        return Cancellation(*self[:5], status, self.positions, cause, reason, self.requested_by)

    def verdict(self) -> Verdict:
        return Verdict(self.subscription, self.status, self.cause, self.reason)

    def known(self) -> KnownCancellation:
        """Return the cancellation as callers see it."""
        return KnownCancellation(
            str(self.topic),
            self.subscription,
            *self.position,
            self.deliver_at_ms,
            self.requested_ms,
            self.requested_by,
            self.status,
            self.cause,
            self.reason,
        )


def by_subscription(one: Cancellation) -> tuple[TopicName, str]:
    """Return the topic and the subscription: batches are handled run by run, and most have one run."""
    return one[:2]


@dataclass(frozen=True, slots=True)
class CancelOptions:
    """Options of a request.

    Attributes:
        wait_persisted: respond once the cancellation is PERSISTED, or the wait times out.
        defer: accept into the log cancellations beyond the limit of the acknowledgement state, and acknowledge them
            later.
    """

    wait_persisted: bool = False
    defer: bool = False
    requested_by: str | None = None
