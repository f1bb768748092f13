"""Which buckets an unloaded topic's subscription is to get: pure, from what was read.

Invariants: no bucket covers a ledger that another one covers; none is planned with which a broker of 4.0.8 stops
dispatching when it seals its next one, or forgets a bucket.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyroaring import BitMap

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.delayed_delivery.backlog import waiting_entries
from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.settings import TrackerSettings
from pulsar_sidecar.delayed_delivery.index.snapshot import NO_INDEXES, DelayedIndexes, joined
from pulsar_sidecar.delayed_delivery.index.stored import StoredIndex
from pulsar_sidecar.delayed_delivery.index.tracker.sealing import SealedIndexes, seal, sort_indexes
from pulsar_sidecar.model.errors import ConflictError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.lookups import demanded

_SEGMENTS_THAT_BREAK_A_MERGE: Final = 2
"""A load reads the first one; a broker of 4.0.8 that merges throws at a bucket with exactly one segment left to load.

It leaves a bucket alone that has none left.
"""


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """A bucket that does not exist yet."""

    key: BucketKey
    sealed: SealedIndexes

    @property
    def count(self) -> int:
        """How many messages it indexes."""
        return sum(map(len, self.sealed.segments))


@dataclass(frozen=True, slots=True)
class UnacknowledgedEntries:
    """One subscription's unacknowledged entries: in ledgers that no bucket covers, and ledgers that one does."""

    index: StoredIndex
    first_ledger: LedgerId
    uncovered: Mapping[LedgerId, BitMap]
    covered: tuple[LedgerId, ...]
    keys: tuple[BucketKey, ...]


def unacknowledged_of(index: StoredIndex, ledgers: Mapping[LedgerId, LedgerMetadata]) -> UnacknowledgedEntries:
    """What a subscription has not acknowledged of a topic's ledgers. Raises `TemporaryError` where that is unknown."""
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
    """What `build` writes for one subscription.

    Args:
        waiting: what the subscription has not acknowledged.
        left_out: ledgers with unacknowledged messages that get no index.
        delayed: the delayed messages of each other ledger.
        settings: of the brokers; of those that merge, the one that merges first.

    Raises:
        ConflictError: with these buckets the next one that a broker seals would have it merge.
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
    """Sealed as the tracker seals: at the first ledger after there are enough. What is left is sealed too.

    Each bucket begins with the first ledger after the one before, though that ledger gets no index: a broker that adds
    a message of a ledger without a bucket seals a bucket from there on, over those that follow, and then never loads
    the rest of these (4.0.8). Messages of a ledger within a bucket it keeps in memory only.
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
    """Ascending ledgers that no bucket covers, in stretches without a bucket between two of them."""
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
