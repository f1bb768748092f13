"""What is to be said of one subscription's acknowledgements, from what its broker, the store and the settings say."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from pulsar_sidecar.ack_state.limits import AckStateLimits, kept, written_bytes
from pulsar_sidecar.ack_state.pausing import PauseState, Policies, blocked, pause_state
from pulsar_sidecar.ack_state.plotting import Stretch, stretches
from pulsar_sidecar.ack_state.stored import StoredCursor
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges
from pulsar_sidecar.model.topic_stats import Cursor, Subscription, TopicInternalStats


@dataclass(frozen=True, slots=True)
class Redelivery:
    """Entries that are acknowledged now and would be delivered again.

    ``ranges`` are the first few of them.
    """

    entries: int
    range_count: int
    ranges: tuple[EntryRange, ...]


@dataclass(frozen=True, slots=True)
class AckState:
    """One subscription of one topic (a partition, or a topic without partitions).

    Attributes:
        ranges_left: ranges that can be added before something no longer fits.
        written_bytes: what the ranges take when they are written next.
        pause: whether dispatch stops (PIP-299).
        stored: what a broker would recover now; None if the cursor is not in the store.
        after_crash: delivered again if the broker died now, beside what is not acknowledged.
        after_unload: delivered again if the topic were unloaded in order now.
        stretches: the entries from the mark-delete position to the last one, in parts of the same length.
    """

    topic: TopicName
    subscription: Subscription
    broker: str | None
    cursor: Cursor
    limits: AckStateLimits
    policies: Policies
    ranges_left: int
    written_bytes: int
    pause: PauseState
    stored: StoredCursor | None
    after_crash: Redelivery
    after_unload: Redelivery
    stretches: tuple[Stretch, ...] = ()

    @property
    def blocked(self) -> bool | None:
        """PIP-299's ``isBlockedOnAckStatePersistent``; None when it cannot be told."""
        return blocked(self.pause)


@dataclass(frozen=True, slots=True)
class DetailOptions:
    """How much of an answer's detail is wanted."""

    ranges: int = 20
    stretches: int = 60


def judge(
    topic: TopicName,
    subscription: Subscription,
    broker: str | None,
    internal: TopicInternalStats,
    stored: StoredCursor | None,
    limits: AckStateLimits,
    policies: Policies,
    options: DetailOptions,
) -> AckState:
    """Put together what is known; ``stored`` must not be older than ``internal``, nor that than ``subscription``."""
    cursor, lengths = internal.cursor(subscription.name), internal.ledgers
    after_unload = kept(cursor.acknowledged, limits)
    recovered = PositionRanges(_before_everything(lengths)) if stored is None else stored.acknowledged
    return AckState(
        topic=topic,
        subscription=subscription,
        broker=broker,
        cursor=cursor,
        limits=limits,
        policies=policies,
        ranges_left=max(0, limits.max_unacked_ranges - cursor.ranges),
        written_bytes=written_bytes(cursor.acknowledged, limits),
        pause=pause_state(subscription.type, cursor.ranges, policies, limits),
        stored=stored,
        after_crash=_redelivery(cursor.acknowledged.without(recovered, lengths), options.ranges),
        after_unload=_redelivery(cursor.acknowledged.without(after_unload, lengths), options.ranges),
        stretches=stretches(cursor.acknowledged, recovered, lengths, options.stretches),
    )


def _redelivery(lost: Iterable[EntryRange], shown: int) -> Redelivery:
    found = list(lost)
    return Redelivery(sum(each.entries for each in found), len(found), tuple(islice(found, shown)))


def _before_everything(ledgers: Iterable[LedgerId]) -> Position:
    return Position(min(ledgers, default=LedgerId(0)), EntryId(-1))
