"""Reconciliation of cursors with the log until the due times.

The reconciler acknowledges again, makes brokers store cursors, and ends cancellations. Every visit is idempotent and
starts from the broker's current state, so any sidecar may have made the last one. While a cursor still holds all that
it held at the last visit, the reconciler does not check each acknowledgement.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from pulsar_sidecar.backlog.ports import DelayPolicy
from pulsar_sidecar.features.delayed_messages.cancel.cancellation_index import SubscriptionKey
from pulsar_sidecar.features.delayed_messages.cancel.plan import (
    beyond_limit,
    check_subscription,
    split,
    subscription_to_join,
)
from pulsar_sidecar.features.delayed_messages.cancel.reconcile import (
    BROKER_STORES_EVERY_MS,
    CursorWatch,
    ReconcileActions,
    continue_watch,
    decide_actions,
    last_due_of_interest_ms,
    next_visit_ms,
)
from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation
from pulsar_sidecar.features.delayed_messages.metrics import CancellationMetrics
from pulsar_sidecar.features.delayed_messages.ports import TYPES_SECONDS, Configuration, Ports
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus, Cause
from pulsar_sidecar.features.delayed_messages.workflow.cancellation_store import CancellationStore
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import Cursor, Subscription, TopicInternalStats

log = structlog.get_logger("delayed-delivery")

_RETRY_MS = 2000
_FIRST_LOOK_MS = 200
_FIRST_CHECK_MS = 1000
_LONGER_WHILE_MORE_COMES_MS = 4000
_NEARLY_DUE_MS = 2000


@dataclass(slots=True)
class _VisitSchedule:
    """Schedule of visits to a subscription, and the last visit's findings.

    Attributes:
        due_ms: time of the next visit to all of its cancellations, milliseconds since the epoch.
        soon_ms: time of the next check of those that are not PERSISTED yet; None if there are none.
        unpersisted_count: number of these at the last round.
        held: positions that the cursor held when nothing was lost, except those of `CancellationIndex.changed_at`.
    """

    due_ms: int
    soon_ms: int | None = None
    unpersisted_count: int = 0
    held: PositionRanges | None = None
    watch: CursorWatch | None = None


@dataclass(frozen=True, slots=True)
class _BrokerView:
    """Subscription as its broker reports it, with its cursor, which is not older."""

    topic: TopicName
    policy: DelayPolicy
    found: Subscription
    state: TopicInternalStats
    cursor: Cursor


@dataclass(slots=True)
class Reconciler:
    """Reconciler that visits each subscription of the log when it is due."""

    ports: Ports
    store: CancellationStore
    configuration: Configuration
    metrics: CancellationMetrics
    stop: threading.Event
    _schedules: dict[SubscriptionKey, _VisitSchedule] = field(init=False, default_factory=dict)

    def begin_leading(self) -> None:
        """Discard the watches: other sidecars may have acknowledged positions unknown to this one."""
        for schedule in self._schedules.values():
            schedule.watch = None

    def round(self) -> None:
        """Visit every subscription that is due."""
        first_ms = self.ports.clock.now_ms() + _FIRST_LOOK_MS
        keys = self.store.index.subscriptions()
        self._schedules = {key: self._schedules.get(key) or _VisitSchedule(first_ms) for key in keys}
        for key, schedule in self._schedules.items():
            if self.stop.is_set():
                return
            if schedule.due_ms <= self.ports.clock.now_ms():
                self._reconcile(key, schedule, at_all=True)
            elif self._is_due_soon(key, schedule):
                self._reconcile(key, schedule, at_all=False)

    def _is_due_soon(self, key: SubscriptionKey, schedule: _VisitSchedule) -> bool:
        """Return True if it is time to check the cancellations that are not PERSISTED yet.

        While more cancellations arrive, brokers store the cursor anyway, so the check waits longer.
        """
        before, schedule.unpersisted_count = schedule.unpersisted_count, self.store.index.unpersisted_count(key)
        if not schedule.unpersisted_count:
            schedule.soon_ms = None
            return False
        now_ms = self.ports.clock.now_ms()
        if schedule.soon_ms is None:
            schedule.soon_ms = now_ms + _FIRST_CHECK_MS
        return schedule.soon_ms + (_LONGER_WHILE_MORE_COMES_MS if schedule.unpersisted_count > before else 0) <= now_ms

    def _reconcile(self, key: SubscriptionKey, schedule: _VisitSchedule, *, at_all: bool) -> None:
        now_ms, interval_ms = self.ports.clock.now_ms(), self.configuration.reconcile_interval_ms
        schedule.soon_ms = now_ms + BROKER_STORES_EVERY_MS
        try:
            policy = self._visit(key, schedule) if at_all else self._check_unpersisted(key, schedule)
            dues_ms = self.store.index.dues_at(key, last_due_of_interest_ms(policy, now_ms, interval_ms))
            next_ms = next_visit_ms(dues_ms, policy, now_ms, interval_ms)
            # Cancellations added since the last visit may be due before the next one.
            schedule.due_ms = next_ms if at_all else min(schedule.due_ms, next_ms)
        except SidecarError as error:
            self.metrics.reconcile_failed()
            log.warning("reconciling cancellations failed; will retry", topic=str(key[0]), error=str(error))
            if at_all:
                schedule.due_ms = now_ms + _RETRY_MS
            else:
                schedule.soon_ms = now_ms + _RETRY_MS

    def _visit(self, key: SubscriptionKey, schedule: _VisitSchedule) -> DelayPolicy:
        """Reconcile one subscription, and return the topic's policy.

        Raises TemporaryError if the broker is unreachable; then nothing was concluded.
        """
        now_ms = self.ports.brokers_now_ms()
        held, schedule.held = schedule.held, None
        changed = self.store.index.changed_at(key)
        seen = self._ask(key)
        if seen is None:
            reason = f"{key[0]} no longer has a subscription {key[1]!r}"
            gone = CancellationStatus.NOT_FOUND, Cause.NO_SUBSCRIPTION, reason
            self.store.finish([one.at(*gone) for one in self.store.index.at(key)])
            return DelayPolicy()
        acked = seen.cursor.acknowledged
        if held is None or changed is None or not acked.holds_all_of(held):
            cancellations = self.store.index.at(key)
        else:
            over = self.store.index.expired_at(key, seen.policy.expired_before_ms(now_ms))
            cancellations = list({one.position: one for one in (*changed, *over)}.values())
        watch = continue_watch(schedule.watch, seen.found, seen.state, now_ms)
        actions = decide_actions(cancellations, acked, seen.policy, now_ms, watch.since_ms)
        restored = self._carry_out(seen, actions)
        if not actions.lost:
            schedule.held = acked
        schedule.watch = watch if restored else None
        return seen.policy

    def _check_unpersisted(self, key: SubscriptionKey, schedule: _VisitSchedule) -> DelayPolicy:
        now_ms = self.ports.brokers_now_ms()
        seen = self._ask(key, max_age_seconds=TYPES_SECONDS)
        if seen is None:
            return self._visit(key, schedule)
        unpersisted = self.store.index.unpersisted_at(key)
        actions = decide_actions(unpersisted, seen.cursor.acknowledged, seen.policy, now_ms)
        if actions.ended or actions.lost:
            # Cached subscriptions cannot end a cancellation, and if one acknowledgement is lost, others may be.
            return self._visit(key, schedule)
        self._carry_out(seen, actions)
        return seen.policy

    def check_stored_for_caller(self, key: SubscriptionKey) -> None:
        """Check unpersisted cancellations for a waiting caller, on any sidecar.

        This ends no cancellation, because only the leader watches the cursors: it leaves nearly due ones to the leader.

        Raises:
            TemporaryError: the broker is unreachable.
        """
        now_ms = self.ports.brokers_now_ms()
        seen = self._ask(key, max_age_seconds=TYPES_SECONDS)
        if seen is not None:
            unpersisted = self.store.index.unpersisted_at(key)
            nearly_ms, policy = now_ms + _NEARLY_DUE_MS, seen.policy
            early = [one for one in unpersisted if not policy.may_be_dispatched(one.deliver_at_ms, nearly_ms)]
            self._carry_out(seen, decide_actions(early, seen.cursor.acknowledged, policy, now_ms))

    def _ask(self, key: SubscriptionKey, *, max_age_seconds: float = 0.0) -> _BrokerView | None:
        """Read the subscription, at most ``max_age_seconds`` old, then its cursor; return None if it is gone."""
        topic, name = key
        topics = self.ports.topics
        try:
            policy = topics.delay_policy(topic)
            found = topics.subscriptions(topic, max_age_seconds=max_age_seconds).get(name)
            state = topics.state(topic) if found else None
        except NotFoundError:
            log.info("topic with cancelled messages no longer exists", topic=str(topic))
            return None
        cursor = state.cursors.get(name) if state else None
        return _BrokerView(topic, policy, found, state, cursor) if found and state and cursor else None

    def _carry_out(self, seen: _BrokerView, actions: ReconcileActions) -> bool:
        """End, check and acknowledge; return True if all lost acknowledgements were made again."""
        self._end(actions.ended)
        unpersisted = self._check_stored(seen, actions.unpersisted) if actions.unpersisted else []
        missing = self._fitting(seen, actions.missing)
        positions = {entry for one in missing for entry in one.entries}
        if unpersisted:
            # One repeated acknowledgement makes the broker store the cursor.
            positions.add(unpersisted[0].entries[0])
        if not positions or check_subscription(seen.found.name, seen.found) is not None:
            return not actions.lost
        with self.ports.acknowledger.join(seen.topic, subscription_to_join(seen.found)) as consumer:
            confirmed_ms = consumer.acknowledge(sorted(positions))
        if restored := len(actions.lost):
            self.metrics.acknowledged_again(restored)
            subject = {"topic": str(seen.topic), "subscription": seen.found.name}
            log.info("re-acknowledged positions lost by cursor", **subject, count=restored)
        accepted = [one for one in unpersisted if one.status is CancellationStatus.ACCEPTED]
        self._confirm([*missing, *accepted], seen.policy, confirmed_ms + self.ports.topics.broker_ahead_ms())
        return True

    def _fitting(self, seen: _BrokerView, missing: Sequence[Cancellation]) -> list[Cancellation]:
        """Return the cancellations within the limit; lost acknowledgements are made again in any case.

        Accepted cancellations are left out while this sidecar does not follow the log: they may have ended.
        """
        waiting, others = split(missing, lambda one: one.status is CancellationStatus.ACCEPTED)
        if not waiting or not self.store.follows:
            return others
        acked = seen.cursor.acknowledged
        outside = beyond_limit(acked, [entry for one in waiting for entry in one.entries], self.ports.max_ranges())
        return others + [one for one in waiting if outside.isdisjoint(one.entries)]

    def _confirm(self, confirmed: Sequence[Cancellation], policy: DelayPolicy, confirmed_ms: int) -> None:
        late, in_time = split(confirmed, lambda one: policy.may_be_dispatched(one.deliver_at_ms, confirmed_ms))
        reason = "acknowledged when the broker may already have dispatched it"
        self.store.finish([one.at(CancellationStatus.RACED, _cause(one), reason) for one in late])
        in_time = [one.at(CancellationStatus.ACKED) for one in in_time]
        # A stored acknowledgement that was lost must be seen in the stored state again.
        self.store.index.lower(in_time)
        self._count(CancellationStatus.ACKED, in_time)

    def _check_stored(self, seen: _BrokerView, unpersisted: list[Cancellation]) -> list[Cancellation]:
        ledger, last = seen.cursor.ledger, seen.cursor.ledger_last_entry
        try:
            stored = self.ports.stored.read(seen.topic, seen.found.name, ledger, last)
        except TemporaryError as error:
            log.debug("reading stored cursor state failed", topic=str(seen.topic), error=str(error))
            return unpersisted
        if stored is None:
            return unpersisted
        proven, left = split(unpersisted, lambda one: one.status is CancellationStatus.ACKED and one.held_by(stored))
        self.store.record([one.at(CancellationStatus.PERSISTED) for one in proven])
        self._count(CancellationStatus.PERSISTED, proven)
        return left

    def _end(self, ended: Sequence[Cancellation]) -> None:
        self.store.finish(ended)
        by_status: dict[CancellationStatus, list[Cancellation]] = {}
        for one in ended:
            by_status.setdefault(one.status, []).append(one)
        for status, those in by_status.items():
            match status:
                case CancellationStatus.EXPIRED:
                    self._count(status, those)
                case CancellationStatus.UNKNOWN:
                    topic = str(those[0].topic)
                    log.warning("delivery of cancelled messages unknown", topic=topic, count=len(those))
                    self._count(status, those)
                case (
                    CancellationStatus.TOO_LATE
                    | CancellationStatus.RACED
                    | CancellationStatus.NOT_FOUND
                    | CancellationStatus.REFUSED
                ):
                    for one in those:
                        subject = {"topic": str(one.topic), "position": str(one.position)}
                        log.warning("cancellation failed", **subject, reason=one.reason)
                        self.metrics.refused((one.cause or Cause.LOST).value)
                case CancellationStatus.ACCEPTED | CancellationStatus.ACKED | CancellationStatus.PERSISTED:
                    raise AssertionError(f"a cancellation does not end as {status.value}")

    def _count(self, status: CancellationStatus, cancellations: Sequence[Cancellation]) -> None:
        now_ms = self.ports.clock.now_ms()
        for requested_ms, count in Counter(one.requested_ms for one in cancellations).items():
            self.metrics.reached(status.value, max(0, now_ms - requested_ms) / 1000, count)


def _cause(cancellation: Cancellation) -> Cause:
    return Cause.DISPATCHED if cancellation.status is CancellationStatus.ACCEPTED else Cause.LOST
