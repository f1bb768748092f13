"""Facts about one topic and its ledgers.

Invariant: an unreadable fact is a value with its reason; it never looks like a cursor that holds nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges

FOREVER: Final = -1


@dataclass(frozen=True, slots=True)
class Bytes:
    """Size of ledgers.

    Attributes:
        once: one copy, as brokers report it.
        on_bookies: all copies on bookies, without their overhead for each entry.
    """

    once: int = 0
    on_bookies: int = 0

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.once + other.once, self.on_bookies + other.on_bookies)


NOTHING: Final = Bytes()


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """Ledger of a topic's list, or one that its cursors name.

    Attributes:
        entries: number of entries; of the last ledger as bookies have them.
        copies: number of copies of each entry on bookies; 0 if BookKeeper does not, or no longer, have the ledger.
        closed_ms: closing time; 0 for the last ledger of the list.
        offload: copy in tiered storage.
    """

    ledger_id: LedgerId
    entries: int
    size_bytes: int
    copies: int
    closed_ms: int = 0
    offload: OffloadContext | None = None

    @property
    def bytes(self) -> Bytes:
        return Bytes(self.size_bytes, self.size_bytes * self.copies)

    @property
    def is_tiered(self) -> bool:
        return self.offload is not None and self.offload.complete

    @property
    def is_tiered_alone(self) -> bool:
        """True if the list names the copy in tiered storage as the only one."""
        return self.offload is not None and self.offload.complete and self.offload.bookkeeper_deleted


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention in force for a topic; -1 is without limit.

    Attributes:
        size_mb: in units of 1,048,576 bytes, as brokers read it.
    """

    minutes: int = 0
    size_mb: int = 0


@dataclass(frozen=True, slots=True)
class UnownedBundle(Unreadable):
    """No broker owns the bundle of ``__change_events``, and a query would load all topics of that bundle."""


@dataclass(frozen=True, slots=True)
class DueSpan:
    """Segment of a bucket (PIP-195): delayed messages of some ledgers, and the due time of the last one."""

    ledgers: frozenset[LedgerId]
    last_due_ms: int


@dataclass(frozen=True, slots=True)
class CursorFacts:
    """Durable cursor.

    Attributes:
        subscription: the subscription, or the name of a broker's internal cursor.
        acknowledged: the broker's own view if it has loaded the topic, else the state that it would recover.
        first_due_ms: due time of the first unacknowledged message; None if it is not delayed, or could not be read.
        buckets: ledgers of its delayed index.
        spans: contents of these buckets; empty if they cannot be read.
    """

    subscription: str
    acknowledged: PositionRanges | Unreadable
    first_due_ms: int | None = None
    buckets: tuple[LedgerFacts, ...] = ()
    spans: tuple[DueSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """Topic without partitions, or one partition.

    Attributes:
        ledgers: ledgers of its list, ascending; the broker that has loaded the topic writes to the last one.
        compacted: ledgers that its ``__compaction`` cursor names.
        loaded_by: broker that has loaded it.
        offload_lag_ms: time for which BookKeeper's copy stays after the offload; negative for always.
        unmeasured: reason why the length of the last ledger is unknown, which then has no entries here.
        undecodable: ledgers whose metadata in BookKeeper cannot be read, with the reasons; they have no copies here.
        replicated_to: clusters; read only if a replicator has a cursor.
        replicators: True by remote cluster if connected; read only if a replicator of a loaded topic is behind.
        shadow_of: source of a shadow topic, whose list is a copy: it has no ledgers of its own.
    """

    topic: TopicName
    ledgers: tuple[LedgerFacts, ...]
    cursors: tuple[CursorFacts, ...]
    retention: Retention | Unreadable
    loaded_by: str | None
    now_ms: int
    compacted: tuple[LedgerFacts, ...] | Unreadable = ()
    offload_lag_ms: int | Unreadable = FOREVER
    terminated: bool = False
    unmeasured: str | None = None
    undecodable: Mapping[LedgerId, str] = field(default_factory=dict)
    replicated_to: frozenset[str] | Unreadable = frozenset()
    replicators: Mapping[str, bool] | Unreadable = field(default_factory=dict)
    shadow_of: str | None = None


def total(ledgers: Mapping[LedgerId, LedgerFacts]) -> Bytes:
    """Return the size of all ledgers."""
    return sum((ledger.bytes for ledger in ledgers.values()), NOTHING)


def waiting(acknowledged: PositionRanges, ledgers: Sequence[LedgerFacts]) -> Iterator[EntryRange]:
    """Return the entries that are not acknowledged, ascending."""
    if not ledgers:
        return iter(())
    last = ledgers[-1]
    everything = PositionRanges(Position(last.ledger_id, EntryId(last.entries - 1)))
    return everything.without(acknowledged, {ledger.ledger_id: ledger.entries for ledger in ledgers})
