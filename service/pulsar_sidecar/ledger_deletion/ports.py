"""What ledger deletion needs from the world, as small protocols that fakes and adapters satisfy alike.

Every method raises `TemporaryError` when the other side could not be asked and `OutcomeUnknownError` when an answer
to a change was lost. No method reports an absence that it did not read.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName, TopicName
from pulsar_sidecar.model.pulsar_versions import Line
from pulsar_sidecar.model.topic_stats import TopicInternalStats


class DeletionTopic(Enum):
    """The four topics of the service; the value is the local name in ``persistent://pulsar/system``."""

    PENDING = "__ledger_deletion"
    RETRY = "__ledger_deletion-RETRY"
    DEAD_LETTER = "__ledger_deletion-DLQ"
    OUTCOME = "__ledger_deletion-OUTCOME"


SYSTEM_NAMESPACE = "pulsar/system"


# --- brokers -------------------------------------------------------------------------------------------------------


class LiveOwners(Protocol):
    """The brokers that own topics right now."""

    def views(self, topics: Collection[TopicName]) -> Mapping[TopicName, TopicInternalStats]:
        """What the owner of each loaded topic reports, with its name; a topic that is loaded nowhere is left out.

        Asks for no topic that no broker names as loaded; one that is gone when it is asked about is left out, too.

        Raises:
            TemporaryError: a live broker could not be asked.
        """

    def owner_url(self, topic: TopicName) -> str | None:
        """The web service URL of the broker that owns the topic's bundle, or None when no broker does.

        Assigns nothing: it reads the ownership that exists.
        """


@dataclass(frozen=True, slots=True)
class ConnectedClients:
    """Who is connected to a topic.

    Attributes:
        replicators: the producers through which brokers replicate its source to a shadow topic.
        replicated_to: the clusters to which brokers replicate the topic.
    """

    consumers: int = 0
    producers: int = 0
    replicators: int = 0
    replicated_to: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """All of them, as a broker counts them that refuses a deletion."""
        return self.consumers + self.producers + self.replicators


class TopicAdmin(Protocol):
    """The admin REST calls that deleting a topic, or a shadow topic, takes (Pulsar ``PersistentTopics``)."""

    def load_topics(self, topics: Sequence[TopicName]) -> None:
        """Have brokers own and load the topics, several at a time, and wait until they have; nothing is created.

        Those that a broker does not know, or refuses to load, are passed over.

        Raises:
            OutcomeUnknownError, TemporaryError: one of them is not known to be loaded.
        """

    def shadow_topics(self, topic: TopicName) -> Sequence[TopicName]:
        """The shadows that brokers replicate the topic to (``GET .../shadowTopics``); none for an unknown topic.

        Loads nothing.
        """

    def delete_topic(self, topic: TopicName, *, partitioned: bool, force: bool) -> None:
        """``DELETE /admin/v2/persistent/...`` (``.../partitions`` when partitioned), following redirects.

        Raises:
            NotFoundError: the broker knows no such topic.
            BrokerRefusedError: any other 4xx, with the broker's own status and reason.
            OutcomeUnknownError: 5xx, a timeout or a broken connection after sending.
        """

    def delete_subscription(self, topic: TopicName, subscription: str, *, force: bool) -> None:
        """``DELETE .../subscription/...`` of a topic without partitions; raises what `delete_topic` does."""

    def delete_schema(self, topic: TopicName) -> None:
        """``DELETE .../schema`` by force: with its ledgers, whatever is left of it; raises what `delete_topic` does."""

    def clients_of(self, topics: Sequence[TopicName]) -> Sequence[ConnectedClients]:
        """Who is connected to the topics, several asked at a time; loads them. An unknown topic is passed over.

        Raises:
            BrokerRefusedError, TemporaryError: it is not known of one of them.
        """

    def broker_line(self) -> Line | None:
        """The line of the brokers' version; None where they name none."""

    # What deleting a shadow topic takes. Each raises `NotFoundError` when a broker knows no such topic, and
    # `BrokerRefusedError` on any other refusal.

    def keeps_forever(self, topic: TopicName) -> bool:
        """Whether the topic's own retention policy is infinite in time and size; loads nothing."""

    def keep_forever(self, topic: TopicName) -> None:
        """Set that policy; brokers apply it within moments."""

    def set_shadow_topics(self, source: TopicName, shadows: Sequence[TopicName]) -> None:
        """Replace the list of `shadow_topics`."""

    def unload(self, topic: TopicName) -> None:
        """Close the topic at its broker; loads nothing that stays loaded."""

    def clients(self, topic: TopicName) -> ConnectedClients:
        """Who is connected; loads the topic."""

    def can_load(self, topic: TopicName) -> bool:
        """Have the owner load the topic, or wait until a load under way has ended; whether it is loaded then."""


