"""Publishes a waiting message again with another due time, and cancels the old one (expedite, reschedule).

The order is part of the safety: look, record the intent in the log, publish, record the copy, cancel the old message.
An intent publishes at most once. A sidecar that finds an intent without a copy (because the caller asks again, or as
the leading sidecar after a crash) looks for the copy by its property and continues from there; it never publishes
another one.

The copy is published before the old message is cancelled, and is never cancelled itself: another sidecar may have
continued with the same intent and cancelled the old message. So the message is delivered at least once, whatever
breaks.
"""

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import structlog

from pulsar_sidecar.delayed_delivery.backlog import positions_of, waiting_entries
from pulsar_sidecar.delayed_delivery.cancel.log_records import RescheduleIntent
from pulsar_sidecar.delayed_delivery.cancel.plan import TopicSnapshot, check_entry, choose_subscriptions, refused
from pulsar_sidecar.delayed_delivery.cancel.requests import (
    CancellationStatus,
    CancelOptions,
    Cause,
    Rescheduled,
    SubscriptionResult,
    Target,
    TargetOutcome,
)
from pulsar_sidecar.delayed_delivery.ports import Configuration, EntryAnswer, EntryFacts, Ports
from pulsar_sidecar.delayed_delivery.workflow.cancellation_store import CancellationStore
from pulsar_sidecar.delayed_delivery.workflow.canceller import Canceller, refuse_copy
from pulsar_sidecar.model.errors import NotFoundError, OutcomeUnknownError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.observability.tracing import current_trace, identified

log = structlog.get_logger("delayed-delivery")

REPLACES_PROPERTY: Final = "pulsar-sidecar-replaces"
"""On a message that was published again: the message id of the one that it replaces."""
INTENT_PROPERTY: Final = "pulsar-sidecar-reissue"
"""On a message that was published again: the token of the intent."""
_ROOM_MS = 2000
"""A message that is due sooner than this after the earliest dispatch is left alone: it comes by itself."""
_READ_BACK_SECONDS = 10.0
_READ_BACK_EVERY_SECONDS = 0.01
_LEADER_WAITS_MS = 5000
"""How long the leading sidecar leaves an intent to the sidecar that got the request."""
_LEADER_RETRIES_MS = 2000
_LONGEST_BACKOFF_MS = 60_000
_READ_AT_ONCE = 5000
_PORTIONS_AT_ONCE = 4
"""So much of what was stored since an intent is looked at before other work gets its turn."""


@dataclass(frozen=True, slots=True)
class _CopySearch:
    """How far an intent's copy has been looked for; several threads may look at a time, each from what it found.

    Attributes:
        until: everything stored since the intent up to here was read, but for what is ``unreadable``.
        parts: the entries that carry the intent's token: the copy, or chunks of it.
        unreadable: entries that could not be read so far.
    """

    until: Position
    parts: Mapping[Position, EntryFacts] = field(default_factory=dict)
    unreadable: tuple[Position, ...] = ()

    def having_read(self, intent: RescheduleIntent, answers: Mapping[Position, EntryAnswer]) -> "_CopySearch":
        """The search after these entries, among them all that had been unreadable."""
        parts = {
            at: facts
            for at, facts in answers.items()
            if isinstance(facts, EntryFacts) and facts.properties.get(INTENT_PROPERTY) == intent.token
        }
        unreadable = sorted(at for at, answer in answers.items() if isinstance(answer, Unreadable))
        return _CopySearch(max(self.until, *answers), {**self.parts, **parts}, tuple(unreadable))

    def copy(self) -> Position | None:
        """The copy: its last chunk, if it has several and all of them are there."""
        chunks = {facts.chunk.chunk_id if facts.chunk else 0: position for position, facts in self.parts.items()}
        total = next((facts.chunk.total for facts in self.parts.values() if facts.chunk), 1)
        return max(chunks.values()) if chunks and len(chunks) == total else None


