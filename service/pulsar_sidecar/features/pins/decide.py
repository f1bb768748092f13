"""Decide which pins hold each ledger of a topic, and what releasing each of them alone would free: pure, from facts.

Follows ``ManagedLedgerImpl.internalTrimLedgers`` of 4.0. A broker that has loaded a topic trims the ledgers before the
slowest durable cursor, except the last one, once they are past the topic's retention. Releasing one of several pins of
a ledger does not free it. Brokers delete BookKeeper's copy of an offloaded ledger whatever else holds the ledger.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pulsar_sidecar.features.pins import results
from pulsar_sidecar.features.pins.causes import Held, remedies
from pulsar_sidecar.features.pins.facts import (
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
from pulsar_sidecar.features.pins.results import PinCause, Remedy
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR, DEDUPLICATION_CURSOR, remote_cluster
from pulsar_sidecar.reports.formatting import format_count

_MEGABYTE: Final = 1024 * 1024
_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Pin:
    """Holder of ledgers of a topic.

    Attributes:
        holder: the subscription; empty if the topic itself is the holder.
        ledgers: held ledgers.
        bytes: size of these ledgers.
        frees: size that releasing this pin alone frees.
        also_held_by: names of other pins that hold some of these ledgers.
        ends_ms: time at which it expires; None if it does not, or is unknown.
        detail: evidence.
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
        """Name by which other pins refer to it."""
        return f"{self.cause.value} {self.holder}".strip()

    def result(self) -> results.Pin:
        return results.Pin(
            cause=self.cause,
            holder=self.holder,
            detail=self.detail,
            ledgers=len(self.ledgers),
            ledger_ids=tuple(sorted(self.ledgers)[: results.LISTED]),
            bytes=self.bytes.once,
            on_bookies_bytes=self.bytes.on_bookies,
            frees_bytes=self.frees.once,
            frees_on_bookies_bytes=self.frees.on_bookies,
            also_held_by=self.also_held_by,
            ends_ms=self.ends_ms,
            remedies=self.remedies,
        )


def answer_of(facts: TopicFacts) -> results.TopicPins:
    """Return the pins of a topic without partitions, or of one partition."""
    listed, own, pins = _listed(facts), _owned_by_cursors(facts), pins_of(facts)
    size = total(listed) + total(own)
    alone = [ledger for ledger in facts.ledgers if ledger.is_tiered_alone]
    return results.TopicPins(
        topic=str(facts.topic),
        read_ms=facts.now_ms,
        loaded_by=facts.loaded_by,
        shadow_of=facts.shadow_of,
        ledgers=len(listed),
        bytes=size.once,
        on_bookies_bytes=size.on_bookies,
        tiered_bytes=sum(ledger.size_bytes for ledger in facts.ledgers if ledger.is_tiered),
        tiered_and_bookies_bytes=sum(ledger.size_bytes for ledger in _lagging(facts)),
        tiered_alone_ledgers=len(alone),
        tiered_alone_bytes=sum(ledger.size_bytes for ledger in alone),
        pins=tuple(pin.result() for pin in pins),
        held=_held(pins, {**listed, **own}),
    )


def pins_of(facts: TopicFacts) -> tuple[Pin, ...]:
    """Return all pins of the topic, the largest first."""
    listed, own = _listed(facts), _owned_by_cursors(facts)
    holding = [*_cursors(facts), *_policies(facts), *_unmeasured(facts), *_undecodable(facts)]
    holding += _unheld_pins(facts, holding)
    pins = [
        *_measured(holding, listed),
        *(_alone(pin, listed) for pin in _offloaded(facts)),
        *(_alone(pin, own) for pin in _owned(facts)),
    ]
    return tuple(sorted((_with_remedies(pin, facts) for pin in pins), key=_most_first))


def _listed(facts: TopicFacts) -> Mapping[LedgerId, LedgerFacts]:
    return {ledger.ledger_id: ledger for ledger in facts.ledgers}


