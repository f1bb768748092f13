"""Pure decisions on which entries to acknowledge, for a batch of targets on one topic."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import Final, NamedTuple, TypeVar, assert_never

from pulsar_sidecar.backlog.ports import Chunk, DelayPolicy, EntryAnswer, EntryFacts
from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation, CancelOptions, Target
from pulsar_sidecar.features.delayed_messages.results import (
    CancellationStatus,
    Cause,
    Verdict,
)
from pulsar_sidecar.model.ids import EntryId, Position
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges
from pulsar_sidecar.model.topic_stats import (
    SYSTEM_SUBSCRIPTIONS,
    Subscription,
    SubscriptionType,
    TopicInternalStats,
    remote_cluster,
)
from pulsar_sidecar.reports.formatting import format_count

_One = TypeVar("_One")

_CHUNK_OTHERS_BETWEEN: Final = 8
"""Entries of other producers searched per chunk; at least `_CHUNK_NEAR` in each direction."""
_CHUNK_NEAR: Final = 64
_CHUNK_FARTHEST: Final = 4000


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """Facts read of one topic before deciding.

    Attributes:
        chunks: positions of the chunks found, by chunk id, for the named entry of each chunked message.
        now_ms: the brokers' time as far as it is known, milliseconds since the epoch.
    """

    topic: TopicName
    subscriptions: Mapping[str, Subscription]
    state: TopicInternalStats
    policy: DelayPolicy
    entries: Mapping[Position, EntryAnswer]
    chunks: Mapping[Position, Mapping[int, Position]]
    now_ms: int


@dataclass(slots=True)
class TargetPlan:
    """Decisions so far about one target."""

    position: Position
    verdicts: dict[str | None, Verdict] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class PlannedCancellation(NamedTuple):
    """Cancellation to carry out, and the target that it belongs to."""

    target_plan: TargetPlan
    cancellation: Cancellation


@dataclass(slots=True)
class CancellationPlan:
    """Targets in order, and the cancellations to acknowledge on each subscription.

    Attributes:
        unexplained: True if a message is acknowledged and this sidecar knows no cancellation of it; another sidecar's
            record may arrive a moment later.
    """

    target_plans: list[TargetPlan] = field(default_factory=list)
    cancellations: dict[str, list[PlannedCancellation]] = field(default_factory=dict)
    unexplained: bool = False


def plan_cancellations(
    targets: Sequence[Target],
    snapshot: TopicSnapshot,
    known: Callable[[Position, str], Cancellation | None],
    options: CancelOptions,
) -> CancellationPlan:
    """Decide each target on each subscription; ``known`` returns a message's known cancellation on one."""
    plan = CancellationPlan()
    topic, state, policy, now_ms = snapshot.topic, snapshot.state, snapshot.policy, snapshot.now_ms
    elsewhere = _other_clusters_warning(state)
    chosen_by = cache(lambda names: choose_subscriptions(names, snapshot.subscriptions))
    for target in targets:
        target_plan = TargetPlan(target.position)
        plan.target_plans.append(target_plan)
        facts = check_entry(target, snapshot.entries[target.position], policy, now_ms)
        if isinstance(facts, Verdict):
            target_plan.verdicts[None] = facts
            continue
        positions = _entries_of(facts, snapshot.chunks.get(target.position, {})) if facts.chunk else ()
        if isinstance(positions, Verdict):
            target_plan.verdicts[None] = positions
            continue
        assert facts.deliver_at_ms is not None
        chosen = chosen_by(target.subscriptions)
        target_plan.warnings = _time_to_live_warning(facts, policy) + chosen.warnings + elsewhere
        for refusal in chosen.refusals:
            target_plan.verdicts[refusal.subscription] = refusal
        for subscription in chosen.admitted:
            name = subscription.name
            cancellation = Cancellation(
                topic,
                name,
                target.position,
                facts.deliver_at_ms,
                now_ms,
                CancellationStatus.ACCEPTED,
                positions,
                None,
                None,
                options.requested_by,
            )
            cursor = state.cursors.get(name)
            decided: Verdict | None = None
            if cursor is None:
                reason = f"the subscription {name!r} has just been deleted"
                decided = not_found(Cause.NO_SUBSCRIPTION, reason, name)
            elif cancellation.held_by(cursor.acknowledged):
                before = known(target.position, name)
                decided = _check_acknowledged(name, before)
                plan.unexplained |= before is None
            if decided is None:
                plan.cancellations.setdefault(name, []).append(PlannedCancellation(target_plan, cancellation))
            else:
                target_plan.verdicts[name] = decided
    return plan


