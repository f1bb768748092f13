"""Sealing of indexes into a snapshot, cut by time and number (``createImmutableBucketAndAsyncPersistent``)."""

from dataclasses import dataclass

import numpy as np

from pulsar_sidecar.features.delayed_index.settings import TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes, SnapshotMetadata, segment_metadata_of


@dataclass(frozen=True, slots=True)
class SealedIndexes:
    """Content of a snapshot.

    Attributes:
        metadata: one row per segment.
        segments: entries 1 to n; at least one, none of them empty.
    """

    metadata: SnapshotMetadata
    segments: tuple[DelayedIndexes, ...]


def seal(indexes: DelayedIndexes, settings: TrackerSettings) -> SealedIndexes:
    """Cut sorted indexes, at least one, into segments."""
    segments = tuple(indexes[each] for each in cut(indexes, settings))
    return SealedIndexes(tuple(map(segment_metadata_of, segments)), segments)


def cut(indexes: DelayedIndexes, settings: TrackerSettings) -> list[slice]:
    """Return the rows of each segment.

    A segment ends before a due time that is at least a time step after its first, or when it is full; so messages with
    the same due time can be in two segments.
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
    """Return the indexes sorted by due time, ledger and entry."""
    return indexes[np.lexsort((indexes.entries, indexes.ledgers, indexes.deliver_at_ms))]
