"""From what was read to what is to be acknowledged: one pure step for a whole batch of targets on one topic."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pulsar_sidecar.delayed_delivery.cancel.checks import (
    Chosen,
    check_entry,
    choose_subscriptions,
    missing_chunks,
    time_to_live_warning,
)
from pulsar_sidecar.delayed_delivery.cancel.facts import DelayPolicy, EntryAnswer, EntryFacts
from pulsar_sidecar.delayed_delivery.cancel.requests import (
    Cancellation,
    CancellationStatus,
    CancelOptions,
    Cause,
    Outcome,
    Target,
    Verdict,
)
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import Subscription, TopicInternalStats

KnownCancellation = Callable[[Position], Cancellation | None]
"""What is known of a message on one subscription."""


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """Everything that was read of one topic before deciding.

    Attributes:
        chunks: of each chunked message's named entry, the positions of the chunks that were found, by chunk id.
        now_ms: the brokers' time, as far as it is known.
    """

    topic: TopicName
    subscriptions: Mapping[str, Subscription]
    state: TopicInternalStats
    policy: DelayPolicy
    entries: Mapping[Position, EntryAnswer]
    chunks: Mapping[Position, Mapping[int, Position]]
    now_ms: int


@dataclass(slots=True)
class Draft:
    """What is known so far of one target."""

    target: Target
    facts: EntryFacts | None = None
    verdicts: dict[str | None, Verdict] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def outcome(self, topic: TopicName) -> Outcome:
        """As the caller gets it."""
        return Outcome(topic, self.target, tuple(self.verdicts.values()), tuple(self.warnings))


class Wanted(NamedTuple):
    """A cancellation that may be carried out, and the draft it belongs to."""

    draft: Draft
    facts: EntryFacts
    cancellation: Cancellation


@dataclass(frozen=True, slots=True)
class Plan:
    """The drafts in the targets' order, and what is to be acknowledged on each subscription.

    Attributes:
        unexplained: whether something is acknowledged that this sidecar knows no cancellation of; a moment later it
            may know better, because another sidecar's record is on its way.
    """

    drafts: list[Draft]
    wanted: dict[str, list[Wanted]]
    unexplained: bool = False


def plan(
    targets: Sequence[Target],
    snapshot: TopicSnapshot,
    known: Callable[[str], KnownCancellation],
    options: CancelOptions,
) -> Plan:
    """Decide each target on each subscription; ``known`` tells what is known on a subscription."""
    return _Planner(snapshot, known, options).plan(targets)


class _Planner:
    def __init__(
        self, snapshot: TopicSnapshot, known: Callable[[str], KnownCancellation], options: CancelOptions
    ) -> None:
        self._snapshot = snapshot
        self._known_on = known
        self._known: dict[str, KnownCancellation] = {}
        self._options = options
        self._chosen: dict[tuple[str, ...], Chosen] = {}
        self._wanted: dict[str, list[Wanted]] = {}
        self._unexplained = False

    def plan(self, targets: Sequence[Target]) -> Plan:
        drafts = [self._draft(target) for target in targets]
        return Plan(drafts, self._wanted, self._unexplained)

    def _draft(self, target: Target) -> Draft:
        draft = Draft(target)
        answer = self._snapshot.entries[target.position]
        facts = check_entry(target, answer, self._snapshot.policy, self._snapshot.now_ms)
        if isinstance(facts, Verdict):
            draft.verdicts[None] = facts
            return draft
        positions = self._positions(target, facts)
        if isinstance(positions, Verdict):
            draft.verdicts[None] = positions
            return draft
        draft.facts = facts
        warning = time_to_live_warning(facts, self._snapshot.policy)
        draft.warnings.extend([warning] if warning else [])
        self._choose(draft, facts, positions)
        return draft

    def _positions(self, target: Target, facts: EntryFacts) -> tuple[Position, ...] | Verdict:
        if facts.chunk is None or facts.chunk.total <= 1:
            return ()
        found = self._snapshot.chunks.get(target.position, {})
        refusal = missing_chunks(facts, found)
        return tuple(found[index] for index in sorted(found)) if refusal is None else refusal

    def _choose(self, draft: Draft, facts: EntryFacts, positions: tuple[Position, ...]) -> None:
        names = draft.target.subscriptions
        if names not in self._chosen:
            self._chosen[names] = choose_subscriptions(names, self._snapshot.subscriptions)
        chosen = self._chosen[names]
        draft.warnings.extend(chosen.warnings)
        draft.verdicts.update({verdict.subscription: verdict for verdict in chosen.others})
        for subscription in chosen.admitted:
            self._on(subscription.name, draft, facts, positions)

    def _on(self, name: str, draft: Draft, facts: EntryFacts, positions: tuple[Position, ...]) -> None:
        cursor = self._snapshot.state.cursors.get(name)
        if cursor is None:
            draft.verdicts[name] = Verdict(
                name,
                CancellationStatus.NOT_FOUND,
                Cause.NO_SUBSCRIPTION,
                f"the subscription {name!r} has just been deleted",
            )
            return
        cancellation = self._cancellation(name, draft.target.position, facts, positions)
        if name not in self._known:
            self._known[name] = self._known_on(name)
        known = self._known[name](draft.target.position)
        if cancellation.held_by(cursor.acknowledged) and not _is_accepted(known):
            draft.verdicts[name] = self._acked_before(name, known)
            return
        self._wanted.setdefault(name, []).append(Wanted(draft, facts, cancellation))

    def _acked_before(self, name: str, known: Cancellation | None) -> Verdict:
        if known is not None and known.status.cancelled:
            return known.verdict()
        self._unexplained = self._unexplained or known is None
        return Verdict(
            name,
            CancellationStatus.TOO_LATE,
            Cause.ACKED_BEFORE,
            "the message was acknowledged before, by somebody else: delivered, expired or skipped",
        )

    def _cancellation(
        self, name: str, position: Position, facts: EntryFacts, positions: tuple[Position, ...]
    ) -> Cancellation:
        assert facts.deliver_at_ms is not None
        return Cancellation(
            self._snapshot.topic,
            name,
            position,
            facts.deliver_at_ms,
            self._snapshot.now_ms,
            CancellationStatus.ACCEPTED,
            positions,
            requested_by=self._options.requested_by,
        )


def _is_accepted(known: Cancellation | None) -> bool:
    # It may be our own acknowledgement, whose confirmation was lost: acknowledging again settles it.
    return known is not None and known.status is CancellationStatus.ACCEPTED
