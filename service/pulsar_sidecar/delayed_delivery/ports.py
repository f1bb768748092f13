"""What cancelling needs from brokers, bookies and its log, and their answers.

Every method raises `TemporaryError` when the other side could not be asked and `OutcomeUnknownError` when an answer to
a change was lost. No method creates a topic or a subscription, and none reports an absence that it did not read: what
could not be read is a value of its own (`Unreadable`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from pyroaring import BitMap

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import Subscription, TopicInternalStats

TYPES_SECONDS: Final = 2.0
"""How old the subscriptions' types may be, far from the due time; whether they exist is asked each time."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One part of a chunked message (PIP-37): ``uuid``, ``chunk_id`` and ``num_chunks_from_msg``."""

    uuid: str
    chunk_id: int
    total: int


_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class EntryFacts(NamedTuple):
    """An entry's own ``MessageMetadata``; the payload is not kept.

    A tuple, because bulk requests make very many of them.

    Attributes:
        deliver_at_ms: the due time, milliseconds since the epoch; None for a message that is not delayed.
        messages_in_batch: None for an entry that is not a batch, also for a batch of one.
        key: the partition key as text, base64 when the producer sent bytes.
        marker: whether the entry is one of Pulsar's own markers (transactions, replicated subscriptions).
        transaction: whether the message belongs to a transaction.
    """

    deliver_at_ms: int | None
    publish_time_ms: int
    messages_in_batch: int | None = None
    chunk: Chunk | None = None
    key: str | None = None
    properties: Mapping[str, str] = _NO_PROPERTIES
    producer_name: str = ""
    sequence_id: int = 0
    event_time_ms: int | None = None
    marker: bool = False
    transaction: bool = False
    size_bytes: int | None = None


EntryAnswer = EntryFacts | Absent | Unreadable


@dataclass(frozen=True, slots=True)
class DelayPolicy:
    """How the broker decides that a delayed message is due.

    Attributes:
        enabled: ``delayedDeliveryEnabled`` and the topic's policy: otherwise delayed messages are delivered at once.
        tick_ms: ``delayedDeliveryTickTimeMillis``: unless strict, a message may leave up to one tick early.
        strict: ``isDelayedDeliveryDeliverAtTimeStrict``.
        ttl_seconds: the topic's message time-to-live, None for none.
    """

    enabled: bool = True
    tick_ms: int = 1000
    strict: bool = False
    ttl_seconds: int | None = None

    @property
    def earliest_lead_ms(self) -> int:
        """How long before the due time a broker may dispatch: a tick, and one more for rounding (PIP-423: 2 ticks)."""
        return self.tick_ms if self.strict else 2 * self.tick_ms

    def may_be_dispatched(self, deliver_at_ms: int, now_ms: int) -> bool:
        """Whether the broker may have dispatched a message by then; ``now_ms`` is the brokers' time as far as known."""
        return now_ms >= deliver_at_ms - self.earliest_lead_ms

    def expired_before_ms(self, now_ms: int) -> int:
        """What was due by then is over: two ticks after its due time (PIP-423)."""
        return now_ms - 2 * self.tick_ms


class DelayedEntries(Protocol):
    """Entries' metadata, read in bulk without a consumer and without moving any cursor."""

    def read(
        self, topic: TopicName, positions: Collection[Position], *, max_age_seconds: float = 0.0
    ) -> Mapping[Position, EntryAnswer]:
        """One answer per position of the topic (a partition, or a topic without partitions); all positions are there.

        `Absent` only when it was read that the topic's managed ledger does not list the ledger, or that the ledger
        ends before the entry. Raises `NotFoundError` when the topic does not exist.

        With ``max_age_seconds`` the topic may have dropped the ledger of an entry that is found, or be gone itself,
        for so long; an entry's facts are true, and nothing else is answered from memory.
        """


class DueTimes(Protocol):
    """Due times that are known without the entries: the buckets' (PIP-195)."""

    def outside(self, topic: TopicName, from_ms: int | None, to_ms: int | None) -> Mapping[LedgerId, BitMap]:
        """Entries of a partition, or of a topic without, that are due before ``from_ms``, or at ``to_ms`` or later.

        An entry that is not in the answer may be due at any time. Raises `TemporaryError` when it could not be asked
        which buckets there are.
        """


