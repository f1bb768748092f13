"""Pure plan of the buckets that an unloaded topic's subscription gets.

Invariants: buckets do not overlap; a planned bucket never makes a 4.0.8 broker stop dispatching when it seals its next
bucket, or forget a bucket.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyroaring import BitMap

from pulsar_sidecar.backlog.waiting import waiting_entries
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.results.maintenance import BuiltBucket
from pulsar_sidecar.features.delayed_index.settings import TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import NO_INDEXES, DelayedIndexes, joined
from pulsar_sidecar.features.delayed_index.stored import StoredIndex
from pulsar_sidecar.features.delayed_index.tracker.sealing import SealedIndexes, seal, sort_indexes
from pulsar_sidecar.model.errors import ConflictError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.lookups import demanded
from pulsar_sidecar.reports.formatting import format_count

_SEGMENTS_THAT_BREAK_A_MERGE: Final = 2
"""Number of segments that breaks a merge: a topic load reads the first, and a merging 4.0.8 broker throws at exactly
one left.

It does not merge a bucket that has none left.
"""


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """Bucket that does not exist yet."""

    key: BucketKey
    sealed: SealedIndexes

    def result(self, ledger_id: LedgerId | None) -> BuiltBucket:
        metadata = self.sealed.metadata
        return BuiltBucket(
            start_ledger_id=self.key.start,
            end_ledger_id=self.key.end,
            segments=len(metadata),
            indexes=sum(map(len, self.sealed.segments)),
            first_due_ms=min(segment.min_schedule_timestamp for segment in metadata),
            last_due_ms=max(segment.max_schedule_timestamp for segment in metadata),
            ledger_id=ledger_id,
        )


@dataclass(frozen=True, slots=True)
class UnacknowledgedEntries:
    """Unacknowledged entries of a subscription: entries of ledgers without a bucket, and covered ledgers."""

    index: StoredIndex
    first_ledger: LedgerId
    uncovered: Mapping[LedgerId, BitMap]
    covered: tuple[LedgerId, ...]
    keys: tuple[BucketKey, ...]


def unacknowledged_of(index: StoredIndex, ledgers: Mapping[LedgerId, LedgerMetadata]) -> UnacknowledgedEntries:
    """Return a subscription's unacknowledged entries in a topic's ledgers."""
    acknowledged = demanded(index.acknowledged, f"the cursor of {index.subscription} on {index.topic}")
    keys = tuple(demanded(bucket.key, bucket.name) for bucket in index.buckets)
    left = waiting_entries({id_: metadata.last_entry_id + 1 for id_, metadata in ledgers.items()}, [acknowledged])
    covered = tuple(ledger_id for ledger_id in left if any(ledger_id in key for key in keys))
    uncovered = {ledger_id: entries for ledger_id, entries in left.items() if ledger_id not in covered}
    return UnacknowledgedEntries(index, acknowledged.mark_delete.ledger_id, uncovered, covered, keys)


def planned_buckets(
    waiting: UnacknowledgedEntries,
    left_out: Iterable[LedgerId],
    delayed: Mapping[LedgerId, DelayedIndexes],
    settings: TrackerSettings,
) -> tuple[PlannedBucket, ...]:
    """Return the buckets that `build` writes for one subscription.

    Of brokers that merge, ``settings`` are those of the one that merges first. ``left_out`` ledgers get no index.

    Raises:
        ConflictError: with these buckets, a broker would merge when it seals its next one.
    """
    buckets = tuple(_sealed(waiting, left_out, delayed, settings))
    if buckets:
        _demand_no_merge(waiting.index, len(buckets), settings)
    return buckets


def _sealed(
    waiting: UnacknowledgedEntries,
    left_out: Iterable[LedgerId],
    delayed: Mapping[LedgerId, DelayedIndexes],
    settings: TrackerSettings,
) -> Iterator[PlannedBucket]:
    """Seal as the tracker does: at the first ledger after there are enough indexes; the rest at the end.

    Each bucket starts at the first ledger after the previous bucket, even if that ledger gets no index: a 4.0.8 broker
    that adds a message of a ledger without a bucket seals a bucket from there on, over the following buckets, and never
    loads the rest of those. It keeps messages of a ledger within a bucket in memory only.
    """
    for ledgers in _between(waiting.keys, sorted({*waiting.uncovered, *left_out})):
        parts: list[DelayedIndexes] = []
        first = last = 0
        for number, ledger_id in enumerate(ledgers):
            rows = delayed.get(ledger_id, NO_INDEXES)
            mine = rows[rows.within({ledger_id: waiting.uncovered.get(ledger_id, BitMap())})]
            if not len(mine):
                continue
            if parts and sum(map(len, parts)) >= settings.min_index_count:
                yield _planned(BucketKey(ledgers[first], ledgers[last]), parts, settings)
                first, parts = last + 1, []
            parts.append(mine)
            last = number
        if parts:
            yield _planned(BucketKey(ledgers[first], ledgers[last]), parts, settings)


def _between(keys: Sequence[BucketKey], ledgers: Iterable[LedgerId]) -> Iterator[list[LedgerId]]:
    """Yield runs of ascending ledgers that no bucket covers, split wherever a bucket lies between two ledgers."""
    stretch: list[LedgerId] = []
    for ledger_id in ledgers:
        if any(map(BucketKey(stretch[0] if stretch else ledger_id, ledger_id).overlaps, keys)):
            yield stretch
            stretch = []
        if not any(ledger_id in key for key in keys):
            stretch.append(ledger_id)
    yield stretch


def _planned(key: BucketKey, parts: Sequence[DelayedIndexes], settings: TrackerSettings) -> PlannedBucket:
    indexes = sort_indexes(joined(parts))
    sealed = seal(indexes, settings)
    if settings.max_num_buckets != -1 and len(sealed.segments) == _SEGMENTS_THAT_BREAK_A_MERGE:
        everything = int(indexes.deliver_at_ms[-1] - indexes.deliver_at_ms[0]) + 1
        sealed = seal(indexes, replace(settings, max_indexes_per_segment=-1, time_step_ms=everything))
    return PlannedBucket(key, sealed)


def _demand_no_merge(index: StoredIndex, planned: int, settings: TrackerSettings) -> None:
    count = len(index.buckets) + planned
    if settings.merges_at_next_seal(count):
        raise ConflictError(
            f"subscription {index.subscription} of {index.topic} would have "
            f"{format_count(count, 'bucket')}; a broker with "
            f"delayedDeliveryMaxNumBuckets={settings.max_num_buckets} would merge some when it seals the next one, and "
            f"4.0.8 can stop dispatching then; set it to -1, or to {count + 1} or more, on every broker"
        )
