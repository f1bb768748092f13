"""The JSON of what waits."""

from pydantic import Field

from pulsar_sidecar.api.schemas import Answer, Query
from pulsar_sidecar.delayed_delivery.backlog import DueMessage, Waiting, WaitingPage

MAX_ENTRIES = 1_000_000


class WaitingParameters(Query):
    """Parameters of ``delayedMessages``."""

    subscription: str | None = Field(default=None, max_length=8192, examples=["billing"])
    """Only this subscription; all durable ones without it."""
    limit: int = Field(default=50_000, ge=1, le=MAX_ENTRIES)
    """How many entries of the backlog to look at."""
    after: str | None = Field(default=None, max_length=100, examples=["0:4711:99"])
    """Go on where an earlier answer stopped."""


class DueMessageAnswer(Answer):
    """One waiting message."""

    deliver_at: int
    """When it is due, in milliseconds since the epoch."""
    topic: str
    """The topic, or the partition."""
    message_id: str
    """``ledgerId:entryId``."""


class WaitingAnswer(Answer):
    """What one subscription waits for, in this part of the backlog."""

    subscription: str
    """The subscription."""
    type: str
    """Only Shared and Key_Shared subscriptions hold messages back; the others deliver at once."""
    delayed: int
    """Messages that are not due yet."""
    due: int
    """Delayed messages that are due and not acknowledged."""
    undelayed: int
    """Messages without a due time."""
    unreadable: int
    """Entries that could not be read, so they are in none of these counts."""
    by_due_second: dict[int, int]
    """Delayed messages by the second, since the epoch, at which they are due."""
    next: DueMessageAnswer | None
    """The one that is due next."""
    last: DueMessageAnswer | None
    """The one that is due last."""


class WaitingPageAnswer(Answer):
    """A part of the backlog."""

    now: int
    """The time this was compared with, in milliseconds since the epoch."""
    subscriptions: list[WaitingAnswer]
    """By name."""
    entries_read: int
    """Entries looked at."""
    entries_left: int
    """Entries of this partition beyond, acknowledged ones included."""
    after: str | None
    """Where to go on; null at the end."""


def waiting_answer(page: WaitingPage) -> WaitingPageAnswer:
    """A page as JSON."""
    return WaitingPageAnswer(
        now=page.now_ms,
        subscriptions=[_waiting(waiting) for waiting in page.subscriptions],
        entries_read=page.entries_read,
        entries_left=page.entries_left,
        after=None if page.after is None else str(page.after),
    )


def _waiting(waiting: Waiting) -> WaitingAnswer:
    return WaitingAnswer(
        subscription=waiting.subscription,
        type=waiting.type.value,
        delayed=waiting.delayed,
        due=waiting.due,
        undelayed=waiting.undelayed,
        unreadable=waiting.unreadable,
        by_due_second=dict(sorted(waiting.by_due_second.items())),
        next=_message(waiting.next),
        last=_message(waiting.last),
    )


def _message(message: DueMessage | None) -> DueMessageAnswer | None:
    if message is None:
        return None
    return DueMessageAnswer(deliver_at=message.due_ms, topic=message.topic, message_id=str(message.position))
