"""Publishes a waiting message again with another due time, and cancels the old one (expedite, reschedule).

The order is part of the safety: look, record the intent in the log, publish, record the copy, cancel the old message.
An intent publishes at most once. Whoever finds an intent without a copy (the caller who asks again, or the leading
sidecar after a crash) looks for the copy by its property and goes on from there; he never publishes another one.

The copy is published before the old message is cancelled, so whatever breaks, the message is delivered at least once.
"""

import secrets
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import structlog

from service.delayed_delivery.asserting import over_by_ms
from service.delayed_delivery.cancelling import CancelOptions, Cause, Outcome, Proof, Target, Verdict
from service.delayed_delivery.checking import check_entry, choose_subscriptions
from service.delayed_delivery.facts import EntryAnswer, Unreadable
from service.delayed_delivery.operating import Reissued, linked
from service.delayed_delivery.planning import Looked
from service.delayed_delivery.ports import WholeMessage
from service.delayed_delivery.reissue_intents import REISSUE_PROPERTY, ReissueIntent, carries, copy_among
from service.delayed_delivery.selecting import positions_after
from service.delayed_delivery.workflow.canceller import Canceller
from service.delayed_delivery.workflow.world import Configuration, Memory, World
from service.model.errors import NotFoundError, OutcomeUnknownError, SidecarError, TemporaryError
from service.model.ids import EntryId, LedgerId
from service.model.names import TopicName
from service.model.positions import Position

log = structlog.get_logger("delayed-delivery")

_ROOM_MS = 2000
"""A message that is due sooner than this after the earliest dispatch is left alone: it comes by itself."""
_READ_BACK_SECONDS = 10.0
_READ_BACK_EVERY_SECONDS = 0.01
_LEADER_WAITS_MS = 5000
"""So long the leading sidecar leaves an intent to the sidecar that was asked."""
_LEADER_RETRIES_MS = 2000
_READ_AT_ONCE = 5000


