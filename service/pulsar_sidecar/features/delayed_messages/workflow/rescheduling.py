"""Rescheduling: publish a waiting message again with another due time, and cancel the original (also expedite).

Safety depends on the order: read, record the intent in the log, publish, record the copy, cancel the original. An
intent publishes at most once. A sidecar that finds an intent without a copy (because the caller repeats the request, or
as the leader after a crash) searches for the copy by its property and continues from there; it never publishes another
copy.

The copy is published before the original is cancelled, and is never cancelled itself: another sidecar may have
continued the same intent and cancelled the original. So the message is delivered at least once, whatever fails.
"""

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import structlog

from pulsar_sidecar.backlog.ports import EntryAnswer, EntryFacts
from pulsar_sidecar.backlog.waiting import positions_of, waiting_entries
from pulsar_sidecar.features.delayed_messages.cancel.log_records import RescheduleIntent
from pulsar_sidecar.features.delayed_messages.cancel.plan import (
    TopicSnapshot,
    check_entry,
    choose_subscriptions,
    refused,
)
from pulsar_sidecar.features.delayed_messages.cancel.requests import CancelOptions, Target
from pulsar_sidecar.features.delayed_messages.ports import Ports
from pulsar_sidecar.features.delayed_messages.results import (
    CancellationStatus,
    Cause,
    RescheduleResult,
    Verdict,
    message_outcome,
)
from pulsar_sidecar.features.delayed_messages.workflow.cancellation_store import CancellationStore
from pulsar_sidecar.features.delayed_messages.workflow.canceller import Canceller, refuse_copy
from pulsar_sidecar.model.clocks import attempts
from pulsar_sidecar.model.errors import NotFoundError, OutcomeUnknownError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.observability.tracing import current_trace, identified

log = structlog.get_logger("delayed-delivery")

REPLACES_PROPERTY: Final = "pulsar-sidecar-replaces"
"""Property of a copy: the message id of the original."""
INTENT_PROPERTY: Final = "pulsar-sidecar-reissue"
"""Property of a copy: the token of the intent."""
_ROOM_MS = 2000
"""A message that is due sooner than this after the earliest dispatch is left alone: the broker soon delivers it."""
_READ_BACK_SECONDS = 10.0
_READ_BACK_EVERY_SECONDS = 0.01
_LEADER_WAITS_MS = 5000
"""Time that the leader leaves an intent to the sidecar that received the request."""
_LEADER_RETRIES_MS = 2000
_LONGEST_BACKOFF_MS = 60_000
_READ_AT_ONCE = 5000
_PORTIONS_AT_ONCE = 4
"""Portions of entries searched for one intent before other work gets its turn."""


@dataclass(frozen=True, slots=True)
class _CopySearch:
    """State of the search for an intent's copy; immutable, so several threads may search at a time.

    Attributes:
        until: position up to which all entries stored since the intent were read, except ``unreadable`` ones.
        parts: entries that carry the intent's token: the copy, or chunks of it.
        unreadable: entries that could not be read so far.
    """

    until: Position
    parts: Mapping[Position, EntryFacts] = field(default_factory=dict)
    unreadable: tuple[Position, ...] = ()

    def having_read(self, intent: RescheduleIntent, answers: Mapping[Position, EntryAnswer]) -> "_CopySearch":
        """Return the search after reading these entries, including all earlier unreadable ones."""
        parts = {
            at: facts
            for at, facts in answers.items()
            if isinstance(facts, EntryFacts) and facts.properties.get(INTENT_PROPERTY) == intent.token
        }
        unreadable = sorted(at for at, answer in answers.items() if isinstance(answer, Unreadable))
        return _CopySearch(max(self.until, *answers), {**self.parts, **parts}, tuple(unreadable))

    def copy(self) -> Position | None:
        """Return the position of the copy, or of its last chunk once all chunks were found."""
        chunks = {facts.chunk.chunk_id if facts.chunk else 0: position for position, facts in self.parts.items()}
        total = next((facts.chunk.total for facts in self.parts.values() if facts.chunk), 1)
        return max(chunks.values()) if chunks and len(chunks) == total else None


