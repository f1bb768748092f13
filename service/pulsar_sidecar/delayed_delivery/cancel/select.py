"""Messages to cancel by what they are: due time, key, properties; and the hash by which a caller confirms a preview.

Invariant: two runs with the same selection give the same hash exactly when they found the same messages.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pulsar_sidecar.delayed_delivery.cancel.facts import EntryAnswer, EntryFacts
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import EntryId, Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import TopicInternalStats

MAX_SAMPLE: Final = 20


@dataclass(frozen=True, slots=True)
class Selection:
    """What the messages must be; None and empty demand nothing.

    Attributes:
        due_from_ms: the earliest due time, included.
        due_to_ms: the latest due time, excluded.
        published_before_ms: only messages published before it, so that a selection does not grow.
        properties: all of these, with these values.
        subscriptions: where; empty for every Shared and Key_Shared subscription.
    """

    due_from_ms: int | None = None
    due_to_ms: int | None = None
    published_before_ms: int | None = None
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    subscriptions: tuple[str, ...] = ()

    def check(self) -> None:
        """Whether it selects anything less than everything.

        Raises:
            InvalidInputError: it names nothing, or an empty range.
        """
        if self.due_from_ms is None and self.due_to_ms is None and self.key is None and not self.properties:
            raise InvalidInputError("a selection needs at least one of dueFrom, dueTo, key and properties")
        if self.due_from_ms is not None and self.due_to_ms is not None and self.due_from_ms >= self.due_to_ms:
            raise InvalidInputError("dueFrom is not before dueTo, so nothing can match")

    def matches(self, facts: EntryFacts, now_ms: int) -> bool:
        """Whether a message that waits is meant."""
        due_ms = facts.deliver_at_ms
        return (
            due_ms is not None
            and due_ms > now_ms
            and (self.due_from_ms is None or due_ms >= self.due_from_ms)
            and (self.due_to_ms is None or due_ms < self.due_to_ms)
            and (self.published_before_ms is None or facts.publish_time_ms < self.published_before_ms)
            and (self.key is None or facts.key == self.key)
            and all(facts.properties.get(name) == value for name, value in self.properties.items())
        )


@dataclass(frozen=True, slots=True)
class Selected:
    """One message that a selection found."""

    topic: TopicName
    position: Position
    deliver_at_ms: int
    key: str | None


@dataclass(frozen=True, slots=True)
class Preview:
    """What a selection would cancel.

    Attributes:
        selection: made exact, so that it finds the same messages again.
        hash: of all messages found; a caller repeats it to confirm.
        sample: the first of them by due time.
        unreadable: entries that could not be read, and so are not among them.
    """

    selection: Selection
    count: int
    hash: str
    first_due_ms: int | None
    last_due_ms: int | None
    sample: tuple[Selected, ...]
    unreadable: int


def waiting_positions(
    state: TopicInternalStats, acked: Iterable[PositionRanges], after: Position | None = None
) -> Iterable[Position]:
    """The topic's entries, oldest first, that at least one of the cursors has not acknowledged; beyond ``after``."""
    cursors = list(acked)
    if not cursors:
        return
    start = min(cursor.mark_delete for cursor in cursors)
    for position in positions_after(state, start if after is None else max(start, after)):
        if not all(position in cursor for cursor in cursors):
            yield position


def positions_after(state: TopicInternalStats, start: Position) -> Iterator[Position]:
    """The topic's entries beyond a position, oldest first."""
    for ledger_id, entries in state.ledgers.items():
        if ledger_id < start.ledger_id:
            continue
        first = start.entry_id + 1 if ledger_id == start.ledger_id else 0
        for entry in range(max(0, first), entries):
            yield Position(ledger_id, EntryId(entry))


def select(
    topic: TopicName, selection: Selection, answers: Mapping[Position, EntryAnswer], now_ms: int
) -> list[Selected]:
    """Those of the entries that the selection means, in order; of a chunked message only its last chunk."""
    found = []
    for position in sorted(answers):
        facts = answers[position]
        if not isinstance(facts, EntryFacts) or facts.marker or not selection.matches(facts, now_ms):
            continue
        if facts.chunk is not None and facts.chunk.chunk_id != facts.chunk.total - 1:
            continue
        assert facts.deliver_at_ms is not None
        found.append(Selected(topic, position, facts.deliver_at_ms, facts.key))
    return found


def preview(selection: Selection, found: Iterable[Selected], unreadable: int) -> Preview:
    """What a caller is shown, and the hash that stands for exactly these messages."""
    ordered = sorted(found, key=lambda one: (one.deliver_at_ms, str(one.topic), one.position))
    digest = hashlib.sha256()
    for one in ordered:
        digest.update(f"{one.topic}|{one.position}|{one.deliver_at_ms}\n".encode())
    digest.update("|".join(sorted(selection.subscriptions)).encode())
    return Preview(
        selection=selection,
        count=len(ordered),
        hash=digest.hexdigest()[:32],
        first_due_ms=ordered[0].deliver_at_ms if ordered else None,
        last_due_ms=ordered[-1].deliver_at_ms if ordered else None,
        sample=tuple(ordered[:MAX_SAMPLE]),
        unreadable=unreadable,
    )
