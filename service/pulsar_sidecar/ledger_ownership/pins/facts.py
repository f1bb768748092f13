"""What is known of one topic when it is asked what pins its ledgers, in nouns of Pulsar alone.

Invariant: what could not be read is a value with its reason; it never looks like a cursor that holds nothing.
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
    """The size of ledgers.

    Attributes:
        once: one copy, as brokers report it.
        on_bookies: all copies that bookies keep, without what bookies add to each entry.
    """

    once: int = 0
    on_bookies: int = 0

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.once + other.once, self.on_bookies + other.on_bookies)


NOTHING: Final = Bytes()


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """One ledger; of a topic's list, or of those that its cursors name.

    Attributes:
        entries: of the last ledger as bookies have them.
        copies: of each entry on bookies; 0 if BookKeeper does not have the ledger (any more).
        closed_ms: 0 for the last ledger of the list.
        offload: where tiered storage has a copy.
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


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention in force for a topic; -1 is without limit.

    Attributes:
        size_mb: in units of 1,048,576 bytes, as brokers read it.
    """

    minutes: int = 0
    size_mb: int = 0


@dataclass(frozen=True, slots=True)
class DueSpan:
    """A part of a bucket: delayed messages of some ledgers, and when the last of them is due (a segment, PIP-195)."""

    ledgers: frozenset[LedgerId]
    last_due_ms: int


@dataclass(frozen=True, slots=True)
class CursorFacts:
    """A durable cursor.

    Attributes:
        subscription: or the name of a cursor that brokers keep for themselves.
        acknowledged: the broker's own view if it has the topic loaded, else what it would recover.
        first_due_ms: when the first unacknowledged message is due; None if it is not delayed, or could not be read.
        buckets: the ledgers of its delayed index.
        spans: what these buckets hold; empty where they cannot be read.
    """

    subscription: str
    acknowledged: PositionRanges | Unreadable
    first_due_ms: int | None = None
    buckets: tuple[LedgerFacts, ...] = ()
    spans: tuple[DueSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic without partitions, or one partition.

    Attributes:
        ledgers: of its list, ascending; the last one is written to while the topic is loaded.
        compacted: what its ``__compaction`` cursor names.
        loaded_by: the broker that has it loaded.
        offload_lag_ms: how long BookKeeper's copy stays after the ledger was offloaded; negative for always.
        unmeasured: why the length of the last ledger is not known, which then has no entries here.
        undecodable: ledgers whose metadata in BookKeeper cannot be read, and why; they have no copies here.
        replicated_to: clusters; asked only where a replicator has a cursor.
        shadow_of: the source, for a shadow topic, whose list is a copy: it has no ledgers of its own.
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
    shadow_of: str | None = None


def total(ledgers: Mapping[LedgerId, LedgerFacts]) -> Bytes:
    """Of all of them."""
    return sum((ledger.bytes for ledger in ledgers.values()), NOTHING)


def waiting(acknowledged: PositionRanges, ledgers: Sequence[LedgerFacts]) -> Iterator[EntryRange]:
    """The entries that are not acknowledged, ascending."""
    if not ledgers:
        return iter(())
    last = ledgers[-1]
    everything = PositionRanges(Position(last.ledger_id, EntryId(last.entries - 1)))
    return everything.without(acknowledged, {ledger.ledger_id: ledger.entries for ledger in ledgers})