@dataclass(slots=True)
class _Progress:
    """How far the leading sidecar has come with an intent, and when it tries again."""

    search: _CopySearch
    due_ms: int = 0
    wait_ms: int = _LEADER_RETRIES_MS
    logged: set[str] = field(default_factory=set)

    def postpone(self, now_ms: int, deliver_at_ms: int) -> None:
        """Wait longer each time, but not beyond the due time; after it the intent is soon over."""
        self.due_ms = min(now_ms + self.wait_ms, max(deliver_at_ms, now_ms + _LEADER_RETRIES_MS))
        self.wait_ms = min(2 * self.wait_ms, _LONGEST_BACKOFF_MS)

    def log_once(self, intent: RescheduleIntent, event: str, reason: str) -> None:
        if event not in self.logged:
            self.logged.add(event)
            subject = {"topic": str(intent.topic), "position": str(intent.position)}
            log.warning(event, **subject, reason=reason, requested_by=intent.requested_by)


@dataclass(slots=True)
class Rescheduler:
    """Publishes one message again at a time."""

    ports: Ports
    store: CancellationStore
    canceller: Canceller
    configuration: Configuration
    stop: threading.Event
    _progress: dict[str, _Progress] = field(init=False, default_factory=dict)

    def reschedule(
        self, topic: TopicName, target: Target, deliver_at_ms: int | None, options: CancelOptions
    ) -> Rescheduled:
        """See `DelayedDelivery.reschedule`; ``topic`` holds the entry."""
        self.store.await_log()
        if not self.store.follows:
            raise TemporaryError("the sidecar is not connected to its cancellation log; nothing was changed, try again")
        known = self.store.intents.valid((topic, target.position))
        begun = known or self._begin(topic, target, deliver_at_ms, options)
        if isinstance(begun, RescheduleIntent):
            objection = _other_request(begun, target, deliver_at_ms)
            if objection is None:
                return self._continue(begun, target)
            begun = objection
        return Rescheduled(None, deliver_at_ms, TargetOutcome(topic, target, (begun,)))

    def _begin(
        self, topic: TopicName, target: Target, deliver_at_ms: int | None, options: CancelOptions
    ) -> RescheduleIntent | SubscriptionResult:
        """The intent that counts now, or why the message is left alone."""
        snapshot, examined = self.canceller.examine(topic, target)
        if isinstance(examined, SubscriptionResult):
            # Another request may just have published it again, and cancelled it.
            return self.store.intents.valid((topic, target.position)) or examined
        objection = self._objection(snapshot, target)
        if objection is not None:
            return objection
        intent = RescheduleIntent(
            topic,
            target.position,
            secrets.token_hex(8),
            examined.deliver_at_ms,
            deliver_at_ms,
            self.ports.clock.now_ms(),
            _stored_until(snapshot),
            options.requested_by,
            request_id=current_trace().request_id,
        )
        valid = self._recorded(intent)
        if valid.token != intent.token:
            self.store.intents.drop(intent)
            return valid
        # The log may have been slow to come back: the message may be due by now, or cancelled.
        cancelled = [one for one in self.store.index.find(*intent.message) if one.status.open]
        objection = self._objection(snapshot, target) or (refuse_copy(cancelled[0].result()) if cancelled else None)
        if objection is not None:
            self.store.intents.drop(intent)
            return objection
        return self._publish(intent, examined.entries)

    def _objection(self, snapshot: TopicSnapshot, target: Target) -> SubscriptionResult | None:
        if target.subscriptions:
            return _FOR_ALL
        chosen = choose_subscriptions((), snapshot.subscriptions)
        if chosen.refusals or len(chosen.warnings) > 1:
            reason = "; ".join([*(one.reason or "" for one in chosen.refusals), *chosen.warnings[1:]])
            return refused(Cause.SUBSCRIPTION_TYPE, f"a copy would be a second delivery for some: {reason}")
        soonest_ms = self.ports.brokers_now_ms() + snapshot.policy.earliest_lead_ms + _ROOM_MS
        checked = check_entry(target, snapshot.entries[target.position], snapshot.policy, soonest_ms)
        return checked if isinstance(checked, SubscriptionResult) else None

    def _recorded(self, intent: RescheduleIntent) -> RescheduleIntent:
        """The intent that counts once this one has come back from the log, and with it everything written before."""
        try:
            self.store.intents.write(intent)
        except SidecarError:
            self.store.intents.drop(
                intent
            )  # it may be stored all the same, and would keep the message from being asked for
            raise
        clock = self.ports.clock
        give_up = clock.monotonic_seconds() + _READ_BACK_SECONDS
        while not (self.store.follows and self.store.intents.holds(intent)):
            if clock.monotonic_seconds() > give_up:
                self.store.intents.drop(intent)
                raise TemporaryError(
                    "the sidecar does not keep up with its cancellation log; nothing was published, try again"
                )
            clock.wait_seconds(_READ_BACK_EVERY_SECONDS, self.stop)
        return self.store.intents.valid(intent.message) or intent

    def _written(self, intent: RescheduleIntent) -> RescheduleIntent:
        self.store.intents.write(intent)
        return intent

    def _publish(self, intent: RescheduleIntent, entries: Sequence[Position]) -> RescheduleIntent:
        properties = {REPLACES_PROPERTY: str(intent.position), INTENT_PROPERTY: intent.token}
        try:
            copy = self.ports.republisher.republish(intent.topic, entries, intent.new_deliver_at_ms, properties)
        except OutcomeUnknownError as error:
            log.warning("a copy may have been published", topic=str(intent.topic), error=str(error))
            return intent
        except SidecarError:
            self.store.intents.drop(intent)  # nothing was published
            raise
        return self._written(intent._replace(copy=copy))

    def _continue(self, intent: RescheduleIntent, target: Target) -> Rescheduled:
        """From where the intent has come to; nothing is done twice."""
        if intent.copy is None:
            found = self._found(intent)
            if found is None:
                reason = (
                    f"{_UNCONFIRMED} the message stays due at {intent.deliver_at_ms}; repeat the request to look again"
                )
                result = SubscriptionResult(None, CancellationStatus.UNKNOWN, Cause.UNCONFIRMED, reason)
                return Rescheduled(None, intent.new_deliver_at_ms, TargetOutcome(intent.topic, target, (result,)))
            intent = self._written(intent._replace(copy=found))
        results = self._known(intent) if intent.done else self._finish(intent)
        return Rescheduled(intent.copy, intent.new_deliver_at_ms, TargetOutcome(intent.topic, target, results))

    def _finish(self, intent: RescheduleIntent) -> tuple[SubscriptionResult, ...]:
        """Cancel the old message."""
        old = Target(intent.position, intent.deliver_at_ms)
        options = CancelOptions(defer=True, requested_by=intent.requested_by)
        (outcome,) = self.canceller.cancel(intent.topic, [old], options)
        if all(_is_final(one.status) for one in outcome.results):
            self._written(intent._replace(done=True))  # otherwise the leading sidecar tries again
        return outcome.results

    def _known(self, intent: RescheduleIntent) -> tuple[SubscriptionResult, ...]:
        """The results for the old message, on each subscription."""
        known = {one.subscription: one.result() for one in self.store.index.find(*intent.message)}
        subscriptions = self.ports.topics.subscriptions(intent.topic)
        for name in {one.name for one in choose_subscriptions((), subscriptions).admitted} - known.keys():
            known[name] = SubscriptionResult(name, CancellationStatus.UNKNOWN, Cause.UNWATCHED, _NOT_KNOWN)
        return tuple(known.values()) or (
            SubscriptionResult(None, CancellationStatus.UNKNOWN, Cause.UNWATCHED, _NOT_KNOWN),
        )

    def _found(self, intent: RescheduleIntent) -> str | None:
        """The message id of the copy, looked for among what was stored since the intent.

        The leading sidecar remembers how far it has looked; a few portions at a time, so that nothing waits for it.
        """
        topic, known = intent.topic, self._progress.get(intent.token)
        search = known.search if known else _CopySearch(intent.after)
        stored = self.ports.topics.state(topic).ledgers
        positions = positions_of(waiting_entries(stored, [PositionRanges(search.until)]))
        for number in range(_PORTIONS_AT_ONCE):
            fresh = list(islice(positions, max(0, _READ_AT_ONCE - len(search.unreadable))))
            portion = [*search.unreadable, *fresh]
            if not portion or (number and not fresh):
                break
            search = search.having_read(intent, self.ports.entries.read(topic, portion))
            if known:
                known.search = search
            found = search.copy()
            if found is not None:
                index = topic.partition_index
                return f"{found}:{-1 if index is None else index}"
        if search.unreadable:
            raise TemporaryError(
                f"the sidecar looked for the copy on {topic}, and an entry could not be read; try again"
            )
        return None

    def round(self) -> None:
        """Finish what other sidecars, or this one, left behind; forget what is over."""
        before, intents = self._progress, self.store.intents.all() if self.store.follows else []
        self._progress = {one.token: before.get(one.token) or _Progress(_CopySearch(one.after)) for one in intents}
        for intent in intents:
            progress = self._progress[intent.token]
            if self._is_due(intent, progress):
                progress.postpone(self.ports.clock.now_ms(), intent.deliver_at_ms)
                with identified(intent.request_id):
                    self._try_to_advance(intent, progress)

    def _try_to_advance(self, intent: RescheduleIntent, progress: _Progress) -> None:
        try:
            self._advance(intent, progress)
        except NotFoundError:
            self.store.intents.drop(intent)  # the topic is gone
        except SidecarError as error:
            progress.log_once(intent, "publishing a message again failed; the sidecar tries again", str(error))

    def _is_due(self, intent: RescheduleIntent, progress: _Progress) -> bool:
        now_ms = self.ports.clock.now_ms()
        if intent.done and self.ports.brokers_now_ms() < intent.deliver_at_ms:
            return False
        return now_ms >= max(progress.due_ms, intent.requested_ms + _LEADER_WAITS_MS)

    def _advance(self, intent: RescheduleIntent, progress: _Progress) -> None:
        policy = self.ports.topics.delay_policy(intent.topic)
        is_over = intent.deliver_at_ms <= policy.expired_before_ms(self.ports.brokers_now_ms())
        is_valid = self.store.intents.valid(intent.message) == intent
        try:
            if is_valid and not intent.done:
                done = self._continue(intent, Target(intent.position, intent.deliver_at_ms))
                if done.message_id is None:
                    reasons = "; ".join(one.reason or one.status.value for one in done.outcome.results)
                    progress.log_once(intent, "a message was not published again", reasons)
        finally:
            if is_over:
                self.store.intents.drop(intent)


