"""Pure decisions that reconcile the cancellations of one subscription with its cursor.

A cursor can lose confirmed acknowledgements: brokers store them lazily, store a limited number of ranges, and restart
from an older position when the cursor's ledger cannot be read. The sidecar acknowledges lost ones again until the due
time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pulsar_sidecar.backlog.ports import DelayPolicy
from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus, Cause
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import Subscription, TopicInternalStats

BROKER_STORES_EVERY_MS: Final = 1100
"""Interval after which any further acknowledgement makes the broker store the cursor: it stores a cursor at most once a
second (``managedLedgerDefaultMarkDeleteRateLimit``), and only upon an acknowledgement."""
_BEFORE_DUE_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class ReconcileActions:
    """Actions for one subscription.

    Attributes:
        missing: cancellations with entries that the cursor does not hold, to acknowledge (again).
        unpersisted: acknowledged cancellations not yet seen in the stored state.
        ended: cancellations past their due time, with their final status.
    """

    missing: list[Cancellation]
    unpersisted: list[Cancellation]
    ended: list[Cancellation]

    @property
    def lost(self) -> list[Cancellation]:
        """Missing cancellations that had been acknowledged before."""
        return [one for one in self.missing if one.status is not CancellationStatus.ACCEPTED]


@dataclass(frozen=True, slots=True)
class CursorWatch:
    """Period of visits during which a cursor certainly kept its acknowledgements.

    Attributes:
        since_ms: the brokers' time when the first of these visits began, milliseconds since the epoch.
        consumers: name, address and connection time of the subscription's consumers at the last visit, where known.
        messages_out: number of messages dispatched to consumers until then.
        written_ledger: ledger that the topic wrote to.
    """

    since_ms: int
    consumers: frozenset[tuple[str | None, str | None, str]]
    messages_out: int
    written_ledger: LedgerId | None


def continue_watch(
    before: CursorWatch | None, found: Subscription, state: TopicInternalStats, now_ms: int
) -> CursorWatch:
    """Return the continued watch, or a new one that begins now.

    A cursor loses acknowledgements only when its topic is reloaded or the cursor is moved, and both disconnect every
    consumer. If no consumer stayed, the watch continues only if the broker neither reloaded the topic nor dispatched
    anything.
    """
    # A consumer with an unknown connection time may be new; a dispatch to it changes messages_out.
    consumers = frozenset(
        (each.name, each.address, each.connected_since) for each in found.consumers if each.connected_since
    )
    watch = CursorWatch(now_ms, consumers, found.messages_out, state.written_ledger)
    return watch if before is None or not _continues(before, watch) else replace(watch, since_ms=before.since_ms)


def _continues(before: CursorWatch, now: CursorWatch) -> bool:
    if before.consumers & now.consumers:
        return True
    same_load = now.written_ledger is not None and before.written_ledger == now.written_ledger
    return same_load and before.messages_out == now.messages_out


def decide_actions(
    cancellations: Sequence[Cancellation],
    acked: PositionRanges,
    policy: DelayPolicy,
    now_ms: int,
    watched_since_ms: int | None = None,
) -> ReconcileActions:
    """Decide the actions for all cancellations of one subscription.

    ``acked`` was read after ``now_ms``; the cursor certainly kept its acknowledgements since ``watched_since_ms``.
    """
    expired_ms = policy.expired_before_ms(now_ms)
    over = [one for one in cancellations if one.deliver_at_ms <= expired_ms]
    live = [one for one in cancellations if one.deliver_at_ms > expired_ms] if over else cancellations
    absent = {id(one) for one in live if not one.held_by(acked)}
    return ReconcileActions(
        missing=[one for one in live if id(one) in absent and one.deliver_at_ms > now_ms] if absent else [],
        unpersisted=[one for one in live if one.status is not CancellationStatus.PERSISTED and id(one) not in absent],
        ended=[_end(one, one.held_by(acked), policy, watched_since_ms) for one in over],
    )


def next_visit_ms(dues_ms: Iterable[int], policy: DelayPolicy, now_ms: int, reconcile_interval_ms: int) -> int:
    """Return the time of the next visit to all cancellations; unpersisted ones are checked in between.

    ``dues_ms`` are the due times of open cancellations, at least up to `last_due_of_interest_ms`.
    """
    regular = now_ms + reconcile_interval_ms
    moments = (
        moment
        for due_ms in dues_ms
        for moment in (due_ms - policy.earliest_lead_ms - _BEFORE_DUE_MS, due_ms + 2 * policy.tick_ms)
    )
    return min((moment for moment in moments if now_ms < moment < regular), default=regular)


def last_due_of_interest_ms(policy: DelayPolicy, now_ms: int, reconcile_interval_ms: int) -> int:
    """Return the latest due time that can affect `next_visit_ms`."""
    return now_ms + reconcile_interval_ms + policy.earliest_lead_ms + _BEFORE_DUE_MS


def _end(cancellation: Cancellation, is_held: bool, policy: DelayPolicy, watched_since_ms: int | None) -> Cancellation:
    if cancellation.status is CancellationStatus.ACCEPTED and not is_held:
        end = CancellationStatus.TOO_LATE, Cause.DUE, "its due time came before it could be acknowledged"
    elif cancellation.status is CancellationStatus.ACCEPTED:
        reason = "acknowledged by its due time, but possibly after its dispatch"
        end = CancellationStatus.RACED, Cause.DISPATCHED, reason
    elif not is_held:
        reason = "the cursor lost the acknowledgement, and the due time came before it was acknowledged again"
        end = CancellationStatus.RACED, Cause.LOST, reason
    elif watched_since_ms is None or policy.may_be_dispatched(cancellation.deliver_at_ms, watched_since_ms):
        # A consumer that received the message may have acknowledged it since.
        reason = (
            "it is acknowledged, but it may have been delivered: between the last look before its due time and the "
            "first one after it the topic was reloaded, the cursor was moved, or no sidecar looked"
        )
        end = CancellationStatus.UNKNOWN, Cause.UNWATCHED, reason
    else:
        return cancellation.at(CancellationStatus.EXPIRED)
    return cancellation.at(*end)
