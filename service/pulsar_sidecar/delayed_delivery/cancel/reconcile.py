"""What is to be done for the cancellations of one subscription at one moment: a pure decision on what its cursor holds.

A cursor can lose acknowledgements it had confirmed: brokers store them lazily, store only so many ranges, and start
again from an older position when the cursor's ledger cannot be read. What is lost is acknowledged again, until the due
time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pulsar_sidecar.delayed_delivery.cancel.facts import DelayPolicy
from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, CancellationStatus, Cause
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import ConnectedConsumer, Subscription, TopicInternalStats

BROKER_STORES_EVERY_MS: Final = 1100
"""A cursor is stored at most once a second (``managedLedgerDefaultMarkDeleteRateLimit``), and only when something is
acknowledged: so after this time another acknowledgement, of whatever position, has it stored."""
_BEFORE_DUE_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class ReconcileActions:
    """What is to be done.

    Attributes:
        missing: cancellations with entries that the cursor does not hold, to be acknowledged (again).
        lost: those of them that had been acknowledged before.
        unpersisted: acknowledged, and not yet seen in the stored state.
        nudge: a position to acknowledge once more so that the broker stores the cursor; None when not needed.
        ended: those whose time is over, with their last level.
    """

    missing: tuple[Cancellation, ...]
    lost: tuple[Cancellation, ...]
    unpersisted: tuple[Cancellation, ...]
    nudge: Position | None
    ended: tuple[Cancellation, ...]


@dataclass(frozen=True, slots=True)
class Watch:
    """A cursor that certainly kept its acknowledgements from one look to the next.

    Attributes:
        since_ms: the brokers' time when the first of these looks began.
        consumers: the subscription's consumers at the last look whose connection time is known.
        messages_out: the messages that consumers had been given until then.
        written_ledger: the ledger that the topic wrote to.
    """

    since_ms: int
    consumers: frozenset[ConnectedConsumer]
    messages_out: int
    written_ledger: LedgerId | None


def watched(before: Watch | None, found: Subscription, state: TopicInternalStats, now_ms: int) -> Watch:
    """The watch that goes on, or one that begins now.

    A cursor loses acknowledgements only when its topic is loaded anew or when somebody moves it, and both disconnect
    every consumer. Without a consumer that stayed, nothing may have been handed out since the topic was loaded.
    """
    # A consumer of which nobody knows since when it is connected may be a new one.
    consumers = frozenset(consumer for consumer in found.consumers if consumer.connected_since)
    watch = Watch(now_ms, consumers, found.messages_out, state.written_ledger)
    return watch if before is None or not _goes_on(before, watch) else replace(watch, since_ms=before.since_ms)


def _goes_on(before: Watch, now: Watch) -> bool:
    if before.consumers & now.consumers:
        return True
    same_load = now.written_ledger is not None and before.written_ledger == now.written_ledger
    return same_load and before.messages_out == now.messages_out


def expired_before_ms(policy: DelayPolicy, now_ms: int) -> int:
    """What was due by then is over: two ticks after its due time (PIP-423)."""
    return now_ms - 2 * policy.tick_ms


def decide_actions(
    cancellations: Sequence[Cancellation],
    acked: PositionRanges,
    policy: DelayPolicy,
    now_ms: int,
    watched_since_ms: int | None = None,
) -> ReconcileActions:
    """Decide for all cancellations of one subscription.

    Args:
        cancellations: of this subscription.
        acked: what its cursor holds, read after ``now_ms``.
        policy: how the topic's delayed messages come due.
        now_ms: the brokers' time, as far as it is known.
        watched_since_ms: since when the cursor certainly kept its acknowledgements; None where that is not known.
    """
    expired_ms = expired_before_ms(policy, now_ms)
    over = [one for one in cancellations if one.deliver_at_ms <= expired_ms]
    live = [one for one in cancellations if one.deliver_at_ms > expired_ms] if over else cancellations
    absent = {id(one) for one in live if not one.held_by(acked)}
    missing = tuple(one for one in live if id(one) in absent and one.deliver_at_ms > now_ms) if absent else ()
    unpersisted = tuple(one for one in live if one.status is not CancellationStatus.PERSISTED and id(one) not in absent)
    return ReconcileActions(
        missing=missing,
        lost=tuple(one for one in missing if one.status is not CancellationStatus.ACCEPTED),
        unpersisted=unpersisted,
        nudge=unpersisted[0].entries[0] if unpersisted else None,
        ended=tuple(_end(one, one.held_by(acked), policy, watched_since_ms) for one in over),
    )


def confirmed_too_late(cancellation: Cancellation, policy: DelayPolicy, now_ms: int) -> bool:
    """Whether an acknowledgement confirmed now can no longer be told from one after the dispatch."""
    return now_ms >= cancellation.deliver_at_ms - policy.earliest_lead_ms


def next_look_ms(dues_ms: Iterable[int], policy: DelayPolicy, now_ms: int, reconcile_interval_ms: int) -> int:
    """When to look again at all of them; what is not PERSISTED yet is looked at in between.

    Args:
        dues_ms: the due times of what is open, at least up to `last_due_of_interest_ms`.
        policy: how the topic's delayed messages come due.
        now_ms: the clock's time.
        reconcile_interval_ms: how long it may be at most.
    """
    regular = now_ms + reconcile_interval_ms
    urgent = [
        moment
        for due_ms in dues_ms
        for moment in (due_ms - policy.earliest_lead_ms - _BEFORE_DUE_MS, due_ms + 2 * policy.tick_ms)
        if now_ms < moment < regular
    ]
    return min([regular, *urgent])


def last_due_of_interest_ms(policy: DelayPolicy, now_ms: int, reconcile_interval_ms: int) -> int:
    """What is due later does not matter to `next_look_ms`."""
    return now_ms + reconcile_interval_ms + policy.earliest_lead_ms + _BEFORE_DUE_MS


def _end(cancellation: Cancellation, is_held: bool, policy: DelayPolicy, watched_since_ms: int | None) -> Cancellation:
    if cancellation.status is CancellationStatus.ACCEPTED:
        if is_held:
            return cancellation.at(
                CancellationStatus.RACED,
                Cause.DISPATCHED,
                "acknowledged by its due time, but not known to be before the dispatch",
            )
        return cancellation.at(
            CancellationStatus.TOO_LATE, Cause.DUE, "its due time came before it could be acknowledged"
        )
    if not is_held:
        return cancellation.at(
            CancellationStatus.RACED,
            Cause.LOST,
            "the cursor lost the acknowledgement, and the due time came before it was acknowledged again",
        )
    if watched_since_ms is None or confirmed_too_late(cancellation, policy, watched_since_ms):
        # Whoever was given the message may have acknowledged it since.
        return cancellation.at(
            CancellationStatus.UNKNOWN,
            Cause.UNWATCHED,
            "it is acknowledged, but it may have been delivered: between the last look before its due time and the "
            "first one after it the topic was loaded anew, the cursor was moved, or no sidecar looked",
        )
    return cancellation.at(CancellationStatus.EXPIRED)
