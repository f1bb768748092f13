"""What is known of an entry, a subscription and a cursor before anything is decided about them.

Invariant: what could not be read is a value of its own (`Unreadable`), never an absence.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from service.model.ids import EntryId, LedgerId
from service.model.positions import Position


@dataclass(frozen=True, slots=True)
class Chunk:
    """One part of a chunked message (PIP-37): ``uuid``, ``chunk_id`` and ``num_chunks_from_msg``."""

    uuid: str
    chunk_id: int
    total: int


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """What an entry's own ``MessageMetadata`` says; the payload is not kept.

    Attributes:
        deliver_at_ms: the due time, milliseconds since the epoch; None for a message that is not delayed.
        messages_in_batch: None for an entry that is no batch, also for a batch of one.
        key: the partition key as text, base64 when the producer sent bytes.
        marker: whether the entry is one of Pulsar's own markers (transactions, replicated subscriptions).
        transaction: whether the message belongs to a transaction.
    """

    deliver_at_ms: int | None
    publish_time_ms: int
    messages_in_batch: int | None = None
    chunk: Chunk | None = None
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    producer_name: str = ""
    sequence_id: int = 0
    event_time_ms: int | None = None
    marker: bool = False
    transaction: bool = False
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """The topic has no such entry, and that was read: no such ledger in its list, or no such entry in the ledger."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The entry could not be read, so nothing is known of it; ``reason`` says why."""

    reason: str


EntryAnswer = EntryFacts | Absent | Unreadable


class SubscriptionType(Enum):
    """``SubscriptionType`` in the words of a broker's statistics; NONE while no consumer has ever set it."""

    EXCLUSIVE = "Exclusive"
    FAILOVER = "Failover"
    SHARED = "Shared"
    KEY_SHARED = "Key_Shared"
    NONE = "None"

    @property
    def tracks_delays(self) -> bool:
        """Whether its dispatcher holds delayed messages back; the others deliver at once."""
        return self in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


@dataclass(frozen=True, slots=True)
class SubscriptionFacts:
    """One subscription as the topic's broker tells of it.

    Attributes:
        consumers: how many are connected.
        messages_out: messages handed to consumers so far, ever since the topic was loaded; it only grows.
        sticky: a Key_Shared subscription whose consumers chose their hash ranges (``keySharedMode`` STICKY).
        durable: False for a reader's.
    """

    name: str
    type: SubscriptionType
    consumers: int = 0
    messages_out: int = 0
    sticky: bool = False
    allow_out_of_order: bool = False
    durable: bool = True


class PositionRanges:
    """A set of positions as Pulsar keeps it: everything up to the mark-delete position, and ranges beyond it.

    Each range is ``(lower, upper]`` inside one ledger. Immutable.
    """

    def __init__(self, mark_delete: Position, ranges: Iterable[tuple[Position, Position]]) -> None:
        self.mark_delete = mark_delete
        self._by_ledger: dict[LedgerId, tuple[list[int], list[int]]] = {}
        self.range_count = 0
        for lower, upper in sorted(ranges):
            self._add(lower, upper)

    def __contains__(self, position: Position) -> bool:
        if position <= self.mark_delete:
            return True
        bounds = self._by_ledger.get(position.ledger_id)
        if bounds is None:
            return False
        index = bisect_left(bounds[0], position.entry_id) - 1
        return index >= 0 and position.entry_id <= bounds[1][index]

    def runs_beside(self, position: Position) -> tuple[bool, bool]:
        """Whether the neighbours before and after the position belong to the set, so that a range would merge."""
        before = Position(position.ledger_id, EntryId(position.entry_id - 1))
        after = Position(position.ledger_id, EntryId(position.entry_id + 1))
        return before in self, after in self

    def touching(self, ledger_id: LedgerId, first: int, last: int) -> int:
        """How many of the ledger's ranges touch or overlap the entries ``first`` to ``last``."""
        bounds = self._by_ledger.get(ledger_id)
        if bounds is None:
            return 0
        # (lower, upper] touches [first, last] when upper >= first - 1 and lower <= last.
        return max(0, bisect_right(bounds[0], last) - bisect_left(bounds[1], first - 1))

    def _add(self, lower: Position, upper: Position) -> None:
        if lower.ledger_id != upper.ledger_id:
            # A broker joins ranges over a ledger's end; only the upper ledger's entries count as individual ones.
            lower = Position(upper.ledger_id, EntryId(-1))
        lowers, uppers = self._by_ledger.setdefault(upper.ledger_id, ([], []))
        lowers.append(lower.entry_id)
        uppers.append(upper.entry_id)
        self.range_count += 1


@dataclass(frozen=True, slots=True)
class LedgerSpan:
    """One ledger of a topic: its entries are 0 to ``last_entry``, -1 for an empty one."""

    ledger_id: LedgerId
    last_entry: EntryId


@dataclass(frozen=True, slots=True)
class CursorFacts:
    """One cursor as its broker holds it in memory (``internalStats``).

    Attributes:
        cursor_ledger: where its state is written, None while it has no ledger.
        cursor_ledger_last_entry: the last entry of it that the broker knows to be stored, -1 for none.
    """

    acked: PositionRanges
    cursor_ledger: LedgerId | None
    cursor_ledger_last_entry: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """A loaded topic's ledgers and cursors at one moment (``internalStats``)."""

    ledgers: tuple[LedgerSpan, ...]
    last_confirmed: Position
    cursors: Mapping[str, CursorFacts]
    """By subscription, decoded."""


@dataclass(frozen=True, slots=True)
class DelayPolicy:
    """How the broker decides that a delayed message is due.

    Attributes:
        enabled: ``delayedDeliveryEnabled`` and the topic's policy: otherwise delayed messages are delivered at once.
        tick_ms: ``delayedDeliveryTickTimeMillis``: unless strict, a message may leave up to one tick early.
        strict: ``isDelayedDeliveryDeliverAtTimeStrict``.
        ttl_seconds: the topic's message time-to-live, None for none.
        batch_index_ack: ``acknowledgmentAtBatchIndexLevelEnabled``.
    """

    enabled: bool = True
    tick_ms: int = 1000
    strict: bool = False
    ttl_seconds: int | None = None
    batch_index_ack: bool = False

    @property
    def earliest_lead_ms(self) -> int:
        """How long before the due time a broker may dispatch: a tick, and one more for rounding (PIP-423: 2 ticks)."""
        return self.tick_ms if self.strict else 2 * self.tick_ms