class Reissuer:
    """One message at a time."""

    def __init__(
        self, world: World, memory: Memory, canceller: Canceller, configuration: Configuration, stop: threading.Event
    ) -> None:
        self._world = world
        self._memory = memory
        self._intents = memory.intents
        self._canceller = canceller
        self._configuration = configuration
        self._stop = stop
        self._tried_ms: dict[str, int] = {}

    # --- asked -----------------------------------------------------------------------------------------------------

    def reissue(self, topic: TopicName, target: Target, deliver_at_ms: int | None, options: CancelOptions) -> Reissued:
        """See `operating.DelayedDeliveryService.reissue`; ``topic`` holds the entry."""
        self._memory.await_log(self._configuration.log_patience_ms)
        if not self._memory.follows:
            raise TemporaryError("the sidecar is not connected to its cancellation log; nothing was done, try again")
        intent = self._intents.valid((topic, target.position))
        is_own = False
        if intent is None:
            begun = self._begin(topic, target, deliver_at_ms, options)
            if isinstance(begun, Verdict):
                return Reissued(None, deliver_at_ms, Outcome(topic, target, (begun,)))
            intent, is_own = begun
        objection = _other_request(intent, target, deliver_at_ms)
        if objection is not None:
            return Reissued(None, deliver_at_ms, Outcome(topic, target, (objection,)))
        return self._go_on(intent, target, is_own=is_own)

    def _begin(
        self, topic: TopicName, target: Target, deliver_at_ms: int | None, options: CancelOptions
    ) -> tuple[ReissueIntent, bool] | Verdict:
        """The intent that counts now, and whether it is this one; or why the message is left alone."""
        looked, wanted = self._canceller.examine(topic, target)
        if isinstance(wanted, Verdict):
            return wanted
        objection = self._objection(looked, target)
        if objection is not None:
            return objection
        intent = ReissueIntent(
            topic,
            target.position,
            secrets.token_hex(8),
            wanted.deliver_at_ms,
            deliver_at_ms,
            self._world.clock.now_ms(),
            _stored_until(looked),
            options.requested_by,
        )
        valid = self._recorded(intent)
        if valid.token != intent.token:
            self._intents.drop(intent)
            return valid, False
        return self._publish(intent, wanted.entries), True

    def _objection(self, looked: Looked, target: Target) -> Verdict | None:
        if target.subscriptions:
            return _FOR_ALL
        chosen = choose_subscriptions((), looked.subscriptions)
        if chosen.others or len(chosen.warnings) > 1:
            reason = "; ".join([*(one.reason or "" for one in chosen.others), *chosen.warnings[1:]])
            return _refused(Cause.SUBSCRIPTION_TYPE, f"a copy would be a second delivery for some: {reason}")
        soonest_ms = self._world.brokers_now_ms() + looked.policy.earliest_lead_ms + _ROOM_MS
        checked = check_entry(target, looked.entries[target.position], looked.policy, soonest_ms)
        return checked if isinstance(checked, Verdict) else None

    def _recorded(self, intent: ReissueIntent) -> ReissueIntent:
        """The intent that counts once this one has come back from the log, and with it everything written before."""
        self._intents.write(intent)
        clock = self._world.clock
        give_up = clock.monotonic_seconds() + _READ_BACK_SECONDS
        while not self._intents.holds(intent):
            if clock.monotonic_seconds() > give_up:
                self._intents.drop(intent)
                raise TemporaryError("the sidecar does not keep up with its cancellation log; nothing was published")
            clock.wait_seconds(_READ_BACK_EVERY_SECONDS, self._stop)
        return self._intents.valid((intent.topic, intent.position)) or intent

    def _publish(self, intent: ReissueIntent, entries: Sequence[Position]) -> ReissueIntent:
        message = WholeMessage(intent.topic, tuple(entries))
        properties = linked(intent.position, {REISSUE_PROPERTY: intent.token})
        try:
            copy = self._world.republisher.republish(message, intent.new_deliver_at_ms, properties)
        except OutcomeUnknownError as error:
            log.warning("a copy may have been published", topic=str(intent.topic), error=str(error))
            return intent
        except SidecarError:
            self._intents.drop(intent)  # nothing was published
            raise
        return self._with_copy(intent, copy)

    # --- going on --------------------------------------------------------------------------------------------------

    def _go_on(self, intent: ReissueIntent, target: Target, *, is_own: bool) -> Reissued:
        """From wherever the intent has come to; what is done already is not done again."""
        if intent.copy is None:
            found = self._found(intent)
            if found is None:
                verdict = Verdict(None, Proof.UNKNOWN, Cause.UNCONFIRMED, _unconfirmed(intent))
                return Reissued(None, intent.new_deliver_at_ms, Outcome(intent.topic, target, (verdict,)))
            intent = self._with_copy(intent, found)
        if intent.done:
            verdicts = tuple(one.verdict() for one in self._memory.find(intent.topic, intent.position))
            return Reissued(intent.copy, intent.new_deliver_at_ms, Outcome(intent.topic, target, verdicts))
        outcome, taken_back = self._finish(intent, is_own=is_own)
        copy = None if taken_back and not any(one.proof.cancelled for one in outcome.verdicts) else intent.copy
        return Reissued(copy, intent.new_deliver_at_ms, outcome._replace(target=target))

    def _finish(self, intent: ReissueIntent, *, is_own: bool) -> tuple[Outcome, bool]:
        """Cancel the old message; where it certainly was dispatched before, cancel the copy. Whether that was so.

        Who goes on with another's intent cancels no copy: the old message may have been cancelled already, and its
        cancellation have ended and be forgotten. Delivered twice is better than not at all.
        """
        old = Target(intent.position, intent.deliver_at_ms)
        options = CancelOptions(defer=True, requested_by=intent.requested_by)
        (outcome,) = self._canceller.cancel(intent.topic, [old], options)
        if any(one.proof is Proof.REFUSED for one in outcome.verdicts):
            return outcome, False  # the leading sidecar tries again
        too_late = self._too_late_on(intent, outcome) if is_own and intent.new_deliver_at_ms is not None else ()
        if too_late:
            copy = Target(_position(intent), intent.new_deliver_at_ms, None, too_late)
            self._canceller.cancel(intent.topic, [copy], options)
        self._intents.write(replace(intent, done=True))
        return outcome, bool(too_late)

    def _too_late_on(self, intent: ReissueIntent, outcome: Outcome) -> tuple[str, ...]:
        """The subscriptions on which the old message was dispatched, or acknowledged by somebody else."""
        late = [one.subscription for one in outcome.verdicts if one.proof is Proof.TOO_LATE]
        if None not in late:
            return tuple(name for name in late if name is not None)
        chosen = choose_subscriptions((), self._world.topics.subscriptions(intent.topic))
        return tuple(one.name for one in chosen.admitted)

    def _with_copy(self, intent: ReissueIntent, copy: str) -> ReissueIntent:
        known = replace(intent, copy=copy)
        self._intents.write(known)
        return known

    def _found(self, intent: ReissueIntent) -> str | None:
        """The message id of the copy, looked for among everything that was stored since the intent."""
        topics, topic = self._world.topics, intent.topic
        state = topics.state(topic)
        if intent.after.ledger_id not in {span.ledger_id for span in state.ledgers}:
            return None  # what was stored then has been trimmed
        positions = iter(positions_after(state, intent.after))
        answers: list[tuple[Position, EntryAnswer]] = []
        while portion := list(islice(positions, _READ_AT_ONCE)):
            read = self._world.entries.read(topic, portion)
            if any(isinstance(one, Unreadable) for one in read.values()):
                raise TemporaryError(f"the copy was looked for on {topic}, and an entry could not be read; try again")
            answers += (one for one in read.items() if carries(intent, one[1]))
        found = copy_among(intent, answers)
        index = topic.partition_index
        return None if found is None else f"{found}:{-1 if index is None else index}"

    # --- leading ---------------------------------------------------------------------------------------------------

    def round(self) -> None:
        """Finish what other sidecars, or this one, left behind; forget what is over."""
        intents = self._intents.all() if self._memory.follows else []
        for token in self._tried_ms.keys() - {one.token for one in intents}:
            del self._tried_ms[token]
        for intent in intents:
            if self._is_due(intent):
                self._tried_ms[intent.token] = self._world.clock.now_ms()
                self._see_to_or_postpone(intent)

    def _is_due(self, intent: ReissueIntent) -> bool:
        now_ms = self._world.clock.now_ms()
        if intent.done and self._world.brokers_now_ms() < intent.deliver_at_ms:
            return False
        is_left = now_ms - intent.requested_ms >= _LEADER_WAITS_MS
        return is_left and now_ms - self._tried_ms.get(intent.token, 0) >= _LEADER_RETRIES_MS

    def _see_to_or_postpone(self, intent: ReissueIntent) -> None:
        try:
            self._see_to(intent)
        except NotFoundError:
            self._intents.drop(intent)  # the topic is gone
        except SidecarError as error:
            log.warning(
                "a message that was published again is seen to later", error=str(error), topic=str(intent.topic)
            )

    def _see_to(self, intent: ReissueIntent) -> None:
        policy = self._world.topics.delay_policy(intent.topic)
        is_over = intent.deliver_at_ms <= over_by_ms(policy, self._world.brokers_now_ms())
        is_valid = self._intents.valid((intent.topic, intent.position)) == intent
        if is_valid and not intent.done:
            done = self._go_on(intent, Target(intent.position, intent.deliver_at_ms), is_own=False)
            if done.message_id is None:
                _report(intent, done.outcome)
        if is_over:
            self._intents.drop(intent)


