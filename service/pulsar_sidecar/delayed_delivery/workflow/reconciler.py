"""Reconciles cursors with the log until the due times: acknowledges again, has cursors stored, ends cancellations.

Every visit is idempotent and begins from the broker's present state, so it does not matter which sidecar made the last
one. The reconciler does not compare one by one what it acknowledged at the last visit while the cursor still holds all
that it held then.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from pulsar_sidecar.delayed_delivery.cancel.cancellation_index import SubscriptionKey
from pulsar_sidecar.delayed_delivery.cancel.plan import beyond_limit, check_subscription, split, subscription_to_join
from pulsar_sidecar.delayed_delivery.cancel.reconcile import (
    BROKER_STORES_EVERY_MS,
    CursorWatch,
    ReconcileActions,
    continue_watch,
    decide_actions,
    last_due_of_interest_ms,
    next_visit_ms,
)
from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, CancellationStatus, Cause
from pulsar_sidecar.delayed_delivery.metrics import CancellationMetrics
from pulsar_sidecar.delayed_delivery.ports import TYPES_SECONDS, Configuration, DelayPolicy, Ports
from pulsar_sidecar.delayed_delivery.workflow.cancellation_store import CancellationStore
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
    """When a subscription is looked at, and what the last visit found.

    Attributes:
        due_ms: when all of its cancellations are looked at.
        soon_ms: when those are that are not PERSISTED yet; None while there are none.
        unpersisted_count: how many of these there were at the last round.
        held: what the cursor held when nothing was lost, except what `CancellationIndex.changed_at` returns.
    """

    due_ms: int
    soon_ms: int | None = None
    unpersisted_count: int = 0
    held: PositionRanges | None = None
    watch: CursorWatch | None = None


@dataclass(frozen=True, slots=True)
class _BrokerView:
    """A subscription as its broker reports it, and its cursor, which is not older."""

    topic: TopicName
    policy: DelayPolicy
    found: Subscription
    state: TopicInternalStats
    cursor: Cursor


@dataclass(slots=True)
class Reconciler:
    """Visits the subscriptions of the log, each when it is due."""

    ports: Ports
    store: CancellationStore
    configuration: Configuration
    metrics: CancellationMetrics
    stop: threading.Event
    _schedules: dict[SubscriptionKey, _VisitSchedule] = field(init=False, default_factory=dict)

    def begin_leading(self) -> None:
        """Forget which cursors were watched: other sidecars may have acknowledged positions unknown to this one."""
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
                self._look(key, schedule, at_all=True)
            elif self._is_due_soon(key, schedule):
                self._look(key, schedule, at_all=False)

    def _is_due_soon(self, key: SubscriptionKey, schedule: _VisitSchedule) -> bool:
        """Whether to check what is not PERSISTED yet, whatever is planned for the others.

        While more comes in, brokers store the cursor by themselves, so the check can wait a little.
        """
        before, schedule.unpersisted_count = schedule.unpersisted_count, self.store.index.unpersisted_count(key)
        if not schedule.unpersisted_count:
            schedule.soon_ms = None
            return False
        now_ms = self.ports.clock.now_ms()
        if schedule.soon_ms is None:
            schedule.soon_ms = now_ms + _FIRST_CHECK_MS
        return schedule.soon_ms + (_LONGER_WHILE_MORE_COMES_MS if schedule.unpersisted_count > before else 0) <= now_ms

    def _look(self, key: SubscriptionKey, schedule: _VisitSchedule, *, at_all: bool) -> None:
        """Visit all or the unpersisted, and note when to look again."""
        now_ms, interval_ms = self.ports.clock.now_ms(), self.configuration.reconcile_interval_ms
        schedule.soon_ms = now_ms + BROKER_STORES_EVERY_MS
        try:
            policy = self._visit(key, schedule) if at_all else self._check_unpersisted(key, schedule)
            dues_ms = self.store.index.dues_at(key, last_due_of_interest_ms(policy, now_ms, interval_ms))
            next_ms = next_visit_ms(dues_ms, policy, now_ms, interval_ms)
            # What came in since the last visit may be due before the next one.
            schedule.due_ms = next_ms if at_all else min(schedule.due_ms, next_ms)
        except SidecarError as error:
            self.metrics.reconcile_failed()
            log.warning(
                "cancellations could not be reconciled; the sidecar tries again", topic=str(key[0]), error=str(error)
            )
            if at_all:
                schedule.due_ms = now_ms + _RETRY_MS
            else:
                schedule.soon_ms = now_ms + _RETRY_MS

    def _visit(self, key: SubscriptionKey, schedule: _VisitSchedule) -> DelayPolicy:
        """Do what is to be done for one subscription now; the topic's policy.

        Where something cannot be asked, this raises TemporaryError, and nothing was concluded.
        """
        now_ms = self.ports.brokers_now_ms()
        held, schedule.held = schedule.held, None
        changed = self.store.index.changed_at(key)
        seen = self._ask(key)
        if seen is None:
            reason = f"{key[0]} has no subscription {key[1]!r} any more"
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
        """Do what is to be done for what is not PERSISTED yet; the others, however many, are not looked at."""
        now_ms = self.ports.brokers_now_ms()
        seen = self._ask(key, max_age_seconds=TYPES_SECONDS)
        if seen is None:
            return self._visit(key, schedule)
        unpersisted = self.store.index.unpersisted_at(key)
        actions = decide_actions(unpersisted, seen.cursor.acknowledged, seen.policy, now_ms)
        if actions.ended or actions.lost:
            # What is remembered of subscriptions ends nothing, and where one is lost others may be.
            return self._visit(key, schedule)
        self._carry_out(seen, actions)
        return seen.policy

    def check_stored_for_caller(self, key: SubscriptionKey) -> None:
        """As `_check_unpersisted`, for a caller who waits, on any sidecar.

        It ends nothing, because only the leading sidecar watches the cursors: what is nearly due is left to that one.

        Raises:
            TemporaryError: something could not be asked.
        """
        now_ms = self.ports.brokers_now_ms()
        seen = self._ask(key, max_age_seconds=TYPES_SECONDS)
        if seen is not None:
            unpersisted = self.store.index.unpersisted_at(key)
            nearly_ms, policy = now_ms + _NEARLY_DUE_MS, seen.policy
            early = [one for one in unpersisted if not policy.may_be_dispatched(one.deliver_at_ms, nearly_ms)]
            self._carry_out(seen, decide_actions(early, seen.cursor.acknowledged, policy, now_ms))

    def _ask(self, key: SubscriptionKey, *, max_age_seconds: float = 0.0) -> _BrokerView | None:
        """What there is of the subscription, which may be so old, and then its cursor; None when it is gone."""
        topic, name = key
        topics = self.ports.topics
        try:
            policy = topics.delay_policy(topic)
            found = topics.subscriptions(topic, max_age_seconds=max_age_seconds).get(name)
            state = topics.state(topic) if found else None
        except NotFoundError:
            log.info("a topic with cancelled messages is gone", topic=str(topic))
            return None
        cursor = state.cursors.get(name) if state else None
        return _BrokerView(topic, policy, found, state, cursor) if found and state and cursor else None

    def _carry_out(self, seen: _BrokerView, actions: ReconcileActions) -> bool:
        """End, check, acknowledge; whether everything that had been lost was acknowledged again."""
        self._end(actions.ended)
        unpersisted = self._check_stored(seen, actions.unpersisted) if actions.unpersisted else []
        missing = self._fitting(seen, actions.missing)
        positions = {entry for one in missing for entry in one.entries}
        if unpersisted:
            # Acknowledged once more so that the broker stores the cursor.
            positions.add(unpersisted[0].entries[0])
        if not positions or check_subscription(seen.found.name, seen.found) is not None:
            return not actions.lost
        with self.ports.acknowledger.join(seen.topic, subscription_to_join(seen.found)) as consumer:
            confirmed_ms = consumer.acknowledge(sorted(positions))
        if restored := len(actions.lost):
            self.metrics.acknowledged_again(restored)
            subject = {"topic": str(seen.topic), "subscription": seen.found.name}
            log.info("acknowledged again what a cursor had lost", **subject, count=restored)
        accepted = [one for one in unpersisted if one.status is CancellationStatus.ACCEPTED]
        self._confirm([*missing, *accepted], seen.policy, confirmed_ms + self.ports.topics.broker_ahead_ms())
        return True

    def _fitting(self, seen: _BrokerView, missing: Sequence[Cancellation]) -> list[Cancellation]:
        """Those that fit into the limit; lost acknowledgements are made again in any case.

        What was only accepted may have ended while this sidecar does not follow the log.
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
        # What had been stored and was lost has to be seen in the stored state again.
        self.store.index.lower(in_time)
        self._count(CancellationStatus.ACKED, in_time)

    def _check_stored(self, seen: _BrokerView, unpersisted: list[Cancellation]) -> list[Cancellation]:
        """Raise what the stored state holds to PERSISTED; the others."""
        ledger, last = seen.cursor.ledger, seen.cursor.ledger_last_entry
        try:
            stored = self.ports.stored.read(seen.topic, seen.found.name, ledger, last)
        except TemporaryError as error:
            log.debug("a cursor's stored state could not be read", topic=str(seen.topic), error=str(error))
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
                    log.warning(
                        "it is unknown whether cancelled messages were delivered", topic=topic, count=len(those)
                    )
                    self._count(status, those)
                case (
                    CancellationStatus.TOO_LATE
                    | CancellationStatus.RACED
                    | CancellationStatus.NOT_FOUND
                    | CancellationStatus.REFUSED
                ):
                    for one in those:
                        subject = {"topic": str(one.topic), "position": str(one.position)}
                        log.warning("a cancellation failed", **subject, reason=one.reason)
                        self.metrics.refused((one.cause or Cause.LOST).value)
                case CancellationStatus.ACCEPTED | CancellationStatus.ACKED | CancellationStatus.PERSISTED:
                    raise AssertionError(f"a cancellation does not end as {status.value}")

    def _count(self, status: CancellationStatus, cancellations: Sequence[Cancellation]) -> None:
        now_ms = self.ports.clock.now_ms()
        for requested_ms, count in Counter(one.requested_ms for one in cancellations).items():
            self.metrics.reached(status.value, max(0, now_ms - requested_ms) / 1000, count)


def _cause(cancellation: Cancellation) -> Cause:
    return Cause.DISPATCHED if cancellation.status is CancellationStatus.ACCEPTED else Cause.LOST