def _is_final(status: CancellationStatus) -> bool:
    """Whether the old message needs no other attempt: it is cancelled, or will be from the log, or cannot be."""
    match status:
        case CancellationStatus.REFUSED:
            return False
        case CancellationStatus.ACCEPTED | CancellationStatus.ACKED | CancellationStatus.PERSISTED:
            return True
        case CancellationStatus.EXPIRED | CancellationStatus.TOO_LATE | CancellationStatus.RACED:
            return True
        case CancellationStatus.UNKNOWN | CancellationStatus.NOT_FOUND:
            return True


def _stored_until(snapshot: TopicSnapshot) -> Position:
    """The position beyond which everything lies that is published from now on."""
    last, ledger = snapshot.state.last_confirmed, snapshot.state.written_ledger
    return last if ledger is None else max(last, Position(ledger, EntryId(-1)))


def _other_request(intent: RescheduleIntent, target: Target, deliver_at_ms: int | None) -> SubscriptionResult | None:
    """Why a request does not continue with an intent: it asks for something else."""
    if target.subscriptions:
        return _FOR_ALL
    if target.deliver_at_ms not in (None, intent.deliver_at_ms):
        return refused(Cause.OTHER_DELIVER_AT, f"the message's deliverAt is {intent.deliver_at_ms}")
    if deliver_at_ms == intent.new_deliver_at_ms:
        return None
    due = "now" if intent.new_deliver_at_ms is None else f"due at {intent.new_deliver_at_ms}"
    copy = f"as {intent.copy}; name that message" if intent.copy else "and its copy is not known yet"
    return refused(Cause.PUBLISHED_AGAIN, f"the message was published again before, {due}, {copy}")


_NOT_KNOWN = "the copy is stored; whether the old message was cancelled in time is not known (any more)"
_FOR_ALL = refused(Cause.INVALID, "a copy goes to every subscription; leave subscriptionNames out")
_UNCONFIRMED = (
    "the broker did not confirm the copy, and none has been found so far: it may still be stored. Nothing is published "
    "a second time, and"
)
