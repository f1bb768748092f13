"""Acknowledgement state of one subscription, from its broker's statistics, its stored state, and the settings."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from pulsar_sidecar.features.acknowledgements.limits import (
    AckStateLimits,
    PauseSettings,
    pause_state,
    persisted_ranges,
)
from pulsar_sidecar.features.acknowledgements.results import AckState, Redelivery, StoredPlace, Stretch
from pulsar_sidecar.features.acknowledgements.sizes import cursor_sizes, next_write, unload_write
from pulsar_sidecar.features.acknowledgements.stored import StoredCursor
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges
from pulsar_sidecar.model.topic_stats import (
    REPLICATED_SUBSCRIPTION,
    Subscription,
    SubscriptionType,
    TopicInternalStats,
)


@dataclass(frozen=True, slots=True)
class DetailOptions:
    """Amount of detail in a state."""

    ranges: int = 20
    stretches: int = 60


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
    """Combine the facts; ``stored`` must not be older than ``internal``, nor that than ``subscription``."""
    cursor, lengths = internal.cursor(subscription.name), internal.ledgers
    before_everything = Position(min(lengths, default=LedgerId(0)), EntryId(-1))
    recovered = PositionRanges(before_everything) if stored is None else stored.acknowledged
    sizes = cursor_sizes(cursor, stored, limits)
    unloaded_to = unload_write(cursor, sizes, limits)
    written_as = limits.in_node if unloaded_to is StoredPlace.METADATA_STORE else limits
    after_unload = recovered if unloaded_to is None else persisted_ranges(cursor.acknowledged, written_as)
    read = PositionRanges(cursor.read_position._replace(entry_id=EntryId(cursor.read_position.entry_id - 1)))
    pause = pause_state(subscription.type, cursor.ranges, policies, limits)
    return AckState(
        topic=str(topic),
        subscription=subscription.name,
        broker=broker,
        type=None if subscription.type is SubscriptionType.NONE else subscription.type.value,
        consumers=len(subscription.consumers),
        mark_delete_position=str(cursor.acknowledged.mark_delete),
        read_position=str(cursor.read_position),
        non_contiguous_deleted_messages_ranges=cursor.ranges,
        max_unacked_ranges_to_persist=limits.max_unacked_ranges,
        ranges_left=max(0, limits.max_unacked_ranges - cursor.ranges),
        individually_acknowledged_entries=cursor.acknowledged.entries,
        serialized_size_bytes=sizes.ranges,
        entry_bytes=sizes.entry,
        max_entry_bytes=limits.max_entry_bytes,
        entry_bytes_left=limits.max_entry_bytes - sizes.entry,
        node_bytes=sizes.node,
        max_node_bytes=limits.max_node_bytes,
        node_bytes_left=limits.max_node_bytes - sizes.node,
        next_write=next_write(sizes, limits),
        unload_write=unloaded_to,
        loadable=_is_loadable(stored, limits),
        max_batch_deleted_index_to_persist=limits.max_batch_deleted_indexes,
        unacked_messages=subscription.unacked_messages,
        read_unacknowledged_entries=sum(each.entries for each in read.without(cursor.acknowledged, lengths)),
        msg_backlog=subscription.backlog,
        msg_delayed=subscription.delayed_messages,
        blocked_on_ack_state_persistent=pause.blocked,
        pause=pause,
        policies=policies.result(),
        stored=None if stored is None else stored.result(),
        after_crash=_redelivery(cursor.acknowledged.without(recovered, lengths), options.ranges),
        after_unload=_redelivery(cursor.acknowledged.without(after_unload, lengths), options.ranges),
        stretches=stretches(cursor.acknowledged, recovered, lengths, options.stretches),
        replicated=REPLICATED_SUBSCRIPTION in cursor.properties,
    )


def _is_loadable(stored: StoredCursor | None, limits: AckStateLimits) -> bool:
    """Return False if bookies took an entry that is larger than brokers read."""
    if stored is None or stored.place is not StoredPlace.CURSOR_LEDGER:
        return True
    return stored.size_bytes <= limits.max_entry_bytes


def _redelivery(lost: Iterable[EntryRange], shown: int) -> Redelivery:
    found = list(lost)
    return Redelivery(sum(each.entries for each in found), len(found), tuple(map(str, found[:shown])))


def stretches(
    acknowledged: PositionRanges, stored: PositionRanges, lengths: Mapping[LedgerId, int], count: int
) -> tuple[Stretch, ...]:
    """Divide the entries beyond the mark-delete position into at most ``count`` parts; () if there are none."""
    beyond = list(_beyond(acknowledged, lengths))
    starts = list(accumulate((found.entries for found in beyond), initial=0))
    cuts = [starts[-1] * number // count for number in range(count + 1)] if count > 0 else []
    parts = [_between(first, end, beyond, starts) for first, end in pairwise(cuts) if first < end]
    return tuple(_stretch(part, acknowledged, stored) for part in parts)


def _beyond(acknowledged: PositionRanges, lengths: Mapping[LedgerId, int]) -> Iterator[EntryRange]:
    marked = acknowledged.mark_delete
    for ledger_id in sorted(lengths):
        first = marked.entry_id + 1 if ledger_id == marked.ledger_id else 0
        if ledger_id >= marked.ledger_id and first < lengths[ledger_id]:
            yield EntryRange(ledger_id, EntryId(first), EntryId(lengths[ledger_id] - 1))


def _between(first: int, end: int, ranges: list[EntryRange], starts: list[int]) -> list[EntryRange]:
    """Return entries from number ``first`` to before ``end``; ``starts`` are the numbers of ranges' first entries."""
    part = []
    for place in range(bisect_right(starts, first) - 1, bisect_left(starts, end)):
        whole, skipped = ranges[place], starts[place] - ranges[place].first
        from_, to = max(whole.first, first - skipped), min(whole.last, end - 1 - skipped)
        part.append(EntryRange(whole.ledger_id, EntryId(from_), EntryId(to)))
    return part


def _stretch(parts: list[EntryRange], acknowledged: PositionRanges, stored: PositionRanges) -> Stretch:
    # Acknowledged in memory is a superset of stored, except for acknowledgements between the two reads.
    counts = [(acknowledged.acknowledged_between(*part), stored.acknowledged_between(*part)) for part in parts]
    return Stretch(
        first=f"{parts[0].ledger_id}:{parts[0].first}",
        entries=sum(part.entries for part in parts),
        acknowledged=sum(now for now, _ in counts),
        stored=sum(min(now, before) for now, before in counts),
    )