def _check_acknowledged(name: str, known: Cancellation | None) -> Verdict | None:
    """Return the verdict on a message that the cursor holds, or None if it is to be acknowledged again."""
    if known is not None and known.status is CancellationStatus.ACCEPTED:
        # It may be the sidecar's own acknowledgement, whose confirmation was lost: acknowledging again confirms it.
        return None
    if known is not None and known.status.cancelled:
        return known.verdict()
    reason = "the message was acknowledged before, and not by a sidecar: it was delivered, expired or skipped"
    return Verdict(name, CancellationStatus.TOO_LATE, Cause.ACKED_BEFORE, reason)


# --- messages ------------------------------------------------------------------------------------------------------


def check_entry(target: Target, answer: EntryAnswer, policy: DelayPolicy, now_ms: int) -> EntryFacts | Verdict:
    """Return the facts of an entry that may be cancelled, or the refusal."""
    match answer:
        case EntryFacts():
            return _check_message(target, answer) or _check_time(answer, policy, now_ms) or answer
        case Absent():
            return not_found(Cause.NO_ENTRY, f"the topic has no entry {target.position}")
        case Unreadable(reason):
            return refused(Cause.UNREADABLE, f"the entry could not be read: {reason}; try again")
        case _:
            assert_never(answer)


def _check_message(target: Target, facts: EntryFacts) -> Verdict | None:
    if facts.marker or facts.transaction:
        what = "one of Pulsar's own markers" if facts.marker else "part of a transaction"
        return refused(Cause.MARKER, f"the entry is {what}, which is not cancelled one by one")
    if not facts.deliver_at_ms:
        return refused(Cause.NOT_DELAYED, "the message is not delayed: it has no deliverAt")
    if target.deliver_at_ms not in (None, facts.deliver_at_ms):
        shown = f"{facts.deliver_at_ms} ({_shown(facts.deliver_at_ms)})"
        return refused(Cause.OTHER_DELIVER_AT, f"the message's deliverAt is {shown}")
    if (messages := facts.messages_in_batch or 1) > 1:
        batch = f"a batch of {format_count(messages, 'message')}"
        return refused(Cause.BATCH, f"the entry is {batch}: acknowledging it would drop all of them")
    if target.batch_index not in (None, 0, -1):
        return not_found(Cause.NO_ENTRY, "the entry is not a batch, so it has no such batchIndex")
    return None


def _check_time(facts: EntryFacts, policy: DelayPolicy, now_ms: int) -> Verdict | None:
    assert facts.deliver_at_ms is not None
    if not policy.enabled:
        reason = "delayed delivery is off for this topic, so the message was delivered at once"
    elif facts.deliver_at_ms <= now_ms:
        reason = f"its due time has passed ({_shown(facts.deliver_at_ms)})"
    else:
        return None
    return Verdict(None, CancellationStatus.TOO_LATE, Cause.DUE, reason)


def _time_to_live_warning(facts: EntryFacts, policy: DelayPolicy) -> tuple[str, ...]:
    if policy.ttl_seconds is None or facts.deliver_at_ms is None:
        return ()
    if facts.publish_time_ms + policy.ttl_seconds * 1000 >= facts.deliver_at_ms:
        return ()
    return (
        f"the topic's time to live ({policy.ttl_seconds} s) ends before the message is due: brokers would have dropped "
        "it at that time anyway",
    )


