"""Reconciles cursors with the log until the due times: acknowledges again, has cursors stored, ends cancellations.

Every visit is idempotent and begins from what the broker says now, so it does not matter who made the last one. What
was acknowledged at the last visit is not looked at one by one while the cursor still holds all that it held then.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import structlog

from pulsar_sidecar.delayed_delivery.cancel.ack_ranges import fitting, runs
from pulsar_sidecar.delayed_delivery.cancel.cancellation_index import SubscriptionKey
from pulsar_sidecar.delayed_delivery.cancel.checks import check_subscription, with_known_type
from pulsar_sidecar.delayed_delivery.cancel.facts import DelayPolicy
from pulsar_sidecar.delayed_delivery.cancel.reconcile import (
    BROKER_STORES_EVERY_MS,
    ReconcileActions,
    Watch,
    confirmed_too_late,
    decide_actions,
    expired_before_ms,
    last_due_of_interest_ms,
    next_look_ms,
    watched,
)
from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, CancellationStatus, Cause
from pulsar_sidecar.delayed_delivery.metrics import CancellationMetrics
from pulsar_sidecar.delayed_delivery.ports import TYPES_SECONDS, Configuration, Ports
from pulsar_sidecar.delayed_delivery.workflow.cancellation_store import CancellationStore
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import Cursor, Subscription, TopicInternalStats

log = structlog.get_logger("delayed-delivery")

_RETRY_MS = 2000
_FIRST_LOOK_MS = 200
_FIRST_PROOF_MS = 1000
_LONGER_WHILE_MORE_COMES_MS = 4000
_NEARLY_DUE_MS = 2000


class Reconciler:
    """Visits the places of the log, each when it is due."""

    def __init__(
        self,
        ports: Ports,
        store: CancellationStore,
        configuration: Configuration,
        metrics: CancellationMetrics,
        stop: threading.Event,
    ) -> None:
        self._ports = ports
        self._store = store
        self._configuration = configuration
        self._metrics = metrics
        self._stop = stop
        self._due_ms: dict[SubscriptionKey, int] = {}
        self._soon_ms: dict[SubscriptionKey, int] = {}
        self._unproven: dict[SubscriptionKey, int] = {}
        self._held: dict[SubscriptionKey, PositionRanges] = {}
        """What the cursor held when nothing was lost, except of what `CancellationStore.changed_at` tells of."""
        self._watches: dict[SubscriptionKey, Watch] = {}

    def begin_leading(self) -> None:
        """Forget which cursors were watched: other sidecars may have acknowledged what is not known here."""
        self._watches.clear()

    def round(self) -> None:
        """Visit every place that is due."""
        places = self._store.index.subscriptions()
        for noted in (self._due_ms, self._soon_ms, self._unproven, self._held, self._watches):
            for place in noted.keys() - set(places):
                del noted[place]
        for place in places:
            if self._stop.is_set():
                return
            if self._is_due(place):
                self._visit_or_postpone(place)
            elif self._is_due_soon(place):
                self._prove_or_postpone(place)

    def _is_due(self, place: SubscriptionKey) -> bool:
        now_ms = self._ports.clock.now_ms()
        return self._due_ms.setdefault(place, now_ms + _FIRST_LOOK_MS) <= now_ms

    def _is_due_soon(self, place: SubscriptionKey) -> bool:
        """Whether to prove what is not PERSISTED yet, whatever is planned for the others.

        While more comes in, brokers store the cursor without being asked, so looking can wait a little.
        """
        count, before = self._store.index.unpersisted_count(place), self._unproven.get(place, 0)
        if not count:
            self._soon_ms.pop(place, None)
            self._unproven.pop(place, None)
            return False
        self._unproven[place] = count
        now_ms = self._ports.clock.now_ms()
        soon_ms = self._soon_ms.setdefault(place, now_ms + _FIRST_PROOF_MS)
        return soon_ms + (_LONGER_WHILE_MORE_COMES_MS if count > before else 0) <= now_ms

    def _visit_or_postpone(self, place: SubscriptionKey) -> None:
        with self._postponing(place, self._due_ms) as now_ms:
            self._due_ms[place] = self._next_look_ms(place, self.visit(place), now_ms)

    def _prove_or_postpone(self, place: SubscriptionKey) -> None:
        with self._postponing(place, self._soon_ms) as now_ms:
            # What came in since the last visit may be due before the next one.
            self._due_ms[place] = min(self._due_ms[place], self._next_look_ms(place, self.prove(place), now_ms))

    def _next_look_ms(self, place: SubscriptionKey, policy: DelayPolicy, now_ms: int) -> int:
        reconcile_interval_ms = self._configuration.reconcile_interval_ms
        dues_ms = self._store.index.dues_at(place, last_due_of_interest_ms(policy, now_ms, reconcile_interval_ms))
        return next_look_ms(dues_ms, policy, now_ms, reconcile_interval_ms)

    @contextmanager
    def _postponing(self, place: SubscriptionKey, due_ms: dict[SubscriptionKey, int]) -> Iterator[int]:
        """The time now; should the look fail, it is due again soon."""
        now_ms = self._ports.clock.now_ms()
        self._soon_ms[place] = now_ms + BROKER_STORES_EVERY_MS
        try:
            yield now_ms
        except SidecarError as error:
            log.warning("cancellations are looked at again later", topic=str(place[0]), error=str(error))
            due_ms[place] = now_ms + _RETRY_MS

    def visit(self, place: SubscriptionKey) -> DelayPolicy:
        """Do what is to be done at one place now; the topic's policy.

        Raises:
            TemporaryError: something could not be asked; nothing was concluded.
        """
        topic, name = place
        now_ms = self._ports.brokers_now_ms()
        held = self._held.pop(place, None)
        changed = self._store.index.changed_at(place)
        policy, found, state = self._asked(place)
        cursor = state.cursors.get(name) if state else None
        if found is None or state is None or cursor is None:
            self._end_without(self._store.index.at(place), f"{topic} has no subscription {name!r} any more")
            return policy
        if held is None or changed is None or not cursor.acknowledged.holds_all_of(held):
            cancellations = self._store.index.at(place)
        else:
            over = self._store.index.expired_at(place, expired_before_ms(policy, now_ms))
            cancellations = list({one.position: one for one in (*changed, *over)}.values())
        watch = watched(self._watches.get(place), found, state, now_ms)
        actions = decide_actions(cancellations, cursor.acknowledged, policy, now_ms, watch.since_ms)
        restored = self._carry_out(topic, found, cursor, policy, actions)
        if not actions.lost:
            self._held[place] = cursor.acknowledged
        if restored or not actions.lost:
            self._watches[place] = watch
        else:
            self._watches.pop(place, None)
        return policy

    def prove(self, place: SubscriptionKey) -> DelayPolicy:
        """Do what is to be done for what is not PERSISTED yet; the others, however many, are not looked at.

        Raises:
            TemporaryError: something could not be asked; nothing was concluded.
        """
        topic, name = place
        now_ms = self._ports.brokers_now_ms()
        policy, found, state = self._asked(place, max_age_seconds=TYPES_SECONDS)
        cursor = state.cursors.get(name) if state else None
        if found is None or cursor is None:
            return self.visit(place)
        actions = decide_actions(self._store.index.unpersisted_at(place), cursor.acknowledged, policy, now_ms)
        if actions.ended or actions.lost:
            # What is remembered of subscriptions ends nothing, and where one is lost others may be.
            return self.visit(place)
        self._carry_out(topic, found, cursor, policy, actions)
        return policy

    def _asked(
        self, place: SubscriptionKey, *, max_age_seconds: float = 0.0
    ) -> tuple[DelayPolicy, Subscription | None, TopicInternalStats | None]:
        """The topic's policy, what there is of the subscription, which may be so old, and then the cursors."""
        topic, name = place
        policy, found, state = DelayPolicy(), None, None
        try:
            policy = self._ports.topics.delay_policy(topic)
            found = self._ports.topics.subscriptions(topic, max_age_seconds=max_age_seconds).get(name)
            state = self._ports.topics.state(topic) if found else None
        except NotFoundError:
            log.info("a topic with cancelled messages is gone", topic=str(topic))
        return policy, found, state

    def prove_for_caller(self, place: SubscriptionKey) -> None:
        """As `prove`, for a caller who waits, on any sidecar.

        It ends nothing, because only the leading sidecar watches the cursors: what is nearly due is left to that one.

        Raises:
            TemporaryError: something could not be asked.
        """
        topic, name = place
        now_ms = self._ports.brokers_now_ms()
        policy, found, state = self._asked(place, max_age_seconds=TYPES_SECONDS)
        cursor = state.cursors.get(name) if state else None
        if found is None or cursor is None:
            return
        unpersisted = self._store.index.unpersisted_at(place)
        early = [one for one in unpersisted if not confirmed_too_late(one, policy, now_ms + _NEARLY_DUE_MS)]
        self._carry_out(topic, found, cursor, policy, decide_actions(early, cursor.acknowledged, policy, now_ms))

    def _carry_out(
        self,
        topic: TopicName,
        found: Subscription,
        cursor: Cursor,
        policy: DelayPolicy,
        actions: ReconcileActions,
    ) -> bool:
        """Do it; whether everything missing that had been acknowledged before was acknowledged again."""
        self._end(actions.ended)
        if actions.unpersisted:
            actions = self._prove_stored(topic, found, cursor, actions)
        return self._acknowledge(topic, found, cursor, policy, actions)

    # --- acknowledging ---------------------------------------------------------------------------------------------

    def _acknowledge(
        self,
        topic: TopicName,
        found: Subscription,
        cursor: Cursor,
        policy: DelayPolicy,
        actions: ReconcileActions,
    ) -> bool:
        missing = self._fitting(topic, found.name, cursor, actions.missing)
        positions = sorted(
            {entry for one in missing for entry in one.entries} | ({actions.nudge} if actions.nudge else set())
        )
        if not positions or check_subscription(found) is not None:
            return not actions.lost
        joining = replace(found, type=with_known_type(found))
        with self._ports.acknowledger.join(topic, joining) as consumer:
            confirmed_ms = consumer.acknowledge(positions)
        confirmed_ms += self._ports.topics.broker_ahead_ms()
        lost = {id(one) for one in actions.lost}
        restored = sum(id(one) in lost for one in missing)
        if restored:
            self._metrics.acknowledged_again(restored)
            log.info(
                "acknowledged again what a cursor had lost", topic=str(topic), subscription=found.name, count=restored
            )
        self._confirm(
            [*missing, *(one for one in actions.unpersisted if one.status is CancellationStatus.ACCEPTED)],
            policy,
            confirmed_ms,
        )
        return True

    def _fitting(
        self, topic: TopicName, name: str, cursor: Cursor, missing: Sequence[Cancellation]
    ) -> Sequence[Cancellation]:
        """What there is room for; what had been acknowledged before goes back in any case.

        What was only accepted may have ended while nobody here follows the log.
        """
        waiting = [one for one in missing if one.status is CancellationStatus.ACCEPTED]
        others = [one for one in missing if one.status is not CancellationStatus.ACCEPTED]
        if not waiting or not self._store.follows:
            return others
        room = self._ports.budget.room(topic, name, ranges=cursor.acknowledged.range_count)
        _, left = fitting(runs(cursor.acknowledged, [entry for one in waiting for entry in one.entries]), room.free)
        outside = {position for run in left for position in run.positions}
        return others + [one for one in waiting if outside.isdisjoint(one.entries)]

    def _confirm(self, confirmed: Sequence[Cancellation], policy: DelayPolicy, confirmed_ms: int) -> None:
        late = [one for one in confirmed if confirmed_too_late(one, policy, confirmed_ms)]
        beaten = {id(one) for one in late}
        self._store.finish(
            [
                one.at(
                    CancellationStatus.RACED, _cause(one), "acknowledged when the broker may already have dispatched it"
                )
                for one in late
            ]
        )
        in_time = [one.at(CancellationStatus.ACKED) for one in confirmed if id(one) not in beaten]
        # What had been stored and was lost has to be seen in the stored state again.
        self._store.index.lower(in_time)
        self._count(CancellationStatus.ACKED, in_time)

    # --- proving ---------------------------------------------------------------------------------------------------

    def _prove_stored(
        self, topic: TopicName, found: Subscription, cursor: Cursor, actions: ReconcileActions
    ) -> ReconcileActions:
        """Raise what the stored state holds to PERSISTED; the actions that are left."""
        ledger, last = cursor.ledger, cursor.ledger_last_entry
        try:
            stored = self._ports.stored.read(topic, found.name, ledger, last)
        except TemporaryError as error:
            log.debug("a cursor's stored state could not be read", topic=str(topic), error=str(error))
            return actions
        if stored is None:
            return actions
        seen = [one for one in actions.unpersisted if one.status is CancellationStatus.ACKED and one.held_by(stored)]
        self._store.record([one.at(CancellationStatus.PERSISTED) for one in seen])
        self._count(CancellationStatus.PERSISTED, seen)
        proven = {id(one) for one in seen}
        left = tuple(one for one in actions.unpersisted if id(one) not in proven)
        return replace(actions, unpersisted=left, nudge=left[0].entries[0] if left else None)

    # --- ending ----------------------------------------------------------------------------------------------------

    def _end(self, ended: Sequence[Cancellation]) -> None:
        self._store.finish(ended)
        for status in (CancellationStatus.EXPIRED, CancellationStatus.UNKNOWN):
            self._count(status, [one for one in ended if one.status is status])
        unknown = sum(one.status is CancellationStatus.UNKNOWN for one in ended)
        if unknown:
            log.warning("whether messages were delivered is not known", topic=str(ended[0].topic), count=unknown)
        for one in ended:
            if one.status not in (CancellationStatus.EXPIRED, CancellationStatus.UNKNOWN):
                log.warning(
                    "a cancellation failed", topic=str(one.topic), position=str(one.position), reason=one.reason
                )
                self._metrics.refused((one.cause or Cause.LOST).value)

    def _end_without(self, cancellations: Sequence[Cancellation], reason: str) -> None:
        self._store.finish(
            [one.at(CancellationStatus.NOT_FOUND, Cause.NO_SUBSCRIPTION, reason) for one in cancellations]
        )

    def _count(self, status: CancellationStatus, cancellations: Sequence[Cancellation]) -> None:
        now_ms = self._ports.clock.now_ms()
        for requested_ms, count in Counter(one.requested_ms for one in cancellations).items():
            self._metrics.reached(status.value, max(0, now_ms - requested_ms) / 1000, count)


def _cause(cancellation: Cancellation) -> Cause:
    return Cause.DISPATCHED if cancellation.status is CancellationStatus.ACCEPTED else Cause.LOST
