"""Ports of ledger deletion: small protocols that fakes and adapters satisfy alike.

Every method raises `TemporaryError` when the other side cannot be reached and `OutcomeUnknownError` when the response
to a change is lost. No method reports an absence that it did not read.
"""

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from pulsar_sidecar.model.ids import BookieId, LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import ManagedLedgerName, TopicName
from pulsar_sidecar.model.pulsar_versions import Line
from pulsar_sidecar.model.topic_stats import TopicInternalStats


class DeletionTopic(Enum):
    """The service's four topics; the value is the local name in ``persistent://pulsar/system``."""

    PENDING = "__ledger_deletion"
    RETRY = "__ledger_deletion-RETRY"
    DEAD_LETTER = "__ledger_deletion-DLQ"
    OUTCOME = "__ledger_deletion-OUTCOME"


SYSTEM_NAMESPACE = "pulsar/system"


# --- brokers -------------------------------------------------------------------------------------------------------


class LiveOwners(Protocol):
    """The brokers that own topics now."""

    def views(self, topics: Collection[TopicName]) -> Mapping[TopicName, TopicInternalStats]:
        """Return the internal stats of each loaded topic from its owner; topics that are not loaded are left out.

        Requests no topic that no broker names as loaded; one that is gone by then is left out, too.

        Raises:
            TemporaryError: a live broker could not be reached.
        """

    def owner_url(self, topic: TopicName) -> str | None:
        """Return the web service URL of the broker that owns the topic's bundle; None without an owner.

        Reads the existing ownership and assigns nothing.
        """


@dataclass(frozen=True, slots=True)
class ConnectedClients:
    """Number of clients connected to a topic.

    Attributes:
        replicators: producers through which brokers replicate the source to a shadow topic.
        replicated_to: clusters to which brokers replicate the topic.
    """

    consumers: int = 0
    producers: int = 0
    replicators: int = 0
    replicated_to: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of clients as a broker counts them when it refuses a deletion."""
        return self.consumers + self.producers + self.replicators


class TopicAdmin(Protocol):
    """Admin REST calls for deleting a topic or a shadow topic (Pulsar ``PersistentTopics``)."""

    def load_topics(self, topics: Sequence[TopicName]) -> None:
        """Make brokers own and load the topics, several at a time, and wait for it; creates nothing.

        Skips topics that a broker does not know or refuses to load.

        Raises:
            OutcomeUnknownError, TemporaryError: it is unknown whether one of them is loaded.
            BrokerRefusedError: their namespace has only other clusters, so brokers would refuse a deletion, too.
        """

    def shadow_topics(self, topic: TopicName) -> Sequence[TopicName]:
        """Return the shadows that brokers replicate the topic to (``GET .../shadowTopics``); none for an unknown one.

        Loads nothing.
        """

    def delete_topic(self, topic: TopicName, *, partitioned: bool, force: bool) -> None:
        """Send ``DELETE /admin/v2/persistent/...`` (``.../partitions`` when partitioned); follows redirects.

        Raises:
            NotFoundError: the topic does not exist.
            BrokerRefusedError: any other 4xx, with the broker's own status and reason.
            OutcomeUnknownError: 5xx, a timeout or a broken connection after sending.
        """

    def delete_subscription(self, topic: TopicName, subscription: str, *, force: bool) -> None:
        """Send ``DELETE .../subscription/...`` of a topic without partitions; raises as `delete_topic` does."""

    def delete_schema(self, topic: TopicName) -> None:
        """Send a forced ``DELETE .../schema``, which removes its ledgers too; raises as `delete_topic` does."""

    def clients_of(self, topics: Sequence[TopicName]) -> Sequence[ConnectedClients]:
        """Return the clients of the topics, several topics at a time; loads them and skips unknown ones.

        Raises:
            BrokerRefusedError, TemporaryError: the clients of one of them are unknown.
        """

    def broker_line(self) -> Line | None:
        """Return the line of the brokers' version; None where they report none."""

    # Calls for deleting a shadow topic. Each raises `NotFoundError` when the topic does not exist, and
    # `BrokerRefusedError` on any other refusal.

    def keeps_forever(self, topic: TopicName) -> bool:
        """Return True if the topic's own retention policy is infinite in time and size; loads nothing."""

    def keep_forever(self, topic: TopicName) -> None:
        """Set infinite retention in time and size; brokers apply it within moments."""

    def set_shadow_topics(self, source: TopicName, shadows: Sequence[TopicName]) -> None:
        """Replace the list of `shadow_topics`."""

    def unload(self, topic: TopicName) -> None:
        """Close the topic at its broker; loads nothing that stays loaded."""

    def clients(self, topic: TopicName) -> ConnectedClients:
        """Return the topic's clients; loads the topic."""

    def can_load(self, topic: TopicName) -> bool:
        """Make the owner load the topic, or wait for a load under way; True if the topic is then loaded."""