def held_by(pins: Iterable[Pin], ledger: LedgerFacts) -> tuple[Pin, ...]:
    """Return the pins of this ledger, each reduced to this ledger."""
    holding = [pin for pin in pins if ledger.ledger_id in pin.ledgers]

    def of_ledger(pin: Pin) -> Pin:
        others = tuple(other.name for other in holding if other is not pin)
        is_enough = not others or pin.cause in (PinCause.OFFLOAD_LAG, PinCause.REPLACED_COPY)
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
    seen = _seen(cursor.acknowledged, facts.ledgers)
    if cause is PinCause.REPLICATION:
        seen = f"{seen}; {_replicating(cursor.subscription, facts)}"
    ends_ms = _due(cursor, held) if cause is PinCause.DELAYED_MESSAGES else None
    return Pin(cause, cursor.subscription, held, seen, ends_ms)


def _not_before(mark_delete: Position, ledgers: Sequence[LedgerFacts]) -> frozenset[LedgerId]:
    """Return the ledgers that a broker keeps for a cursor, except empty ones."""

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
    if remote_cluster(cursor.subscription):
        return PinCause.REPLICATION
    if cursor.first_due_ms is not None and cursor.first_due_ms > now_ms:
        return PinCause.DELAYED_MESSAGES
    return PinCause.ACKNOWLEDGEMENT_HOLES if acknowledged.range_count else PinCause.BACKLOG


def _replicating(holder: str, facts: TopicFacts) -> str:
    cluster = remote_cluster(holder)
    if isinstance(facts.replicated_to, Unreadable):
        return f"replicates to {cluster}, if the topic's clusters still name it: {facts.replicated_to.reason}"
    if cluster not in facts.replicated_to:
        return f"the topic is no longer replicated to {cluster}: its broker drops the cursor when it loads the topic"
    if facts.loaded_by is None:
        return f"replicates to {cluster} only once a broker has loaded the topic"
    if isinstance(facts.replicators, Unreadable):
        return f"unknown whether it is connected to {cluster}: {facts.replicators.reason}"
    connected = facts.replicators.get(cluster or "", False)
    return f"connected to {cluster}" if connected else f"not connected to {cluster}"


def _due(cursor: CursorFacts, held: frozenset[LedgerId]) -> int | None:
    """Return the due time of these ledgers' last delayed message, if in buckets, else of the first one."""
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
    """Return the pins of the last ledger, which brokers never trim, and of retention, which covers closed ledgers."""
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
    """Return the pin of a last ledger of unknown length, which no other pin holds."""
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
    """Return the closing time; now for the last ledger, whose closing the next broker to load the topic records."""
    return ledger.closed_ms or facts.now_ms


def _retention(retention: Retention, retained: Sequence[LedgerFacts], facts: TopicFacts) -> Pin:
    ids = frozenset(ledger.ledger_id for ledger in retained)
    latest = max(_closed_ms(ledger, facts) for ledger in retained)
    ends_ms = None if retention.minutes < 0 else latest + retention.minutes * _MINUTE_MS
    time = "any time" if retention.minutes == FOREVER else format_count(retention.minutes, "minute")
    size = "any size" if retention.size_mb == FOREVER else f"{retention.size_mb:,} MiB"
    return Pin(PinCause.RETENTION, "", ids, f"{time}, {size}", ends_ms)


def _unheld_pins(facts: TopicFacts, holding: Iterable[Pin]) -> list[Pin]:
    """Return the pin of ledgers that nothing holds, and no broker has trimmed yet."""
    held = frozenset[LedgerId]().union(*(pin.ledgers for pin in holding))
    left = frozenset(ledger.ledger_id for ledger in facts.ledgers if ledger.entries) - held
    if not left:
        return []
    if facts.loaded_by is None:
        return [Pin(PinCause.NOT_LOADED, "", left, "no broker has loaded the topic, and only such a broker trims it")]
    return [Pin(PinCause.NEXT_TRIM, "", left, "brokers trim every retentionCheckIntervalInSeconds, and at rollovers")]


