"""Which adjacent buckets are merged."""

from collections.abc import Sequence

from pulsar_sidecar.delayed_delivery.index.settings import MAX_MERGE_NUM
from pulsar_sidecar.delayed_delivery.index.tracker.failures import TrackerFailedError
from pulsar_sidecar.delayed_delivery.index.tracker.immutable_bucket import ImmutableBucket

_FEWEST = 2


def select_as_broker(buckets: Sequence[ImmutableBucket], number: int = MAX_MERGE_NUM) -> Sequence[ImmutableBucket]:
    """``selectMergedBuckets`` of 4.0.8, with its faults.

    Of each number of neighbours that all have segments to load, four at first, those with the fewest messages; but
    where fewer messages are not also due earlier, the choice stays with neighbours that have more. "Due" is the segment
    after the next one.

    Raises:
        TrackerFailedError: not more buckets than are to be merged, or a bucket with exactly one segment to load.
    """
    if number >= len(buckets):
        raise TrackerFailedError(f"{number} of {len(buckets)} buckets are to be merged")
    fewest = earliest = None
    chosen: Sequence[ImmutableBucket] = ()
    for at in range(len(buckets) - number + 1):
        window = buckets[at : at + number]
        if not all(bucket.has_unloaded for bucket in window):
            continue
        count = sum(bucket.count for bucket in window)
        if fewest is not None and count > fewest:
            continue
        fewest = count
        due = min(_due_after_next(bucket) for bucket in window)
        if earliest is None or due < earliest:
            earliest, chosen = due, window
    if chosen or number == _FEWEST:
        return chosen
    return select_as_broker(buckets, number - 1)


def select_as_pip(buckets: Sequence[ImmutableBucket]) -> Sequence[ImmutableBucket]:
    """The two neighbours with the fewest messages; the earliest ones of several. None of fewer than two."""
    pairs = [buckets[at : at + _FEWEST] for at in range(len(buckets) - 1)]
    return min(pairs, key=lambda pair: sum(bucket.count for bucket in pair), default=())


def _due_after_next(bucket: ImmutableBucket) -> int:
    # Segments count from 1 and this list from 0.
    if bucket.current_segment + 1 >= len(bucket.first_times_ms):
        raise TrackerFailedError(f"{bucket.key} has one segment left to load")
    return bucket.first_times_ms[bucket.current_segment + 1]
