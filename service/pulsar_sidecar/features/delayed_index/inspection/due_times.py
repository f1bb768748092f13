"""Due times from buckets, so that entries with other due times need not be read.

Invariants: an entry is excluded only by its own bit together with the due times in the bucket; entries without a bit
(late messages of covered ledgers, and entries that no bucket covers) never are. An unreadable part of a bucket excludes
nothing.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from pyroaring import BitMap

from pulsar_sidecar.backlog.waiting import minus
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.ports import BucketEntries
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes, SegmentMetadata, segment_metadata_of
from pulsar_sidecar.features.delayed_index.stored import StoredBucket, StoredIndexes, decode_stored_segment
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.names import TopicName

_SEGMENTS_AT_ONCE: Final = 100

Bits = dict[LedgerId, BitMap]


@dataclass(frozen=True, slots=True)
class _Segment:
    metadata: SegmentMetadata
    ledger: LedgerMetadata
    position: Position


@dataclass(frozen=True, slots=True)
class BucketDueTimes:
    """`backlog.ports.DueTimes`, from the buckets of all of a topic's subscriptions."""

    stored: StoredIndexes
    entries: BucketEntries

    def outside(self, topic: TopicName, from_ms: int | None, to_ms: int | None) -> Mapping[LedgerId, BitMap]:
        if from_ms is None and to_ms is None:
            return {}
        first = 0 if from_ms is None else from_ms
        end = 2**63 if to_ms is None else to_ms
        outside: Bits = defaultdict(BitMap)
        inside: Bits = defaultdict(BitMap)
        partly = []
        for segment in chain.from_iterable(map(_readable_segments, self.stored.buckets(topic))):
            earliest, latest = segment.metadata.min_schedule_timestamp, segment.metadata.max_schedule_timestamp
            if latest < first or earliest >= end:
                _add(outside, segment.metadata.bitmaps)
            elif first <= earliest and latest < end:
                _add(inside, segment.metadata.bitmaps)
            else:
                partly.append(segment)
        for segment, indexes in self._read(partly):
            wrong = (indexes.deliver_at_ms < first) | (indexes.deliver_at_ms >= end)
            _add(outside, _in_both(indexes[wrong], segment.metadata))
            _add(inside, _in_both(indexes[~wrong], segment.metadata))
        # An entry on which two buckets disagree is read.
        return minus(outside, inside)

    def _read(self, segments: list[_Segment]) -> Iterator[tuple[_Segment, DelayedIndexes]]:
        rest = iter(segments)
        while some := list(islice(rest, _SEGMENTS_AT_ONCE)):
            ledgers = {segment.position.ledger_id: segment.ledger for segment in some}
            payloads = self.entries.read(ledgers, [segment.position for segment in some])
            for segment in some:
                indexes = decode_stored_segment(payloads[segment.position])
                if isinstance(indexes, DelayedIndexes):  # otherwise its entries are read
                    yield segment, indexes


def _readable_segments(bucket: StoredBucket) -> Iterator[_Segment]:
    key, ledger, snapshot = bucket.key, bucket.ledger, bucket.snapshot
    if not (isinstance(key, BucketKey) and isinstance(ledger, LedgerMetadata) and isinstance(snapshot, tuple)):
        return
    for number, metadata in enumerate(snapshot, 1):
        ordered = metadata.min_schedule_timestamp <= metadata.max_schedule_timestamp
        if ordered and all(ledger_id in key for ledger_id in metadata.bitmaps):
            yield _Segment(metadata, ledger, Position(bucket.ledger_id, EntryId(number)))


def _in_both(indexes: DelayedIndexes, metadata: SegmentMetadata) -> Mapping[LedgerId, BitMap]:
    if not len(indexes):
        return {}
    found = segment_metadata_of(indexes).bitmaps
    return {ledger_id: entries & metadata.bitmaps.get(ledger_id, BitMap()) for ledger_id, entries in found.items()}


def _add(bits: Bits, more: Mapping[LedgerId, BitMap]) -> None:
    for ledger_id, entries in more.items():
        bits[ledger_id] |= entries