class Topics(Protocol):
    """Topics as brokers report them; a call may load a topic, and creates none."""

    def partitions(self, topic: TopicName, *, max_age_seconds: float = 0.0) -> int | None:
        """Number of partitions, 0 for a topic without, asked now or at most so long ago; None without such a topic."""

    def partition_of_ledger(self, topic: TopicName, partitions: int, ledger_id: LedgerId) -> int | None:
        """The partition whose managed ledger lists the ledger, None when none does."""

    def subscriptions(self, topic: TopicName, *, max_age_seconds: float = 0.0) -> Mapping[str, Subscription]:
        """The topic's subscriptions by name, asked now or at most so long ago.

        Raises `NotFoundError` when there is no such topic.
        """

    def state(self, topic: TopicName) -> TopicInternalStats:
        """Its ledgers and cursors. Raises `NotFoundError` when there is no such topic."""

    def delay_policy(self, topic: TopicName) -> DelayPolicy:
        """How this topic's delayed messages come due; may be some seconds old."""

    def broker_ahead_ms(self) -> int:
        """By how many milliseconds the brokers' clocks are known to be ahead of this machine's, at least 0."""


class StoredAckState(Protocol):
    """What of a cursor a broker would recover after a crash."""

    def read(
        self, topic: TopicName, subscription: str, known_ledger: LedgerId | None, known_last_entry: int
    ) -> PositionRanges | None:
        """The acknowledged positions in the cursor's last entry known to be stored, or None while nothing is.

        ``known_ledger`` and ``known_last_entry`` are the broker's report of the cursor's ledger; a newer entry that
        bookies hold may not be acknowledged yet and is not read.
        """


class JoinedConsumer(Protocol):
    """A consumer that the broker has let in, and that takes no message."""

    def acknowledge(self, positions: Sequence[Position]) -> int:
        """Have the broker acknowledge every position, each for itself, and confirm it.

        Returns this machine's clock when the last confirmation was in hand. Raises `OutcomeUnknownError` when some may
        have been acknowledged and some not.
        """


class Acknowledger(Protocol):
    """Joins subscriptions in order to acknowledge positions there."""

    def join(self, topic: TopicName, subscription: Subscription) -> AbstractContextManager[JoinedConsumer]:
        """A consumer on the subscription, from the moment the broker has let it in to the end of the context.

        Raises, and then nothing was changed:
            ConflictError: the subscription does not admit this consumer (another type is in use).
            NotFoundError: the topic or the subscription is gone; nothing is created.
            TemporaryError: the broker cannot be reached.
        """

    def close(self) -> None:
        """Close what is kept open; idempotent."""


LogRecords = Sequence[tuple[str, bytes | None]]
"""Keys and values, None for a key that is forgotten."""


class CancellationTopic(Protocol):
    """The log: a compacted topic of key and value, in which None as value forgets the key."""

    def ensure(self) -> None:
        """Create and configure the topic where it is missing; idempotent."""

    def append(self, records: LogRecords) -> None:
        """Store all, in order for each key; returns when every one is durable.

        Raises:
            TemporaryError: at least one is not known to be stored.
        """

    def follow(
        self, apply: Callable[[LogRecords], None], caught_up: Callable[[int], None], stopped: Callable[[], bool]
    ) -> None:
        """Apply every record of the topic in order, several at a time, then new ones as they come, until ``stopped``.

        ``caught_up`` is called once, when everything stored before the call has been applied, with the number of
        entries that could not be read, or were compacted away meanwhile. Raises TemporaryError when records may have
        been missed.
        """


class Republisher(Protocol):
    """Publishes a waiting message again with another due time."""

    def republish(
        self, topic: TopicName, entries: Sequence[Position], deliver_at_ms: int | None, properties: Mapping[str, str]
    ) -> str:
        """Publish the same payload, key and properties, plus ``properties``; the new message's id as Java prints it.

        ``entries`` are all entries of one message, in order. Stored before it returns.
        ``deliver_at_ms`` None means now. A repeated call publishes twice.

        Raises:
            PermanentError: the message cannot be published again, or the broker refused it; nothing was stored.
            TemporaryError: nothing was sent.
            OutcomeUnknownError: the copy may have been stored, or be stored yet.
        """


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of cancelling.

    Attributes:
        enabled: whether anything is cancelled at all.
        reconcile_interval_ms: how often a subscription's acknowledgements are looked at at least.
        persist_patience_ms: how long ``wait=persisted`` waits.
    """

    enabled: bool = True
    reconcile_interval_ms: int = 10_000
    persist_patience_ms: int = 15_000


@dataclass(frozen=True, slots=True)
class Ports:
    """The adapters the room works with.

    Attributes:
        max_ranges: asks for ``managedLedgerMaxUnackedRangesToPersist``: ranges of a cursor beyond it are lost when the
            broker dies (PIP-299); may be some seconds old.
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
        """The brokers' time, as far as it is known to be ahead."""
        return self.clock.now_ms() + self.topics.broker_ahead_ms()
