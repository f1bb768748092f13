"""Broker statistics of a topic: subscriptions and clients (``stats``), ledgers and cursors (``internalStats``).

One model for every feature; `adapters.pulsar.rest.topic_stats` is the only place that reads brokers' responses into it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import CursorName
from pulsar_sidecar.model.position_ranges import PositionRanges

COMPACTION_CURSOR: Final = CursorName("__compaction")
"""``Compactor.COMPACTION_SUBSCRIPTION``: its position carries the id of the compacted ledger."""

DEDUPLICATION_CURSOR: Final = CursorName("pulsar.dedup")
REPLICATED_SUBSCRIPTION: Final = "pulsar.replicated.subscription"
"""Property of the cursor of a subscription whose position brokers replicate."""
REPLICATOR_PREFIX: Final = "pulsar.repl"
"""Default of ``replicatorPrefix``, with which the names of replicators' producers and cursors begin."""
SYSTEM_SUBSCRIPTIONS: Final[frozenset[str]] = frozenset({COMPACTION_CURSOR, DEDUPLICATION_CURSOR})
"""Cursors that brokers keep for themselves."""


class SubscriptionType(Enum):
    """``SubscriptionType`` in the words of a broker's statistics; NONE while no consumer has ever set it."""

    EXCLUSIVE = "Exclusive"
    FAILOVER = "Failover"
    SHARED = "Shared"
    KEY_SHARED = "Key_Shared"
    NONE = "None"

    @property
    def dispatches_to_many(self) -> bool:
        """True if the dispatcher is a ``PersistentDispatcherMultipleConsumers``.

        Only these hold delayed messages back, and only these pause for acknowledgement state (PIP-299).
        """
        return self in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


class DeduplicationStatus(StrEnum):
    """``MessageDeduplication.Status`` in the words of a broker's statistics; another version may report other words."""

    INITIALIZED = "Initialized"
    RECOVERING = "Recovering"
    ENABLED = "Enabled"
    REMOVING = "Removing"
    DISABLED = "Disabled"
    FAILED = "Failed"


class ConnectedConsumer(NamedTuple):
    """A consumer; fields that the broker does not report are None.

    Attributes:
        available_permits: number of messages that the consumer has requested and not received.
        blocked: True if the consumer has as many unacknowledged messages as a consumer may have.
    """

    name: str | None
    address: str | None
    connected_since: str | None
    available_permits: int | None = None
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription (``SubscriptionStats``).

    Attributes:
        consumers: the consumers, which brokers disconnect on a reload of the topic and on ``resetCursor`` or seek.
        messages_out: messages delivered to consumers since the topic was loaded (``msgOutCounter``).
        sticky: True for a Key_Shared subscription whose consumers chose their hash ranges (``keySharedMode`` STICKY).
        durable: False for a reader's.
        unacked_messages: messages delivered to consumers and not acknowledged.
        delayed_messages: messages held back until they are due.
        delayed_index_bytes: memory of the delayed-message tracker's queues, bytes; 0 without a tracker.
        backlog: estimated number of waiting messages.
        blocked: True if it has as many unacknowledged messages as it may (``blockedSubscriptionOnUnackedMsgs``).
        in_replay: messages that wait for redelivery (``msgInReplay``).
    """

    name: str
    type: SubscriptionType
    consumers: tuple[ConnectedConsumer, ...] = ()
    messages_out: int = 0
    sticky: bool = False
    allow_out_of_order: bool = False
    durable: bool = True
    unacked_messages: int = 0
    delayed_messages: int = 0
    delayed_index_bytes: int = 0
    backlog: int = 0
    blocked: bool = False
    in_replay: int = 0


def remote_cluster(cursor: str) -> str | None:
    """Return the cluster to which a replicator's cursor belongs; None for other cursors."""
    prefix, _, cluster = cursor.partition(f"{REPLICATOR_PREFIX}.")
    return cluster if cluster and not prefix else None


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A loaded topic's clients at one moment (``TopicStats``).

    Attributes:
        broker: the owner's web service, ``host:port``; None if the response does not name it.
        producers: the names of the connected producers, replicators' included.
        deduplication_status: the broker's own word, which `DeduplicationStatus` may not have.
        open_transactions: number of open transactions that have published to the topic.
        replicators: True for each cluster to which the topic's replicator is connected, False for other remote
            clusters of the topic (``replication``).
    """

    broker: str | None
    subscriptions: Mapping[str, Subscription]
    producers: tuple[str, ...] = ()
    deduplication_status: str | None = None
    open_transactions: int = 0
    replicators: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A cursor as its broker holds it in memory (``ManagedLedgerInternalStats.CursorStats``).

    Attributes:
        acknowledged: entries acknowledged as a whole.
        ranges: number of ranges by the broker's count, which it compares with its limit.
        ledger: the ledger to which the broker writes its state, None while it has none.
        ledger_last_entry: the last entry of that ledger that the broker knows to be stored, -1 for none.
        properties: properties of its position, such as the sequence ids of producers.
        is_open: False while it has no ledger to write to: after a load until the first write, and after a failed one.
    """

    acknowledged: PositionRanges
    ranges: int
    read_position: Position
    ledger: LedgerId | None
    ledger_last_entry: EntryId
    properties: Mapping[str, int] = field(default_factory=dict)
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class TopicInternalStats:
    """A loaded topic's ledgers and cursors at one moment (``PersistentTopicInternalStats``).

    Attributes:
        broker: the broker, if it was queried by name: ``host:port`` of its web service.
        ledgers: number of entries of each ledger, in order of ids; the topic writes to the last one.
        cursors: every cursor that the broker holds open, non-durable readers' included, by subscription.
        cursor_ledgers: ledgers to which brokers write the cursors' states.
        compacted_ledger: the ledger that the ``__compaction`` cursor names, or else the open one.
        ledgers_being_read: ledgers with a cursor's read position, and the open compacted ledger.
        entries_added: entries added since the topic was loaded (``entriesAddedCounter``).
    """

    ledgers: Mapping[LedgerId, int]
    last_confirmed: Position
    cursors: Mapping[str, Cursor] = field(default_factory=dict)
    cursor_ledgers: frozenset[LedgerId] = frozenset()
    schema_ledgers: frozenset[LedgerId] = frozenset()
    compacted_ledger: LedgerId | None = None
    ledgers_being_read: frozenset[LedgerId] = frozenset()
    terminated: bool = False
    broker: str | None = None
    entries_added: int = 0

    @property
    def written_ledger(self) -> LedgerId | None:
        """Ledger that the topic writes to; each load of the topic begins a new one. None for a terminated topic."""
        return None if self.terminated else max(self.ledgers, default=None)

    def cursor(self, subscription: str) -> Cursor:
        """Return the subscription's cursor.

        Raises:
            TemporaryError: the broker does not show it.
        """
        found = self.cursors.get(subscription)
        if found is None:
            raise TemporaryError(
                f"the broker does not show the cursor of the subscription {subscription}; "
                "check that the subscription exists and try again"
            )
        return found