# --- topics of the service -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message to publish.

    ``sequence_id`` None lets the producer count on from its last one; ``deliver_after_ms`` None means at once;
    ``event_time_ms`` None means that there is none.
    """

    payload: bytes
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    sequence_id: int | None = None
    deliver_after_ms: int | None = None
    event_time_ms: int | None = None


class PublishResult(Enum):
    """What is known of one message after `Publisher.publish`."""

    STORED = "stored"
    ALREADY_STORED = "already stored"
    """An earlier attempt had stored it: it was read back, or the broker recognised it (PIP-6)."""
    NOT_STORED = "not stored"
    """Refused before it left, or the broker refused it."""
    UNKNOWN = "unknown"
    """No answer: counts as not sent."""

    @property
    def stored(self) -> bool:
        """Whether the message is durably in the topic."""
        return self in (PublishResult.STORED, PublishResult.ALREADY_STORED)


class Publisher(Protocol):
    """A producer with a stable name on one topic (PIP-6)."""

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[PublishResult]:
        """Send all, wait for every receipt; one result each, in order. Thread-safe.

        After a message with an explicit sequence id was not stored, higher ids of its partition are refused until it is
        sent again.
        """

    def close(self) -> None:
        """Give the name free; idempotent."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message received but not yet acknowledged.

    Attributes:
        handle: what the consumer needs to acknowledge it; opaque here.
        message_id: ``ledgerId:entryId:partitionIndex[:batchIndex]``, as Java prints it.
        topic: full URI of the topic it came from, partition included.
        redelivery_count: how often the broker has delivered it before.
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
    """The Shared consumer over ``__ledger_deletion`` and its retry topic."""

    def receive(self) -> list[Delivery]:
        """The next batch, at most the configured size; empty after the configured wait."""

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Finish these messages for good."""

    def postpone(self, deliveries: Sequence[Delivery]) -> None:
        """Have them delivered again after the configured short delay, without counting a retry."""

    def overdue(self, late_ms: int, limit: int) -> list[Delivery]:
        """Messages of the retry topic that were due more than ``late_ms`` ago and are still not acknowledged.

        Reads the topic directly, beside the broker's delayed tracker; `acknowledge` takes them.
        """

    def close(self) -> None:
        """Give unfinished messages back to the other sidecars; idempotent."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work that is waiting, as brokers count it.

    Attributes:
        per_topic: estimated messages not acknowledged yet, by topic (partitions and retry).
        oldest_publish_ms: publish time of the oldest of them, None when there is none.
        measured_ms: when it was measured.
        dead_letters: how many wait on the dead-letter topic; None if its broker did not answer.
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
    """The messages on ``__ledger_deletion-DLQ``, held by a subscription of their own until redriven.

    One user at a time: a second raises `ConflictError`.
    """

    def receive(self, limit: int) -> list[Delivery]:
        """Up to ``limit`` waiting dead letters, oldest first."""

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Take them off the dead-letter topic."""

    def close(self) -> None:
        """Leave the others where they are; idempotent."""


class DeletionTopics(Protocol):
    """The four topics, and ways to write and read them."""

    def ensure(self) -> None:
        """Create what is missing, with its partitions, retention, subscriptions and deduplication; idempotent."""

    def warnings(self) -> Sequence[str]:
        """Settings of the cluster that hinder retries or endanger records, as `ensure` left them."""

    def publisher(self, topic: DeletionTopic, producer_name: str) -> Publisher:
        """A producer under that stable name.

        Raises:
            ConflictError: another process uses the name now.
        """

    def pending(self) -> PendingDeletions:
        """A new Shared consumer."""

    def dead_letters(self) -> DeadLetters:
        """Exclusive access to the dead letters."""

    def outcomes_since(self, since_ms: int, *, quickly: bool = False) -> Iterator[bytes]:
        """Payloads of ``__ledger_deletion-OUTCOME`` published since then, oldest first, up to now.

        Read ``quickly``, some may be lacking; otherwise the topic is gone through from its beginning.
        """

    def unacknowledged(self) -> Generator[Delivery, None, None]:
        """The messages of ``__ledger_deletion`` and its retry topic that are not acknowledged, in order of publishing.

        Consumes nothing, and reads no more than is taken of it.
        """

    def backlog(self) -> Backlog:
        """Measure the backlog now."""


# --- storage -------------------------------------------------------------------------------------------------------


class OffloadedLedgers(Protocol):
    """Copies of ledgers in tiered storage (``LedgerOffloader``)."""

    def delete_offloaded(
        self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName
    ) -> "OffloadDeletion":
        """Delete the data and index objects of one offload attempt, after checking that they are what they claim.

        Raises:
            PermanentError: the driver is unknown or not configured, or the objects belong to another owner.
        """

    def exists(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> bool:
        """Whether anything is there of an offload attempt, successful or not, that `delete_offloaded` would delete.

        Raises `PermanentError` as that does, and `TemporaryError` where storage could not be asked.
        """

    def is_whole(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> bool:
        """Whether both objects of a finished offload attempt are there, theirs, and as long as the index gives.

        False for an attempt that is not complete, for streaming segments, and where wholeness cannot be shown.
        Raises `PermanentError` as `delete_offloaded` does.
        """


class OffloadDeletion(Enum):
    """What became of an offloaded copy."""

    DELETED = "deleted"
    GONE = "gone"
    """Nothing was there."""


DirectLedgerDeletion = Callable[[LedgerId], None]
"""The fallback where the metadata store cannot be reached: BookKeeper's own, unconditional ``DELETE
/api/v1/ledger/delete``; a ledger that is gone already is success."""