def _other_clusters_warning(state: TopicInternalStats) -> tuple[str, ...]:
    clusters = sorted(filter(None, map(remote_cluster, state.cursors)))
    if not clusters:
        return ()
    names = ", ".join(clusters)
    return (
        f"applies to this cluster only: in {names}, to which the topic is replicated, the message has another id; "
        "--all-clusters cancels it there, too",
    )


def _shown(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return "beyond the calendar"


# --- chunks (PIP-37) -----------------------------------------------------------------------------------------------


def chunk_candidates(position: Position, chunk: Chunk) -> list[Position]:
    """Return the entries near a chunk, in its ledger, among which to search for the other chunks.

    A producer sends the chunks of a message in sequence, but messages of other producers may lie between them.
    """

    def farthest(chunks: int) -> int:
        return min(_CHUNK_FARTHEST, chunks * _CHUNK_OTHERS_BETWEEN + _CHUNK_NEAR) if chunks else 0

    first = max(0, position.entry_id - farthest(chunk.chunk_id))
    last = position.entry_id + farthest(chunk.total - 1 - chunk.chunk_id)
    around = (Position(position.ledger_id, EntryId(entry)) for entry in range(first, last + 1))
    return [candidate for candidate in around if candidate != position]


def chunks_of(facts: EntryFacts, entries: Mapping[Position, EntryAnswer]) -> dict[int, Position]:
    """Return the positions of a message's chunks by chunk id; of a chunk that was sent twice, the later one.

    A producer that restarts under its name may reuse a uuid, for a message with another publish time; clients give all
    chunks of one message the same publish time.
    """
    assert facts.chunk is not None
    return {
        answer.chunk.chunk_id: position
        for position, answer in sorted(entries.items())
        if isinstance(answer, EntryFacts)
        and answer.chunk is not None
        and answer.chunk.uuid == facts.chunk.uuid
        and answer.producer_name == facts.producer_name
        and answer.publish_time_ms == facts.publish_time_ms
    }


def _entries_of(facts: EntryFacts, chunks: Mapping[int, Position]) -> tuple[Position, ...] | Verdict:
    """Return the entries of a chunked message, () for other messages, or the refusal if chunks are missing."""
    if facts.chunk is None or facts.chunk.total <= 1:
        return ()
    total = facts.chunk.total
    if len(chunks) < total:
        missing = f"{total - len(chunks)} of them were not found near the entry"
        return refused(Cause.CHUNKS, f"the message has {total} chunks and {missing}")
    return tuple(chunks[index] for index in sorted(chunks))


# --- subscriptions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubscriptionChoice:
    """Subscriptions to cancel on, refusals of others, and warnings for the caller."""

    admitted: tuple[Subscription, ...]
    refusals: tuple[Verdict, ...]
    warnings: tuple[str, ...] = ()


def choose_subscriptions(names: Collection[str], existing: Mapping[str, Subscription]) -> SubscriptionChoice:
    """Return the subscriptions on which to cancel a target.

    Without names, these are the subscriptions whose dispatcher holds delayed messages back, and those without a type
    since the topic was loaded, because a Shared consumer may connect.
    """
    admitted, refusals = [], []
    if names:
        for name in dict.fromkeys(names):
            refusal = check_subscription(name, existing.get(name))
            if refusal is None:
                admitted.append(existing[name])
            else:
                refusals.append(refusal)
        return SubscriptionChoice(tuple(admitted), tuple(refusals))
    durable = [found for found in existing.values() if found.durable and found.name not in SYSTEM_SUBSCRIPTIONS]
    for found in durable:
        refusal = check_subscription(found.name, found)
        if refusal is None:
            admitted.append(found)
        elif found.type.dispatches_to_many:
            refusals.append(refusal)
    warnings = ["a subscription created later at the earliest message will still receive it"]
    skipped = ", ".join(sorted(found.name for found in durable if _delivers_at_once(found)))
    if skipped:
        warnings.append(f"not cancelled on {skipped}: Exclusive and Failover deliver delayed messages at once")
    if not admitted and not refusals:
        more = f" ({skipped} deliver delayed messages at once)" if skipped else ""
        reason = f"the topic has no Shared or Key_Shared subscription{more}"
        return SubscriptionChoice((), (refused(Cause.NO_SUBSCRIPTION, reason),))
    return SubscriptionChoice(tuple(admitted), tuple(refusals), tuple(warnings))


def check_subscription(name: str, found: Subscription | None) -> Verdict | None:
    """Return the refusal if nothing can be cancelled on the subscription, or None."""
    if found is None:
        return not_found(Cause.NO_SUBSCRIPTION, f"there is no subscription {name!r}", name)
    if _delivers_at_once(found):
        reason = f"{name!r} is {found.type.value}: it delivers delayed messages at once and allows no second consumer"
        return refused(Cause.SUBSCRIPTION_TYPE, reason, name)
    if not found.durable:
        return refused(Cause.SUBSCRIPTION_TYPE, f"{name!r} is a reader's: it is not durable", name)
    if found.sticky:
        reason = f"the consumers of {name!r} chose their hash ranges (STICKY), which leave no room for another"
        return refused(Cause.STICKY_RANGES, reason, name)
    return None


def subscription_to_join(found: Subscription) -> Subscription:
    """Return the subscription with the type to join with: the one in use, or Shared if none is set."""
    return replace(found, type=SubscriptionType.SHARED) if found.type is SubscriptionType.NONE else found


def _delivers_at_once(found: Subscription) -> bool:
    return found.type in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


# --- space in the acknowledgement state (PIP-299) ------------------------------------------------------------------


def neighbour_ranges(acked: PositionRanges, positions: Collection[Position]) -> list[EntryRange]:
    """Return the unacknowledged positions as runs of neighbours, ascending."""
    entries = (EntryRange(*position, position.entry_id) for position in positions if position not in acked)
    return list(PositionRanges(acked.mark_delete, entries))


def added_ranges(acked: PositionRanges, run: EntryRange) -> int:
    """Return the ranges that a run adds to a cursor: 1; 0 beside another range; less if it closes gaps."""
    ledger_id, first, last = run
    # Beside the mark-delete position, the run and any range behind it are absorbed into that position.
    beside_mark = Position(ledger_id, EntryId(first - 1)) <= acked.mark_delete
    return (0 if beside_mark else 1) - acked.count_touching(ledger_id, first, last)


def beyond_limit(acked: PositionRanges, positions: Collection[Position], max_ranges: int) -> set[Position]:
    """Return the positions beyond the cursor's range limit; merging runs are admitted first, then the longest."""
    free_ranges = max(0, max_ranges - acked.range_count)
    if len(positions) <= free_ranges:
        return set()  # none adds more than one range
    added = {run: added_ranges(acked, run) for run in neighbour_ranges(acked, positions)}
    if sum(max(0, ranges) for ranges in added.values()) <= free_ranges:
        return set()
    left: set[Position] = set()
    for run in sorted(added, key=lambda run: (added[run], -run.entries, run)):
        if added[run] <= max(0, free_ranges):
            free_ranges -= added[run]
        else:
            left.update(Position(run.ledger_id, EntryId(entry)) for entry in range(run.first, run.last + 1))
    return left


def split(ones: Iterable[_One], chosen: Callable[[_One], bool]) -> tuple[list[_One], list[_One]]:
    """Return the chosen items and the rest."""
    parts: tuple[list[_One], list[_One]] = [], []
    for one in ones:
        parts[0 if chosen(one) else 1].append(one)
    return parts


def refused(cause: Cause, reason: str, subscription: str | None = None) -> Verdict:
    return Verdict(subscription, CancellationStatus.REFUSED, cause, reason)


def not_found(cause: Cause, reason: str, subscription: str | None = None) -> Verdict:
    return Verdict(subscription, CancellationStatus.NOT_FOUND, cause, reason)
