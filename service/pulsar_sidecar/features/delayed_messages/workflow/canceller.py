"""Execution of cancellations: read, decide, join, record, acknowledge, confirm.

Safety depends on the order: the sidecar acknowledges only what is in the log, and records only what may be cancelled.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from pulsar_sidecar.backlog.ports import EntryAnswer, EntryFacts
from pulsar_sidecar.features.delayed_messages.cancel.plan import (
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
from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation, CancelOptions, Target
from pulsar_sidecar.features.delayed_messages.metrics import CancellationMetrics
from pulsar_sidecar.features.delayed_messages.ports import TYPES_SECONDS, Ports
from pulsar_sidecar.features.delayed_messages.results import (
    CancellationStatus,
    Cause,
    MessageOutcome,
    Verdict,
    message_outcome,
)
from pulsar_sidecar.features.delayed_messages.workflow.cancellation_store import CancellationStore
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
from pulsar_sidecar.model.topic_stats import (
    SYSTEM_SUBSCRIPTIONS,
    Subscription,
    SubscriptionType,
    TopicInternalStats,
    remote_cluster,
)

_SOON_MS = 60_000
_WHERE_SECONDS = 10.0
"""Maximum age of a topic's list of ledgers, far from the due time; the entries are read each time."""
_FEW = 100
"""Up to this number, cancellations on a Shared subscription are recorded after the broker has admitted the sidecar's
consumer, which stays for milliseconds and takes no keys from others. A refusal then leaves nothing in the log."""
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
    """Canceller of batches of targets, on one topic without partitions (or one partition) at a time."""

    ports: Ports
    store: CancellationStore
    metrics: CancellationMetrics
    stop: threading.Event
    _readers: ThreadPoolExecutor = field(
        init=False, default_factory=lambda: ThreadPoolExecutor(16, thread_name_prefix="cancel-read")
    )

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)

    def cancel(
        self,
        topic: TopicName,
        targets: Sequence[Target],
        options: CancelOptions,
        known: Mapping[Position, EntryFacts] = {},
    ) -> list[MessageOutcome]:
        """Cancel targets and return one outcome for each, in order.

        ``known`` entries were read earlier; they are not read again while the topic has their ledger.

        Raises:
            NotFoundError: there is no such topic.
            TemporaryError: brokers, bookies or the log are unreachable; nothing was acknowledged that is not in the
                log.
        """
        self.store.await_log()
        began_ms = self.ports.clock.now_ms()
        snapshot = self._read_snapshot(topic, targets, known)
        plan = self._plan(targets, snapshot, options)
        for subscription, planned in plan.cancellations.items():
            self._carry_out(snapshot, subscription, planned, options)
        self._count(plan, began_ms)
        name = str(topic)
        return [
            message_outcome(name, one.position, tuple(one.verdicts.values()), one.warnings) for one in plan.target_plans
        ]

    def examine(self, topic: TopicName, target: Target) -> tuple[TopicSnapshot, Cancellation | Verdict]:
        """Check, without changes, if a message could be cancelled now on all of its subscriptions.

        Raises:
            NotFoundError: there is no such topic.
            TemporaryError: brokers or bookies are unreachable.
        """
        snapshot = self._read_snapshot(topic, [target])
        plan = self._plan([target], snapshot, CancelOptions())
        objection = next(iter(plan.target_plans[0].verdicts.values()), None)
        if objection is not None:
            return snapshot, refuse_copy(objection) if objection.proof.cancelled else objection
        for name, planned in plan.cancellations.items():
            in_log, _ = self._by_log(topic, name, planned)
            if in_log:
                return snapshot, refuse_copy(in_log[0].cancellation.verdict())
            if self._by_room(snapshot, name, planned)[1]:
                return snapshot, refused(Cause.ACK_STATE_FULL, _NO_ROOM, name)
        return snapshot, next(iter(plan.cancellations.values()))[0].cancellation

    def _read_snapshot(
        self, topic: TopicName, targets: Sequence[Target], known: Mapping[Position, EntryFacts] = {}
    ) -> TopicSnapshot:
        """Read everything that a decision needs; each cursor is read for this request."""
        topics = self.ports.topics
        soon_ms = self.ports.brokers_now_ms() + _SOON_MS
        # Judged by the due times that the caller gave.
        may_be_near = any(target.deliver_at_ms is None or target.deliver_at_ms < soon_ms for target in targets)
        age_seconds = 0.0 if may_be_near else TYPES_SECONDS
        subscriptions = topics.subscriptions(topic, max_age_seconds=age_seconds)
        states = self._readers.submit(topics.state, topic)
        policy = topics.delay_policy(topic)
        where_seconds = _WHERE_SECONDS if age_seconds else 0.0
        found: dict[Position, EntryAnswer] = {**known}
        if unread := {target.position for target in targets} - known.keys():
            found |= self.ports.entries.read(topic, unread, max_age_seconds=where_seconds, only_decisive=True)
        state = states.result()
        if age_seconds and not _names_the_same(subscriptions, state):
            subscriptions, state = topics.subscriptions(topic), topics.state(topic)
        dropped = {position.ledger_id for position in found} - state.ledgers.keys()
        if (where_seconds or known) and dropped:
            again = {position for position in found if position.ledger_id in dropped}
            found |= self.ports.entries.read(topic, again, only_decisive=True)
        chunks = self._chunks(topic, found)
        return TopicSnapshot(topic, subscriptions, state, policy, found, chunks, self.ports.brokers_now_ms())

    def _chunks(
        self, topic: TopicName, entries: Mapping[Position, EntryAnswer]
    ) -> dict[Position, Mapping[int, Position]]:
        found: dict[Position, Mapping[int, Position]] = {}
        for position, facts in entries.items():
            if isinstance(facts, EntryFacts) and facts.chunk is not None and facts.chunk.total > 1:
                near = self.ports.entries.read(topic, chunk_candidates(position, facts.chunk), only_decisive=True)
                found[position] = chunks_of(facts, {**near, position: facts})
        return found

    def _plan(self, targets: Sequence[Target], snapshot: TopicSnapshot, options: CancelOptions) -> CancellationPlan:
        """Return the plan; if an acknowledgement is unexplained, wait briefly for another sidecar's record."""
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
        """Record and acknowledge on one subscription; the reconciler acknowledges deferred ones."""
        now, later = self._by_room(snapshot, name, planned)
        if later and not options.defer:
            later, others = self._by_log(snapshot.topic, name, later)
            _set_verdict(others, refused(Cause.ACK_STATE_FULL, f"{_NO_ROOM}; {_ASK_TO_DEFER}", name))
        _set_verdict(later, Verdict(name, CancellationStatus.ACCEPTED, Cause.ACK_STATE_FULL, _DEFERRED))
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
        acked = snapshot.state.cursors[name].acknowledged
        entries = [entry for one in planned for entry in one.cancellation.entries]
        outside = beyond_limit(acked, entries, self.ports.max_ranges())
        return split(planned, lambda one: outside.isdisjoint(one.cancellation.entries)) if outside else (planned, ())

    def _acknowledge(
        self,
        snapshot: TopicSnapshot,
        joining: Subscription,
        planned: Sequence[PlannedCancellation],
        unrecorded: Sequence[Cancellation],
    ) -> None:
        """Join, record cancellations missing from the log, acknowledge, confirm; records precede acknowledgements."""
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
        """Handle the broker's refusal to admit the sidecar's consumer.

        Cancellations in the log stay there: another sidecar may be acknowledging them now, and the cursor decides how
        they end. Others are refused, unless the subscription was only busy.
        """
        refusal = self._refusal(topic, name, error) if unrecorded else None
        accepted, others = (planned, ()) if refusal is None else self._by_log(topic, name, planned)
        left_out = {id(one.cancellation) for one in others}
        self.store.record([one for one in unrecorded if id(one) not in left_out])
        _accept(name, accepted, error)
        if refusal is not None:
            _set_verdict(others, refusal)

    def _by_log(
        self, topic: TopicName, name: str, planned: Sequence[PlannedCancellation]
    ) -> tuple[Sequence[PlannedCancellation], Sequence[PlannedCancellation]]:
        def in_log(one: PlannedCancellation) -> bool:
            found = self.store.index.known(topic, one.cancellation.position, name)
            return found is not None and found.status.open

        return split(planned, in_log)

    def _refusal(self, topic: TopicName, name: str, error: PermanentError) -> Verdict | None:
        """Return the refusal if the broker will not admit the consumer later either; None if it may."""
        if isinstance(error, NotFoundError):
            return not_found(Cause.NO_SUBSCRIPTION, str(error), name)
        if not isinstance(error, ConflictError):
            return refused(Cause.BROKER, str(error), name)
        # ConsumerBusy: another type is in use, or the subscription has its maximum number of consumers.
        found = self.ports.topics.subscriptions(topic).get(name)
        if found is None:
            return not_found(Cause.NO_SUBSCRIPTION, f"there is no longer a subscription {name!r}", name)
        return check_subscription(name, found)

    def _confirm(
        self, snapshot: TopicSnapshot, name: str, planned: Sequence[PlannedCancellation], confirmed_ms: int
    ) -> None:
        # Unchanged counters prove nothing here: the broker may have read a message that it has not sent yet.
        dues = {one.cancellation.deliver_at_ms for one in planned}
        late = {due_ms for due_ms in dues if snapshot.policy.may_be_dispatched(due_ms, confirmed_ms)}
        in_time, raced = split(planned, lambda one: one.cancellation.deliver_at_ms not in late)
        self.store.index.learn_all(one.cancellation.at(CancellationStatus.ACKED) for one in in_time)
        self.store.finish([one.cancellation.at(CancellationStatus.RACED, Cause.DISPATCHED, _RACED) for one in raced])
        _set_verdict(raced, Verdict(name, CancellationStatus.RACED, Cause.DISPATCHED, _RACED))
        _set_verdict(in_time, Verdict(name, CancellationStatus.ACKED))

    def _count(self, plan: CancellationPlan, began_ms: int) -> None:
        self.metrics.requested(len(plan.target_plans))
        seconds = max(0, self.ports.clock.now_ms() - began_ms) / 1000
        # By identity, because most messages of a batch share their verdicts, and enums and dataclasses hash slowly.
        verdicts = [one for target_plan in plan.target_plans for one in target_plan.verdicts.values()]
        distinct = {id(one): one for one in verdicts}
        for which, count in Counter(map(id, verdicts)).items():
            one = distinct[which]
            if one.proof.open:
                self.metrics.reached(one.proof.value, seconds, count)
            elif one.proof is not CancellationStatus.EXPIRED:
                self.metrics.refused((one.cause or Cause.INVALID).value, count)


def _names_the_same(subscriptions: Mapping[str, Subscription], state: TopicInternalStats) -> bool:
    durable = {name for name, found in subscriptions.items() if found.durable}
    others = (subscriptions.keys() - durable) | SYSTEM_SUBSCRIPTIONS | set(filter(remote_cluster, state.cursors))
    return durable - SYSTEM_SUBSCRIPTIONS == state.cursors.keys() - others


def _set_verdict(planned: Sequence[PlannedCancellation], verdict: Verdict) -> None:
    for one in planned:
        one.target_plan.verdicts[verdict.subscription] = verdict


def _accept(name: str, planned: Sequence[PlannedCancellation], error: SidecarError) -> None:
    _set_verdict(planned, Verdict(name, CancellationStatus.ACCEPTED, Cause.BROKER, f"{_TRIED_AGAIN}: {error}"))


def refuse_copy(known: Verdict) -> Verdict:
    """Return the refusal to publish again a message that is cancelled on some subscription."""
    reason = f"the message is cancelled on {known.subscription!r} ({known.proof.value}): a copy would bring it back"
    return refused(Cause.CANCELLED, reason, known.subscription)