def _offloaded(facts: TopicFacts) -> list[Pin]:
    """Return the pins of ledgers whose copy in BookKeeper is deleted even if other pins hold them."""
    left = [ledger.ledger_id for ledger in facts.ledgers if ledger.copies and ledger.is_tiered_alone]
    detail = "the list says that BookKeeper's copy is deleted, so no broker deletes it again"
    replaced = [Pin(PinCause.REPLACED_COPY, f"ledger {each}", frozenset({each}), detail) for each in left]
    return [*replaced, *_waiting_for_the_lag(facts)]


def _lagging(facts: TopicFacts) -> list[LedgerFacts]:
    return [each for each in facts.ledgers if each.copies and each.is_tiered and not each.is_tiered_alone]


def _waiting_for_the_lag(facts: TopicFacts) -> list[Pin]:
    both = _lagging(facts)
    if not both:
        return []
    ids, lag = frozenset(ledger.ledger_id for ledger in both), facts.offload_lag_ms
    if isinstance(lag, Unreadable):
        return [Pin(PinCause.OFFLOAD_LAG, "", ids, f"the lag cannot be read: {lag.reason}")]
    if lag < 0:
        return [Pin(PinCause.OFFLOAD_LAG, "", ids, "brokers are set to keep both copies")]
    ends_ms = max(ledger.offload.offloaded_ms for ledger in both if ledger.offload is not None) + lag
    return [Pin(PinCause.OFFLOAD_LAG, "", ids, f"the lag is {lag / 1000:,.0f} s", ends_ms)]


# --- ledgers that only a cursor names ------------------------------------------------------------------------------


def _owned_by_cursors(facts: TopicFacts) -> Mapping[LedgerId, LedgerFacts]:
    compacted = () if isinstance(facts.compacted, Unreadable) else facts.compacted
    ledgers = [*compacted, *(bucket for cursor in facts.cursors for bucket in cursor.buckets)]
    return {ledger.ledger_id: ledger for ledger in ledgers}


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
    return _among(pin, (), ledgers)


def _sum(ids: Iterable[LedgerId], ledgers: Mapping[LedgerId, LedgerFacts]) -> Bytes:
    return sum((ledgers[ledger_id].bytes for ledger_id in ids if ledger_id in ledgers), NOTHING)


def _held(pins: Iterable[Pin], ledgers: Mapping[LedgerId, LedgerFacts]) -> tuple[results.LedgersHeldTogether, ...]:
    holders: dict[LedgerId, list[str]] = defaultdict(list)
    for pin in pins:
        for ledger_id in pin.ledgers:
            holders[ledger_id].append(pin.name)
    groups: dict[tuple[str, ...], list[LedgerId]] = defaultdict(list)
    for ledger_id, names in holders.items():
        groups[tuple(names)].append(ledger_id)
    sized = ((names, len(ids), _sum(ids, ledgers)) for names, ids in groups.items())
    held = (results.LedgersHeldTogether(names, n, size.once, size.on_bookies) for names, n, size in sized)
    return tuple(sorted(held, key=lambda each: (-each.bytes, each.pins)))


def _with_remedies(pin: Pin, facts: TopicFacts) -> Pin:
    clusters = frozenset[str]() if isinstance(facts.replicated_to, Unreadable) else facts.replicated_to
    connected = {} if isinstance(facts.replicators, Unreadable) else facts.replicators
    component = f" -l {min(pin.ledgers)}" if pin.cause is PinCause.REPLACED_COPY else ""
    held = Held(facts.topic, pin.holder, facts.loaded_by is not None, facts.terminated, clusters, connected, component)
    helped = replace(pin, remedies=remedies(pin.cause, held))
    if pin.ends_ms is None or held.is_loaded:
        return helped
    return replace(helped, ends_ms=None, detail=f"{pin.detail}; it ends only after a broker loads the topic")


def _most_first(pin: Pin) -> tuple[int, str]:
    return -max(pin.bytes.on_bookies, pin.bytes.once), pin.name
