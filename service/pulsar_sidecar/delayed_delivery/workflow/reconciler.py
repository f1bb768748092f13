"""Sees to what was accepted until its due time has passed: puts acknowledgements back, has them stored, ends them.

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
from pulsar_sidecar.delayed_delivery.cancel.cancellation_index import Place
from pulsar_sidecar.delayed_delivery.cancel.checks import check_subscription, with_known_type
from pulsar_sidecar.delayed_delivery.cancel.facts import CursorFacts, DelayPolicy, SubscriptionFacts, TopicState
from pulsar_sidecar.delayed_delivery.cancel.reconcile import (
    BROKER_STORES_EVERY_MS,
    Duties,
    Watch,
    duties,
    last_due_of_interest_ms,
    next_look_ms,
    over_by_ms,
    settled_late,
    watched,
)
from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, Cause, Proof
from pulsar_sidecar.delayed_delivery.workflow.world import TYPES_SECONDS, CancelMetrics, Configuration, Memory, World
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges

log = structlog.get_logger("delayed-delivery")

_RETRY_MS = 2000
_FIRST_LOOK_MS = 200
_FIRST_PROOF_MS = 1000
_LONGER_WHILE_MORE_COMES_MS = 4000
_NEARLY_DUE_MS = 2000


class Asserter:
    """Visits the places of the log, each when it is due."""

    def __init__(
        self,
        world: World,
        memory: Memory,
        configuration: Configuration,
        metrics: CancelMetrics,
        stop: threading.Event,
    ) -> None:
        self._world = world
        self._memory = memory
        self._configuration = configuration
        self._metrics = metrics
        self._stop = stop
        self._due_ms: dict[Place, int] = {}
        self._soon_ms: dict[Place, int] = {}
        self._unproven: dict[Place, int] = {}
        self._held: dict[Place, PositionRanges] = {}
        """What the cursor held when nothing was lost, except of what `Memory.changed_at` tells of."""
        self._watches: dict[Place, Watch] = {}

    def begin_leading(self) -> None:
        """Forget which cursors were watched: what others saw to meanwhile may not all have been known here."""
        self._watches.clear()

    def round(self) -> None:
        """Visit every place that is due."""
        places = self._memory.places()
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

    def _is_due(self, place: Place) -> bool:
        now_ms = self._world.clock.now_ms()
        return self._due_ms.setdefault(place, now_ms + _FIRST_LOOK_MS) <= now_ms

    def _is_due_soon(self, place: Place) -> bool:
        """Whether to prove what is not PERSISTED yet, whatever is planned for the others.

        While more comes in, brokers store the cursor without being asked, so looking can wait a little.
        """
        count, before = self._memory.unproven_count(place), self._unproven.get(place, 0)
        if not count:
            self._soon_ms.pop(place, None)
            self._unproven.pop(place, None)
            return False
        self._unproven[place] = count
        now_ms = self._world.clock.now_ms()
        soon_ms = self._soon_ms.setdefault(place, now_ms + _FIRST_PROOF_MS)
        return soon_ms + (_LONGER_WHILE_MORE_COMES_MS if count > before else 0) <= now_ms

    def _visit_or_postpone(self, place: Place) -> None:
        with self._postponing(place, self._due_ms) as now_ms:
            self._due_ms[place] = self._next_look_ms(place, self.visit(place), now_ms)

    def _prove_or_postpone(self, place: Place) -> None:
        with self._postponing(place, self._soon_ms) as now_ms:
            # What came in since the last visit may be due before the next one.
            self._due_ms[place] = min(self._due_ms[place], self._next_look_ms(place, self.prove(place), now_ms))

    def _next_look_ms(self, place: Place, policy: DelayPolicy, now_ms: int) -> int:
        reassert_ms = self._configuration.reassert_ms
        dues_ms = self._memory.dues_at(place, last_due_of_interest_ms(policy, now_ms, reassert_ms))
        return next_look_ms(dues_ms, policy, now_ms, reassert_ms)

    @contextmanager
    def _postponing(self, place: Place, due_ms: dict[Place, int]) -> Iterator[int]:
        """The time now; should the look fail, it is due again soon."""
        now_ms = self._world.clock.now_ms()
        self._soon_ms[place] = now_ms + BROKER_STORES_EVERY_MS
        try:
            yield now_ms
        except SidecarError as error:
            log.warning("cancellations are looked at again later", topic=str(place[0]), error=str(error))
            due_ms[place] = now_ms + _RETRY_MS

    def visit(self, place: Place) -> DelayPolicy:
        """Do what is to be done at one place now; the topic's policy.

        Raises:
            TemporaryError: something could not be asked; nothing was concluded.
        """
        topic, name = place
        now_ms = self._world.brokers_now_ms()
        held = self._held.pop(place, None)
        changed = self._memory.changed_at(place)
        policy, found, state = self._asked(place)
        cursor = state.cursors.get(name) if state else None
        if found is None or state is None or cursor is None:
            self._end_without(self._memory.at(place), f"{topic} has no subscription {name!r} any more")
            return policy
        if held is None or changed is None or not cursor.acked.holds_all_of(held):
            cancellations = self._memory.at(place)
        else:
            over = self._memory.over_at(place, over_by_ms(policy, now_ms))
            cancellations = list({one.position: one for one in (*changed, *over)}.values())
        watch = watched(self._watches.get(place), found, state, now_ms)
        what = duties(cancellations, cursor.acked, policy, now_ms, watch.since_ms)
        put_back = self._see_to(topic, found, cursor, policy, what)
        if not what.lost:
            self._held[place] = cursor.acked
        if put_back or not what.lost:
            self._watches[place] = watch
        else:
            self._watches.pop(place, None)
        return policy

    def prove(self, place: Place) -> DelayPolicy:
        """Do what is to be done for what is not PERSISTED yet; the others, however many, are not looked at.

        Raises:
            TemporaryError: something could not be asked; nothing was concluded.
        """
        topic, name = place
        now_ms = self._world.brokers_now_ms()
        policy, found, state = self._asked(place, max_age_seconds=TYPES_SECONDS)
        cursor = state.cursors.get(name) if state else None
        if found is None or cursor is None:
            return self.visit(place)
        what = duties(self._memory.unproven_at(place), cursor.acked, policy, now_ms)
        if what.ended or what.lost:
            # What is remembered of subscriptions ends nothing, and where one is lost others may be.
            return self.visit(place)
        self._see_to(topic, found, cursor, policy, what)
        return policy

    def _asked(
        self, place: Place, *, max_age_seconds: float = 0.0
    ) -> tuple[DelayPolicy, SubscriptionFacts | None, TopicState | None]:
        """The topic's policy, what there is of the subscription, which may be so old, and then the cursors."""
        topic, name = place
        policy, found, state = DelayPolicy(), None, None
        try:
            policy = self._world.topics.delay_policy(topic)
            found = self._world.topics.subscriptions(topic, max_age_seconds=max_age_seconds).get(name)
            state = self._world.topics.state(topic) if found else None
        except NotFoundError:
            log.info("a topic with cancelled messages is gone", topic=str(topic))
        return policy, found, state

    def prove_for_caller(self, place: Place) -> None:
        """As `prove`, for a caller who waits, on any sidecar.

        It ends nothing, because only the leading sidecar watches the cursors: what is nearly due is left to that one.

        Raises:
            TemporaryError: something could not be asked.
        """
        topic, name = place
        now_ms = self._world.brokers_now_ms()
        policy, found, state = self._asked(place, max_age_seconds=TYPES_SECONDS)
        cursor = state.cursors.get(name) if state else None
        if found is None or cursor is None:
            return
        unproven = self._memory.unproven_at(place)
        early = [one for one in unproven if not settled_late(one, policy, now_ms + _NEARLY_DUE_MS)]
        self._see_to(topic, found, cursor, policy, duties(early, cursor.acked, policy, now_ms))

    def _see_to(
        self,
        topic: TopicName,
        found: SubscriptionFacts,
        cursor: CursorFacts,
        policy: DelayPolicy,
        what: Duties,
    ) -> bool:
        """Do it; whether everything missing that had been acknowledged before was acknowledged again."""
        self._end(what.ended)
        if what.unproven:
            what = self._prove_stored(topic, found, cursor, what)
        return self._acknowledge(topic, found, cursor, policy, what)

    # --- acknowledging ---------------------------------------------------------------------------------------------

    def _acknowledge(
        self, topic: TopicName, found: SubscriptionFacts, cursor: CursorFacts, policy: DelayPolicy, what: Duties
    ) -> bool:
        missing = self._fitting(topic, found.name, cursor, what.missing)
        positions = sorted(
            {entry for one in missing for entry in one.entries} | ({what.nudge} if what.nudge else set())
        )
        if not positions or check_subscription(found) is not None:
            return not what.lost
        joining = replace(found, type=with_known_type(found))
        confirmed = self._world.acknowledger.acknowledge(topic, joining, positions)
        confirmed_ms = confirmed.confirmed_ms + self._world.topics.broker_ahead_ms()
        lost = {id(one) for one in what.lost}
        put_back = sum(id(one) in lost for one in missing)
        if put_back:
            self._metrics.reasserted(put_back)
            log.info("acknowledgements put back", topic=str(topic), subscription=found.name, count=put_back)
        self._confirm([*missing, *(one for one in what.unproven if one.proof is Proof.ACCEPTED)], policy, confirmed_ms)
        return True

    def _fitting(
        self, topic: TopicName, name: str, cursor: CursorFacts, missing: Sequence[Cancellation]
    ) -> Sequence[Cancellation]:
        """What there is room for; what had been acknowledged before goes back in any case.

        What was only accepted may have ended while nobody here follows the log.
        """
        waiting = [one for one in missing if one.proof is Proof.ACCEPTED]
        others = [one for one in missing if one.proof is not Proof.ACCEPTED]
        if not waiting or not self._memory.follows:
            return others
        room = self._world.budget.room(topic, name, ranges=cursor.acked.range_count)
        _, left = fitting(runs(cursor.acked, [entry for one in waiting for entry in one.entries]), room.free)
        outside = {position for run in left for position in run.positions}
        return others + [one for one in waiting if outside.isdisjoint(one.entries)]

    def _confirm(self, confirmed: Sequence[Cancellation], policy: DelayPolicy, confirmed_ms: int) -> None:
        late = [one for one in confirmed if settled_late(one, policy, confirmed_ms)]
        beaten = {id(one) for one in late}
        self._memory.finish(
            [
                one.at(Proof.RACED, _cause(one), "acknowledged when the broker may already have dispatched it")
                for one in late
            ]
        )
        in_time = [one.at(Proof.ACKED) for one in confirmed if id(one) not in beaten]
        # What had been stored and was lost has to be seen in the stored state again.
        self._memory.lower(in_time)
        self._count(Proof.ACKED, in_time)

    # --- proving ---------------------------------------------------------------------------------------------------

    def _prove_stored(self, topic: TopicName, found: SubscriptionFacts, cursor: CursorFacts, what: Duties) -> Duties:
        """Raise what the stored state holds to PERSISTED; the duties that are left."""
        ledger, last = cursor.cursor_ledger, cursor.cursor_ledger_last_entry
        try:
            stored = self._world.stored.read(topic, found.name, ledger, last)
        except TemporaryError as error:
            log.debug("a cursor's stored state could not be read", topic=str(topic), error=str(error))
            return what
        if stored is None:
            return what
        seen = [one for one in what.unproven if one.proof is Proof.ACKED and one.held_by(stored)]
        self._memory.record([one.at(Proof.PERSISTED) for one in seen])
        self._count(Proof.PERSISTED, seen)
        proven = {id(one) for one in seen}
        left = tuple(one for one in what.unproven if id(one) not in proven)
        return replace(what, unproven=left, nudge=left[0].entries[0] if left else None)

    # --- ending ----------------------------------------------------------------------------------------------------

    def _end(self, ended: Sequence[Cancellation]) -> None:
        self._memory.finish(ended)
        for proof in (Proof.EXPIRED, Proof.UNKNOWN):
            self._count(proof, [one for one in ended if one.proof is proof])
        unknown = sum(one.proof is Proof.UNKNOWN for one in ended)
        if unknown:
            log.warning("whether messages were delivered is not known", topic=str(ended[0].topic), count=unknown)
        for one in ended:
            if one.proof not in (Proof.EXPIRED, Proof.UNKNOWN):
                log.warning(
                    "a cancellation failed", topic=str(one.topic), position=str(one.position), reason=one.reason
                )
                self._metrics.refused((one.cause or Cause.LOST).value)

    def _end_without(self, cancellations: Sequence[Cancellation], reason: str) -> None:
        self._memory.finish([one.at(Proof.NOT_FOUND, Cause.NO_SUBSCRIPTION, reason) for one in cancellations])

    def _count(self, proof: Proof, cancellations: Sequence[Cancellation]) -> None:
        now_ms = self._world.clock.now_ms()
        for requested_ms, count in Counter(one.requested_ms for one in cancellations).items():
            self._metrics.reached(proof.value, max(0, now_ms - requested_ms) / 1000, count)


def _cause(cancellation: Cancellation) -> Cause:
    return Cause.DISPATCHED if cancellation.proof is Proof.ACCEPTED else Cause.LOST
