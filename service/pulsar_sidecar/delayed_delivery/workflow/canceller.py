"""Carries out cancellations: look, decide, join, record, acknowledge, confirm.

The order is part of the safety: nothing is acknowledged that is not in the log, and nothing is recorded that was not
found fit to be cancelled.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from pulsar_sidecar.delayed_delivery.cancel.plan import (
    CancellationPlan,
    PlannedCancellation,
    TopicSnapshot,
    beyond_limit,
    check_subscription,
    chunk_candidates,
    chunks_of,
    not_found,
    plan_cancellations,
    refused,
    split,
    subscription_to_join,
)
from pulsar_sidecar.delayed_delivery.cancel.requests import (
    Cancellation,
    CancellationStatus,
    CancelOptions,
    Cause,
    SubscriptionResult,
    Target,
    TargetOutcome,
)
from pulsar_sidecar.delayed_delivery.metrics import CancellationMetrics
from pulsar_sidecar.delayed_delivery.ports import TYPES_SECONDS, Configuration, EntryAnswer, EntryFacts, Ports
from pulsar_sidecar.delayed_delivery.workflow.cancellation_store import CancellationStore
from pulsar_sidecar.model.errors import (
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    PermanentError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import SYSTEM_SUBSCRIPTIONS, Subscription, SubscriptionType, TopicInternalStats

_SOON_MS = 60_000
_WHERE_SECONDS = 10.0
"""Maximum age, far from the due time, of a topic's list of ledgers; the entries are read each time."""
_FEW = 100
"""So few cancellations on a Shared subscription are recorded once the broker has let the sidecar's consumer in: a
visit of milliseconds, of a consumer that shares no keys with others. A refusal then leaves nothing in the log."""
_RACED = "the broker may have dispatched it before the acknowledgement; it is not delivered again"
_TRIED_AGAIN = "in the log; the sidecars acknowledge it as soon as the broker admits them, until its due time"
_NO_ROOM = (
    "the subscription's acknowledgement state is full (managedLedgerMaxUnackedRangesToPersist): more holes would be "
    "lost if the broker died"
)
_ASK_TO_DEFER = "repeat the request with defer=true to acknowledge it when there is room"
_DEFERRED = "in the log; acknowledged as soon as there is room"
_EXPLAIN_TRIES = 10
_EXPLAIN_WAIT_SECONDS = 0.05