# --- topics of the service -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """Message to publish.

    ``sequence_id`` None lets the producer continue from its last one; ``deliver_after_ms`` None means at once;
    ``event_time_ms`` None means that there is none.
    """

    payload: bytes
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    sequence_id: int | None = None
    deliver_after_ms: int | None = None
    event_time_ms: int | None = None


class PublishResult(Enum):
    """Result of `Publisher.publish` for one message."""

    STORED = "stored"
    ALREADY_STORED = "already stored"
    """Stored by an earlier attempt: the sidecar read it back, or the broker recognised it (PIP-6)."""
    NOT_STORED = "not stored"
    """Refused by the client before sending, or by the broker."""
    UNKNOWN = "unknown"
    """Without a receipt: counts as not sent."""

    @property
    def stored(self) -> bool:
        """True if the topic stores the message durably."""
        return self in (PublishResult.STORED, PublishResult.ALREADY_STORED)


class Publisher(Protocol):
    """A producer with a stable name on one topic (PIP-6)."""

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[PublishResult]:
        """Send all messages, wait for every receipt, and return one result each, in order; thread-safe.

        If a message with an explicit sequence id was not stored, refuses higher ids of its partition until it is sent
        again.
        """

    def close(self) -> None:
        """Release the producer name; idempotent."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Message that was received and is not yet acknowledged.

    Attributes:
        handle: the consumer's handle for acknowledging it; opaque here.
        message_id: ``ledgerId:entryId:partitionIndex[:batchIndex]``, as Java prints it.
        topic: full URI of the topic it came from, partition included.
        redelivery_count: number of earlier deliveries by the broker.
    """

    handle: object
    payload: bytes
    key: str | None
    properties: Mapping[str, str]
    message_id: str
    topic: str
    publish_time_ms: int
    redelivery_count: int = 0
    event_time_ms: int | None = None


class PendingDeletions(Protocol):
    """Shared consumer of ``__ledger_deletion`` and its retry topic."""

    def receive(self) -> list[Delivery]:
        """Return the next batch, of at most the configured size; empty after the configured wait."""

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge these messages."""

    def postpone(self, deliveries: Sequence[Delivery]) -> None:
        """Make the broker redeliver them after the configured short delay, without counting a retry."""

    def overdue(self, late_ms: int, limit: int) -> list[Delivery]:
        """Return unacknowledged messages of the retry topic that were due more than ``late_ms`` ago.

        Reads the topic directly and bypasses the broker's delayed tracker; `acknowledge` accepts them.
        """

    def close(self) -> None:
        """Release unfinished messages to the other sidecars; idempotent."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Backlog as brokers count it.

    Attributes:
        per_topic: estimated number of unacknowledged messages, by topic (partitions and retry).
        oldest_publish_ms: publish time of the oldest of them, None when there is none.
        measured_ms: time of the measurement.
        dead_letters: number of messages on the dead-letter topic; None if its broker did not respond.
    """

    per_topic: Mapping[str, int]
    oldest_publish_ms: int | None
    measured_ms: int
    dead_letters: int | None = None

    @property
    def total(self) -> int:
        """PIP-186 ``estimatedInflightDeletionLedgerCount``."""
        return sum(self.per_topic.values())


class DeadLetters(Protocol):
    """Messages on ``__ledger_deletion-DLQ``, which a subscription of their own holds until they are redriven.

    One user at a time: a second raises `ConflictError`.
    """

    def receive(self, limit: int) -> list[Delivery]:
        """Return up to ``limit`` dead letters, oldest first."""

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Remove messages from the dead-letter topic."""

    def close(self) -> None:
        """Leave the other messages in place; idempotent."""


class DeletionTopics(Protocol):
    """The four topics, and ways to write and read them."""

    def ensure(self) -> None:
        """Create missing topics with partitions, retention, subscriptions and deduplication; idempotent."""

    def warnings(self) -> Sequence[str]:
        """Return warnings about cluster settings that impair retries or endanger records, as `ensure` left them."""

    def publisher(self, topic: DeletionTopic, producer_name: str) -> Publisher:
        """Open a producer under that stable name.

        Raises:
            ConflictError: another process uses the name.
        """

    def pending(self) -> PendingDeletions:
        """Open a new Shared consumer."""

    def dead_letters(self) -> DeadLetters:
        """Open exclusive access to the dead letters."""

    def outcomes_since(self, since_ms: int, *, quickly: bool = False) -> Iterator[bytes]:
        """Yield the payloads of ``__ledger_deletion-OUTCOME`` published since then, oldest first, up to now.

        With ``quickly``, some may be missing; otherwise it reads the topic from its beginning.
        """

    def unacknowledged(self) -> Generator[Delivery, None, None]:
        """Yield unacknowledged messages of ``__ledger_deletion`` and its retry topic, in order of publishing.

        Consumes nothing and reads lazily.
        """

    def backlog(self) -> Backlog:
        """Measure the backlog."""


# --- storage -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReclaimedSpace:
    """Bytes by which a bookie's entry-log files have shrunk since its start."""

    size_bytes: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class Collected:
    """Collections of one bookie.

    Attributes:
        waiting: size of its copy of each requested ledger of which it still has entries.
        space: space that it has reclaimed, from its HTTP service.
    """

    waiting: Mapping[LedgerId, int] | Unreadable
    space: ReclaimedSpace | Unreadable


class BookieCollections(Protocol):
    """Collections of deleted ledgers."""

    def collected(self, ledgers: Sequence[LedgerId]) -> Mapping[BookieId, Collected]:
        """Return the collections of each known bookie, read concurrently. Raises `TemporaryError`."""


class OffloadedLedgers(Protocol):
    """Copies of ledgers in tiered storage (``LedgerOffloader``)."""

    def delete_offloaded(
        self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName
    ) -> "OffloadDeletion":
        """Verify the data and index objects of one offload attempt, then delete them.

        Raises:
            PermanentError: the driver is unknown or not configured, or the objects belong to another owner.
        """

    def exists(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> bool:
        """Return True if `delete_offloaded` would find an object of the attempt, whether it succeeded or not.

        Raises `PermanentError` as `delete_offloaded` does, and `TemporaryError` where storage cannot be reached.
        """

    def is_whole(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> bool:
        """Return True if a finished attempt's copy exists, belongs to it, can be read, and has entries 0 to the last.

        False for an attempt that is not complete, for streaming segments, and where wholeness cannot be shown.
        Raises `PermanentError` as `delete_offloaded` does.
        """


class OffloadDeletion(Enum):
    """Result of deleting an offloaded copy."""

    DELETED = "deleted"
    GONE = "gone"
    """Absent before the call."""
