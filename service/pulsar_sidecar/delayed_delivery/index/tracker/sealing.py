"""How indexes become a snapshot: cut by time and number (``createImmutableBucketAndAsyncPersistent``)."""

from dataclasses import dataclass

import numpy as np

from pulsar_sidecar.delayed_delivery.index.settings import TrackerSettings
from pulsar_sidecar.delayed_delivery.index.snapshot import DelayedIndexes, SnapshotMetadata, segment_metadata_of


@dataclass(frozen=True, slots=True)
class SealedIndexes:
    """A snapshot's content.

    Attributes:
        metadata: a row a segment.
        segments: entries 1 to n; at least one, and none is empty.
    """

    metadata: SnapshotMetadata
    segments: tuple[DelayedIndexes, ...]


def seal(indexes: DelayedIndexes, settings: TrackerSettings) -> SealedIndexes:
    """Cut them; they are sorted, and there is one at least."""
    segments = tuple(indexes[each] for each in cut(indexes, settings))
    return SealedIndexes(tuple(map(segment_metadata_of, segments)), segments)


def cut(indexes: DelayedIndexes, settings: TrackerSettings) -> list[slice]:
    """The rows of each segment.

    A segment ends before a due time that is a time step or more after its first one, or when it is full; so messages
    that are due at the same time can be in two.
    """
    times, total = indexes.deliver_at_ms, len(indexes)
    most = total if settings.max_indexes_per_segment == -1 else settings.max_indexes_per_segment
    slices, start = [], 0
    while start < total:
        end = min(start + most, total)
        limit = int(times[start]) + settings.time_step_ms
        if times[end - 1] >= limit:
            end = start + int(np.searchsorted(times[start:end], limit, side="left"))
        slices.append(slice(start, end))
        start = end
    return slices


def sort_indexes(indexes: DelayedIndexes) -> DelayedIndexes:
    """By due time, ledger and entry."""
    return indexes[np.lexsort((indexes.entries, indexes.ledgers, indexes.deliver_at_ms))]
