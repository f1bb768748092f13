"""Ports of cancelling: brokers, bookies and the log.

Every method raises `TemporaryError` if the other side is unreachable, and `OutcomeUnknownError` if the response to a
change was lost. No method creates a topic or a subscription, and none reports an absence that it did not read: an
unreadable item has its own value (`Unreadable`).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from pulsar_sidecar.backlog.ports import DelayedEntries, DueTimes, Topics
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import Subscription

TYPES_SECONDS: Final = 2.0
"""Maximum age of subscription types, far from the due time; their existence is checked at each request."""


class StoredAckState(Protocol):
    """Cursor state that a broker would recover after a crash."""

    def read(
        self, topic: TopicName, subscription: str, known_ledger: LedgerId | None, known_last_entry: int
    ) -> PositionRanges | None:
        """Return the acknowledged positions in the cursor's last entry known to be stored, or None if none is.

        ``known_ledger`` and ``known_last_entry`` are the broker's report of the cursor's ledger; a newer entry on
        bookies may be unconfirmed and is not read.
        """


class JoinedConsumer(Protocol):
    """Consumer that the broker has admitted, and that receives no messages."""

    def acknowledge(self, positions: Sequence[Position]) -> int:
        """Make the broker acknowledge and confirm every position individually.

        Returns this machine's time when the last confirmation arrived. Raises `OutcomeUnknownError` if only some of
        them may have been acknowledged.
        """


class Acknowledger(Protocol):
    """Client that joins subscriptions to acknowledge positions."""

    def join(self, topic: TopicName, subscription: Subscription) -> AbstractContextManager[JoinedConsumer]:
        """Join the subscription with a consumer, from the broker's admission to the end of the context.

        Raises, and then nothing was changed:
            ConflictError: the subscription does not admit this consumer (another type is in use).
            NotFoundError: the topic or the subscription is gone; nothing is created.
            TemporaryError: the broker cannot be reached.
        """

    def close(self) -> None:
        """Close kept connections; idempotent."""


LogRecords = Sequence[tuple[str, bytes | None]]
"""Keys and values; None deletes the key."""


class CancellationTopic(Protocol):
    """Log: a compacted topic of keys and values, in which the value None deletes the key."""

    def ensure(self) -> None:
        """Create and configure the topic if it is missing; idempotent."""

    def append(self, records: LogRecords) -> None:
        """Store all records, in order for each key; return once every one is durable.

        Raises:
            TemporaryError: at least one record is not known to be stored.
        """

    def follow(
        self, apply: Callable[[LogRecords], None], caught_up: Callable[[int], None], stopped: Callable[[], bool]
    ) -> None:
        """Apply every record of the topic in order, in batches, then new ones as they arrive, until ``stopped``.

        Calls ``caught_up`` once, after everything stored before the call has been applied, with the number of entries
        that were unreadable or were compacted away meanwhile. Raises TemporaryError if records may have been missed.
        """


class Republisher(Protocol):
    """Publisher of waiting messages with another due time."""

    def republish(
        self, topic: TopicName, entries: Sequence[Position], deliver_at_ms: int | None, properties: Mapping[str, str]
    ) -> str:
        """Publish the same payload, key and properties, plus ``properties``; return the new message's id.

        The id is in Java's notation. ``entries`` are all entries of one message, in order. The copy is stored before
        the call returns. ``deliver_at_ms`` None means now. A repeated call publishes twice.

        Raises:
            PermanentError: the message cannot be published again, or the broker refused the copy; nothing was stored.
            TemporaryError: nothing was sent.
            OutcomeUnknownError: the copy may have been stored, or may still be stored.
        """


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings of cancelling.

    Attributes:
        enabled: True if cancelling is on.
        reconcile_interval_ms: longest interval between two visits to a subscription, milliseconds.
        persist_patience_ms: timeout of ``wait=persisted``, milliseconds.
    """

    enabled: bool = True
    reconcile_interval_ms: int = 10_000
    persist_patience_ms: int = 15_000


@dataclass(frozen=True, slots=True)
class Ports:
    """Adapters that the feature works with.

    Attributes:
        max_ranges: returns ``managedLedgerMaxUnackedRangesToPersist``, up to some seconds old; a cursor's ranges beyond
            it are lost if the broker dies (PIP-299).
    """

    clock: Clock
    metadata: MetadataStore
    topics: Topics
    entries: DelayedEntries
    due_times: DueTimes
    max_ranges: Callable[[], int]
    acknowledger: Acknowledger
    stored: StoredAckState
    log: CancellationTopic
    republisher: Republisher

    def brokers_now_ms(self) -> int:
        """Return the brokers' time, as far as it is known to be ahead."""
        return self.clock.now_ms() + self.topics.broker_ahead_ms()
