"""What a topic's broker reports of it: subscriptions and clients (``stats``), ledgers and cursors (``internalStats``).

One model for every room; `adapters.pulsar.rest.topic_stats` is the only place that reads brokers' answers into it.
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
REPLICATOR_PREFIX: Final = "pulsar.repl"
"""The default of ``replicatorPrefix``: with it begin the names of replicators' producers, and of their cursors."""
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
        """Whether its dispatcher is a ``PersistentDispatcherMultipleConsumers``.

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
    """One consumer; what the broker does not report is None.

    Attributes:
        available_permits: so many messages it has asked for and not been given.
        blocked: it has as many unacknowledged messages as a consumer may have.
    """

    name: str | None
    address: str | None
    connected_since: str | None
    available_permits: int | None = None
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription (``SubscriptionStats``).

    Attributes:
        consumers: loading the topic anew and moving the cursor (``resetCursor``, seek) disconnect every one of them.
        messages_out: messages handed to consumers ever since the topic was loaded (``msgOutCounter``).
        sticky: a Key_Shared subscription whose consumers chose their hash ranges (``keySharedMode`` STICKY).
        durable: False for a reader's.
        unacked_messages: delivered to consumers and not acknowledged.
        delayed_messages: held back until they are due.
        delayed_index_bytes: what the queues of its delayed-message tracker take in memory; 0 without a tracker.
        backlog: messages that wait, estimated.
        blocked: it has as many unacknowledged messages as it may have (``blockedSubscriptionOnUnackedMsgs``).
        in_replay: messages that wait to be sent again (``msgInReplay``).
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


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A loaded topic's clients at one moment (``TopicStats``).

    Attributes:
        broker: the owner, ``host:port`` of its web service, as far as the answer names it.
        producers: the names of the connected producers, replicators' included.
        deduplication_status: the broker's own word, which `DeduplicationStatus` may not have.
        open_transactions: that have published to the topic.
        replicated_to: the clusters to which brokers replicate the topic (``replication``).
    """

    broker: str | None
    subscriptions: Mapping[str, Subscription]
    producers: tuple[str, ...] = ()
    deduplication_status: str | None = None
    open_transactions: int = 0
    replicated_to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cursor:
    """One cursor as its broker holds it in memory (``ManagedLedgerInternalStats.CursorStats``).

    Attributes:
        acknowledged: entries acknowledged as a whole.
        ranges: how many ranges the broker counts, which is what it compares with its limit.
        ledger: where its state is written, None while it has no ledger.
        ledger_last_entry: the last entry of it that the broker knows to be stored, -1 for none.
        properties: kept with its position, such as the sequence ids of producers.
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
        broker: the one that was asked by its name, ``host:port`` of its web service.
        ledgers: the entries of each ledger, in order of ids; the one that is written to is the last one.
        cursors: every cursor that the broker holds open, non-durable readers' included, by subscription.
        cursor_ledgers: where the cursors' states are written.
        compacted_ledger: the one that the ``__compaction`` cursor names, or else the one that is open.
        ledgers_being_read: those at which a cursor's read position stands, and the compacted ledger that is open.
        entries_added: since the topic was loaded (``entriesAddedCounter``).
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
        """The ledger that the topic writes to: a load of the topic begins a new one. None for a terminated topic."""
        return None if self.terminated else max(self.ledgers, default=None)

    def cursor(self, subscription: str) -> Cursor:
        """The subscription's cursor.

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
