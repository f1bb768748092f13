"""Publishes a waiting message again with another due time, and cancels the old one (expedite, reschedule).

The copy is published first: whatever breaks afterwards, the message is delivered at least once. When the old one turns
out to have been dispatched meanwhile, a copy that still waits is cancelled again.
"""

from service.delayed_delivery.cancelling import CancelOptions, Cause, Outcome, Proof, Target, Verdict
from service.delayed_delivery.checking import check_entry, choose_subscriptions
from service.delayed_delivery.facts import EntryFacts
from service.delayed_delivery.gathering import chunk_candidates, chunks_of
from service.delayed_delivery.operating import Reissued, linked
from service.delayed_delivery.ports import WholeMessage
from service.delayed_delivery.workflow.canceller import Canceller
from service.delayed_delivery.workflow.world import World
from service.model.ids import EntryId, LedgerId
from service.model.names import TopicName
from service.model.positions import Position

_ROOM_MS = 2000
"""A message that is due sooner than this after the earliest dispatch is left alone: it comes by itself."""


class Reissuer:
    """One message at a time."""

    def __init__(self, world: World, canceller: Canceller) -> None:
        self._world = world
        self._canceller = canceller

    def reissue(self, topic: TopicName, target: Target, deliver_at_ms: int | None, options: CancelOptions) -> Reissued:
        """See `operating.DelayedDeliveryService.reissue`; ``topic`` holds the entry."""
        checked = self._checked(topic, target)
        if isinstance(checked, Verdict):
            return Reissued(None, deliver_at_ms, Outcome(topic, target, (checked,)))
        message = WholeMessage(topic, self._positions(topic, target.position, checked))
        message_id = self._world.republisher.republish(message, deliver_at_ms, linked(target.position))
        (outcome,) = self._canceller.cancel(topic, [target], options)
        if not outcome.accepted and deliver_at_ms is not None:
            self._take_back(topic, message_id, deliver_at_ms, options)
            return Reissued(None, deliver_at_ms, outcome)
        return Reissued(message_id, deliver_at_ms, outcome)

    def _checked(self, topic: TopicName, target: Target) -> EntryFacts | Verdict:
        policy = self._world.topics.delay_policy(topic)
        chosen = choose_subscriptions((), self._world.topics.subscriptions(topic))
        if chosen.others or len(chosen.warnings) > 1:
            reason = "; ".join([*(one.reason or "" for one in chosen.others), *chosen.warnings[1:]])
            return Verdict(
                None, Proof.REFUSED, Cause.SUBSCRIPTION_TYPE, f"a copy would be a second delivery for some: {reason}"
            )
        answer = self._world.entries.read(topic, [target.position])[target.position]
        soonest_ms = self._world.brokers_now_ms() + policy.earliest_lead_ms + _ROOM_MS
        return check_entry(target, answer, policy, soonest_ms)

    def _positions(self, topic: TopicName, position: Position, facts: EntryFacts) -> tuple[Position, ...]:
        if facts.chunk is None or facts.chunk.total <= 1:
            return (position,)
        near = self._world.entries.read(topic, chunk_candidates(position, facts.chunk))
        found = chunks_of(facts, {**near, position: facts})
        return tuple(found[index] for index in sorted(found))

    def _take_back(self, topic: TopicName, message_id: str, deliver_at_ms: int, options: CancelOptions) -> None:
        ledger_id, entry_id = (int(part) for part in message_id.split(":")[:2])
        copy = Target(Position(LedgerId(ledger_id), EntryId(entry_id)), deliver_at_ms)
        self._canceller.cancel(topic, [copy], options)