@dataclass(slots=True)
class _Progress:
    search: _CopySearch
    due_ms: int = 0
    wait_ms: int = _LEADER_RETRIES_MS
    logged: set[str] = field(default_factory=set)

    def postpone(self, now_ms: int, deliver_at_ms: int) -> None:
        """Back off exponentially, but not beyond the due time, after which the intent soon ends."""
        self.due_ms = min(now_ms + self.wait_ms, max(deliver_at_ms, now_ms + _LEADER_RETRIES_MS))
        self.wait_ms = min(2 * self.wait_ms, _LONGEST_BACKOFF_MS)

    def log_once(self, intent: RescheduleIntent, event: str, reason: str) -> None:
        if event not in self.logged:
            self.logged.add(event)
            subject = {"topic": str(intent.topic), "position": str(intent.position)}
            log.warning(event, **subject, reason=reason, requested_by=intent.requested_by)


@dataclass(slots=True)
class Rescheduler:
    """Rescheduler of one message at a time."""

    ports: Ports
    store: CancellationStore
    canceller: Canceller
    stop: threading.Event
    _progress: dict[str, _Progress] = field(init=False, default_factory=dict)

    def reschedule(
        self, topic: TopicName, target: Target, deliver_at_ms: int | None, options: CancelOptions
    ) -> RescheduleResult:
        """Reschedule as `DelayedDelivery.reschedule`; ``topic`` holds the entry."""
        self.store.await_log()
        if not self.store.follows:
            raise TemporaryError("the sidecar is not connected to its cancellation log; nothing was changed, try again")
        known = self.store.intents.valid((topic, target.position))
        begun = known or self._begin(topic, target, deliver_at_ms, options)
        if isinstance(begun, RescheduleIntent):
            objection = _other_request(begun, target, deliver_at_ms)
            if objection is None:
                return self._continue(begun)
            begun = objection
        return RescheduleResult(None, deliver_at_ms, message_outcome(topic, target.position, (begun,)))

    def _begin(
        self, topic: TopicName, target: Target, deliver_at_ms: int | None, options: CancelOptions
    ) -> RescheduleIntent | Verdict:
        """Return the valid intent, or the reason to leave the message alone."""
        snapshot, examined = self.canceller.examine(topic, target)
        if isinstance(examined, Verdict):
            # Another request may just have published the message again and cancelled it.
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
        # The log may have been slow: the message may be due or cancelled by now.
        cancelled = [one for one in self.store.index.find(*intent.message) if one.status.open]
        objection = self._objection(snapshot, target) or (refuse_copy(cancelled[0].verdict()) if cancelled else None)
        if objection is not None:
            self.store.intents.drop(intent)
            return objection
        return self._publish(intent, examined.entries)

    def _objection(self, snapshot: TopicSnapshot, target: Target) -> Verdict | None:
        if target.subscriptions:
            return _FOR_ALL
        chosen = choose_subscriptions((), snapshot.subscriptions)
        if chosen.refusals or len(chosen.warnings) > 1:
            reason = "; ".join([*(one.reason or "" for one in chosen.refusals), *chosen.warnings[1:]])
            return refused(Cause.SUBSCRIPTION_TYPE, f"a copy would be a second delivery for some: {reason}")
        soonest_ms = self.ports.brokers_now_ms() + snapshot.policy.earliest_lead_ms + _ROOM_MS
        checked = check_entry(target, snapshot.entries[target.position], snapshot.policy, soonest_ms)
        return checked if isinstance(checked, Verdict) else None

    def _recorded(self, intent: RescheduleIntent) -> RescheduleIntent:
        """Record the intent, read the log back up to it, and return the valid intent."""
        try:
            self.store.intents.write(intent)
        except SidecarError:
            # It may be stored all the same, and would block later requests for the message.
            self.store.intents.drop(intent)
            raise
        for _ in attempts(self.ports.clock, _READ_BACK_SECONDS, _READ_BACK_EVERY_SECONDS, self.stop):
            if self.store.follows and self.store.intents.holds(intent):
                return self.store.intents.valid(intent.message) or intent
        self.store.intents.drop(intent)
        raise TemporaryError("the sidecar does not keep up with its cancellation log; nothing was published, try again")

    def _written(self, intent: RescheduleIntent) -> RescheduleIntent:
        self.store.intents.write(intent)
        return intent

    def _publish(self, intent: RescheduleIntent, entries: Sequence[Position]) -> RescheduleIntent:
        properties = {REPLACES_PROPERTY: str(intent.position), INTENT_PROPERTY: intent.token}
        try:
            copy = self.ports.republisher.republish(intent.topic, entries, intent.new_deliver_at_ms, properties)
        except OutcomeUnknownError as error:
            log.warning("copy may have been published", topic=str(intent.topic), error=str(error))
            return intent
        except SidecarError:
            self.store.intents.drop(intent)  # nothing was published
            raise
        return self._written(intent._replace(copy=copy))

    def _continue(self, intent: RescheduleIntent) -> RescheduleResult:
        """Continue from the intent's state; nothing is done twice."""
        if intent.copy is None:
            found = self._found(intent)
            if found is None:
                reason = (
                    f"{_UNCONFIRMED} the message stays due at {intent.deliver_at_ms}; repeat the request to look again"
                )
                verdict = Verdict(None, CancellationStatus.UNKNOWN, Cause.UNCONFIRMED, reason)
                return RescheduleResult(None, intent.new_deliver_at_ms, message_outcome(*intent.message, (verdict,)))
            intent = self._written(intent._replace(copy=found))
        verdicts = self._known(intent) if intent.done else self._finish(intent)
        return RescheduleResult(intent.copy, intent.new_deliver_at_ms, message_outcome(*intent.message, verdicts))

    def _finish(self, intent: RescheduleIntent) -> tuple[Verdict, ...]:
        old = Target(intent.position, intent.deliver_at_ms)
        options = CancelOptions(defer=True, requested_by=intent.requested_by)
        (outcome,) = self.canceller.cancel(intent.topic, [old], options)
        if all(_is_final(one.proof) for one in outcome.verdicts):
            self._written(intent._replace(done=True))  # otherwise the leader retries
        return outcome.verdicts

    def _known(self, intent: RescheduleIntent) -> tuple[Verdict, ...]:
        known = {one.subscription: one.verdict() for one in self.store.index.find(*intent.message)}
        subscriptions = self.ports.topics.subscriptions(intent.topic)
        for name in {one.name for one in choose_subscriptions((), subscriptions).admitted} - known.keys():
            known[name] = Verdict(name, CancellationStatus.UNKNOWN, Cause.UNWATCHED, _NOT_KNOWN)
        return tuple(known.values()) or (Verdict(None, CancellationStatus.UNKNOWN, Cause.UNWATCHED, _NOT_KNOWN),)

    def _found(self, intent: RescheduleIntent) -> str | None:
        """Return the message id of the copy if it is among the entries stored since the intent, or None.

        The leader remembers the state of its search, and reads a few portions at a time so that other work need not
        wait.
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
        """Finish intents that this or another sidecar left incomplete; drop those past their due time."""
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
            progress.log_once(intent, "republishing message failed; will retry", str(error))

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
                done = self._continue(intent)
                if done.message_id is None:
                    reasons = "; ".join(one.reason or one.proof.value for one in done.outcome.verdicts)
                    progress.log_once(intent, "message not republished", reasons)
        finally:
            if is_over:
                self.store.intents.drop(intent)


def _is_final(status: CancellationStatus) -> bool:
    """Return True if the original needs no other attempt: it is cancelled, will be by the log, or cannot be."""
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
    """Return the position beyond which all entries published from now on lie."""
    last, ledger = snapshot.state.last_confirmed, snapshot.state.written_ledger
    return last if ledger is None else max(last, Position(ledger, EntryId(-1)))


def _other_request(intent: RescheduleIntent, target: Target, deliver_at_ms: int | None) -> Verdict | None:
    """Return the refusal if a request differs from the recorded intent, or None."""
    if target.subscriptions:
        return _FOR_ALL
    if target.deliver_at_ms not in (None, intent.deliver_at_ms):
        return refused(Cause.OTHER_DELIVER_AT, f"the message's deliverAt is {intent.deliver_at_ms}")
    if deliver_at_ms == intent.new_deliver_at_ms:
        return None
    due = "now" if intent.new_deliver_at_ms is None else f"due at {intent.new_deliver_at_ms}"
    copy = f"as {intent.copy}; name that message" if intent.copy else "and its copy is not known yet"
    return refused(Cause.PUBLISHED_AGAIN, f"the message was published again before, {due}, {copy}")


_NOT_KNOWN = "the copy is stored; it is not, or no longer, known whether the original was cancelled in time"
_FOR_ALL = refused(Cause.INVALID, "a copy goes to every subscription; leave subscriptionNames out")
_UNCONFIRMED = (
    "the broker did not confirm the copy, and none has been found so far: it may still be stored. Nothing is published "
    "a second time, and"
)
