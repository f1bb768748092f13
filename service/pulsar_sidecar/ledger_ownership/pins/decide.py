"""What holds each ledger of a topic, and what each remedy alone would free: pure, from facts.

It follows ``ManagedLedgerImpl.internalTrimLedgers`` of 4.0. A broker that has a topic loaded trims the ledgers before
the slowest durable cursor, but for the last one, once the topic's retention lets go of them. A ledger that several
pins hold goes with none of them alone. Of a ledger that tiered storage has, BookKeeper's copy goes by itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.ledger_ownership.pins.causes import Held, PinCause, Remedy, remedies
from pulsar_sidecar.ledger_ownership.pins.facts import (
    FOREVER,
    NOTHING,
    Bytes,
    CursorFacts,
    LedgerFacts,
    Retention,
    TopicFacts,
    total,
    waiting,
)
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR, DEDUPLICATION_CURSOR, REPLICATOR_PREFIX

_MEGABYTE: Final = 1024 * 1024
_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Pin:
    """One thing that holds ledgers of a topic.

    Attributes:
        holder: the subscription; empty where the topic itself holds.
        ledgers: that it holds.
        bytes: of these ledgers.
        frees: what goes once this pin alone lets go.
        also_held_by: which other pins hold some of them.
        ends_ms: when it ends by itself; None if it does not, or that is not known.
        detail: what was seen.
    """

    cause: PinCause
    holder: str
    ledgers: frozenset[LedgerId]
    detail: str
    ends_ms: int | None = None
    bytes: Bytes = NOTHING
    frees: Bytes = NOTHING
    also_held_by: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()

    @property
    def name(self) -> str:
        """As other pins refer to it."""
        return f"{self.cause.value} {self.holder}".strip()


@dataclass(frozen=True, slots=True)
class HeldLedgers:
    """Ledgers that the same pins hold: they go once all of these have let go.

    Attributes:
        pins: their names.
    """

    pins: tuple[str, ...]
    ledgers: int
    bytes: Bytes


@dataclass(frozen=True, slots=True)
class TopicPins:
    """What pins a topic without partitions, or one partition; the pins that hold most come first.

    Attributes:
        read_ms: when it was read.
        held: each ledger that a pin holds, once: the most bytes first.
        ledgers: of its list.
        bytes: of all its ledgers, those that its cursors name included.
        tiered_bytes: of the ledgers of its list that tiered storage has.
    """

    topic: TopicName
    read_ms: int
    loaded_by: str | None
    ledgers: int
    bytes: Bytes
    tiered_bytes: int
    pins: tuple[Pin, ...]
    held: tuple[HeldLedgers, ...]
    shadow_of: str | None = None


def pins_of(facts: TopicFacts) -> TopicPins:
    """Everything that holds bytes of the topic."""
    listed = {ledger.ledger_id: ledger for ledger in facts.ledgers}
    own = {ledger.ledger_id: ledger for ledger in _ledgers_of_cursors(facts)}
    holding = [*_cursors(facts), *_policies(facts), *_unmeasured(facts), *_undecodable(facts)]
    holding += _let_go(facts, holding)
    pins = [
        *_measured(holding, listed),
        *(_alone(pin, listed) for pin in _offloaded(facts)),
        *(_alone(pin, own) for pin in _owned(facts)),
    ]
    pins = sorted((_with_remedies(pin, facts) for pin in pins), key=_most_first)
    return TopicPins(
        facts.topic,
        facts.now_ms,
        facts.loaded_by,
        len(listed),
        total(listed) + total(own),
        sum(ledger.size_bytes for ledger in facts.ledgers if _in_tiered_storage(ledger.offload)),
        tuple(pins),
        _held(pins, {**listed, **own}),
        facts.shadow_of,
    )


def held_by(pins: TopicPins, ledger: LedgerFacts) -> tuple[Pin, ...]:
    """The pins that hold this ledger, each with what it means for this ledger alone."""
    holding = [pin for pin in pins.pins if ledger.ledger_id in pin.ledgers]
    is_offloaded = PinCause.OFFLOAD_LAG in (pin.cause for pin in holding)

    def of_ledger(pin: Pin) -> Pin:
        others = tuple(other.name for other in holding if other is not pin)
        is_enough = not others or (is_offloaded and pin.cause is PinCause.OFFLOAD_LAG)
        return replace(
            pin,
            ledgers=frozenset({ledger.ledger_id}),
            bytes=ledger.bytes,
            frees=ledger.bytes if is_enough else NOTHING,
            also_held_by=others,
        )

    return tuple(map(of_ledger, holding))


# --- cursors -------------------------------------------------------------------------------------------------------


def _cursors(facts: TopicFacts) -> list[Pin]:
    pins = (_cursor(cursor, facts) for cursor in facts.cursors)
    return [pin for pin in pins if pin.ledgers]


def _cursor(cursor: CursorFacts, facts: TopicFacts) -> Pin:
    if isinstance(cursor.acknowledged, Unreadable):
        every = frozenset(ledger.ledger_id for ledger in facts.ledgers)
        return Pin(PinCause.UNREADABLE_CURSOR, cursor.subscription, every, cursor.acknowledged.reason)
    held = _not_before(cursor.acknowledged.mark_delete, facts.ledgers)
    cause = _cause(cursor, cursor.acknowledged, facts.now_ms)
    ends_ms = _due(cursor, held) if cause is PinCause.DELAYED_MESSAGES else None
    return Pin(cause, cursor.subscription, held, _seen(cursor.acknowledged, facts.ledgers), ends_ms)


def _not_before(mark_delete: Position, ledgers: Sequence[LedgerFacts]) -> frozenset[LedgerId]:
    """Those that a broker keeps for a cursor, but those without entries."""

    def is_behind(ledger: LedgerFacts) -> bool:
        if ledger.ledger_id == mark_delete.ledger_id:
            return mark_delete.entry_id >= ledger.entries - 1
        return ledger.ledger_id < mark_delete.ledger_id

    return frozenset(ledger.ledger_id for ledger in ledgers if ledger.entries and not is_behind(ledger))


def _cause(cursor: CursorFacts, acknowledged: PositionRanges, now_ms: int) -> PinCause:
    if cursor.subscription == DEDUPLICATION_CURSOR:
        return PinCause.DEDUPLICATION_SNAPSHOT
    if cursor.subscription == COMPACTION_CURSOR:
        return PinCause.COMPACTION
    if cursor.subscription.startswith(f"{REPLICATOR_PREFIX}."):
        return PinCause.REPLICATION
    if cursor.first_due_ms is not None and cursor.first_due_ms > now_ms:
        return PinCause.DELAYED_MESSAGES
    return PinCause.ACKNOWLEDGEMENT_HOLES if acknowledged.range_count else PinCause.BACKLOG


def _due(cursor: CursorFacts, held: frozenset[LedgerId]) -> int | None:
    """When the last delayed message of these ledgers is due, as far as buckets have it; else the first one."""
    dues = [span.last_due_ms for span in cursor.spans if span.ledgers & held]
    return max(dues, default=cursor.first_due_ms)


def _seen(acknowledged: PositionRanges, ledgers: Sequence[LedgerFacts]) -> str:
    count = sum(each.entries for each in waiting(acknowledged, ledgers))
    beyond = (
        f", {format_count(acknowledged.entries, 'entry')} acknowledged beyond it" if acknowledged.range_count else ""
    )
    return f"acknowledged up to {acknowledged.mark_delete}{beyond}; {format_count(count, 'entry')} waiting"


# --- the topic itself ----------------------------------------------------------------------------------------------


def _policies(facts: TopicFacts) -> list[Pin]:
    """The last ledger, which is never trimmed, and retention, which is over closed ledgers."""
    pins = []
    closed = list(facts.ledgers)
    if closed and (facts.terminated or facts.loaded_by is not None):
        last = closed.pop()
        detail = (
            "the topic is terminated: brokers keep its last ledger" if facts.terminated else "the topic writes to it"
        )
        if last.entries:
            pins.append(Pin(PinCause.LAST_LEDGER, "", frozenset({last.ledger_id}), detail))
    ids = frozenset(ledger.ledger_id for ledger in closed if ledger.entries)
    if isinstance(facts.retention, Unreadable):
        return [*pins, Pin(PinCause.UNREADABLE_RETENTION, "", ids, facts.retention.reason)] if ids else pins
    retained = _retained(facts.retention, closed, facts)
    if retained:
        pins.append(_retention(facts.retention, retained, facts))
    return pins


def _unmeasured(facts: TopicFacts) -> list[Pin]:
    """The last ledger, where it is not known whether it has bytes; the pins that are read hold none of it."""
    if facts.unmeasured is None:
        return []
    last = facts.ledgers[-1].ledger_id
    return [Pin(PinCause.UNREADABLE_LENGTH, "", frozenset({last}), f"not among the bytes: {facts.unmeasured}")]


def _undecodable(facts: TopicFacts) -> Iterable[Pin]:
    return (
        Pin(
            PinCause.UNREADABLE_METADATA, f"ledger {ledger_id}", frozenset({ledger_id}), f"copies not counted: {reason}"
        )
        for ledger_id, reason in facts.undecodable.items()
    )


def _retained(retention: Retention, closed: Sequence[LedgerFacts], facts: TopicFacts) -> list[LedgerFacts]:
    whole = sum(ledger.size_bytes for ledger in facts.ledgers)
    deleted, retained = 0, []
    for ledger in closed:
        deleted += ledger.size_bytes
        is_over = retention.size_mb >= 0 and whole - deleted >= retention.size_mb * _MEGABYTE
        is_past = retention.minutes >= 0 and facts.now_ms - _closed_ms(ledger, facts) > retention.minutes * _MINUTE_MS
        if ledger.entries and not is_over and not is_past:
            retained.append(ledger)
    return retained


def _closed_ms(ledger: LedgerFacts, facts: TopicFacts) -> int:
    """A broker that loads the topic next notes that time for its last ledger."""
    return ledger.closed_ms or facts.now_ms


def _retention(retention: Retention, retained: Sequence[LedgerFacts], facts: TopicFacts) -> Pin:
    ids = frozenset(ledger.ledger_id for ledger in retained)
    latest = max(_closed_ms(ledger, facts) for ledger in retained)
    ends_ms = None if retention.minutes < 0 else latest + retention.minutes * _MINUTE_MS
    time = "any time" if retention.minutes == FOREVER else format_count(retention.minutes, "minute")
    size = "any size" if retention.size_mb == FOREVER else f"{retention.size_mb:,} MiB"
    return Pin(PinCause.RETENTION, "", ids, f"{time}, {size}", ends_ms)


def _let_go(facts: TopicFacts, holding: Iterable[Pin]) -> list[Pin]:
    """What nothing holds, and no broker has trimmed yet."""
    held = frozenset[LedgerId]().union(*(pin.ledgers for pin in holding))
    left = frozenset(ledger.ledger_id for ledger in facts.ledgers if ledger.entries) - held
    if not left:
        return []
    if facts.loaded_by is None:
        return [Pin(PinCause.NOT_LOADED, "", left, "no broker has the topic loaded, and only such a one trims it")]
    return [Pin(PinCause.NEXT_TRIM, "", left, "brokers look every retentionCheckIntervalInSeconds, and at rollovers")]


def _offloaded(facts: TopicFacts) -> list[Pin]:
    """Ledgers whose copy in BookKeeper goes once the lag has passed, whatever else holds them."""
    both = [ledger for ledger in facts.ledgers if ledger.copies and _in_tiered_storage(ledger.offload)]
    if not both:
        return []
    ids, lag = frozenset(ledger.ledger_id for ledger in both), facts.offload_lag_ms
    if isinstance(lag, Unreadable):
        return [Pin(PinCause.OFFLOAD_LAG, "", ids, f"the lag cannot be read: {lag.reason}")]
    if lag < 0:
        return [Pin(PinCause.OFFLOAD_LAG, "", ids, "brokers are set to keep both copies")]
    ends_ms = max(ledger.offload.offloaded_ms for ledger in both if ledger.offload is not None) + lag
    return [Pin(PinCause.OFFLOAD_LAG, "", ids, f"the lag is {lag / 1000:,.0f} s", ends_ms)]


def _in_tiered_storage(offload: OffloadContext | None) -> bool:
    return offload is not None and offload.complete


# --- ledgers that only a cursor names ------------------------------------------------------------------------------


def _ledgers_of_cursors(facts: TopicFacts) -> list[LedgerFacts]:
    compacted = () if isinstance(facts.compacted, Unreadable) else facts.compacted
    return [*compacted, *(bucket for cursor in facts.cursors for bucket in cursor.buckets)]


def _owned(facts: TopicFacts) -> list[Pin]:
    pins = [_buckets(cursor) for cursor in facts.cursors if cursor.buckets]
    if isinstance(facts.compacted, Unreadable):
        return [*pins, Pin(PinCause.COMPACTED_LEDGER, "", frozenset(), facts.compacted.reason)]
    if facts.compacted:
        ids = frozenset(ledger.ledger_id for ledger in facts.compacted)
        pins.append(Pin(PinCause.COMPACTED_LEDGER, "", ids, "until the next compaction replaces it"))
    return pins


def _buckets(cursor: CursorFacts) -> Pin:
    ids = frozenset(bucket.ledger_id for bucket in cursor.buckets)
    ends_ms = max((span.last_due_ms for span in cursor.spans), default=None)
    return Pin(PinCause.DELAYED_INDEX, cursor.subscription, ids, "until the last of their messages is due", ends_ms)


# --- measuring -----------------------------------------------------------------------------------------------------


def _measured(pins: Sequence[Pin], ledgers: Mapping[LedgerId, LedgerFacts]) -> list[Pin]:
    return [_among(pin, [other for other in pins if other is not pin], ledgers) for pin in pins]


def _among(pin: Pin, others: Sequence[Pin], ledgers: Mapping[LedgerId, LedgerFacts]) -> Pin:
    also = [other for other in others if other.ledgers & pin.ledgers]
    alone = pin.ledgers.difference(*(other.ledgers for other in also))
    names = tuple(other.name for other in also)
    return replace(pin, bytes=_sum(pin.ledgers, ledgers), frees=_sum(alone, ledgers), also_held_by=names)


def _alone(pin: Pin, ledgers: Mapping[LedgerId, LedgerFacts]) -> Pin:
    """A pin whose ledgers nothing else holds."""
    return _among(pin, (), ledgers)


def _sum(ids: Iterable[LedgerId], ledgers: Mapping[LedgerId, LedgerFacts]) -> Bytes:
    return sum((ledgers[ledger_id].bytes for ledger_id in ids if ledger_id in ledgers), NOTHING)


def _held(pins: Iterable[Pin], ledgers: Mapping[LedgerId, LedgerFacts]) -> tuple[HeldLedgers, ...]:
    holders: dict[LedgerId, list[str]] = defaultdict(list)
    for pin in pins:
        for ledger_id in pin.ledgers:
            holders[ledger_id].append(pin.name)
    groups: dict[tuple[str, ...], list[LedgerId]] = defaultdict(list)
    for ledger_id, names in holders.items():
        groups[tuple(names)].append(ledger_id)
    held = (HeldLedgers(names, len(ids), _sum(ids, ledgers)) for names, ids in groups.items())
    return tuple(sorted(held, key=lambda each: (-each.bytes.once, each.pins)))


def _with_remedies(pin: Pin, facts: TopicFacts) -> Pin:
    clusters = frozenset[str]() if isinstance(facts.replicated_to, Unreadable) else facts.replicated_to
    held = Held(facts.topic, pin.holder, facts.loaded_by is not None, facts.terminated, clusters)
    helped = replace(pin, remedies=remedies(pin.cause, held))
    if pin.ends_ms is None or held.is_loaded:
        return helped
    return replace(helped, ends_ms=None, detail=f"{pin.detail}; it ends only once a broker has the topic loaded")


def _most_first(pin: Pin) -> tuple[int, str]:
    return -max(pin.bytes.on_bookies, pin.bytes.once), pin.name
