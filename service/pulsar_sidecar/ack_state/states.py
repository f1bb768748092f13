"""The acknowledgement state of one subscription, from its broker's statistics, what is stored, and the settings."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

from pulsar_sidecar.ack_state.limits import (
    AckStateLimits,
    PauseSettings,
    PauseState,
    pause_state,
    persisted_ranges,
)
from pulsar_sidecar.ack_state.sizes import CursorSizes, cursor_sizes, next_write, unload_write
from pulsar_sidecar.ack_state.stored import StoredCursor, StoredPlace
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges
from pulsar_sidecar.model.topic_stats import Cursor, Subscription, TopicInternalStats


@dataclass(frozen=True, slots=True)
class HistogramBin:
    """Some entries in a row, from ``first`` (``ledgerId:entryId``) on; ``stored`` are some of the acknowledged ones."""

    first: str
    entries: int
    acknowledged: int
    stored: int


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
        sizes: what is written next.
        next_write: where that ends; None where it fits nowhere.
        unload_write: where an orderly unload writes everything; None likewise.
        pause: whether dispatch stops (PIP-299).
        stored: what a broker would recover now; None if the cursor is not in the store.
        after_crash: delivered again if the broker died now, beside what is not acknowledged.
        after_unload: delivered again if the topic were unloaded in order now.
        histogram: the entries from the mark-delete position to the last one, in parts of the same length.
    """

    topic: TopicName
    subscription: Subscription
    broker: str | None
    cursor: Cursor
    limits: AckStateLimits
    policies: PauseSettings
    ranges_left: int
    sizes: CursorSizes
    next_write: StoredPlace | None
    unload_write: StoredPlace | None
    pause: PauseState
    stored: StoredCursor | None
    after_crash: Redelivery
    after_unload: Redelivery
    histogram: tuple[HistogramBin, ...] = ()

    @property
    def blocked(self) -> bool | None:
        """PIP-299's ``isBlockedOnAckStatePersistent``; None if unknown."""
        return self.pause.blocked

    @property
    def entry_bytes_left(self) -> int:
        """Bytes that an entry of the cursor's ledger still has room for; negative if it is too large."""
        return self.limits.max_entry_bytes - self.sizes.entry

    @property
    def node_bytes_left(self) -> int:
        """The same of the cursor's node."""
        return self.limits.max_node_bytes - self.sizes.node

    @property
    def loadable(self) -> bool:
        """False if bookies took an entry that is larger than brokers read, so that no broker can load the topic."""
        stored = self.stored
        return (
            stored is None
            or stored.place is not StoredPlace.CURSOR_LEDGER
            or stored.size_bytes <= self.limits.max_entry_bytes
        )


@dataclass(frozen=True, slots=True)
class DetailOptions:
    """How much of an answer's detail is wanted."""

    ranges: int = 20
    histogram_bins: int = 60


def ack_state_of(
    topic: TopicName,
    subscription: Subscription,
    broker: str | None,
    internal: TopicInternalStats,
    stored: StoredCursor | None,
    limits: AckStateLimits,
    policies: PauseSettings,
    options: DetailOptions,
) -> AckState:
    """Put together what is known; ``stored`` must not be older than ``internal``, nor that than ``subscription``."""
    cursor, lengths = internal.cursor(subscription.name), internal.ledgers
    before_everything = Position(min(lengths, default=LedgerId(0)), EntryId(-1))
    recovered = PositionRanges(before_everything) if stored is None else stored.acknowledged
    sizes = cursor_sizes(cursor, stored, limits)
    unloaded_to = unload_write(cursor, sizes, limits)
    written_as = limits.in_node if unloaded_to is StoredPlace.METADATA_STORE else limits
    after_unload = recovered if unloaded_to is None else persisted_ranges(cursor.acknowledged, written_as)
    return AckState(
        topic=topic,
        subscription=subscription,
        broker=broker,
        cursor=cursor,
        limits=limits,
        policies=policies,
        ranges_left=max(0, limits.max_unacked_ranges - cursor.ranges),
        sizes=sizes,
        next_write=next_write(sizes, limits),
        unload_write=unloaded_to,
        pause=pause_state(subscription.type, cursor.ranges, policies, limits),
        stored=stored,
        after_crash=_redelivery(cursor.acknowledged.without(recovered, lengths), options.ranges),
        after_unload=_redelivery(cursor.acknowledged.without(after_unload, lengths), options.ranges),
        histogram=histogram(cursor.acknowledged, recovered, lengths, options.histogram_bins),
    )


def _redelivery(lost: Iterable[EntryRange], shown: int) -> Redelivery:
    found = list(lost)
    return Redelivery(sum(each.entries for each in found), len(found), tuple(islice(found, shown)))


def histogram(
    acknowledged: PositionRanges, stored: PositionRanges, lengths: Mapping[LedgerId, int], count: int
) -> tuple[HistogramBin, ...]:
    """Everything beyond the mark-delete position in at most ``count`` bins; () when nothing is beyond it."""
    beyond = list(_beyond(acknowledged, lengths))
    starts = list(accumulate((found.entries for found in beyond), initial=0))
    cuts = [starts[-1] * number // count for number in range(count + 1)] if count > 0 else []
    parts = [_between(first, end, beyond, starts) for first, end in pairwise(cuts) if first < end]
    return tuple(_bin(part, acknowledged, stored) for part in parts)


def _beyond(acknowledged: PositionRanges, lengths: Mapping[LedgerId, int]) -> Iterator[EntryRange]:
    marked = acknowledged.mark_delete
    for ledger_id in sorted(lengths):
        first = marked.entry_id + 1 if ledger_id == marked.ledger_id else 0
        if ledger_id >= marked.ledger_id and first < lengths[ledger_id]:
            yield EntryRange(ledger_id, EntryId(first), EntryId(lengths[ledger_id] - 1))


def _between(first: int, end: int, ranges: list[EntryRange], starts: list[int]) -> list[EntryRange]:
    """The entries from number ``first`` to before ``end`` of all; ``starts`` are the numbers of ranges' first ones."""
    part = []
    for place in range(bisect_right(starts, first) - 1, bisect_left(starts, end)):
        whole, skipped = ranges[place], starts[place] - ranges[place].first
        from_, to = max(whole.first, first - skipped), min(whole.last, end - 1 - skipped)
        part.append(EntryRange(whole.ledger_id, EntryId(from_), EntryId(to)))
    return part


def _bin(parts: list[EntryRange], acknowledged: PositionRanges, stored: PositionRanges) -> HistogramBin:
    # Acknowledged in memory is a superset of what is stored, but for what was acknowledged between the two looks.
    counts = [(acknowledged.acknowledged_between(*part), stored.acknowledged_between(*part)) for part in parts]
    return HistogramBin(
        first=f"{parts[0].ledger_id}:{parts[0].first}",
        entries=sum(part.entries for part in parts),
        acknowledged=sum(now for now, _ in counts),
        stored=sum(min(now, before) for now, before in counts),
    )