@dataclass(slots=True)
class Canceller:
    """Cancels batches of targets, one topic without partitions (or one partition) at a time."""

    ports: Ports
    store: CancellationStore
    configuration: Configuration
    metrics: CancellationMetrics
    stop: threading.Event
    _looks: ThreadPoolExecutor = field(
        init=False, default_factory=lambda: ThreadPoolExecutor(16, thread_name_prefix="cancel-look")
    )

    def close(self) -> None:
        self._looks.shutdown(wait=False, cancel_futures=True)

    def cancel(
        self,
        topic: TopicName,
        targets: Sequence[Target],
        options: CancelOptions,
        known: Mapping[Position, EntryFacts] = {},
    ) -> list[TargetOutcome]:
        """One outcome for each target, in order.

        Args:
            topic: without partitions, or one partition.
            targets: the messages.
            options: how.
            known: entries that were read out of the topic before, and so are not read again while it has their ledger.

        Raises:
            NotFoundError: there is no such topic.
            TemporaryError: brokers or bookies could not be asked, or the log could not be written; nothing was
                acknowledged that is not in the log.
        """
        self.store.await_log()
        began_ms = self.ports.clock.now_ms()
        snapshot = self._look(topic, targets, known)
        plan = self._plan(targets, snapshot, options)
        for subscription, planned in plan.cancellations.items():
            self._carry_out(snapshot, subscription, planned, options)
        self._count(plan, began_ms)
        return [target_plan.outcome(topic) for target_plan in plan.target_plans]

    def examine(self, topic: TopicName, target: Target) -> tuple[TopicSnapshot, Cancellation | SubscriptionResult]:
        """Whether a message could be cancelled now on all of its subscriptions; nothing is changed.

        Raises:
            NotFoundError: there is no such topic.
            TemporaryError: brokers or bookies could not be asked.
        """
        snapshot = self._look(topic, [target])
        plan = self._plan([target], snapshot, CancelOptions())
        objection = next(iter(plan.target_plans[0].results.values()), None)
        if objection is not None:
            return snapshot, refuse_copy(objection) if objection.status.cancelled else objection
        for name, planned in plan.cancellations.items():
            in_log, _ = self._by_log(topic, name, planned)
            if in_log:
                return snapshot, refuse_copy(in_log[0].cancellation.result())
            if self._by_room(snapshot, name, planned)[1]:
                return snapshot, refused(Cause.ACK_STATE_FULL, _NO_ROOM, name)
        return snapshot, next(iter(plan.cancellations.values()))[0].cancellation

    def _look(
        self, topic: TopicName, targets: Sequence[Target], known: Mapping[Position, EntryFacts] = {}
    ) -> TopicSnapshot:
        """Everything a decision needs; each cursor is read for this request."""
        topics = self.ports.topics
        soon_ms = self.ports.brokers_now_ms() + _SOON_MS
        # By the due times that the caller gave.
        may_be_near = any(target.deliver_at_ms is None or target.deliver_at_ms < soon_ms for target in targets)
        age_seconds = 0.0 if may_be_near else TYPES_SECONDS
        subscriptions = topics.subscriptions(topic, max_age_seconds=age_seconds)
        states = self._looks.submit(topics.state, topic)
        policy = topics.delay_policy(topic)
        where_seconds = _WHERE_SECONDS if age_seconds else 0.0
        found: dict[Position, EntryAnswer] = {**known}
        if unread := {target.position for target in targets} - known.keys():
            found |= self.ports.entries.read(topic, unread, max_age_seconds=where_seconds)
        state = states.result()
        if age_seconds and not _names_the_same(subscriptions, state):
            subscriptions, state = topics.subscriptions(topic), topics.state(topic)
        dropped = {position.ledger_id for position in found} - state.ledgers.keys()
        if (where_seconds or known) and dropped:
            again = {position for position in found if position.ledger_id in dropped}
            found |= self.ports.entries.read(topic, again)
        chunks = self._chunks(topic, found)
        return TopicSnapshot(topic, subscriptions, state, policy, found, chunks, self.ports.brokers_now_ms())

    def _chunks(
        self, topic: TopicName, entries: Mapping[Position, EntryAnswer]
    ) -> dict[Position, Mapping[int, Position]]:
        """The chunks of each chunked message among the entries."""
        found: dict[Position, Mapping[int, Position]] = {}
        for position, facts in entries.items():
            if isinstance(facts, EntryFacts) and facts.chunk is not None and facts.chunk.total > 1:
                near = self.ports.entries.read(topic, chunk_candidates(position, facts.chunk))
                found[position] = chunks_of(facts, {**near, position: facts})
        return found

    def _plan(self, targets: Sequence[Target], snapshot: TopicSnapshot, options: CancelOptions) -> CancellationPlan:
        """The plan; while something acknowledged is unexplained, wait a moment for another sidecar's record of it."""
        known = partial(self.store.index.known, snapshot.topic)
        plan = plan_cancellations(targets, snapshot, known, options)
        for _ in range(_EXPLAIN_TRIES):
            if not plan.unexplained:
                break
            self.ports.clock.wait_seconds(_EXPLAIN_WAIT_SECONDS, self.stop)
            plan = plan_cancellations(targets, snapshot, known, options)
        if plan.unexplained and not self.store.follows:
            raise TemporaryError(
                "a message is acknowledged, and the sidecar is not connected to its cancellation log, so it cannot see "
                "whether another sidecar cancelled it; nothing was changed, try again"
            )
        return plan

    def _carry_out(
        self, snapshot: TopicSnapshot, name: str, planned: Sequence[PlannedCancellation], options: CancelOptions
    ) -> None:
        """Record and acknowledge on one subscription: what is in the log is acknowledged now, or by the reconciler."""
        now, later = self._by_room(snapshot, name, planned)
        if later and not options.defer:
            later, others = self._by_log(snapshot.topic, name, later)
            _set_result(others, refused(Cause.ACK_STATE_FULL, f"{_NO_ROOM}; {_ASK_TO_DEFER}", name))
        _set_result(later, SubscriptionResult(name, CancellationStatus.ACCEPTED, Cause.ACK_STATE_FULL, _DEFERRED))
        accepted = [one.cancellation for one in (*now, *later)]
        joining = subscription_to_join(snapshot.subscriptions[name])
        if not now or len(accepted) > _FEW or joining.type is not SubscriptionType.SHARED:
            self.store.record(accepted)
            accepted = []
        if now:
            self._acknowledge(snapshot, joining, now, accepted)

    def _by_room(
        self, snapshot: TopicSnapshot, name: str, planned: Sequence[PlannedCancellation]
    ) -> tuple[Sequence[PlannedCancellation], Sequence[PlannedCancellation]]:
        """What fits into the acknowledgement state now, and the rest."""
        acked = snapshot.state.cursors[name].acknowledged
        entries = [entry for one in planned for entry in one.cancellation.entries]
        outside = beyond_limit(acked, entries, self.ports.max_ranges())
        return split(planned, lambda one: outside.isdisjoint(one.cancellation.entries))

    def _acknowledge(
        self,
        snapshot: TopicSnapshot,
        joining: Subscription,
        planned: Sequence[PlannedCancellation],
        unrecorded: Sequence[Cancellation],
    ) -> None:
        """Join, record what is not in the log yet, acknowledge, confirm: nothing is acknowledged before its record."""
        topic, name = snapshot.topic, joining.name
        positions = sorted({entry for one in planned for entry in one.cancellation.entries})
        with ExitStack() as visit:
            try:
                consumer = visit.enter_context(self.ports.acknowledger.join(topic, joining))
            except PermanentError as error:
                self._answer_refused(topic, name, planned, unrecorded, error)
                return
            except (OutcomeUnknownError, TemporaryError) as error:
                self.store.record(unrecorded)
                _accept(name, planned, error)
                return
            self.store.record(unrecorded)
            try:
                confirmed_ms = consumer.acknowledge(positions)
            except SidecarError as error:
                _accept(name, planned, error)
                return
        self._confirm(snapshot, name, planned, confirmed_ms + self.ports.topics.broker_ahead_ms())

    def _answer_refused(
        self,
        topic: TopicName,
        name: str,
        planned: Sequence[PlannedCancellation],
        unrecorded: Sequence[Cancellation],
        error: PermanentError,
    ) -> None:
        """The broker did not let the sidecar's consumer in.

        What is in the log stays there: another sidecar may be acknowledging it at this moment, and the cursor decides
        how it ends. What is not in the log is refused, unless the subscription was only busy.
        """
        refusal = self._refusal(topic, name, error) if unrecorded else None
        accepted, others = (planned, ()) if refusal is None else self._by_log(topic, name, planned)
        left_out = {id(one.cancellation) for one in others}
        self.store.record([one for one in unrecorded if id(one) not in left_out])
        _accept(name, accepted, error)
        if refusal is not None:
            _set_result(others, refusal)

    def _by_log(
        self, topic: TopicName, name: str, planned: Sequence[PlannedCancellation]
    ) -> tuple[Sequence[PlannedCancellation], Sequence[PlannedCancellation]]:
        """What is in the log from an earlier request, and the rest."""

        def in_log(one: PlannedCancellation) -> bool:
            found = self.store.index.known(topic, one.cancellation.position, name)
            return found is not None and found.status.open

        return split(planned, in_log)

    def _refusal(self, topic: TopicName, name: str, error: PermanentError) -> SubscriptionResult | None:
        """Why the broker will not let the consumer in later either; None where it may."""
        if isinstance(error, NotFoundError):
            return not_found(Cause.NO_SUBSCRIPTION, str(error), name)
        if not isinstance(error, ConflictError):
            return refused(Cause.BROKER, str(error), name)
        # ConsumerBusy: another type is in use, or the subscription has as many consumers as it may have.
        found = self.ports.topics.subscriptions(topic).get(name)
        if found is None:
            return not_found(Cause.NO_SUBSCRIPTION, f"there is no subscription {name!r} any more", name)
        return check_subscription(name, found)

    def _confirm(
        self, snapshot: TopicSnapshot, name: str, planned: Sequence[PlannedCancellation], confirmed_ms: int
    ) -> None:
        # Counters that do not move prove nothing here: a broker may have read a message that it has yet to send.
        policy = snapshot.policy
        in_time, raced = split(
            planned, lambda one: not policy.may_be_dispatched(one.cancellation.deliver_at_ms, confirmed_ms)
        )
        self.store.index.learn_all(one.cancellation.at(CancellationStatus.ACKED) for one in in_time)
        self.store.finish([one.cancellation.at(CancellationStatus.RACED, Cause.DISPATCHED, _RACED) for one in raced])
        _set_result(raced, SubscriptionResult(name, CancellationStatus.RACED, Cause.DISPATCHED, _RACED))
        _set_result(in_time, SubscriptionResult(name, CancellationStatus.ACKED))

    def _count(self, plan: CancellationPlan, began_ms: int) -> None:
        self.metrics.requested(len(plan.target_plans))
        seconds = max(0, self.ports.clock.now_ms() - began_ms) / 1000
        counts = Counter(
            (one.status, one.cause) for target_plan in plan.target_plans for one in target_plan.results.values()
        )
        for (status, cause), count in counts.items():
            if status.open:
                self.metrics.reached(status.value, seconds, count)
            elif status is not CancellationStatus.EXPIRED:
                self.metrics.refused((cause or Cause.INVALID).value, count)


def _names_the_same(subscriptions: Mapping[str, Subscription], state: TopicInternalStats) -> bool:
    """Whether what was remembered of subscriptions is about those that exist now, no other and no fewer."""
    durable = {name for name, found in subscriptions.items() if found.durable}
    others = (subscriptions.keys() - durable) | SYSTEM_SUBSCRIPTIONS
    return durable - SYSTEM_SUBSCRIPTIONS == state.cursors.keys() - others


def _set_result(planned: Sequence[PlannedCancellation], result: SubscriptionResult) -> None:
    for one in planned:
        one.target_plan.results[result.subscription] = result


def _accept(name: str, planned: Sequence[PlannedCancellation], error: SidecarError) -> None:
    _set_result(
        planned, SubscriptionResult(name, CancellationStatus.ACCEPTED, Cause.BROKER, f"{_TRIED_AGAIN}: {error}")
    )


def refuse_copy(known: SubscriptionResult) -> SubscriptionResult:
    """The refusal to publish a message again that is cancelled on some subscription."""
    reason = f"the message is cancelled on {known.subscription!r} ({known.status.value}): a copy would bring it back"
    return refused(Cause.CANCELLED, reason, known.subscription)