def _stored_until(looked: Looked) -> Position:
    """Whatever is published from now on lies beyond it."""
    last, ledger = looked.state.last_confirmed, looked.state.written_ledger
    return last if ledger is None else max(last, Position(ledger, EntryId(-1)))


def _other_request(intent: ReissueIntent, target: Target, deliver_at_ms: int | None) -> Verdict | None:
    """Why a request does not go on with an intent: it asks for something else."""
    if target.subscriptions:
        return _FOR_ALL
    if target.deliver_at_ms not in (None, intent.deliver_at_ms):
        return _refused(Cause.OTHER_DELIVER_AT, f"the message's deliverAt is {intent.deliver_at_ms}")
    if deliver_at_ms == intent.new_deliver_at_ms:
        return None
    due = "now" if intent.new_deliver_at_ms is None else f"due at {intent.new_deliver_at_ms}"
    copy = f"as {intent.copy}; name that message" if intent.copy else "and its copy is not known yet"
    return _refused(Cause.REISSUED, f"the message was published again before, {due}, {copy}")


def _position(intent: ReissueIntent) -> Position:
    assert intent.copy is not None
    ledger_id, entry_id = (int(part) for part in intent.copy.split(":")[:2])
    return Position(LedgerId(ledger_id), EntryId(entry_id))


def _refused(cause: Cause, reason: str) -> Verdict:
    return Verdict(None, Proof.REFUSED, cause, reason)


_FOR_ALL = _refused(Cause.INVALID, "a copy goes to every subscription; leave subscriptionNames out")


def _unconfirmed(intent: ReissueIntent) -> str:
    return (
        "the broker did not confirm the copy, and none has been found so far: it may still be stored. Nothing is "
        f"published a second time, and the message stays due at {intent.deliver_at_ms}; ask again to have it looked for"
    )


def _report(intent: ReissueIntent, outcome: Outcome) -> None:
    reasons = "; ".join(one.reason or one.proof.value for one in outcome.verdicts)
    log.warning(
        "a message was not published again",
        topic=str(intent.topic),
        position=str(intent.position),
        reason=reasons,
        requested_by=intent.requested_by,
    )
